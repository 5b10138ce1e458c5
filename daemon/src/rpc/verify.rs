//! Verifying what is stored while an operator watches.

use std::sync::Arc;

use bytes::Bytes;
use tender_proto::{NamespaceDigest, Reason, Refusal, v1};
use tokio::sync::OwnedMutexGuard;
use tokio_stream::Stream;
use tonic::Status;

use super::Shared;
use crate::engine::{Bad, ResetScope, Verifying};
use crate::task::blocking;

/// Read between two words to the operator; a tenth of a second and less.
const STEP_BYTES: u64 = 64 << 20;

/// One namespace, or all.
pub(super) fn scope_of(namespace: &[u8], all: bool, call: &str) -> Result<ResetScope, Refusal> {
    match (all, namespace.is_empty()) {
        (true, true) => Ok(ResetScope::All),
        (false, false) => NamespaceDigest::parse(namespace).map(ResetScope::One),
        _ => Err(Refusal::new(
            Reason::Malformed,
            format!("a {call} of a namespace and of all, or of neither"),
            "name one namespace, or set all",
        )),
    }
}

/// It reads when it is asked for more, and ends when it is dropped.
pub(super) fn stream(
    shared: &Arc<Shared>,
    scope: ResetScope,
) -> Result<impl Stream<Item = Result<v1::VerifyProgress, Status>> + use<>, Refusal> {
    let turn = Arc::clone(&shared.desk.verifying).try_lock_owned().map_err(|_| {
        Refusal::new(Reason::TooMany, "a second verify", "wait until the one that runs is done")
    })?;
    let begun = shared.engine.begin_verify(scope)?;
    let shared = Arc::clone(shared);
    Ok(futures_util::stream::unfold(Some((begun, turn)), move |state| {
        let shared = Arc::clone(&shared);
        async move { Some(step(&shared, state?).await) }
    }))
}

type Under = (Verifying, OwnedMutexGuard<()>);

async fn step(
    shared: &Arc<Shared>,
    (mut verifying, turn): Under,
) -> (Result<v1::VerifyProgress, Status>, Option<Under>) {
    let engine = Arc::clone(&shared.engine);
    let reading = blocking("verify", move || {
        let bad = engine.verify(&mut verifying, STEP_BYTES);
        (verifying, bad)
    });
    match reading.await {
        Ok((verifying, bad)) => {
            let progress = message(&verifying, &bad);
            let more = (!verifying.done).then_some((verifying, turn));
            (Ok(progress), more)
        }
        Err(_) => {
            let no = Refusal::new(Reason::Internal, "a verify", "try again; the daemon's log says more");
            (Err(shared.refuse_here("verify", no)), None)
        }
    }
}

fn message(verifying: &Verifying, bad: &[Bad]) -> v1::VerifyProgress {
    let one = |bad: &Bad| v1::BadChunk {
        namespace: Bytes::copy_from_slice(bad.namespace.as_bytes()),
        chunk: Some(bad.chunk.to_message()),
    };
    v1::VerifyProgress {
        good_chunks: verifying.good_chunks,
        bad_chunks: verifying.bad_chunks,
        read_bytes: verifying.read_bytes,
        total_bytes: verifying.total_bytes,
        bad: bad.iter().map(one).collect(),
        done: verifying.done,
    }
}
