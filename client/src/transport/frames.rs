//! Checks the frames of a `Get` and believes none of them.
//!
//! Pure: no I/O, no clock, no bytes kept. Every deviation from what was asked for ends the stream ([`Broken`]), since
//! nothing that follows it could be trusted to be in its place; a part whose bytes are there but wrong fails alone.

use tender_proto::{ContentDigest, Coverage, Reason, v1};

use super::ReadItem;

/// The daemon broke the contract of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken(pub(crate) Reason);

/// What a frame completed.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// More frames of the same part must come.
    More,
    /// Part `.0` is whole and its digest is right.
    Whole(usize),
    /// Part `.0` cannot be had, alone.
    Failed(usize, Reason),
}

/// Follows the parts of one `Get`, one after another.
#[derive(Debug)]
pub(crate) struct FrameCheck<'a> {
    items: &'a [ReadItem],
    /// The item whose frames come now.
    at: usize,
    max_frame_bytes: usize,
    digest: Option<ContentDigest>,
    hasher: blake3::Hasher,
    /// Bytes that came of it.
    have: u64,
}

impl<'a> FrameCheck<'a> {
    pub(crate) fn new(items: &'a [ReadItem], max_frame_bytes: usize) -> Self {
        Self { items, at: 0, max_frame_bytes, digest: None, hasher: blake3::Hasher::new(), have: 0 }
    }

    /// Items that are done, well or not.
    pub(crate) fn done(&self) -> usize {
        self.at
    }

    /// Takes the head of the next frame, of which `payload_bytes` follow as pieces. `Some`: it has none, its item
    /// failed.
    pub(crate) fn begin_frame(
        &mut self,
        frame: &v1::GetFrame,
        payload_bytes: usize,
    ) -> Result<Option<Progress>, Broken> {
        let Some(item) = self.items.get(self.at) else { return Err(Broken(Reason::Malformed)) };
        if usize::try_from(frame.item) != Ok(self.at) {
            return Err(Broken(Reason::Malformed));
        }
        if let Some(reason) = self.failure(frame, payload_bytes)? {
            return Ok(Some(Progress::Failed(self.finish(), reason)));
        }
        if payload_bytes > self.max_frame_bytes {
            return Err(Broken(Reason::FrameTooLarge));
        }
        if self.digest.is_none() {
            self.begin(item, frame)?;
        } else if frame.part_bytes != 0 || frame.coverage != 0 || !frame.digest.is_empty() {
            return Err(Broken(Reason::Malformed));
        }
        let left = item.bytes - self.have;
        if frame.offset_bytes != self.have || payload_bytes == 0 || payload_bytes as u64 > left {
            return Err(Broken(Reason::WrongSize));
        }
        Ok(None)
    }

    /// Takes bytes of the frame that was begun: whose they are, and where in its part they lie. The caller sees to it
    /// that they are not more than were announced.
    pub(crate) fn piece(&mut self, bytes: &[u8]) -> (usize, u64) {
        self.hasher.update(bytes);
        let offset_bytes = self.have;
        self.have += bytes.len() as u64;
        (self.at, offset_bytes)
    }

    /// Ends the frame that was begun.
    pub(crate) fn end_frame(&mut self) -> Progress {
        if self.items.get(self.at).is_some_and(|item| self.have < item.bytes) {
            return Progress::More;
        }
        let good = self.digest == Some(ContentDigest::from(self.hasher.finalize()));
        let done = self.finish();
        if good { Progress::Whole(done) } else { Progress::Failed(done, Reason::BadDigest) }
    }

    /// A frame that says its item cannot be read stands alone.
    fn failure(&self, frame: &v1::GetFrame, payload_bytes: usize) -> Result<Option<Reason>, Broken> {
        if frame.failure == i32::from(v1::Reason::Unspecified) {
            return Ok(None);
        }
        if self.digest.is_some() || payload_bytes > 0 {
            return Err(Broken(Reason::Malformed));
        }
        Ok(Some(Reason::from_wire(frame.failure).unwrap_or(Reason::Internal)))
    }

    fn begin(&mut self, item: &ReadItem, frame: &v1::GetFrame) -> Result<(), Broken> {
        let coverage = Coverage::new(frame.coverage, item.coverage.blocks());
        if coverage != Ok(item.coverage) {
            return Err(Broken(Reason::BadCoverage));
        }
        if frame.part_bytes != item.bytes {
            return Err(Broken(Reason::WrongSize));
        }
        let digest = ContentDigest::parse(&frame.digest).map_err(|_| Broken(Reason::Malformed))?;
        self.digest = Some(digest);
        self.hasher.reset();
        self.have = 0;
        Ok(())
    }

    fn finish(&mut self) -> usize {
        self.digest = None;
        self.at += 1;
        self.at - 1
    }
}

#[cfg(test)]
mod tests {
    use tender_proto::{BlocksPerChunk, PartIndex};

    use super::*;

    const FRAME: usize = 64;

    impl FrameCheck<'_> {
        /// Takes a whole frame, its payload in two pieces that must be told in their places.
        fn feed(&mut self, frame: &v1::GetFrame) -> Result<Progress, Broken> {
            let payload = &frame.payload;
            if let Some(progress) = self.begin_frame(frame, payload.len())? {
                return Ok(progress);
            }
            let (front, back) = payload.split_at(payload.len() / 3);
            let at = self.at;
            assert_eq!(self.piece(front), (at, frame.offset_bytes));
            assert_eq!(self.piece(back), (at, frame.offset_bytes + front.len() as u64));
            Ok(self.end_frame())
        }
    }

    fn item(bytes: u64) -> ReadItem {
        let coverage = Coverage::full(BlocksPerChunk::new(4).unwrap());
        ReadItem { chunk_index: 0, part: PartIndex(0), coverage, bytes, place: None }
    }

    fn frames(item: u32, data: &[u8]) -> Vec<v1::GetFrame> {
        data.chunks(FRAME)
            .enumerate()
            .map(|(i, piece)| {
                let mut frame = v1::GetFrame {
                    item,
                    offset_bytes: (i * FRAME) as u64,
                    payload: piece.to_vec().into(),
                    ..v1::GetFrame::default()
                };
                if i == 0 {
                    frame.part_bytes = data.len() as u64;
                    frame.coverage = 0b1111;
                    frame.digest = ContentDigest::of(data).as_bytes().to_vec().into();
                }
                frame
            })
            .collect()
    }

    #[test]
    fn whole_parts_come_out_in_order() {
        let (a, b) = (vec![1; 200], vec![2; 64]);
        let items = [item(200), item(64)];
        let mut check = FrameCheck::new(&items, FRAME);
        let mut seen = Vec::new();
        for frame in frames(0, &a).iter().chain(&frames(1, &b)) {
            if let Progress::Whole(i) = check.feed(frame).unwrap() {
                seen.push(i);
            }
        }
        assert_eq!(seen, [0, 1]);
        assert_eq!(check.done(), 2);
    }

    #[test]
    fn a_wrong_digest_fails_its_part_only() {
        let items = [item(64), item(64)];
        let mut check = FrameCheck::new(&items, FRAME);
        let mut bad = frames(0, &[1; 64]);
        bad[0].payload = vec![9; 64].into();
        assert_eq!(check.feed(&bad[0]).unwrap(), Progress::Failed(0, Reason::BadDigest));
        assert_eq!(check.feed(&frames(1, &[2; 64])[0]).unwrap(), Progress::Whole(1));
    }

    #[test]
    fn a_part_that_cannot_be_read_fails_alone() {
        let items = [item(64), item(64)];
        let mut check = FrameCheck::new(&items, FRAME);
        let failed = v1::GetFrame { failure: v1::Reason::LeaseExpired.into(), ..v1::GetFrame::default() };
        assert_eq!(check.feed(&failed).unwrap(), Progress::Failed(0, Reason::LeaseExpired));
        assert_eq!(check.feed(&frames(1, &[2; 64])[0]).unwrap(), Progress::Whole(1));
    }

    #[test]
    fn every_deviation_breaks_the_stream() {
        type Change = fn(&mut Vec<v1::GetFrame>);
        let changes: &[(Change, Reason)] = &[
            (|f| f[0].item = 1, Reason::Malformed),
            (|f| f[0].part_bytes = 199, Reason::WrongSize),
            (|f| f[0].part_bytes = u64::MAX, Reason::WrongSize),
            (|f| f[0].coverage = 0b0111, Reason::BadCoverage),
            (|f| f[0].coverage = u64::MAX, Reason::BadCoverage),
            (|f| f[0].digest = vec![0; 31].into(), Reason::Malformed),
            (|f| f[0].payload.clear(), Reason::WrongSize),
            (|f| f[1].offset_bytes = 0, Reason::WrongSize),
            (|f| f[1].part_bytes = 200, Reason::Malformed),
            (|f| _ = f.remove(1), Reason::WrongSize),
            (|f| f[3].payload = vec![0; 60].into(), Reason::WrongSize),
            (|f| f[0].payload = vec![0; 65].into(), Reason::FrameTooLarge),
            (|f| f[1].failure = v1::Reason::Internal.into(), Reason::Malformed),
            (|f| f.push(f[3].clone()), Reason::Malformed),
        ];
        for (i, (change, reason)) in changes.iter().enumerate() {
            let mut all = frames(0, &[1; 200]);
            change(&mut all);
            let items = [item(200)];
            let mut check = FrameCheck::new(&items, FRAME);
            let broken = all.iter().find_map(|frame| check.feed(frame).err());
            assert_eq!(broken, Some(Broken(*reason)), "change {i}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_garbage_makes_a_whole_part(
            raw in proptest::collection::vec((0u32..2, 0u64..300, 0u64..16, 0i32..80, 0u64..300,
                proptest::collection::vec(0u8.., 0..100)), 0..20)
        ) {
            let items = [item(200)];
            let mut check = FrameCheck::new(&items, FRAME);
            for (item, part_bytes, coverage, failure, offset_bytes, payload) in raw {
                let digest = ContentDigest::of(b"something else").as_bytes().to_vec().into();
                let frame = v1::GetFrame {
                    item, part_bytes, coverage, failure, offset_bytes, digest, payload: payload.into(),
                };
                match check.feed(&frame) {
                    Ok(progress) => proptest::prop_assert_ne!(progress, Progress::Whole(0)),
                    Err(_) => break,
                }
            }
        }
    }
}
