//! Files that are read again while the daemon runs. On SIGHUP all of them: certificates, the policy, the configuration.
//! Certificates and policy also when they have changed, which is looked for every other second. A file that cannot be used
//! is refused, logged and counted, and what was in force stays so.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::access::Access;
use crate::config::{Change, Config};
use crate::engine::{Engine, Limits};
use crate::log;
use crate::metrics::Metrics;
use crate::tls::Tls;

/// How often files are looked at. A renewed certificate has days.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What is kept up to date.
pub(crate) struct Reload {
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) access: Arc<Access>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) metrics: Arc<Metrics>,
    /// What is in force, with where it was read.
    pub(crate) in_force: Arc<Mutex<Config>>,
}

impl Reload {
    /// Runs until it is dropped. Without files it does nothing, but from the call on SIGHUP ends no daemon.
    pub(crate) fn watch(self) -> impl Future<Output = ()> {
        let hangup = signal(SignalKind::hangup());
        async move {
            match hangup {
                Ok(hangup) => self.follow(hangup).await,
                Err(error) => tracing::warn!(%error, "changed files are not read again"),
            }
        }
    }

    async fn follow(self, mut hangup: Signal) {
        let certificates = self.tls.as_ref().map(|tls| tls.files()).unwrap_or_default();
        let policy: Vec<_> = self.access.path().cloned().into_iter().collect();
        let mut seen = (stamps(&certificates), stamps(&policy));
        let mut tick = tokio::time::interval(LOOK_EVERY);
        loop {
            let told = tokio::select! {
                _ = tick.tick() => false,
                _ = hangup.recv() => true,
            };
            // Looked at before they are read: what changes meanwhile is read once more.
            let (new_certificates, new_policy) = (stamps(&certificates), stamps(&policy));
            if told || new_certificates != seen.0 {
                self.certificates();
            }
            if told || new_policy != seen.1 {
                self.policy();
            }
            if told {
                self.configuration();
            }
            seen = (new_certificates, new_policy);
        }
    }

    fn configuration(&self) {
        let source = self.in_force.lock().source.clone();
        let Some(file) = source.file().map(|file| file.display().to_string()) else { return };
        let reread = source.reread();
        self.metrics.reloaded("configuration", reread.is_ok());
        match reread {
            Ok(Some(reread)) => {
                self.engine.set_limits(Limits::from(&reread.config.engine));
                log::set_level(&reread.config.log_level);
                *self.in_force.lock() = reread.config;
                say(&file, &reread.changes);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%error, "the changed configuration is refused; nothing of it is used")
            }
        }
    }

    fn certificates(&self) {
        let Some(tls) = &self.tls else { return };
        let loaded = tls.reload();
        self.metrics.reloaded("certificate", loaded.is_ok());
        match loaded {
            Ok(()) => tracing::info!("new connections get the new certificate"),
            Err(error) => tracing::error!(%error, "the new certificate is refused; the old one stays"),
        }
    }

    fn policy(&self) {
        if self.access.path().is_none() {
            return;
        }
        let loaded = self.access.reload();
        self.metrics.reloaded("policy", loaded.is_ok());
        match loaded {
            Ok(()) => {
                self.engine.set_quotas(self.access.quotas());
                tracing::info!("the new policy is in force");
            }
            Err(error) => tracing::error!(%error, "the new policy is refused; the old one stays"),
        }
    }
}

/// What a changed file has changed, and what not: each key by its name.
fn say(file: &str, changes: &[Change]) {
    for Change { key, old, new, used } in changes {
        if *used {
            tracing::info!(key, old, new, "the configuration has changed");
        } else {
            tracing::warn!(key, old, new, "a change of this key is not used: it needs a restart");
        }
    }
    let used = changes.iter().filter(|change| change.used).count();
    tracing::info!(file, used, refused = changes.len() - used, "the configuration was read again");
}

/// What changes when a file does, also by a link that leads elsewhere. `None` for a file that is not there.
type Stamp = Option<(u64, u64, u64, SystemTime)>;

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.dev(), file.ino(), file.len(), file.modified().ok()?))
    };
    paths.iter().map(stamp).collect()
}
