//! `Worker`: one rank's half of a client.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use tender_client::copy::EngineStream;
use tender_client::plan::{PlanConfig, StepPlan};
use tender_client::{ClientConfig, WorkerSide};

use crate::descriptor;
use crate::error::{ConfigError, TenderError, client_error};
use crate::layout::Layout;

/// The default client settings as JSON, whose keys are all there are.
#[pyfunction]
pub(crate) fn default_client_config() -> PyResult<String> {
    serde_json::to_string(&ClientConfig::default()).map_err(|error| ConfigError::new_err(error.to_string()))
}

/// Refuses client or plan settings that cannot work.
#[pyfunction]
pub(crate) fn check_config(client_config: &str, plan_config: &str) -> PyResult<()> {
    parse_client_config(client_config)?;
    parse_plan_config(plan_config).map(|_| ())
}

pub(crate) fn parse_plan_config(json: &str) -> PyResult<PlanConfig> {
    serde_json::from_str(json).map_err(|error| ConfigError::new_err(error.to_string()))
}

pub(crate) fn parse_client_config(json: &str) -> PyResult<ClientConfig> {
    let config: ClientConfig =
        serde_json::from_str(json).map_err(|error| ConfigError::new_err(error.to_string()))?;
    config.check().map_err(client_error)?;
    Ok(config)
}

/// The requests a plan loads for. A caller that waits for each of its loads compares, since a load that is in no
/// plan is never reported.
#[pyfunction]
pub(crate) fn plan_requests(plan: &[u8]) -> PyResult<Vec<String>> {
    let plan = StepPlan::decode(plan).map_err(|error| TenderError::new_err(error.to_string()))?;
    Ok(plan.loads.into_iter().map(|job| job.request).collect())
}

/// Moves the bytes that step plans name.
#[pyclass(frozen, module = "tender_kv._native")]
#[derive(Debug)]
pub(crate) struct Worker {
    // Before `_tensors`: its drop ends the threads that use them.
    side: WorkerSide,
    _tensors: Py<PyAny>,
}

#[pymethods]
impl Worker {
    /// `client_config` is a JSON object. The layout lies in host memory, or in that of a CUDA device. Raises
    /// ConfigError and RefusedError.
    #[new]
    #[pyo3(signature = (client_config, descriptor, layout, cuda_index=None))]
    fn new(
        py: Python<'_>,
        client_config: &str,
        descriptor: &[u8],
        layout: Bound<'_, Layout>,
        cuda_index: Option<u32>,
    ) -> PyResult<Self> {
        crate::start_log();
        let config = parse_client_config(client_config)?;
        let descriptor = Arc::new(descriptor::parse(descriptor)?);
        let proved = Arc::clone(&layout.get().proved);
        let side = py.detach(|| match cuda_index {
            None => WorkerSide::new(config, descriptor, proved),
            Some(index) => WorkerSide::on_cuda(index, config, descriptor, proved),
        });
        let side = side.map_err(client_error)?;
        Ok(Self { side, _tensors: layout.get().owner.clone_ref(py) })
    }

    /// Before the forward pass, which runs on `stream`: gathers what became final by finishing, then begins the loads.
    #[pyo3(signature = (plan, stream=0))]
    fn begin_step(&self, py: Python<'_>, plan: &[u8], stream: u64) {
        py.detach(|| self.side.begin_step_on(plan, EngineStream(stream)));
    }

    /// After the forward pass was begun on `stream`: gathers what it makes final.
    #[pyo3(signature = (plan, stream=0))]
    fn end_step(&self, py: Python<'_>, plan: &[u8], stream: u64) {
        py.detach(|| self.side.end_step_on(plan, EngineStream(stream)));
    }

    /// Loads that are over since the last call: request, blocks that did not get their bytes, whether it failed.
    fn poll(&self, py: Python<'_>) -> Vec<(String, Vec<u32>, bool)> {
        let done = py.detach(|| self.side.poll());
        done.into_iter().map(|load| (load.request, load.failed_blocks, load.failed)).collect()
    }

    /// Waits until all that was gathered is stored or skipped and all loads are over. False: not within the limit.
    fn flush(&self, py: Python<'_>, limit_seconds: f64) -> PyResult<bool> {
        let limit = Duration::try_from_secs_f64(limit_seconds)
            .map_err(|error| ConfigError::new_err(format!("{limit_seconds} s to wait: {error}")))?;
        Ok(py.detach(|| self.side.flush(limit)))
    }

    /// This moment's numbers as JSON.
    fn counters_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.side.counters()).map_err(|error| ConfigError::new_err(error.to_string()))
    }

    /// Ends the session and the threads; what is not over fails. Then nothing touches the tensors any more.
    fn shutdown(&self, py: Python<'_>) {
        py.detach(|| self.side.shutdown());
    }
}
