//! Room that goes round: spans of a buffer in the order in which they were taken.
//!
//! Copies end nearly in the order in which they began, so the oldest span is what stands in the way. A span is free
//! for the next one only when all older ones are free too.

use std::collections::VecDeque;

use tender_proto::mutant::{Mutant, active};

/// Spans begin at multiples of this: kernels copy vectors of 16 bytes, and neighbours share no cache line.
pub(super) const ALIGN_BYTES: u64 = 256;

/// The free and the taken space of a buffer. It knows offsets, not memory.
#[derive(Debug)]
pub(super) struct Ring {
    bytes: u64,
    /// Where the next span begins and the oldest one began, counted on without wrapping.
    head: u64,
    tail: u64,
    /// Spans in the order of their taking, each with its end.
    taken: VecDeque<(u64, bool)>,
    /// Spans that went out of `taken` at its front.
    gone: u64,
}

/// A span of a ring. Whoever has it gives it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    /// Offset in the buffer.
    pub(super) at: u64,
    number: u64,
}

impl Ring {
    pub(super) fn new(bytes: u64) -> Self {
        let bytes = bytes / ALIGN_BYTES * ALIGN_BYTES;
        Self { bytes, head: 0, tail: 0, taken: VecDeque::new(), gone: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether nothing is taken.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.taken.is_empty()
    }

    /// A span of `bytes`; `None` while there is no room for it.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Span> {
        let bytes =
            bytes.max(1).checked_next_multiple_of(ALIGN_BYTES).filter(|&bytes| bytes <= self.bytes)?;
        if self.taken.is_empty() {
            // Nothing stands in the way of a span that needs all of it.
            (self.head, self.tail) = (0, 0);
        }
        let behind = self.bytes - self.head % self.bytes;
        // A span does not wrap: what is left at the end is skipped.
        let start = if behind < bytes { self.head + behind } else { self.head };
        let end = start + bytes;
        if end - self.tail > self.bytes && !active(Mutant::RingOverrun) {
            return None;
        }
        let number = self.gone + self.taken.len() as u64;
        self.taken.push_back((end, false));
        self.head = end;
        Some(Span { at: start % self.bytes, number })
    }

    /// Nobody uses the span any more.
    pub(super) fn give_back(&mut self, span: Span) {
        let place = span.number.checked_sub(self.gone).and_then(|place| usize::try_from(place).ok());
        if let Some(span) = place.and_then(|place| self.taken.get_mut(place)) {
            span.1 = true;
        }
        while let Some(&(end, true)) = self.taken.front() {
            self.taken.pop_front();
            self.gone += 1;
            self.tail = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_ring_says_so_and_wraps() {
        let mut ring = Ring::new(1024 + 17);
        let spans: Vec<_> = (0..4).map(|_| ring.take(200).unwrap()).collect();
        assert_eq!(spans.iter().map(|span| span.at).collect::<Vec<_>>(), [0, 256, 512, 768]);
        assert_eq!(ring.take(1), None);
        ring.give_back(spans[1]);
        assert_eq!(ring.take(1), None, "the oldest is still taken");
        ring.give_back(spans[0]);
        assert_eq!(ring.take(512).unwrap().at, 0);
        assert_eq!(ring.take(1), None);
        assert_eq!((ring.take(1025), ring.bytes()), (None, 1024));
    }

    #[test]
    fn an_idle_ring_has_room_for_a_span_of_its_size_wherever_the_last_one_was() {
        let mut ring = Ring::new(1024);
        for bytes in [256, 1024, 512, 1024, 768, 513, 1000] {
            let span = ring.take(bytes).unwrap();
            ring.give_back(span);
        }
    }

    proptest! {
        #[test]
        fn spans_that_are_taken_never_overlap(
            sizes in proptest::collection::vec(1u64..8000, 1..200),
            order in proptest::collection::vec(0usize..8, 200),
        ) {
            let mut ring = Ring::new(8192);
            let mut held: Vec<(Span, u64)> = Vec::new();
            for (bytes, pick) in sizes.into_iter().zip(order) {
                match ring.take(bytes) {
                    Some(span) => {
                        prop_assert!(span.at + bytes <= ring.bytes() && span.at.is_multiple_of(ALIGN_BYTES));
                        for &(other, len) in &held {
                            prop_assert!(span.at + bytes <= other.at || other.at + len <= span.at);
                        }
                        held.push((span, bytes));
                    }
                    None => prop_assert!(!held.is_empty(), "an empty ring has room for all that fits it"),
                }
                if pick < held.len() {
                    ring.give_back(held.remove(pick).0);
                }
            }
            held.into_iter().for_each(|(span, _)| ring.give_back(span));
            prop_assert!(ring.is_idle());
        }
    }
}
