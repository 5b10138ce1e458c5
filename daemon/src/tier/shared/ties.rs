//! What of the store belongs to an epoch of this daemon: only what is of the same generation may go either way.

use std::sync::Arc;

use tender_proto::NamespaceDigest;

use super::generation::{Asked, Generation, Word};
use super::store::{Store, StoreError};
use crate::tier::TierNamespace;
use crate::tier::generations::{Generations, Learned};

/// The store's word about generations beside this daemon's own.
#[derive(Debug)]
pub(super) struct Ties {
    store: Store,
    pub(super) asked: Asked,
    generations: Arc<Generations>,
}

impl Ties {
    pub(super) fn new(store: Store, generations: Arc<Generations>) -> Self {
        Self { store, asked: Asked::default(), generations }
    }

    /// Whose chunks may be found in the caller's epoch. A reset by another daemon is seen a second later at most.
    pub(super) async fn recent(
        &self,
        namespace: &TierNamespace,
        folder: &str,
    ) -> Result<Option<Generation>, StoreError> {
        let word = self.asked.recent(&self.store, namespace.digest, folder).await?;
        self.belonging(namespace, folder, word).await
    }

    /// Whose chunks may be fetched into the caller's epoch, as the store says now.
    pub(super) async fn fresh(
        &self,
        namespace: &TierNamespace,
        folder: &str,
    ) -> Result<Option<Generation>, StoreError> {
        let word = self.asked.fresh(&self.store, namespace.digest, folder).await?;
        self.belonging(namespace, folder, word).await
    }

    /// Under which generation a chunk of the caller's epoch is kept. Begins one where none counts.
    pub(super) async fn to_keep(
        &self,
        namespace: &TierNamespace,
        folder: &str,
    ) -> Result<Option<Generation>, StoreError> {
        let mut word = self.asked.recent(&self.store, namespace.digest, folder).await?;
        if word.counts.is_none() || word.number < self.generations.highest(namespace.digest) {
            word = self.restore(namespace.digest, folder).await?;
        }
        self.belonging(namespace, folder, word).await
    }

    /// Begins a generation for a reset: `raised`, where another tier has raised the namespace to that for it and the store
    /// knows of none so high. Nothing that was stored before it was written counts or is here when this returns.
    pub(super) async fn reset(
        &self,
        namespace: NamespaceDigest,
        folder: &str,
        raised: Option<u64>,
    ) -> Result<u64, ResetError> {
        let now = self.asked.fresh(&self.store, namespace, folder).await?;
        let number = match raised {
            Some(raised) if raised > now.number => raised,
            _ => now.number.max(self.generations.floor(namespace)) + 1,
        };
        self.asked.begin(&self.store, namespace, folder, number, true).await?;
        self.generations.raised(namespace, number).await.map_err(ResetError::Here)?;
        Ok(number)
    }

    /// Learns what the store says. Where it has lost a number or has not heard of one, it is told, and nothing counts.
    async fn belonging(
        &self,
        namespace: &TierNamespace,
        folder: &str,
        word: Word,
    ) -> Result<Option<Generation>, StoreError> {
        if let Learned::Lost(_) = self.generations.learn(namespace.digest, word.number).await {
            self.restore(namespace.digest, folder).await?;
            return Ok(None);
        }
        let here = self.generations.of(namespace.digest, namespace.epoch);
        Ok(word.counts.filter(|counts| here == Some(counts.number())))
    }

    /// Begins a generation with the highest number that is known, unless somebody has.
    async fn restore(&self, namespace: NamespaceDigest, folder: &str) -> Result<Word, StoreError> {
        let now = self.asked.fresh(&self.store, namespace, folder).await?;
        let number = self.generations.highest(namespace).max(now.number);
        if now.counts.is_some() && now.number == number {
            return Ok(now);
        }
        match self.asked.begin(&self.store, namespace, folder, number, now.is_written).await {
            Ok(()) | Err(StoreError::Exists) => {}
            Err(error) => return Err(error),
        }
        // Another daemon may have been first, or last.
        self.asked.fresh(&self.store, namespace, folder).await
    }
}

/// Why a reset is not complete.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResetError {
    #[error("the shared store: {0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Here(String),
}
