//! `tenderd`. See the library for what it is made of.

use std::process::ExitCode;

fn main() -> ExitCode {
    tender_daemon::run(std::env::args_os())
}
