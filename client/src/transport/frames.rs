//! Puts the frames of a `Get` together and believes none of them.
//!
//! Pure: no I/O, no clock. Every deviation from what was asked for ends the stream ([`Broken`]), since nothing
//! that follows it could be trusted to be in its place; a part whose bytes are there but wrong fails alone.

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
    /// Part `.0` is whole and its digest is right: [`Assembly::bytes`] has it until the next frame.
    Whole(usize),
    /// Part `.0` cannot be had, alone.
    Failed(usize, Reason),
}

/// Assembles the parts of one `Get`, one after another, in a buffer that is used again.
#[derive(Debug)]
pub(crate) struct Assembly<'a> {
    items: &'a [ReadItem],
    /// The item whose frames come now.
    at: usize,
    max_frame_bytes: usize,
    digest: Option<ContentDigest>,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
}

impl<'a> Assembly<'a> {
    pub(crate) fn new(items: &'a [ReadItem], max_frame_bytes: usize) -> Self {
        Self {
            items,
            at: 0,
            max_frame_bytes,
            digest: None,
            hasher: blake3::Hasher::new(),
            buffer: Vec::new(),
        }
    }

    /// Items that are done, well or not.
    pub(crate) fn done(&self) -> usize {
        self.at
    }

    /// The bytes of the part that was last completed.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
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
        let whole = usize::try_from(item.bytes).map_err(|_| Broken(Reason::TooLarge))?;
        let have = self.buffer.len();
        if frame.offset_bytes != have as u64 || payload_bytes == 0 || payload_bytes > whole - have {
            return Err(Broken(Reason::WrongSize));
        }
        Ok(None)
    }

    /// Takes bytes of the frame that was begun. The caller sees to it that they are not more than were announced.
    pub(crate) fn piece(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.buffer.extend_from_slice(bytes);
    }

    /// Ends the frame that was begun.
    pub(crate) fn end_frame(&mut self) -> Progress {
        let whole = self.items.get(self.at).map_or(0, |item| item.bytes);
        if (self.buffer.len() as u64) < whole {
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
        self.buffer.clear();
        // Not the daemon's number: it was checked against ours above.
        self.buffer.reserve_exact(usize::try_from(item.bytes).map_err(|_| Broken(Reason::TooLarge))?);
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

    impl Assembly<'_> {
        /// Takes a whole frame, its payload in two pieces.
        fn feed(&mut self, frame: &v1::GetFrame) -> Result<Progress, Broken> {
            let payload = &frame.payload;
            if let Some(progress) = self.begin_frame(frame, payload.len())? {
                return Ok(progress);
            }
            let (front, back) = payload.split_at(payload.len() / 3);
            self.piece(front);
            self.piece(back);
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
        let mut assembly = Assembly::new(&items, FRAME);
        let mut seen = Vec::new();
        for frame in frames(0, &a).iter().chain(&frames(1, &b)) {
            if let Progress::Whole(i) = assembly.feed(frame).unwrap() {
                seen.push((i, assembly.bytes().to_vec()));
            }
        }
        assert_eq!(seen, [(0, a), (1, b)]);
        assert_eq!(assembly.done(), 2);
    }

    #[test]
    fn a_wrong_digest_fails_its_part_only() {
        let items = [item(64), item(64)];
        let mut assembly = Assembly::new(&items, FRAME);
        let mut bad = frames(0, &[1; 64]);
        bad[0].payload = vec![9; 64].into();
        assert_eq!(assembly.feed(&bad[0]).unwrap(), Progress::Failed(0, Reason::BadDigest));
        assert_eq!(assembly.feed(&frames(1, &[2; 64])[0]).unwrap(), Progress::Whole(1));
    }

    #[test]
    fn a_part_that_cannot_be_read_fails_alone() {
        let items = [item(64), item(64)];
        let mut assembly = Assembly::new(&items, FRAME);
        let failed = v1::GetFrame { failure: v1::Reason::LeaseExpired.into(), ..v1::GetFrame::default() };
        assert_eq!(assembly.feed(&failed).unwrap(), Progress::Failed(0, Reason::LeaseExpired));
        assert_eq!(assembly.feed(&frames(1, &[2; 64])[0]).unwrap(), Progress::Whole(1));
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
            let mut assembly = Assembly::new(&items, FRAME);
            let broken = all.iter().find_map(|frame| assembly.feed(frame).err());
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
            let mut assembly = Assembly::new(&items, FRAME);
            for (item, part_bytes, coverage, failure, offset_bytes, payload) in raw {
                let digest = ContentDigest::of(b"something else").as_bytes().to_vec().into();
                let frame = v1::GetFrame {
                    item, part_bytes, coverage, failure, offset_bytes, digest, payload: payload.into(),
                };
                match assembly.feed(&frame) {
                    Ok(progress) => proptest::prop_assert_ne!(progress, Progress::Whole(0)),
                    Err(_) => break,
                }
            }
        }
    }
}
