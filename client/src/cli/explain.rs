//! `tender explain`.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;
use tender_proto::limits::MAX_BATCH_CHUNKS;
use tender_proto::{Coverage, Reason, Refusal};

use super::differ::{Difference, differences, short_list};
use super::keys::{self, Place};
use super::stat::{plain, text};
use super::{Target, ago, json, pick};
use crate::admin::{self, ChunkFate, Explained, Fate, NamespaceInfo, Question};
use crate::error::ClientError;
use crate::hash::RequestInputs;

/// Namespaces in which the same tokens are looked for under their own keys.
const MOST_OTHERS: usize = 32;

/// Says for each chunk whether it is there, and if not, why.
#[derive(Debug, clap::Args)]
pub(super) struct Explain {
    /// A file of token ids (`-`: standard input), the engine's id of a request, or keys: 64 hexadecimal digits, with GROUP: in
    /// front for another group than 0.
    #[arg(required = true)]
    what: Vec<String>,
    /// For tokens and keys: the namespace, by its name or the first digits of its digest. May be left out where there is
    /// only one.
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// For tokens: the request's cache salt.
    #[arg(long, value_name = "TEXT")]
    salt: Option<String>,
    /// For tokens: the digest of the adapter's weights, 64 hexadecimal digits.
    #[arg(long, value_name = "DIGEST")]
    adapter: Option<String>,
    /// As JSON, for programs; docs/cli.md has its shape.
    #[arg(long)]
    json: bool,
}

/// Everything that is shown, and the JSON.
#[derive(Serialize)]
struct Report {
    namespace: String,
    model: String,
    request_id: Option<String>,
    asked_ago_ms: Option<u64>,
    remembers_ms: Option<u64>,
    overflowed: bool,
    hits: usize,
    chunks: Vec<Row>,
    others: Vec<Other>,
}

#[derive(Serialize)]
struct Row {
    group: u16,
    /// Within the group, in the order asked for.
    index: usize,
    key: String,
    first_token: Option<u64>,
    end_token: Option<u64>,
    fate: &'static str,
    /// A letter for each block, the first block first: 1 is stored. Empty for what is not there.
    covered: String,
    reason: Option<&'static str>,
    ago_ms: Option<u64>,
    asked_by_requests: u32,
    store_after_requests: u32,
    told: Option<String>,
    /// The tier below that has it, if it is not in the arena.
    tier: Option<String>,
    why: String,
}

/// Another namespace that has some of it.
#[derive(Serialize)]
struct Other {
    namespace: String,
    model: String,
    chunks: usize,
    of: usize,
    differences: Vec<Difference>,
}

enum What {
    Tokens(Vec<u32>, RequestInputs),
    Keys(Vec<Place>),
    Request(String),
}

impl Explain {
    pub(super) fn run(&self, target: &Target) -> Result<String, ClientError> {
        let what = self.what()?;
        let all = pick::all(target)?;
        let report = self.report(target, &what, &all)?;
        if self.json { json(&report) } else { Ok(render(&report)) }
    }

    fn what(&self) -> Result<What, Refusal> {
        let keys: Option<Vec<_>> = self.what.iter().map(|text| keys::parse_key(text)).collect();
        if let Some(chunks) = keys {
            return Ok(What::Keys(chunks.into_iter().map(|chunk| Place { chunk, tokens: None }).collect()));
        }
        let [only] = &self.what[..] else {
            let advice = "give one token file, one request id, or keys of 64 hexadecimal digits";
            return Err(Refusal::new(Reason::Malformed, "a list that is not of keys", advice));
        };
        let path = Path::new(only);
        if only == "-" || path.exists() {
            let inputs = keys::inputs(self.salt.as_deref(), self.adapter.as_deref())?;
            return Ok(What::Tokens(keys::read_tokens(path)?, inputs));
        }
        Ok(What::Request(only.clone()))
    }

    fn report(&self, target: &Target, what: &What, all: &[NamespaceInfo]) -> Result<Report, ClientError> {
        let (places, explained) = match what {
            What::Request(id) => {
                let question = Question::Request(id.clone());
                let answer =
                    admin::explain(&target.address, &target.credentials()?, question, target.timeout)?;
                let place = |fate: &ChunkFate| Place { chunk: fate.chunk, tokens: None };
                (answer.chunks.iter().map(place).collect(), answer)
            }
            What::Keys(_) | What::Tokens(..) => {
                let ns = pick::one_or_only(all, self.namespace.as_deref())?;
                let places = match what {
                    What::Tokens(tokens, inputs) => keys::places(&ns.descriptor, tokens, inputs),
                    What::Keys(places) => places.clone(),
                    What::Request(_) => Vec::new(),
                };
                if places.is_empty() {
                    let smallest =
                        ns.descriptor.groups.iter().map(tender_proto::Group::tokens_per_chunk).min();
                    let subject = "a prompt that fills no chunk";
                    let advice =
                        format!("the smallest holds {} tokens: less is never stored", smallest.unwrap_or(0));
                    return Err(Refusal::new(Reason::Malformed, subject, advice).into());
                }
                let answer = ask(target, ns, &places)?;
                (places, answer)
            }
        };
        let ns = all.iter().find(|ns| ns.digest == explained.namespace);
        let ns =
            ns.ok_or_else(|| pick::one(all, &explained.namespace.to_hex()).err().unwrap_or_else(gone))?;
        let mut others = same_keys(ns, all, &explained);
        if let What::Tokens(tokens, inputs) = what
            && explained.chunks.iter().any(|chunk| chunk.fate != Fate::Ready)
        {
            others.extend(other_keys(target, ns, all, tokens, inputs)?);
        }
        let request_id = match what {
            What::Request(id) => Some(id.clone()),
            What::Tokens(..) | What::Keys(_) => None,
        };
        Ok(build(ns, request_id, &places, &explained, others))
    }
}

fn gone() -> Refusal {
    Refusal::new(Reason::UnknownNamespace, "the namespace", "it was forgotten meanwhile; ask again")
}

/// Asks in pieces that the daemon takes.
fn ask(target: &Target, ns: &NamespaceInfo, places: &[Place]) -> Result<Explained, ClientError> {
    let mut answer: Option<Explained> = None;
    for piece in places.chunks(MAX_BATCH_CHUNKS) {
        let chunks = piece.iter().map(|place| place.chunk).collect();
        let question = Question::Chunks(ns.digest, chunks);
        let more = admin::explain(&target.address, &target.credentials()?, question, target.timeout)?;
        match &mut answer {
            Some(answer) => answer.chunks.extend(more.chunks),
            None => answer = Some(more),
        }
    }
    answer.ok_or_else(|| gone().into())
}

/// Namespaces in which the daemon found the very same keys.
fn same_keys(ns: &NamespaceInfo, all: &[NamespaceInfo], explained: &Explained) -> Vec<Other> {
    let found = |other: &&NamespaceInfo| {
        let chunks = explained.chunks.iter().filter(|chunk| chunk.elsewhere.contains(&other.digest)).count();
        (chunks > 0).then(|| self::other(ns, other, chunks, explained.chunks.len()))
    };
    all.iter().filter_map(|other| found(&other)).collect()
}

/// Namespaces that cut the same tokens into other chunks.
fn other_keys(
    target: &Target,
    ns: &NamespaceInfo,
    all: &[NamespaceInfo],
    tokens: &[u32],
    inputs: &RequestInputs,
) -> Result<Vec<Other>, ClientError> {
    let differ = |other: &&NamespaceInfo| {
        other.ready_chunks > 0 && keys::keys_differ(&ns.descriptor, &other.descriptor)
    };
    let mut found = Vec::new();
    for other in all.iter().filter(differ).take(MOST_OTHERS) {
        let places = keys::places(&other.descriptor, tokens, inputs);
        if places.is_empty() {
            continue;
        }
        let explained = ask(target, other, &places)?;
        let ready = explained.chunks.iter().filter(|chunk| chunk.fate == Fate::Ready).count();
        if ready > 0 {
            found.push(self::other(ns, other, ready, places.len()));
        }
    }
    Ok(found)
}

fn other(ns: &NamespaceInfo, other: &NamespaceInfo, chunks: usize, of: usize) -> Other {
    Other {
        namespace: other.digest.to_hex(),
        model: other.descriptor.model.clone(),
        chunks,
        of,
        differences: differences(&ns.descriptor, &other.descriptor),
    }
}

fn build(
    ns: &NamespaceInfo,
    request_id: Option<String>,
    places: &[Place],
    explained: &Explained,
    others: Vec<Other>,
) -> Report {
    let mut seen = vec![0; ns.descriptor.groups.len()];
    let mut chunks = Vec::with_capacity(places.len());
    for (place, chunk) in places.iter().zip(&explained.chunks) {
        let at = seen.get_mut(usize::from(place.chunk.group.0));
        let index = at.map_or(0, |at| std::mem::replace(at, *at + 1));
        chunks.push(row(ns, place, index, chunk, explained));
    }
    Report {
        namespace: ns.digest.to_hex(),
        model: ns.descriptor.model.clone(),
        request_id,
        asked_ago_ms: explained.asked_ago_ms,
        remembers_ms: explained.remembers_ms,
        overflowed: explained.overflowed,
        hits: chunks.iter().filter(|row| row.fate == "hit").count(),
        chunks,
        others,
    }
}

fn row(ns: &NamespaceInfo, place: &Place, index: usize, chunk: &ChunkFate, explained: &Explained) -> Row {
    let coverage = ns
        .descriptor
        .group_of(place.chunk)
        .and_then(|group| Coverage::new(chunk.coverage_bits, group.blocks_per_chunk));
    let coverage = coverage.ok().filter(|_| chunk.fate == Fate::Ready);
    let letter = |coverage: Coverage| {
        (0..coverage.blocks().get()).map(move |b| if coverage.has(b) { '1' } else { '0' })
    };
    let left = matches!(
        chunk.fate,
        Fate::Evicted
            | Fate::EvictedForQuota
            | Fate::Refused
            | Fate::Quarantined
            | Fate::Reset
            | Fate::GivenUp
    );
    Row {
        group: place.chunk.group.0,
        index,
        key: place.chunk.hash.to_hex(),
        first_token: place.tokens.map(|(first, _)| first),
        end_token: place.tokens.map(|(_, end)| end),
        fate: fate_label(chunk.fate, coverage),
        covered: coverage.map(letter).into_iter().flatten().collect(),
        reason: chunk.reason.map(Reason::label),
        ago_ms: left.then_some(chunk.ago_ms),
        asked_by_requests: chunk.asked_by_requests,
        store_after_requests: chunk.store_after_requests,
        told: chunk.told.clone(),
        tier: chunk.tier.clone(),
        why: why(chunk, coverage, explained),
    }
}

fn fate_label(fate: Fate, coverage: Option<Coverage>) -> &'static str {
    match fate {
        Fate::Ready if coverage.is_some_and(|coverage| !coverage.is_full()) => "uncovered_block",
        Fate::Ready => "hit",
        Fate::Pending => "pending",
        Fate::NeverStored => "never_stored",
        Fate::Evicted => "evicted",
        Fate::EvictedForQuota => "evicted_for_quota",
        Fate::Refused => "refused",
        Fate::Quarantined => "quarantined",
        Fate::Reset => "reset",
        Fate::GivenUp => "given_up",
        Fate::BelowReuse => "below_reuse",
        Fate::Unknown => "unknown",
    }
}

/// Why it is not in the arena, and where it is then.
fn why(chunk: &ChunkFate, coverage: Option<Coverage>, explained: &Explained) -> String {
    let why = why_not(chunk, coverage, explained);
    match &chunk.tier {
        Some(tier) => format!("{why}; in the tier `{tier}`, from where a lookup fetches it"),
        None => why,
    }
}

fn why_not(chunk: &ChunkFate, coverage: Option<Coverage>, explained: &Explained) -> String {
    let since = ago(chunk.ago_ms);
    match chunk.fate {
        Fate::Ready => match coverage {
            Some(coverage) if !coverage.is_full() => {
                let missing: Vec<_> = (0..coverage.blocks().get())
                    .filter(|&b| !coverage.has(b))
                    .map(|b| b.to_string())
                    .collect();
                format!("stored without block {}: nobody wrote it", missing.join(", "))
            }
            _ => String::new(),
        },
        Fate::Pending => "being stored or fetched now".into(),
        Fate::NeverStored => match (explained.remembers_ms, explained.overflowed) {
            (None, _) => "not stored; the daemon remembers nothing (--history 0)".into(),
            (Some(ms), false) => format!("never stored since the daemon began, {} ago", ago(ms)),
            (Some(_), true) => "never stored, or longer ago than the daemon remembers".into(),
        },
        Fate::Evicted => format!("made room for others {since} ago"),
        Fate::EvictedForQuota => {
            format!("made room for others of its domain, which is at its quota, {since} ago")
        }
        Fate::Refused => {
            let reason = chunk.reason.map_or("unknown", Reason::label);
            format!("the last store was refused {since} ago: {reason}")
        }
        Fate::Quarantined => format!("its bytes had changed in memory; taken out {since} ago"),
        Fate::Reset => format!("forgotten by a reset {since} ago"),
        Fate::GivenUp => format!("whoever stored it gave up or went away {since} ago"),
        Fate::BelowReuse => format!(
            "asked for by {} of the {} requests after which its engine stores it",
            chunk.asked_by_requests, chunk.store_after_requests
        ),
        Fate::Unknown => {
            "the daemon has a word for it that this tool does not know: use the same release".into()
        }
    }
}

fn render(report: &Report) -> String {
    let ns = format!("namespace {} ({})", super::stat::short(&report.namespace), report.model);
    let mut out = match (&report.request_id, report.asked_ago_ms) {
        (Some(id), ms) => format!("Request {id}, asked {} ago in {ns}, as it is now\n", ago(ms.unwrap_or(0))),
        (None, _) => format!("In {ns}\n"),
    };
    let mut table = plain();
    table.set_header(["GROUP", "CHUNKS", "TOKENS", "FATE", "TOLD", "WHY"]);
    for run in runs(&report.chunks) {
        let (first, last) = (run[0], run[run.len() - 1]);
        let span = |from: String, to: String| if from == to { from } else { format!("{from}-{to}") };
        let tokens = match (first.first_token, last.end_token) {
            (Some(from), Some(end)) => span(from.to_string(), end.saturating_sub(1).to_string()),
            _ => "-".into(),
        };
        table.add_row([
            first.group.to_string(),
            span(first.index.to_string(), last.index.to_string()),
            tokens,
            first.fate.replace('_', " "),
            first.told.clone().unwrap_or_else(|| "-".into()),
            first.why.clone(),
        ]);
    }
    _ = writeln!(out, "{}", text(&mut table));
    let below = report.chunks.iter().filter(|row| row.tier.is_some()).count();
    _ = write!(out, "{} of {} chunks can be had", report.hits, report.chunks.len());
    _ = match below {
        0 => writeln!(out),
        below => writeln!(out, ", {below} more after a fetch"),
    };
    for other in &report.others {
        _ = writeln!(
            out,
            "namespace {} ({}) has {} of {}, and does not share: {}",
            super::stat::short(&other.namespace),
            other.model,
            other.chunks,
            other.of,
            short_list(&other.differences)
        );
    }
    out
}

/// Chunks behind one another of which the same is to be said.
fn runs(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut all: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        let same = |run: &&mut Vec<&Row>| {
            let last = run[run.len() - 1];
            (last.group, last.index + 1, last.fate, &last.told, &last.why)
                == (row.group, row.index, row.fate, &row.told, &row.why)
        };
        match all.last_mut().filter(same) {
            Some(run) => run.push(row),
            None => all.push(vec![row]),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::pick::tests::info;

    fn fate(place: &Place, fate: Fate) -> ChunkFate {
        ChunkFate {
            chunk: place.chunk,
            fate,
            coverage_bits: if fate == Fate::Ready { 0b1111 } else { 0 },
            reason: (fate == Fate::Refused).then_some(Reason::NoSpace),
            ago_ms: 65_000,
            elsewhere: Vec::new(),
            asked_by_requests: 1,
            store_after_requests: 2,
            told: None,
            tier: None,
        }
    }

    fn report(fates: &[Fate], adjust: impl FnOnce(&mut Explained)) -> Report {
        let ns = info("abc", "");
        let tokens: Vec<u32> = (0..64 * u32::try_from(fates.len()).unwrap()).collect();
        let places = keys::places(&ns.descriptor, &tokens, &RequestInputs::default());
        let chunks = places.iter().zip(fates).map(|(place, &one)| fate(place, one)).collect();
        let mut explained = Explained {
            namespace: ns.digest,
            chunks,
            asked_ago_ms: None,
            remembers_ms: Some(3_600_000),
            overflowed: false,
        };
        adjust(&mut explained);
        build(&ns, None, &places, &explained, Vec::new())
    }

    #[test]
    fn every_fate_has_its_words() {
        let fates = [
            (Fate::Pending, "being stored"),
            (Fate::NeverStored, "never stored since the daemon began, 1h ago"),
            (Fate::Evicted, "made room for others 1m 5s ago"),
            (Fate::EvictedForQuota, "at its quota, 1m 5s ago"),
            (Fate::Refused, "refused 1m 5s ago: no_space"),
            (Fate::Quarantined, "changed in memory"),
            (Fate::Reset, "forgotten by a reset 1m 5s ago"),
            (Fate::GivenUp, "gave up or went away"),
            (Fate::BelowReuse, "asked for by 1 of the 2 requests"),
        ];
        for (fate, words) in fates {
            let text = render(&report(&[Fate::Ready, fate], |_| ()));
            assert!(text.contains(words), "{fate:?}: {text}");
            assert!(text.contains("1 of 2 chunks can be had"), "{text}");
        }
    }

    #[test]
    fn what_a_lower_tier_has_is_said() {
        let below = report(&[Fate::Ready, Fate::Evicted], |explained| {
            explained.chunks[1].tier = Some("disk".into());
        });
        let text = render(&below);
        assert!(text.contains("made room for others 1m 5s ago; in the tier `disk`"), "{text}");
        assert!(text.contains("1 of 2 chunks can be had, 1 more after a fetch"), "{text}");
    }

    #[test]
    fn chunks_of_one_fate_are_one_line() {
        let fates = [Fate::Ready, Fate::Ready, Fate::Ready, Fate::Evicted, Fate::Ready];
        let text = render(&report(&fates, |_| ()));
        assert!(text.contains("0-2") && text.contains("0-191") && text.contains("192-255"), "{text}");
        assert_eq!(text.lines().count(), 1 + 1 + 3 + 1, "{text}");
    }

    #[test]
    fn a_chunk_with_a_gap_is_no_hit() {
        let report = report(&[Fate::Ready], |explained| explained.chunks[0].coverage_bits = 0b1011);
        assert_eq!((report.hits, report.chunks[0].fate), (0, "uncovered_block"));
        assert_eq!(report.chunks[0].covered, "1101");
        assert!(render(&report).contains("without block 2"));
    }

    #[test]
    fn what_the_daemon_cannot_know_is_said() {
        let full = report(&[Fate::NeverStored], |explained| explained.overflowed = true);
        assert!(render(&full).contains("longer ago than the daemon remembers"));
        let off = report(&[Fate::NeverStored], |explained| explained.remembers_ms = None);
        assert!(render(&off).contains("--history 0"));
    }

    #[test]
    fn another_namespace_is_named_with_what_differs() {
        let (ns, mut blue) = (info("abc", ""), info("def", "blue"));
        blue.descriptor.weights = "rev-b".into();
        let mut report = report(&[Fate::NeverStored], |_| ());
        report.others = vec![other(&ns, &blue, 1, 1)];
        let text = render(&report);
        assert!(text.contains("def000000000") && text.contains("weights (rev-a / rev-b)"), "{text}");
    }
}
