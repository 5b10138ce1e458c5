//! The tool `tender`; all of it is in [`tender_client::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    tender_client::cli::run(std::env::args_os())
}
