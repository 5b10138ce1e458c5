//! What was refused to whom: one structured line now and then, and a count of all.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tender_proto::Reason;

/// One line for each caller and reason in this time.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// Callers that lines are kept apart for; beyond them all others share one line.
const MAX_CALLERS: usize = 1024;
/// The name that they are counted and logged under then.
const OTHERS: &str = "others";

/// Counts by tenant and reason, and when each caller was last written about.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    counts: Mutex<BTreeMap<(String, Reason), u64>>,
    said: Mutex<BTreeMap<(String, Reason), (Instant, u64)>>,
}

/// One refusal.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    /// As the connection or the token says.
    pub(crate) caller: &'a str,
    /// `-` where the caller belongs to none.
    pub(crate) tenant: &'a str,
    pub(crate) call: &'static str,
    pub(crate) reason: Reason,
    pub(crate) why: &'a str,
}

impl Audit {
    pub(crate) fn write(&self, line: &Line<'_>) {
        *self.counts.lock().entry((line.tenant.to_owned(), line.reason)).or_default() += 1;
        if let Some(left_out) = self.due(line.caller, line.reason, Instant::now()) {
            let Line { caller, tenant, call, reason, why } = line;
            tracing::warn!(target: "tender::audit", caller, tenant, call, %reason, left_out, "refused: {why}");
        }
    }

    /// By tenant and reason.
    pub(crate) fn counts(&self) -> Vec<(String, Reason, u64)> {
        let counts = self.counts.lock();
        counts.iter().map(|((tenant, reason), count)| (tenant.clone(), *reason, *count)).collect()
    }

    /// How many were left out since the caller's last line, if it is time for one.
    fn due(&self, caller: &str, reason: Reason, now: Instant) -> Option<u64> {
        let mut said = self.said.lock();
        let mut key = (caller.to_owned(), reason);
        if said.len() >= MAX_CALLERS && !said.contains_key(&key) {
            said.retain(|_, (last, _)| now.saturating_duration_since(*last) < LOG_EVERY);
            if said.len() >= MAX_CALLERS {
                OTHERS.clone_into(&mut key.0);
            }
        }
        match said.get_mut(&key) {
            Some((last, left_out)) if now.saturating_duration_since(*last) < LOG_EVERY => {
                *left_out += 1;
                None
            }
            _ => Some(said.insert(key, (now, 0)).map_or(0, |(_, left_out)| left_out)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_and_many_callers_do_not_fill_the_memory() {
        let (audit, now) = (Audit::default(), Instant::now());
        assert_eq!(audit.due("uid:1", Reason::NotAllowed, now), Some(0));
        assert_eq!(audit.due("uid:1", Reason::NotAllowed, now), None);
        assert_eq!(audit.due("uid:2", Reason::NotAllowed, now), Some(0), "others are not held back");
        for n in 0..10 * MAX_CALLERS {
            audit.due(&format!("dns:{n}"), Reason::NotAllowed, now);
        }
        assert!(audit.said.lock().len() <= MAX_CALLERS + 1);
        assert_eq!(audit.due("uid:1", Reason::NotAllowed, now + LOG_EVERY), Some(1));
    }
}
