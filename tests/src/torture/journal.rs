//! What a client says on its standard output, a line each and written at once: what it was told by the daemon is known
//! even if the client is killed in the next moment.

use std::collections::BTreeMap;
use std::io::Write;

use super::space::Key;

/// When something was done: not before the first and not after the second, in microseconds of the clock that all
/// processes of the host share.
pub type Span = (u64, u64);

/// Now, by that clock.
pub fn now_us() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a monotonic clock");
    u64::try_from(std::time::Duration::from(now).as_micros()).expect("fits for half a million years")
}

/// One line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A store of this coverage is about to begin, with bytes of this epoch.
    Try(Key, u64, u64),
    /// The daemon said READY: of a store, or in a lookup.
    Ready(Key, u64, u64, Span),
    /// What the client does from now on.
    At(String),
    /// It has stopped, and holds nothing.
    Paused,
    /// Counts since it last said so.
    Counts(BTreeMap<String, u64>),
}

impl Event {
    /// Reads a line.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "try" => match numbers(rest)?[..] {
                [.., coverage, epoch] => Some(Self::Try(key(rest)?, coverage, epoch)),
                _ => None,
            },
            "ready" => match numbers(rest)?[..] {
                [.., coverage, epoch, from, to] => Some(Self::Ready(key(rest)?, coverage, epoch, (from, to))),
                _ => None,
            },
            "at" => Some(Self::At(rest.into())),
            "paused" => Some(Self::Paused),
            "counts" => {
                let pair = |word: &str| {
                    let (name, value) = word.split_once('=')?;
                    Some((name.replace('_', " "), value.parse().ok()?))
                };
                rest.split_whitespace().map(pair).collect::<Option<_>>().map(Self::Counts)
            }
            _ => None,
        }
    }

    /// Writes it as one line, past every buffer.
    pub fn say(&self) {
        let line = match self {
            Self::Try(key, coverage, epoch) => format!("try {}", words(*key, *coverage, *epoch)),
            Self::Ready(key, coverage, epoch, (from, to)) => {
                format!("ready {} {from} {to}", words(*key, *coverage, *epoch))
            }
            Self::At(what) => format!("at {what}"),
            Self::Paused => "paused".into(),
            Self::Counts(counts) => {
                let words: Vec<_> = counts
                    .iter()
                    .map(|(name, value)| format!("{}={value}", name.replace(' ', "_")))
                    .collect();
                format!("counts {}", words.join(" "))
            }
        };
        let mut out = std::io::stdout().lock();
        // Whoever listened is gone: so are we, soon.
        _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
    }
}

fn words(key: Key, coverage: u64, epoch: u64) -> String {
    format!("{} {} {} {coverage} {epoch}", key.namespace, key.group, key.n)
}

fn numbers(rest: &str) -> Option<Vec<u64>> {
    rest.split(' ').map(|word| word.parse().ok()).collect()
}

fn key(rest: &str) -> Option<Key> {
    let [namespace, group, n, ..] = numbers(rest)?[..] else { return None };
    Some(Key { namespace: usize::try_from(namespace).ok()?, group: u16::try_from(group).ok()?, n })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let key = Key { namespace: 2, group: 1, n: 7 };
        assert_eq!(Event::parse(&format!("try {}", words(key, 5, 9))), Some(Event::Try(key, 5, 9)));
        let ready = format!("ready {} 100 200", words(key, 5, 9));
        assert_eq!(Event::parse(&ready), Some(Event::Ready(key, 5, 9, (100, 200))));
        assert_eq!(Event::parse("at put"), Some(Event::At("put".into())));
        let counts = BTreeMap::from([("parts stored".into(), 3)]);
        assert_eq!(Event::parse("counts parts_stored=3"), Some(Event::Counts(counts)));
        assert_eq!(Event::parse("try 1"), None);
        assert_eq!(Event::parse("what"), None);
    }
}
