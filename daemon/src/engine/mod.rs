//! The domain: what a session can do with chunks. Every call is synchronous and safe from any thread; only
//! `commit`, `PartWriter::write` and `prefault` take time that grows with bytes.

mod types;

use std::sync::Arc;
use std::time::Instant;

use tender_proto::{
    ChunkId, ContentDigest, Coverage, Descriptor, NamespaceDigest, PartIndex, Reason, Refusal, SessionId,
};

use crate::clock::Clock;
pub use types::*;

/// The daemon's heart.
#[derive(Debug)]
pub struct Engine {}

/// Reads one leased part.
#[derive(Debug)]
pub struct PartReader {}

/// Writes one reserved part.
#[derive(Debug)]
pub struct PartWriter {}

#[allow(unused_variables, missing_docs, reason = "bodies follow")]
impl Engine {
    pub fn new(config: EngineConfig, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        todo!()
    }
    pub fn config(&self) -> &EngineConfig {
        todo!()
    }
    /// Size of the arena's file.
    pub fn arena_file_bytes(&self) -> u64 {
        todo!()
    }
    pub fn max_part_bytes(&self) -> u64 {
        todo!()
    }
    pub fn prefault(&self, progress: &(dyn Fn(u64, u64) + Sync)) {
        todo!()
    }
    pub fn open_session(&self, client_name: &str, pid: u32) -> Result<SessionId, Refusal> {
        todo!()
    }
    pub fn close_session(&self, session: SessionId) {
        todo!()
    }
    pub fn register(
        &self,
        session: SessionId,
        descriptor: Descriptor,
        claimed: NamespaceDigest,
        pinned_name: Option<&str>,
    ) -> Result<NamespaceDigest, Refusal> {
        todo!()
    }
    pub fn lookup(
        &self,
        session: SessionId,
        namespace: NamespaceDigest,
        chunks: &[ChunkId],
        ask: LeaseAsk,
    ) -> Result<LookupAnswer, Refusal> {
        todo!()
    }
    pub fn release(&self, session: SessionId, leases: &[u64]) -> Result<Vec<LeaseEnd>, Refusal> {
        todo!()
    }
    pub fn read(
        &self,
        session: SessionId,
        lease: u64,
        chunk_index: usize,
        part: PartIndex,
    ) -> Result<PartReader, Reason> {
        todo!()
    }
    pub fn reserve(
        &self,
        session: SessionId,
        namespace: NamespaceDigest,
        asks: &[ReserveAsk],
    ) -> Result<Vec<ReserveAnswer>, Refusal> {
        todo!()
    }
    pub fn commit(&self, session: SessionId, asks: &[CommitAsk]) -> Result<Vec<StoreAnswer>, Refusal> {
        todo!()
    }
    pub fn begin_write(&self, session: SessionId, reservation: u64) -> Result<PartWriter, Reason> {
        todo!()
    }
    pub fn abort(&self, session: SessionId, reservations: &[u64]) -> Result<(), Refusal> {
        todo!()
    }
    pub fn attach_staging(&self, session: SessionId, bytes: u64) -> Result<Handover, Reason> {
        todo!()
    }
    pub fn reset(&self, which: ResetScope) -> ResetAnswer {
        todo!()
    }
    pub fn stats(&self) -> Stats {
        todo!()
    }
    pub fn sweep(&self) {
        todo!()
    }
    pub fn begin_drain(&self) {
        todo!()
    }
    pub fn audit(&self) -> Result<Audit, String> {
        todo!()
    }
}

#[allow(unused_variables, missing_docs, reason = "bodies follow")]
impl PartReader {
    pub fn digest(&self) -> ContentDigest {
        todo!()
    }
    pub fn coverage(&self) -> Coverage {
        todo!()
    }
    /// End of the lease it was opened under.
    pub fn deadline(&self) -> Instant {
        todo!()
    }
}
impl AsRef<[u8]> for PartReader {
    fn as_ref(&self) -> &[u8] {
        todo!()
    }
}

#[allow(unused_variables, missing_docs, reason = "bodies follow")]
impl PartWriter {
    pub fn bytes(&self) -> u64 {
        todo!()
    }
    pub fn written_bytes(&self) -> u64 {
        todo!()
    }
    pub fn deadline(&self) -> Instant {
        todo!()
    }
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Reason> {
        todo!()
    }
    pub fn finish(self, digest: ContentDigest, coverage_bits: u64) -> StoreAnswer {
        todo!()
    }
}
