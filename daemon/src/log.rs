//! Log lines on standard error: text for people or JSON for collectors, and a level that may change.

use std::fmt;
use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::SystemTime;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use crate::config::LogFormat;

type SetFilter = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

/// Of the program's one log.
static FILTER: OnceLock<SetFilter> = OnceLock::new();

/// UTC to the millisecond: what lines of several hosts are put in order by, and no longer than that needs.
struct Millis;

impl FormatTime for Millis {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{}", humantime::format_rfc3339_millis(SystemTime::now()))
    }
}

/// Starts the log. It goes to standard error, so that standard output stays free for whoever wraps the program. The level
/// was checked with the configuration. A second log in one process, as in a test, is not an error and changes nothing.
pub(crate) fn start(format: LogFormat, level: &str) {
    let filter = EnvFilter::try_new(level).unwrap_or_default();
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_timer(Millis);
    match format {
        LogFormat::Text => {
            let log =
                log.with_ansi(std::io::stderr().is_terminal()).with_target(false).with_filter_reloading();
            let handle = log.reload_handle();
            keep(log.try_init().is_ok(), move |filter| handle.reload(filter).is_ok());
        }
        LogFormat::Json => {
            let log = log.json().flatten_event(true).with_filter_reloading();
            let handle = log.reload_handle();
            keep(log.try_init().is_ok(), move |filter| handle.reload(filter).is_ok());
        }
    }
}

fn keep(is_ours: bool, set: impl Fn(EnvFilter) -> bool + Send + Sync + 'static) {
    if is_ours {
        _ = FILTER.set(Box::new(set));
    }
}

/// Lines of this level and above are written from now on. Nothing happens where the log is somebody else's.
pub(crate) fn set_level(level: &str) {
    let (Some(set), Ok(filter)) = (FILTER.get(), EnvFilter::try_new(level)) else { return };
    if !set(filter) {
        tracing::warn!(level, "the log's level stays as it is");
    }
}
