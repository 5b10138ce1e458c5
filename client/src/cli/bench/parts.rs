//! Parts of the daemon without the daemon: index, allocator and re-attach. The tool does not link the daemon, so a program of
//! the test crate measures them; it lies beside `tender` where the workspace was built.

use std::process::{Command, Stdio};

use super::daemon::beside_us;
use super::report::Report;
use super::{Scene, failed};
use crate::error::ClientError;

const PROGRAM: &str = "tender-bench-parts";

pub(super) fn measure(scene: &Scene, report: &mut Report) -> Result<(), ClientError> {
    let mut command = Command::new(beside_us(PROGRAM));
    command.args(scene.sizes.quick.then_some("--quick")).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            report.notes.push(format!(
                "{PROGRAM} is not beside tender: the rows of index, allocator and re-attach are left out. Build it with \
                 `cargo build --release -p tender-tests --bin {PROGRAM}`."
            ));
            return Ok(());
        }
        Err(error) => return Err(failed(PROGRAM, error)),
    };
    if !output.status.success() {
        return Err(failed(PROGRAM, format!("it ended with {}; its message is above", output.status)));
    }
    let Report { rows, notes } =
        serde_json::from_slice(&output.stdout).map_err(|error| failed(PROGRAM, error))?;
    report.rows.extend(rows);
    report.notes.extend(notes);
    Ok(())
}
