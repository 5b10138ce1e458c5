//! The tool `tender` and the daemon `tenderd`, carried by the wheel so that one installation has everything.

use std::process::ExitCode;

use pyo3::prelude::*;

/// Runs `tender` with these arguments, the first being its own name. Returns its exit code.
#[pyfunction]
pub(crate) fn run_tool(py: Python<'_>, arguments: Vec<String>) -> u8 {
    py.detach(|| number(tender_client::cli::run(arguments)))
}

/// Runs `tenderd` with these arguments until it is told to end. Returns its exit code.
#[pyfunction]
pub(crate) fn run_daemon(py: Python<'_>, arguments: Vec<String>) -> u8 {
    py.detach(|| number(tender_daemon::run(arguments.into_iter().map(Into::into))))
}

/// An exit code can be compared but not read.
fn number(code: ExitCode) -> u8 {
    (0..=u8::MAX).find(|&number| ExitCode::from(number) == code).unwrap_or(1)
}
