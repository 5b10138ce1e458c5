//! How long calls kept their thread waiting, the time left out in which the thread could run and another had the
//! processor: that is the machine's doing, and tests share theirs.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The longest call of each kind.
#[derive(Debug, Default)]
pub struct Watch(Mutex<BTreeMap<&'static str, Duration>>);

impl Watch {
    /// Makes a call and remembers how long it took if none of its kind took longer.
    pub fn time<T>(&self, what: &'static str, call: impl FnOnce() -> T) -> T {
        // The outer pair of readings, so that what lies between a reading and its neighbour is the machine's too.
        let queued_before = queued();
        let begin = Instant::now();
        let done = call();
        let took = begin.elapsed();
        let took = took.saturating_sub(queued().saturating_sub(queued_before));
        let mut longest = self.0.lock().expect("no panic while it is held");
        let slot = longest.entry(what).or_default();
        *slot = took.max(*slot);
        done
    }

    /// The longest call of each kind since the last time this was asked.
    pub fn take(&self) -> BTreeMap<&'static str, Duration> {
        std::mem::take(&mut self.0.lock().expect("no panic while it is held"))
    }
}

/// How long this thread has waited for a processor since it began.
fn queued() -> Duration {
    // Kernels that do not keep this number make the measurement stricter, not looser.
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_counts_and_is_kept_by_kind() {
        let watch = Watch::default();
        for millis in [5, 30, 10] {
            watch.time("sleep", || std::thread::sleep(Duration::from_millis(millis)));
        }
        watch.time("nothing", || ());
        let longest = watch.take();
        assert!(longest["sleep"] >= Duration::from_millis(25), "{longest:?}");
        assert!(longest["nothing"] < longest["sleep"]);
        assert!(watch.take().is_empty());
    }
}
