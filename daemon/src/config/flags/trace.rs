//! Traces.

use clap::Args;
use serde::Deserialize;
use tender_trace::{Endpoint, Ratio, TraceConfig};

use super::shown::{Change, shown};

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Traces (docs/tracing.md)")]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct TraceSettings {
    /// Send spans to this collector, which takes OTLP over gRPC: http://HOST:PORT. It need not be there, and nobody waits
    /// for it.
    #[arg(
        id = "trace-endpoint",
        long = "trace-endpoint",
        value_name = "URL",
        env = "TENDERD_TRACE_ENDPOINT"
    )]
    pub(in crate::config) endpoint: Option<Endpoint>,
    /// Of the calls whose caller says nothing of a trace, record this share, 0 to 1. Those whose caller does are
    /// recorded as it says.
    #[arg(id = "trace-ratio", long = "trace-ratio", value_name = "SHARE", env = "TENDERD_TRACE_RATIO")]
    pub(in crate::config) ratio: Option<Ratio>,
}

impl TraceSettings {
    pub(in crate::config) fn config(&self) -> TraceConfig {
        TraceConfig { endpoint: self.endpoint.clone(), ratio: self.ratio.unwrap_or_default() }
    }
}
overlay!(TraceSettings { endpoint, ratio } {});
