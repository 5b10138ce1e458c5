//! `Scheduler`: the scheduler process's half of a client.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tender_client::hash::Uncacheable;
use tender_client::plan::{BlockUpdate, Finish, PlanConfig, ScheduledRequest, StateHandoff, StepInput};
use tender_client::{Match, SchedulerSide};
use tender_proto::ChunkId;

use crate::descriptor;
use crate::error::{ConfigError, client_error};
use crate::inputs::{self, Media, Named};
use crate::worker::{parse_client_config, parse_plan_config};

/// Id, tokens computed before the step, tokens scheduled, real tokens not given yet, block ids for each group,
/// whether these replace the block table (else they are appended), recurrent states at boundaries.
type Scheduled = (String, u64, u64, Vec<u32>, Vec<Vec<u32>>, bool, Vec<State>);

/// Group, block, tokens that the state has seen.
type State = (u16, u32, u64);

/// Group, hash, coverage.
type Change<'py> = (u16, Bound<'py, PyBytes>, Option<u64>);

/// The default plan settings as JSON, whose keys are all there are.
#[pyfunction]
pub(crate) fn default_plan_config() -> PyResult<String> {
    serde_json::to_string(&PlanConfig::default()).map_err(|error| ConfigError::new_err(error.to_string()))
}

/// Asks how much of a prompt the daemon holds, and plans what moves.
#[pyclass(frozen, module = "tender_kv._native")]
#[derive(Debug)]
pub(crate) struct Scheduler(SchedulerSide);

#[pymethods]
impl Scheduler {
    /// Both settings are JSON objects. Raises ConfigError.
    #[new]
    fn new(py: Python<'_>, client_config: &str, plan_config: &str) -> PyResult<Self> {
        crate::start_log();
        let client = parse_client_config(client_config)?;
        let plan = parse_plan_config(plan_config)?;
        py.detach(|| SchedulerSide::new(client, plan)).map(Self).map_err(client_error)
    }

    /// What the workers registered. Nothing matches before.
    fn set_descriptor(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<()> {
        let descriptor = descriptor::parse(bytes)?;
        py.detach(|| self.0.set_descriptor(descriptor)).map_err(client_error)
    }

    /// A request whose inputs all have content names.
    fn new_request(
        &self,
        py: Python<'_>,
        id: &str,
        prompt_tokens: u64,
        named: Vec<Named>,
        media: Vec<Media>,
    ) -> PyResult<()> {
        let inputs = inputs::parse(named, media)?;
        py.detach(|| self.0.new_request(id, prompt_tokens, inputs));
        Ok(())
    }

    /// A request with an input that has none: counted, and neither looked up nor stored.
    fn new_uncacheable_request(&self, py: Python<'_>, id: &str, prompt_tokens: u64, why: String) {
        py.detach(|| self.0.new_request(id, prompt_tokens, Err(Uncacheable::Unnamed { what: why })));
    }

    /// The engine traces this request, which came in just now: a W3C traceparent.
    fn trace_request(&self, py: Python<'_>, id: &str, traceparent: &str) {
        py.detach(|| self.0.trace_request(id, traceparent));
    }

    /// Tokens beyond `computed` that the daemon holds; None: ask again later.
    fn match_prefix(&self, py: Python<'_>, id: &str, tokens: Vec<u32>, computed: u64) -> Option<u64> {
        match py.detach(|| self.0.match_prefix(id, &tokens, computed)) {
            Match::Hit(tokens) => Some(tokens),
            Match::Later => None,
            Match::None => Some(0),
        }
    }

    /// Whether match_prefix, which said None, would still say so. Needs no tokens.
    fn still_waits(&self, py: Python<'_>, id: &str) -> bool {
        py.detach(|| self.0.still_waits(id))
    }

    /// The engine gave the request these blocks (its whole table, by group) and takes so many tokens of the match.
    fn allocated(&self, py: Python<'_>, id: &str, blocks: Vec<Vec<u32>>, external_tokens: u64) {
        py.detach(|| self.0.allocated(id, &blocks, external_tokens));
    }

    /// Plans a step; the result goes to every worker.
    fn step<'py>(
        &self,
        py: Python<'py>,
        requests: Vec<Scheduled>,
        preempted: Vec<String>,
    ) -> Bound<'py, PyBytes> {
        let plan = py.detach(|| {
            let requests = requests.into_iter().map(scheduled).collect();
            self.0.step(StepInput { requests, preempted })
        });
        PyBytes::new(py, &plan)
    }

    /// A request is over. `blocks` is its table at the end, `tail_tokens` the real tokens not given yet.
    #[expect(clippy::too_many_arguments, reason = "the fields of Finish, named at the call in Python")]
    #[pyo3(signature = (id, *, num_tokens, prompt_tokens, computed_tokens, aborted, blocks, tail_tokens))]
    fn finished(
        &self,
        py: Python<'_>,
        id: &str,
        num_tokens: u64,
        prompt_tokens: u64,
        computed_tokens: u64,
        aborted: bool,
        blocks: Vec<Vec<u32>>,
        tail_tokens: Vec<u32>,
    ) {
        let finish = Finish { num_tokens, prompt_tokens, computed_tokens, aborted, blocks, tail_tokens };
        py.detach(|| self.0.finished(id, finish));
    }

    /// The workers are done with these requests' loads, well or not.
    fn loads_finished(&self, py: Python<'_>, ids: Vec<String>) {
        py.detach(|| self.0.loads_finished(&ids));
    }

    /// From now on take_changes tells which chunks of this namespace the daemon holds.
    fn watch(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.watch()).map_err(client_error)
    }

    /// What the daemon has stored and lost since the last call: whether everything is to be forgotten first, then the
    /// group, hash and coverage of chunks; None: it is gone.
    fn take_changes<'py>(&self, py: Python<'py>) -> (bool, Vec<Change<'py>>) {
        let changes = py.detach(|| self.0.take_changes());
        let one = |(chunk, coverage): (ChunkId, Option<u64>)| {
            (chunk.group.0, PyBytes::new(py, chunk.hash.as_bytes()), coverage)
        };
        (changes.forget, changes.chunks.into_iter().map(one).collect())
    }

    /// Hashes of the whole chunks of a request whose tokens were given, by group.
    fn known_keys<'py>(&self, py: Python<'py>, id: &str) -> Vec<Vec<Bound<'py, PyBytes>>> {
        let keys = py.detach(|| self.0.known_keys(id));
        let hash = |chunk: ChunkId| PyBytes::new(py, chunk.hash.as_bytes());
        keys.into_iter().map(|group| group.into_iter().map(hash).collect()).collect()
    }

    /// Forgets everything stored in this namespace, here and at the daemon. False: the daemon was not reached.
    fn reset(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.reset())
    }

    /// This moment's numbers as JSON.
    fn counters_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.0.counters()).map_err(|error| ConfigError::new_err(error.to_string()))
    }

    /// Ends the session.
    fn shutdown(&self, py: Python<'_>) {
        py.detach(|| self.0.shutdown());
    }
}

fn scheduled(
    (id, computed_tokens, scheduled_tokens, new_tokens, blocks, replace, states): Scheduled,
) -> ScheduledRequest {
    let blocks = if replace { BlockUpdate::Replace(blocks) } else { BlockUpdate::Append(blocks) };
    let handoff = |(group, block, boundary_tokens): State| StateHandoff { group, block, boundary_tokens };
    let states = states.into_iter().map(handoff).collect();
    ScheduledRequest { id, computed_tokens, scheduled_tokens, new_tokens, blocks, states }
}
