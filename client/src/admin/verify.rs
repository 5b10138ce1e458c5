//! Having stored bytes verified.

use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tender_proto::limits::MAX_MESSAGE_BYTES;
use tender_proto::v1::admin_client::AdminClient;
use tender_proto::{ChunkId, NamespaceDigest, Reason, Refusal, v1};

use super::ResetScope;
use crate::config::Address;
use crate::credentials::Credentials;
use crate::error::ClientError;
use crate::runtime;
use crate::transport::connect::connect;

/// How far a verify came, and what it found.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Verified {
    /// Chunks that match their digests.
    pub good_chunks: u64,
    /// Chunks that did not, and were taken out.
    pub bad_chunks: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that there are to read.
    pub total_bytes: u64,
    /// Those that were taken out.
    pub bad: Vec<BadChunk>,
    /// Whether all was seen.
    pub done: bool,
}

/// A chunk that was taken out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct BadChunk {
    /// In hexadecimal digits.
    pub namespace: String,
    /// Of the namespace.
    pub group: u16,
    /// In hexadecimal digits.
    pub key: String,
}

/// Has stored bytes verified, and tells how far it has come. `limit` is for each word of the daemon, not for all of it.
pub fn verify(
    address: &Address,
    credentials: &Credentials,
    scope: ResetScope,
    limit: Duration,
    mut progress: impl FnMut(&Verified),
) -> Result<Verified, ClientError> {
    let request = match scope {
        ResetScope::Namespace(digest) => {
            v1::VerifyRequest { namespace: Bytes::copy_from_slice(digest.as_bytes()), all: false }
        }
        ResetScope::All => v1::VerifyRequest { namespace: Bytes::new(), all: true },
    };
    let (sender, words) = mpsc::sync_channel(4);
    let (to, shown) = (address.clone(), credentials.clone());
    let task = runtime::calls()?.spawn(async move {
        let asking = async {
            let channel = connect(&to, &shown, limit).await?;
            let mut admin = AdminClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
            let refusal = |status: tonic::Status| Refusal::from_status(&status);
            let mut stream = admin.verify(request).await.map_err(refusal)?.into_inner();
            while let Some(word) = stream.message().await.map_err(refusal)? {
                if sender.send(Ok(word)).is_err() {
                    break;
                }
            }
            Ok::<_, Refusal>(())
        };
        if let Err(no) = asking.await {
            _ = sender.send(Err(no));
        }
    });
    let mut seen = Verified::default();
    let ended = loop {
        match words.recv_timeout(limit) {
            Ok(Ok(word)) => {
                if let Err(no) = seen.take(word) {
                    break Err(no);
                }
                progress(&seen);
            }
            Ok(Err(no)) => break Err(no),
            Err(mpsc::RecvTimeoutError::Disconnected) if seen.done => break Ok(()),
            Err(_) => break Err(silent(address)),
        }
    };
    task.abort();
    ended?;
    Ok(seen)
}

fn silent(address: &Address) -> Refusal {
    Refusal::new(
        Reason::Deadline,
        format!("the daemon at {address}"),
        "it said nothing more of the verify; see whether it is overloaded or stopped, or raise --timeout",
    )
}

impl Verified {
    fn take(&mut self, word: v1::VerifyProgress) -> Result<(), Refusal> {
        self.good_chunks = word.good_chunks;
        self.bad_chunks = word.bad_chunks;
        self.read_bytes = word.read_bytes;
        self.total_bytes = word.total_bytes;
        self.done = word.done;
        for bad in word.bad {
            let chunk = ChunkId::parse(&bad.chunk.unwrap_or_default())?;
            self.bad.push(BadChunk {
                namespace: NamespaceDigest::parse(&bad.namespace)?.to_hex(),
                group: chunk.group.0,
                key: chunk.hash.to_hex(),
            });
        }
        Ok(())
    }
}
