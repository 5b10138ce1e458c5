//! `tender events`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use serde::Serialize;
use tender_proto::NamespaceDigest;

use super::Target;
use crate::error::ClientError;
use crate::events::{Batch, Change, EventStream, Stored, WatchOptions, Watched};

/// Nothing depends on it: the daemon tells something every few seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints what the daemon stores and loses, a line each, until it is stopped.
#[derive(Debug, clap::Args)]
pub(super) struct Events {
    /// One JSON object a line, for programs: digests in full.
    #[arg(long)]
    json: bool,
    /// Only this namespace, 64 hexadecimal digits; may be repeated.
    #[arg(long = "namespace", value_name = "DIGEST", value_parser = digest)]
    namespaces: Vec<NamespaceDigest>,
    /// Print what is there now, and end.
    #[arg(long)]
    snapshot: bool,
}

impl Events {
    pub(super) fn run(&self, target: &Target) -> Result<String, ClientError> {
        let options = WatchOptions { namespaces: self.namespaces.clone(), from: None };
        let mut stream = EventStream::open(&target.address, &target.credentials()?, options, target.timeout)?;
        let mut out = std::io::stdout().lock();
        loop {
            let Some(batch) = stream.next(PATIENCE)? else { continue };
            let text = self.lines(&batch)?;
            // A reader that went away wants no more.
            if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
                return Ok(String::new());
            }
            if self.snapshot && batch.complete {
                return Ok(String::new());
            }
        }
    }

    fn lines(&self, batch: &Batch) -> Result<String, ClientError> {
        let mut text = String::new();
        for line in lines(batch) {
            if self.json {
                let json = serde_json::to_string(&line)
                    .map_err(|error| ClientError::Start { what: "the JSON output", source: error.into() })?;
                text.push_str(&json);
                text.push('\n');
            } else {
                line.show(&mut text);
            }
        }
        Ok(text)
    }
}

fn digest(text: &str) -> Result<NamespaceDigest, String> {
    let bytes = hex::decode(text).map_err(|error| error.to_string())?;
    NamespaceDigest::parse(&bytes).map_err(|_| "a namespace has 64 hexadecimal digits".to_owned())
}

/// One line.
#[derive(PartialEq, Default, Debug, Serialize)]
struct Line {
    /// start, snapshot, stored, removed, cleared or complete.
    event: &'static str,
    /// Of a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    coverage: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    covered_tokens: Option<u64>,
    /// Of a start or a removal.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

fn lines(batch: &Batch) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(start) = batch.start {
        lines.push(Line { event: "start", reason: Some(start.label()), ..Line::default() });
    }
    lines.extend(batch.snapshot.iter().map(|stored| Line::stored("snapshot", None, stored)));
    for (sequence, change) in &batch.changes {
        let sequence = Some(*sequence);
        lines.push(match change {
            Change::Stored(stored) => Line::stored("stored", sequence, stored),
            Change::Removed { namespace, chunk, reason } => Line {
                group: Some(chunk.group.0),
                chunk: Some(hex::encode(chunk.hash.as_bytes())),
                reason: Some(reason.label()),
                ..Line::of("removed", sequence, namespace)
            },
            Change::Cleared(namespace) => Line::of("cleared", sequence, namespace),
        });
    }
    if batch.complete {
        lines.push(Line { event: "complete", sequence: Some(batch.next_sequence), ..Line::default() });
    }
    lines
}

impl Line {
    fn of(event: &'static str, sequence: Option<u64>, namespace: &Watched) -> Self {
        Self {
            event,
            sequence,
            namespace: Some(namespace.digest.to_hex()),
            model: Some(namespace.descriptor.model.clone()),
            ..Self::default()
        }
    }
    fn stored(event: &'static str, sequence: Option<u64>, stored: &Stored) -> Self {
        Self {
            group: Some(stored.chunk.group.0),
            chunk: Some(hex::encode(stored.chunk.hash.as_bytes())),
            coverage: Some(stored.coverage),
            covered_tokens: Some(stored.covered_tokens),
            ..Self::of(event, sequence, &stored.namespace)
        }
    }

    fn show(&self, text: &mut String) {
        let short = |digits: &str| digits.get(..12).unwrap_or(digits).to_owned();
        let sequence = self.sequence.map_or_else(|| "-".to_owned(), |sequence| sequence.to_string());
        _ = write!(text, "{sequence:>10} {:<8}", self.event);
        if let (Some(namespace), Some(model)) = (&self.namespace, &self.model) {
            _ = write!(text, " {model} ({})", short(namespace));
        }
        if let (Some(group), Some(chunk)) = (self.group, &self.chunk) {
            _ = write!(text, " group {group} chunk {}", short(chunk));
        }
        if let (Some(tokens), Some(coverage)) = (self.covered_tokens, self.coverage) {
            _ = write!(text, " {tokens} tokens (blocks {coverage:#b})");
        }
        if let Some(reason) = self.reason {
            _ = write!(text, " {reason}");
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use tender_proto::{
        BlocksPerChunk, ChainHash, ChunkId, Descriptor, Group, GroupIndex, GroupKind, RankGeometry, Reason,
    };

    use super::*;
    use crate::events::Start;

    fn descriptor() -> Descriptor {
        let (tokens, blocks) = (16.try_into().unwrap(), BlocksPerChunk::new(4).unwrap());
        Descriptor {
            model: "tiny".into(),
            weights: "r1".into(),
            kv_dtype: "bfloat16".into(),
            quantisation: "none".into(),
            groups: vec![Group::new(GroupKind::FullAttention, tokens, blocks, None, vec![4096]).unwrap()],
            page_format: "HNC".into(),
            layout_fingerprint: [1; 32],
            ranks: RankGeometry::SINGLE,
            key_chain_version: 1,
            domain: String::new(),
        }
    }

    fn chunk(n: u8) -> ChunkId {
        ChunkId { group: GroupIndex(0), hash: ChainHash::from(blake3::hash(&[n])) }
    }

    fn batch() -> Batch {
        let descriptor = descriptor();
        let namespace = std::sync::Arc::new(Watched { digest: descriptor.digest(), descriptor });
        let stored =
            |n| Stored { namespace: namespace.clone(), chunk: chunk(n), coverage: 0b11, covered_tokens: 8 };
        let removed =
            Change::Removed { namespace: namespace.clone(), chunk: chunk(1), reason: Reason::Evicted };
        Batch {
            start: Some(Start::Lost),
            snapshot: vec![stored(1)],
            changes: vec![(7, Change::Stored(stored(2))), (8, removed), (9, Change::Cleared(namespace))],
            complete: true,
            next_sequence: 10,
        }
    }

    #[test]
    fn each_event_is_one_line_and_json_has_its_digests_in_full() {
        let events = |json| Events { json, namespaces: Vec::new(), snapshot: false };
        let text = events(false).lines(&batch()).unwrap();
        let words: Vec<_> = text.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
        assert_eq!(words, ["start", "snapshot", "stored", "removed", "cleared", "complete"]);
        assert!(text.contains("lost") && text.contains("evicted") && text.contains("8 tokens"), "{text}");
        let json = events(true).lines(&batch()).unwrap();
        let removed: serde_json::Value = serde_json::from_str(json.lines().nth(3).unwrap()).unwrap();
        assert_eq!(removed["chunk"].as_str().unwrap().len(), 64);
        assert_eq!((removed["event"].as_str(), removed["sequence"].as_u64()), (Some("removed"), Some(8)));
        assert!(removed.get("coverage").is_none());
    }

    /// The keys of a JSON object, in their order.
    fn keys(line: &str) -> Vec<&str> {
        let pieces: Vec<_> = line.split("\":").collect();
        // After the last colon comes a value.
        let (_, before) = pieces.split_last().unwrap();
        before.iter().filter_map(|piece| piece.rsplit('"').next()).collect()
    }

    #[test]
    fn the_example_in_the_docs_is_what_is_printed() {
        let page = include_str!("../../../docs/events.md");
        let shown: Vec<_> = page.lines().filter(|line| line.starts_with("{\"event\"")).collect();
        let json = Events { json: true, namespaces: Vec::new(), snapshot: false }.lines(&batch()).unwrap();
        let event = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["event"].clone();
        for printed in json.lines() {
            let example = shown.iter().find(|line| event(line) == event(printed));
            let example = example.unwrap_or_else(|| panic!("docs/events.md does not show {printed}"));
            assert_eq!(keys(example), keys(printed));
        }
        assert_eq!(shown.len(), json.lines().count(), "one of each");
    }

    #[test]
    fn a_namespace_is_named_by_all_its_digits() {
        assert!(digest(&"ab".repeat(32)).is_ok());
        assert!(digest("abcd").is_err() && digest("nothing").is_err());
    }
}
