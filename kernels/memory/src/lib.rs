//! Copies of host memory that go past the processor's caches.
//!
//! KV cache is copied in megabytes and read much later, if by this processor at all. An ordinary store reads the line that it is about
//! to replace, and pushes out of the caches what is needed next. A streaming store does neither: into memory that is not in
//! a cache it is 1.5 to 3 times as fast (docs/benchmarks.md has the figures), wherever source and destination lie.
//!
//! This crate is one of the few places where unsafe code lives: it copies between raw addresses that its callers vouch for.
#![allow(unsafe_code, reason = "copies between addresses")]

/// A line of the caches.
const LINE_BYTES: usize = 64;
/// Below this a copy is ordinary: most of it would be the ends that share their lines with others' bytes.
const LEAST_STREAMED_BYTES: usize = 512;

/// Copies of one piece of work. What they wrote is ordered before everything that this thread does after the drop: until then another
/// thread may see the news of a copy before its bytes.
#[derive(Debug)]
pub struct Stream(());

impl Stream {
    /// Begins the work.
    #[expect(
        clippy::new_without_default,
        reason = "its drop is what matters, so nobody should make one in passing"
    )]
    pub fn new() -> Self {
        Self(())
    }

    /// Copies `len` bytes.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes, and the two do not overlap.
    pub unsafe fn copy(&mut self, from: *const u8, to: *mut u8, len: usize) {
        if len < LEAST_STREAMED_BYTES {
            // SAFETY: the caller's word.
            return unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        }
        let head = to.align_offset(LINE_BYTES);
        let body = (len - head) / LINE_BYTES * LINE_BYTES;
        // SAFETY: three ranges that follow each other and together have `len` bytes, since head < 64 <= len; the middle
        // one begins at a line.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, head);
            copy_lines(from.add(head), to.add(head), body);
            let done = head + body;
            std::ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        fence();
    }
}

/// # Safety
/// As for [`Stream::copy`], of whole lines, to the beginning of one.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_lines(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const WIDTH: usize = size_of::<__m128i>();
    for at in (0..len).step_by(LINE_BYTES) {
        // SAFETY: `at` and the 63 bytes behind it lie in both ranges; the destination is aligned to 64. SSE2 is part of x86-64.
        unsafe {
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let line: [_; LINE_BYTES / WIDTH] = std::array::from_fn(|i| _mm_loadu_si128(from.add(i)));
            for (i, part) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), part);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn fence() {
    // SAFETY: an instruction of SSE, which is part of x86-64; it touches no memory of ours.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// # Safety
/// As for [`Stream::copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_lines(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's word.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

#[cfg(not(target_arch = "x86_64"))]
fn fence() {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_copy_brings_every_byte_and_touches_no_other(
            from in 0usize..200, to in 0usize..200, len in 0usize..5000,
        ) {
            let source: Vec<u8> = (0..=250u8).cycle().take(from + len).collect();
            let mut target = vec![0xEE; to + len + 100];
            let mut stream = Stream::new();
            // SAFETY: both ranges lie in vectors of their own.
            unsafe { stream.copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), len) };
            drop(stream);
            prop_assert_eq!(&target[to..to + len], &source[from..]);
            prop_assert!(target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0xEE));
        }
    }

    #[test]
    fn who_hears_of_a_copy_sees_its_bytes() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let (round, source) = (AtomicUsize::new(0), [[1u8; 4096], [2; 4096]]);
        let target: Vec<std::sync::atomic::AtomicU8> =
            (0..4096).map(|_| std::sync::atomic::AtomicU8::new(0)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (i, from) in source.iter().enumerate() {
                    while round.load(Ordering::Acquire) != 2 * i {}
                    let mut stream = Stream::new();
                    // SAFETY: the other thread looks only after it heard of the copy.
                    unsafe { stream.copy(from.as_ptr(), target.as_ptr().cast_mut().cast(), 4096) };
                    drop(stream);
                    round.store(2 * i + 1, Ordering::Release);
                }
            });
            for i in 0..source.len() {
                while round.load(Ordering::Acquire) != 2 * i + 1 {}
                assert!(target.iter().all(|byte| usize::from(byte.load(Ordering::Relaxed)) == i + 1));
                round.store(2 * i + 2, Ordering::Release);
            }
        });
    }
}
