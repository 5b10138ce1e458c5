//! Where the daemon is in its life.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Everybody who must know watches this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Sockets are open, the arena is not there yet or its pages are still being touched.
    Starting,
    /// All is well.
    Serving,
    /// Told to stop: nothing new begins, and what runs may end within the grace time.
    Draining {
        /// How long that is.
        grace: Duration,
    },
    /// Another daemon takes over: as when draining, but who connects now waits for that one.
    HandingOver {
        /// How long what runs may go on.
        grace: Duration,
    },
    /// Over.
    Stopped,
}

impl Phase {
    /// Whether new clients are welcome.
    pub fn is_ready(self) -> bool {
        self == Self::Serving
    }
    /// Whether connections are accepted, if only to hear a no.
    pub fn accepts(self) -> bool {
        match self {
            Self::Starting | Self::Serving | Self::Draining { .. } => true,
            Self::HandingOver { .. } | Self::Stopped => false,
        }
    }
    /// For a person who asks a probe.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Starting => "not ready: the arena is being prepared",
            Self::Serving => "ready",
            Self::Draining { .. } => "not ready: about to stop",
            Self::HandingOver { .. } => "not ready: another tenderd takes over",
            Self::Stopped => "not ready: stopped",
        }
    }
}

/// SIGTERM and SIGINT, which mean the same: stop in order. The second one means at once.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }
    /// The name of the next one.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
