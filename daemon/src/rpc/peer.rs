//! The calls of `tender.v1.Peer`: what other daemons read here, and what one that ends offers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tender_proto::{ChunkId, Coverage, Descriptor, NamespaceDigest, Reason, Refusal, v1};
use tonic::{Request, Response, Status};

use super::frames::Rider;
use super::get::GetStream;
use super::{Shared, convert};
use crate::access::Identity;
use crate::engine::ChunkAnswer;
use crate::tier::peers::{ChunkFingerprint, Offer, PeerId, PeerTier};

/// Whoever offers has a grace time; nothing here is held for longer, whatever it says.
const LONGEST_OFFER: Duration = Duration::from_secs(60);

/// The service, cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct PeerService {
    shared: Arc<Shared>,
    tier: Arc<PeerTier>,
}

impl PeerService {
    pub(super) fn new(shared: Arc<Shared>, tier: Arc<PeerTier>) -> Self {
        Self { shared, tier }
    }

    fn open(&self, identity: &Identity, request: &v1::FetchRequest) -> Result<GetStream, Refusal> {
        let namespace = NamespaceDigest::parse(&request.namespace)?;
        let chunks = convert::chunks(&request.chunks)?;
        let max = self.shared.engine.config().max_batch_chunks;
        if chunks.len() > max {
            let subject = format!("a fetch of {} chunks", chunks.len());
            return Err(Refusal::new(
                Reason::TooLarge,
                subject,
                format!("ask for at most {max} in one call"),
            ));
        }
        // Of another generation, or unknown: as if nothing was ever stored.
        let serving = self.tier.serving(namespace, request.generation);
        // Without a policy nobody gets at what a domain stored while there was one.
        let open = self.shared.access.is_open();
        let Some(namespace) = serving.filter(|ns| !open || ns.descriptor.domain.is_empty()) else {
            let missing = vec![ChunkAnswer::Miss(Reason::NeverStored); chunks.len()];
            return Ok(GetStream::for_peer(&self.shared, identity, &missing, |_| 1, None));
        };
        let (answers, lease) = self.tier.house().lease(&namespace, &chunks)?;
        let ready = answers.iter().filter(|answer| matches!(answer, ChunkAnswer::Ready { .. })).count();
        self.tier.metrics().peers.served_chunks.fetch_add(ready as u64, Ordering::Relaxed);
        let parts =
            |chunk: usize| namespace.descriptor.group_of(chunks[chunk]).map_or(1, |group| group.parts());
        Ok(GetStream::for_peer(&self.shared, identity, &answers, parts, lease))
    }
}

#[tonic::async_trait]
impl v1::peer_server::Peer for PeerService {
    type FetchStream = tokio_stream::Empty<Result<v1::GetFrame, Status>>;

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let identity = self.shared.identify_peer("fetch", &request)?;
        let stream = self.open(&identity, &request.into_inner());
        let stream = stream.map_err(|no| self.shared.refuse_here("fetch", no))?;
        // The frames are written by hand; this body only stands in for theirs.
        let mut response = Response::new(tokio_stream::empty());
        response.extensions_mut().insert(Rider::new(stream));
        Ok(response)
    }

    async fn offer(&self, request: Request<v1::OfferRequest>) -> Result<Response<v1::OfferResponse>, Status> {
        let begin = Instant::now();
        let identity = self.shared.identify_peer("offer", &request)?;
        let offer = read_offer(&request.into_inner()).map_err(|no| self.shared.refuse_here("offer", no))?;
        if self.shared.access.is_open() && !offer.descriptor.domain.is_empty() {
            let no = self.shared.access.deny("offer", &identity, "it names a domain, and there is no policy");
            return Err(self.shared.refuse_here("offer", no));
        }
        let busy = || {
            let no = Refusal::new(Reason::Throttled, "an offer", "offer it to another daemon");
            self.shared.refuse_here("offer", no)
        };
        let taken = self.tier.take_offer(offer).await.ok_or_else(busy)?;
        self.shared.metrics.call("offer", begin.elapsed());
        Ok(Response::new(v1::OfferResponse { taken }))
    }
}

fn read_offer(raw: &v1::OfferRequest) -> Result<Offer, Refusal> {
    let malformed = |what: &str| Refusal::new(Reason::Malformed, what, "send it as peer.proto says");
    let descriptor = raw.descriptor.as_ref().ok_or_else(|| malformed("an offer without descriptor"))?;
    let descriptor = Descriptor::parse(descriptor)?;
    let chunk = |offered: &v1::OfferedChunk| {
        let raw = offered.chunk.as_ref().ok_or_else(|| malformed("an offer of no chunk"))?;
        let chunk = ChunkId::parse(raw)?;
        let coverage = Coverage::new(offered.coverage, descriptor.group_of(chunk)?.blocks_per_chunk)?;
        let fingerprint = ChunkFingerprint::parse(&offered.fingerprint);
        Ok((chunk, coverage, fingerprint.ok_or_else(|| malformed("an offer with a bad fingerprint"))?))
    };
    Ok(Offer {
        generation: raw.generation,
        daemon: PeerId::parse(&raw.daemon_id).ok_or_else(|| malformed("an offer of nobody"))?,
        chunks: raw.chunks.iter().map(chunk).collect::<Result<_, Refusal>>()?,
        within: Duration::from_millis(raw.within_ms).min(LONGEST_OFFER),
        descriptor,
    })
}
