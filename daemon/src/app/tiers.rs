//! Which tiers this daemon has, and when they begin and end.

use std::sync::Arc;
use std::time::Instant;

use super::{AppError, RunningApp};
use crate::config::Config;
use crate::engine::Engine;
use crate::tier::{Stack, Tier};

/// The tiers that are configured, in the order in which they are asked: disk, peers, shared.
#[expect(clippy::unused_async, reason = "tiers are opened here")]
async fn tiers_of(_config: &Config) -> Result<Vec<Arc<dyn Tier>>, AppError> {
    Ok(Vec::new())
}

/// Opens them over an engine; `None` where none is configured.
pub(super) async fn open(config: &Config, engine: &Arc<Engine>) -> Result<Option<Arc<Stack>>, AppError> {
    let tiers = tiers_of(config).await?;
    if tiers.is_empty() {
        return Ok(None);
    }
    let stack = Stack::open(engine, tiers, config.stack.clone()).map_err(AppError::Tiers)?;
    Ok(Some(Arc::new(stack)))
}

impl RunningApp {
    /// What the daemon's own session holds now: sessions, leases, reservations.
    pub(super) fn held_by_tiers(&self) -> (u64, u64, u64) {
        self.stack.as_ref().map_or((0, 0, 0), |stack| stack.held())
    }

    /// The daemon ends: the tiers have until the deadline to bring to an end what would be lost.
    pub(super) async fn drain_tiers(&self, deadline: Instant) {
        if let Some(stack) = &self.stack {
            stack.drain(deadline).await;
            stack.stop().await;
        }
    }

    /// The tiers are another daemon's from now on.
    pub(super) async fn stop_tiers(&mut self) {
        if let Some(stack) = self.stack.take() {
            stack.stop().await;
        }
    }
}
