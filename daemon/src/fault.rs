//! Faults that a test can make happen, each at a named place. Only builds with the feature `faults` have them; in all
//! others the questions whether one happens are constants, and nothing of them is left.

use std::io;

/// A place where the system, the memory or another thread can fail. The doc says what the test plays there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Fault {
    /// The arena's file cannot be opened or made.
    ArenaOpen,
    /// Its beginning cannot be read.
    ArenaRead,
    /// It cannot be emptied for reuse.
    ArenaCut,
    /// Its header cannot be written.
    ArenaHeader,
    /// Half of its header is written before that fails.
    ArenaHeaderShort,
    /// Its pages cannot be reserved.
    ArenaReserve,
    /// It cannot be mapped.
    ArenaMap,
    /// Its pages cannot be made present.
    ArenaPopulate,
    /// A thread cannot be started.
    Thread,
    /// A namespace's descriptor cannot be written down.
    DescriptorWrite,
    /// There is no place for a record.
    RecordWrite,
    /// The daemon ends in the middle of a record: half of its checksum is there.
    RecordTorn,
    /// No memory file for a staging region.
    StagingCreate,
    /// No memory for a staging region.
    StagingReserve,
    /// A staging region cannot be mapped.
    StagingMap,
    /// No descriptor of the arena for a client.
    ArenaDescriptor,
    /// Descriptors cannot be sent to a client.
    SendDescriptors,
    /// A client cannot be accepted.
    Accept,
    /// The allocator finds no range, however much is free.
    Allocate,
    /// Bytes cannot be written into the arena.
    PartWrite,
    /// A stored part cannot be opened for a reader.
    PartOpen,
    /// A stored part cannot be read on, in the middle of a stream.
    PartRead,
    /// The disk tier's files cannot be written.
    DiskWrite,
    /// Half of it is written before that fails.
    DiskWriteShort,
    /// The disk tier's files cannot be read.
    DiskRead,
    /// What was written does not reach the medium.
    DiskSync,
    /// The disk tier's list of namespaces cannot be written.
    DiskNamespaces,
    /// The scrub reads other bytes than were stored.
    ScrubRead,
}

#[cfg(feature = "faults")]
mod switch {
    use std::fmt;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{Fault, io};

    const FAULTS: usize = Fault::ScrubRead as usize + 1;
    static HAPPENED: [AtomicU64; FAULTS] = [const { AtomicU64::new(0) }; FAULTS];

    /// The faults of one test: no other test of the process has any until this is dropped, and then there are none.
    pub struct Faults(
        #[expect(dead_code, reason = "its drop takes the faults away")] fail::FailScenario<'static>,
    );

    impl Faults {
        /// Waits until other tests are done with theirs.
        pub fn begin() -> Self {
            let scenario = fail::FailScenario::setup();
            HAPPENED.iter().for_each(|count| count.store(0, Ordering::Relaxed));
            Self(scenario)
        }
        /// From now on it happens each time, with this errno.
        pub fn always(&self, fault: Fault, errno: i32) {
            self.set(fault, &format!("return({errno})"));
        }
        /// It happens the next `times` times.
        pub fn next(&self, fault: Fault, times: u32, errno: i32) {
            self.set(fault, &format!("{times}*return({errno})->off"));
        }
        /// It happens in so many of a hundred times, drawn by chance.
        pub fn sometimes(&self, fault: Fault, percent: u32, errno: i32) {
            self.set(fault, &format!("{percent}%return({errno})"));
        }
        /// It does not happen any more.
        pub fn never(&self, fault: Fault) {
            self.set(fault, "off");
        }
        /// How often it happened since [`Faults::begin`]. A test looks, or it may have tested nothing.
        pub fn happened(&self, fault: Fault) -> u64 {
            HAPPENED[fault as usize].load(Ordering::Relaxed)
        }
        fn set(&self, fault: Fault, action: &str) {
            fail::cfg(name(fault), action).unwrap_or_else(|error| panic!("{fault:?} {action}: {error}"));
        }
    }

    impl fmt::Debug for Faults {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Faults")
        }
    }

    fn name(fault: Fault) -> String {
        format!("{fault:?}")
    }

    fn errno(fault: Fault) -> Option<i32> {
        let asked = || -> Option<i32> {
            fail::fail_point!(&name(fault), |errno: Option<String>| {
                Some(errno.and_then(|errno| errno.parse().ok()).unwrap_or(nix::libc::EIO))
            });
            None
        };
        let errno = asked()?;
        HAPPENED[fault as usize].fetch_add(1, Ordering::Relaxed);
        Some(errno)
    }

    /// The error that a call is to end with here, if it is to fail.
    pub(crate) fn check(fault: Fault) -> io::Result<()> {
        errno(fault).map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
    /// Whether it happens now, where there is no error to choose.
    pub(crate) fn hit(fault: Fault) -> bool {
        errno(fault).is_some()
    }
}

#[cfg(feature = "faults")]
pub use switch::Faults;
#[cfg(feature = "faults")]
pub(crate) use switch::{check, hit};

/// The error that a call is to end with here: none.
#[cfg(not(feature = "faults"))]
#[inline]
pub(crate) fn check(_: Fault) -> io::Result<()> {
    Ok(())
}
/// Whether it happens now: never.
#[cfg(not(feature = "faults"))]
pub(crate) const fn hit(_: Fault) -> bool {
    false
}
