//! The Python extension `tender_kv._native`: what of the Rust client an engine's Python code calls.
//!
//! ```text
//! scheduler process: inputs -> scheduler        worker process: layout -> descriptor -> worker
//! ```
//!
//! It converts and delegates; it decides nothing. Every call that may take longer than a lock gives the
//! interpreter back meanwhile. `fingerprint` names files by content, `programs` carries the tool and the daemon,
//! `error` turns this crate's and the client's errors into Python exceptions.

mod descriptor;
mod error;
mod fingerprint;
mod inputs;
mod layout;
mod programs;
mod scheduler;
mod worker;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::descriptor::{chunk_blocks, describe};
    #[pymodule_export]
    use super::error::{ConfigError, LayoutError, RefusedError, TenderError};
    #[pymodule_export]
    use super::fingerprint::Fingerprint;
    #[pymodule_export]
    use super::layout::Layout;
    #[pymodule_export]
    use super::programs::{run_daemon, run_tool};
    #[pymodule_export]
    use super::scheduler::{Scheduler, default_plan_config};
    #[pymodule_export]
    use super::worker::{Worker, check_config, default_client_config, plan_requests};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Sends the client's events to stderr, where engines log too. `TENDER_LOG` chooses, as `RUST_LOG` does for
/// other programs; warnings and errors by default. They do not go through Python's logging: client threads log
/// without the interpreter, also while it is shutting down. Begun with the first client, since a daemon that runs in
/// this process logs as its own settings say.
pub(crate) fn start_log() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("TENDER_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    // It fails only if the process has a subscriber already, which is then the one to use.
    _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
