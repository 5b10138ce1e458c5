//! The program: arguments in, exit code out. The Python wheel starts the same one.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use bytesize::ByteSize;

use crate::app::{AppError, HandedOver, RunningApp};
use crate::bus_error;
use crate::config::{Config, ConfigError};
use crate::log;
use crate::shutdown::Signals;

/// Wrong flags, variables or file (`EX_USAGE`).
const BAD_CONFIG: u8 = 64;
/// What may still run when everything has ended, before the process does.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// The configuration is fine, but the daemon cannot start with it here.
const CANNOT_START: u8 = 1;

/// After so many pieces of work a thread looks who has written to it. With the usual number a call would wait, while all
/// threads are busy with others' bytes, until sixty of their frames are done before anybody notices that it is there.
const EVENT_INTERVAL: u32 = 4;

/// Runs `tenderd` until it is told to stop. `args` begin with the program's name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let config = match Config::load(args) {
        Ok(config) => config,
        Err(ConfigError::Flags(error)) => {
            _ = error.print();
            return if error.use_stderr() { ExitCode::from(BAD_CONFIG) } else { ExitCode::SUCCESS };
        }
        Err(error) => {
            eprintln!("tenderd: {error}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    log::start(config.log_format, &config.log_level);
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Log and terminal are the same stream: once is enough.
            tracing::error!("cannot start: {error}");
            match error {
                AppError::Policy(_) | AppError::Tls(_) => ExitCode::from(BAD_CONFIG),
                _ => ExitCode::from(CANNOT_START),
            }
        }
    }
}

fn serve(config: Config) -> Result<(), AppError> {
    let system = |what| move |source| AppError::System { what, source };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.worker_threads)
        .thread_name("tenderd")
        .event_interval(EVENT_INTERVAL)
        .enable_all()
        .build()
        .map_err(system("threads"))?;
    let served = runtime.block_on(serve_on(config));
    // A thread that waits for a disk which hangs holds up nobody: the process ends without it.
    runtime.shutdown_timeout(LAST_MOMENT);
    served
}

/// Until it is told to stop.
async fn serve_on(config: Config) -> Result<(), AppError> {
    let system = |what| move |source| AppError::System { what, source };
    let mut signals = Signals::listen().map_err(system("signal handling"))?;
    let arena = config.engine.arena.clone();
    bus_error::explain(&arena.place).map_err(system("signal handling"))?;
    let mut app = tokio::select! {
        started = RunningApp::start(config) => started?,
        signal = signals.next() => {
            tracing::warn!(signal, "stopped before it served");
            return Ok(());
        }
    };
    let listen: Vec<_> = app.addresses().iter().map(ToString::to_string).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        listen = listen.join(" "),
        admin = app.admin_address().map(|address| address.to_string()),
        arena = %ByteSize(arena.bytes),
        place = %arena.place.display(),
        "tenderd serves"
    );
    let why = loop {
        let successor = tokio::select! {
            signal = signals.next() => break signal,
            () = app.unused() => break "no client for the configured time",
            () = app.drain_asked() => break "an operator asked for a drain",
            successor = app.successor() => successor,
        };
        let handed_over = tokio::select! {
            handed_over = app.hand_over(successor) => handed_over?,
            signal = signals.next() => {
                tracing::warn!(signal, "stopped at once, while another daemon was taking over");
                return Ok(());
            }
        };
        match handed_over {
            HandedOver::Given => {
                tracing::info!("another daemon serves in this one's place");
                return Ok(());
            }
            HandedOver::Kept(kept) => app = *kept,
        }
    };
    tracing::info!(why, "stopping");
    tokio::select! {
        () = app.shutdown() => tracing::info!("stopped"),
        signal = signals.next() => tracing::warn!(signal, "stopped at once"),
    }
    Ok(())
}
