//! A session's private region that its client writes and the daemon reads: bytes on their way into the arena.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use tender_proto::shm::Mapping;

use crate::admission::Budget;
use crate::fault::{self, Fault};

const NAME: &CStr = c"tender-staging";
/// Regions are whole pages.
const PAGE_BYTES: u64 = 4096;

/// One staging region. The client may change its bytes at any time, so the daemon trusts only what it has
/// copied out. Its size is sealed: a client cannot make the daemon fault by shrinking it.
#[derive(Debug)]
pub(crate) struct Staging {
    file: File,
    map: Mapping,
    bytes: u64,
    budget: Arc<Budget>,
    /// Of the session's domain, where that has one.
    domain: Option<Arc<Budget>>,
}

/// Why there is no region.
#[derive(Debug)]
pub(crate) enum StagingError {
    /// All regions together would be larger than allowed.
    OverBudget,
    /// Those of one domain would.
    OverQuota,
    /// The system refused.
    Io(io::Error),
}

/// What a region of at least `bytes` bytes takes.
pub(crate) fn region_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES)
}

impl Staging {
    /// A new region whose memory is reserved, of whole pages.
    pub(crate) fn new(
        bytes: u64,
        budget: &Arc<Budget>,
        domain: Option<&Arc<Budget>>,
    ) -> Result<Self, StagingError> {
        let bytes = region_bytes(bytes);
        if domain.is_some_and(|domain| !domain.take(bytes)) {
            return Err(StagingError::OverQuota);
        }
        let give_back = || domain.iter().for_each(|domain| domain.give(bytes));
        if !budget.take(bytes) {
            give_back();
            return Err(StagingError::OverBudget);
        }
        match map_new(bytes) {
            Ok((file, map)) => {
                Ok(Self { file, map, bytes, budget: Arc::clone(budget), domain: domain.cloned() })
            }
            Err(error) => {
                give_back();
                budget.give(bytes);
                Err(StagingError::Io(error))
            }
        }
    }
    /// Its size.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
    /// As the daemon sees it.
    pub(crate) fn map(&self) -> &Mapping {
        &self.map
    }
    /// For the client: read and write.
    pub(crate) fn fd(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
        self.domain.iter().for_each(|domain| domain.give(self.bytes));
    }
}

fn map_new(bytes: u64) -> io::Result<(File, Mapping)> {
    fault::check(Fault::StagingCreate)?;
    let file = File::from(memfd_create(NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
    let len = i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    fault::check(Fault::StagingReserve)?;
    fallocate(&file, FallocateFlags::empty(), 0, len)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    fault::check(Fault::StagingMap)?;
    let map = Mapping::read_write(&file)?;
    Ok((file, map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_sees_the_same_bytes_and_cannot_resize_them() {
        let budget = Budget::new(1 << 20);
        let staging = Staging::new(5000, &budget, None).unwrap();
        assert_eq!((staging.bytes(), budget.used_bytes()), (8192, 8192));
        let theirs = File::from(staging.fd().unwrap());
        Mapping::read_write(&theirs).unwrap().copy_in(4990, b"kv bytes").unwrap();
        let mut seen = [0; 8];
        staging.map().copy_out(4990, &mut seen).unwrap();
        assert_eq!(&seen, b"kv bytes");
        assert!(theirs.set_len(0).is_err() && theirs.set_len(1 << 20).is_err());
        drop(staging);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn regions_together_stay_within_the_budget() {
        let budget = Budget::new(8192);
        let first = Staging::new(8192, &budget, None).unwrap();
        assert!(matches!(Staging::new(1, &budget, None), Err(StagingError::OverBudget)));
        drop(first);
        assert!(Staging::new(1, &budget, None).is_ok());
    }

    #[test]
    fn a_domain_has_its_share_of_all_regions() {
        let (all, one, other) = (Budget::new(3 << 12), Budget::new(1 << 12), Budget::new(4 << 12));
        let _first = Staging::new(1, &all, Some(&one)).unwrap();
        assert!(matches!(Staging::new(1, &all, Some(&one)), Err(StagingError::OverQuota)));
        let _others = Staging::new(2 << 12, &all, Some(&other)).unwrap();
        assert!(matches!(Staging::new(1, &all, Some(&other)), Err(StagingError::OverBudget)));
        assert_eq!((all.used_bytes(), one.used_bytes(), other.used_bytes()), (3 << 12, 1 << 12, 2 << 12));
    }
}
