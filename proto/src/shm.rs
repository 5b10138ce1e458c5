//! Shared memory between a daemon and the clients of its host.
//!
//! The arena is mapped read-only by clients, a session's staging region read-write. The descriptors travel
//! over a `SOCK_SEQPACKET` Unix socket beside the gRPC one (`<socket>.fd`): the client sends an [`FdRequest`],
//! the daemon answers with an [`FdReply`] that carries the arena's descriptor and the staging region's, or a
//! reason and none.
//!
//! This module is one of the few where unsafe code lives: it keeps every access inside its mapping.
#![allow(
    unsafe_code,
    reason = "raw memory that other processes map too; every access is bounds-checked here"
)]

use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use memmap2::{MmapOptions, MmapRaw};
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use crate::ids::SessionId;
use crate::reason::Reason;

/// A range that does not lie inside a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("bytes {offset_bytes}..+{len} are outside a mapping of {mapped} bytes")]
pub struct OutOfRange {
    offset_bytes: u64,
    len: usize,
    mapped: usize,
}

/// Huge pages of x86-64 and of arm64 with 4 KiB base pages. A copy out of small pages ran at 0.8 of one out of huge
/// pages (256 MiB, 32 KiB runs).
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A file mapped shared, from an address where huge pages fit. Other processes may change it at any time, so safe
/// code only copies in and out.
#[derive(Debug)]
pub struct Mapping {
    /// Address space with room to align; the file is mapped over it.
    reserved: MmapRaw,
    /// Where the file begins in it.
    start: usize,
    len: usize,
    writable: bool,
}

impl Mapping {
    /// Maps the whole file for reading.
    pub fn read_only(file: &File) -> io::Result<Self> {
        Self::map(file, false)
    }
    /// Maps the whole file for reading and writing.
    pub fn read_write(file: &File) -> io::Result<Self> {
        Self::map(file, true)
    }
    fn map(file: &File, writable: bool) -> io::Result<Self> {
        let too_large = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let len = usize::try_from(file.metadata()?.len()).map_err(too_large)?;
        let size = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        let reserved = MmapOptions::new().len(len + HUGE_PAGE_BYTES).no_reserve_swap().map_anon()?;
        let reserved = MmapRaw::from(reserved);
        let first = reserved.as_ptr().addr();
        let address = first.next_multiple_of(HUGE_PAGE_BYTES);
        let mut access = ProtFlags::PROT_READ;
        access.set(ProtFlags::PROT_WRITE, writable);
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        // SAFETY: the range lies in the reservation, which nobody else knows, so nothing in use is replaced.
        unsafe { mmap(NonZeroUsize::new(address), size, access, flags, file, 0) }?;
        Ok(Self { reserved, start: address - first, len, writable })
    }
    /// Makes pages present before somebody waits for them: a first touch costs many times a later one. In a writable
    /// mapping they become huge pages where the kernel can. Contents do not change. False: the kernel does not know how
    /// to. An error: there are no such pages, and whoever touches them gets a bus error.
    pub fn make_present(&self, offset_bytes: u64, len: usize) -> io::Result<bool> {
        let start = self
            .address(offset_bytes, len)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let advise = |advice| {
            // SAFETY: the range lies in the mapping, and no such advice unmaps it or changes a byte.
            let failed = unsafe { libc::madvise(start.cast_mut().cast(), len, advice) != 0 };
            if failed { Err(io::Error::last_os_error()) } else { Ok(true) }
        };
        let present = if self.writable {
            // Where it fails, small pages do.
            _ = advise(libc::MADV_COLLAPSE);
            advise(libc::MADV_POPULATE_WRITE)
        } else {
            advise(libc::MADV_POPULATE_READ)
        };
        match present {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            present => present,
        }
    }
    /// Mapped bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Address of a range, for drivers and copy kernels that take raw pointers.
    pub fn address(&self, offset_bytes: u64, len: usize) -> Result<*const u8, OutOfRange> {
        let start = self.check(offset_bytes, len)?;
        // SAFETY: `check` keeps start + len inside the mapping.
        Ok(unsafe { self.reserved.as_ptr().add(self.start + start) })
    }
    /// Address of a range for writing; a read-only mapping has none.
    pub fn address_mut(&self, offset_bytes: u64, len: usize) -> Result<*mut u8, OutOfRange> {
        let start = self.check(offset_bytes, len)?;
        if !self.writable {
            return Err(OutOfRange { offset_bytes, len, mapped: 0 });
        }
        // SAFETY: `check` keeps start + len inside the mapping.
        Ok(unsafe { self.reserved.as_mut_ptr().add(self.start + start) })
    }
    /// Copies bytes out of the mapping.
    pub fn copy_out(&self, offset_bytes: u64, to: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.address(offset_bytes, to.len())?;
        // SAFETY: both ranges are valid for to.len() bytes; `to` is exclusive, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }
    /// Copies bytes into the mapping; refused on a read-only one.
    pub fn copy_in(&self, offset_bytes: u64, from: &[u8]) -> Result<(), OutOfRange> {
        let to = self.address_mut(offset_bytes, from.len())?;
        // SAFETY: both ranges are valid for from.len() bytes; `copy` allows overlap.
        unsafe { std::ptr::copy(from.as_ptr(), to, from.len()) };
        Ok(())
    }
    /// Copies bytes of another mapping into this one.
    pub fn copy_from(
        &self,
        offset_bytes: u64,
        from: &Self,
        from_bytes: u64,
        len: usize,
    ) -> Result<(), OutOfRange> {
        let (source, to) = (from.address(from_bytes, len)?, self.address_mut(offset_bytes, len)?);
        // SAFETY: both ranges are valid for len bytes; `copy` allows overlap.
        unsafe { std::ptr::copy(source, to, len) };
        Ok(())
    }
    /// The range as a slice.
    ///
    /// # Safety
    /// Nobody may write to the range while the slice lives: the caller holds a lease on it, or is its only
    /// writer.
    pub unsafe fn slice(&self, offset_bytes: u64, len: usize) -> Result<&[u8], OutOfRange> {
        let start = self.address(offset_bytes, len)?;
        // SAFETY: the range is mapped for as long as self lives; the caller vouches that nobody writes.
        Ok(unsafe { std::slice::from_raw_parts(start, len) })
    }

    fn check(&self, offset_bytes: u64, len: usize) -> Result<usize, OutOfRange> {
        let error = OutOfRange { offset_bytes, len, mapped: self.len() };
        let start = usize::try_from(offset_bytes).map_err(|_| error)?;
        let end = start.checked_add(len).ok_or(error)?;
        if end <= self.len() { Ok(start) } else { Err(error) }
    }
}

/// The descriptor socket that belongs to a gRPC Unix socket.
pub fn fd_socket_path(grpc_socket: &Path) -> PathBuf {
    let mut path = grpc_socket.as_os_str().to_owned();
    path.push(".fd");
    path.into()
}

const MAGIC: [u8; 8] = *b"TENDERF1";

/// What a client asks on the descriptor socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FdRequest {
    /// Whose staging region.
    pub session: SessionId,
    /// How large it shall be; 0 for none, that is, read the arena only.
    pub staging_bytes: u64,
}

impl FdRequest {
    /// Bytes of the encoded form.
    pub const LEN: usize = 32;

    /// Fixed layout: magic, session, staging bytes (little endian).
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..24].copy_from_slice(self.session.as_bytes());
        out[24..].copy_from_slice(&self.staging_bytes.to_le_bytes());
        out
    }
    /// `None` for anything but the exact layout.
    pub fn decode(raw: &[u8]) -> Option<Self> {
        let raw: &[u8; Self::LEN] = raw.try_into().ok()?;
        let session = SessionId::parse(&raw[8..24]).ok()?;
        (raw[..8] == MAGIC).then(|| Self { session, staging_bytes: le_u64(raw, 24) })
    }
}

/// What the daemon answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FdReply {
    /// Descriptors come with it: the arena's, and the staging region's if its size is not 0.
    Granted {
        /// Size of the arena's file.
        arena_bytes: u64,
        /// Size of the staging region.
        staging_bytes: u64,
    },
    /// No descriptors, and why.
    Refused(Reason),
}

impl FdReply {
    /// Bytes of the encoded form.
    pub const LEN: usize = 32;

    /// Fixed layout: magic, reason or 0, arena bytes, staging bytes (little endian).
    pub fn encode(&self) -> [u8; Self::LEN] {
        let (reason, arena, staging) = match *self {
            Self::Granted { arena_bytes, staging_bytes } => (0u64, arena_bytes, staging_bytes),
            Self::Refused(reason) => (u64::from(reason.to_wire() as u32), 0, 0),
        };
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..16].copy_from_slice(&reason.to_le_bytes());
        out[16..24].copy_from_slice(&arena.to_le_bytes());
        out[24..].copy_from_slice(&staging.to_le_bytes());
        out
    }
    /// `None` for anything but the exact layout.
    pub fn decode(raw: &[u8]) -> Option<Self> {
        let raw: &[u8; Self::LEN] = raw.try_into().ok()?;
        if raw[..8] != MAGIC {
            return None;
        }
        match le_u64(raw, 8) {
            0 => Some(Self::Granted { arena_bytes: le_u64(raw, 16), staging_bytes: le_u64(raw, 24) }),
            reason => Reason::from_wire(i32::try_from(reason).ok()?).map(Self::Refused),
        }
    }
}

fn le_u64(raw: &[u8; 32], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&raw[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// Sends one packet with descriptors attached.
pub fn send_with_fds(socket: BorrowedFd<'_>, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &control[..] };
    let sent =
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(packet)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    if sent == packet.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Descriptors that the kernel lets one packet have (`SCM_MAX_FD`).
const MAX_FDS: usize = 253;

/// Receives one packet of at most 64 bytes and the descriptors that came with it, however many the other side put there:
/// those that nobody keeps are closed. Without room for all of them in this process it is an error, and none is left.
pub fn recv_with_fds(socket: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    recv_packet(socket, &mut [0; 64])
}

/// The same for a packet as long as the buffer at most. What is longer is cut; an empty packet is the end.
pub fn recv_packet(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    // A header of two words, and the descriptors.
    receive(socket, buffer, &mut [0; 2 + (MAX_FDS * size_of::<RawFd>()).div_ceil(8)])
}

/// nix shows no descriptors of a message whose control part was cut, though the kernel has made them; they would stay
/// open for ever.
fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut [u64],
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: numbers and pointers, for which zero is none.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(control));
    // SAFETY: the message names `buffer` and the memory of `control`, with their sizes, and both outlive the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the call has filled it, and it names memory that is still there.
    let fds = unsafe { owned_fds(&message) };
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((buffer[..received].to_vec(), fds))
}

/// Every descriptor of a message, owned.
///
/// # Safety
/// `recvmsg` has filled the message just now, its control part is still there, in whole words, and nobody has taken its
/// descriptors.
unsafe fn owned_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel wrote the headers and the length of their memory; the macros stay inside of it.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: it is not null, so it lies inside, whole, at a multiple of a word.
        let found = unsafe { header.read() };
        if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: only the length of a header without data.
            let before = unsafe { libc::CMSG_LEN(0) } as usize;
            for index in 0..(found.cmsg_len.saturating_sub(before)) / size_of::<RawFd>() {
                // SAFETY: the data has so many descriptors, which the kernel has just made for us.
                fds.push(unsafe {
                    let data = libc::CMSG_DATA(header).cast::<RawFd>();
                    OwnedFd::from_raw_fd(data.add(index).read_unaligned())
                });
            }
        }
        // SAFETY: as for the first one.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    fds
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    fn mapped(len: u64) -> Mapping {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        Mapping::read_write(&file).unwrap()
    }

    #[test]
    fn an_access_outside_the_mapping_is_refused() {
        let map = mapped(4096);
        assert!(map.copy_in(4095, &[1, 2]).is_err());
        assert!(map.copy_in(u64::MAX, &[1]).is_err());
        assert!(map.copy_out(4096, &mut [0]).is_err());
        assert!(map.copy_in(4095, &[9]).is_ok());
        let mut out = [0];
        map.copy_out(4095, &mut out).unwrap();
        assert_eq!(out, [9]);
    }

    #[test]
    fn a_read_only_mapping_refuses_writes() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let map = Mapping::read_only(&file).unwrap();
        assert!(map.copy_in(0, &[1]).is_err());
        assert!(map.address_mut(0, 1).is_err());
    }

    #[test]
    fn making_pages_present_changes_no_byte() {
        let map = mapped(5 << 20);
        map.copy_in(3 << 20, b"kv bytes").unwrap();
        assert!(map.make_present(0, 5 << 20).unwrap());
        assert!(map.make_present(1 << 20, 5 << 20).is_err());
        let mut seen = [0; 9];
        map.copy_out((3 << 20) - 1, &mut seen).unwrap();
        assert_eq!(&seen, b"\0kv bytes");
        assert_eq!(map.address(0, 1).unwrap().addr() % HUGE_PAGE_BYTES, 0);
    }

    #[test]
    fn descriptors_travel_with_a_packet() {
        let (a, b) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let reply = FdReply::Granted { arena_bytes: 4096, staging_bytes: 0 };
        send_with_fds(a.as_fd(), &reply.encode(), &[file.as_fd()]).unwrap();
        let (packet, mut fds) = recv_with_fds(b.as_fd()).unwrap();
        assert_eq!(FdReply::decode(&packet), Some(reply));
        let theirs = Mapping::read_write(&File::from(fds.remove(0))).unwrap();
        theirs.copy_in(100, b"hello").unwrap();
        let mut seen = [0; 5];
        Mapping::read_only(&file).unwrap().copy_out(100, &mut seen).unwrap();
        assert_eq!(&seen, b"hello");
    }

    /// Sends the writing end of a pipe `times` times, receives with `receive`, and says whether every copy is closed.
    fn closed_after(
        times: usize,
        receive: impl FnOnce(BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)>,
    ) -> (io::Result<usize>, bool) {
        let (a, b) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let (end, ours) = nix::unistd::pipe().unwrap();
        send_with_fds(a.as_fd(), b"packet", &vec![ours.as_fd(); times]).unwrap();
        drop(ours);
        let received = receive(b.as_fd()).map(|(_, fds)| fds.len());
        nix::fcntl::fcntl(&end, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
        (received, nix::unistd::read(&end, &mut [0]) == Ok(0))
    }

    #[test]
    fn descriptors_that_nobody_keeps_are_closed_however_many_came() {
        for times in [1, 2, 3, 5, 100, MAX_FDS] {
            let (received, closed) = closed_after(times, recv_with_fds);
            assert_eq!((received.unwrap(), closed), (times, true));
        }
        // The same where there is no room for all of them.
        let (received, closed) = closed_after(5, |socket| receive(socket, &mut [0; 64], &mut [0; 3]));
        assert_eq!(received.unwrap_err().raw_os_error(), Some(libc::EMFILE));
        assert!(closed);
    }

    #[test]
    fn garbage_on_the_descriptor_socket_decodes_to_nothing() {
        let request = FdRequest { session: SessionId::from_random([3; 16]), staging_bytes: 77 };
        assert_eq!(FdRequest::decode(&request.encode()), Some(request));
        assert_eq!(FdRequest::decode(&request.encode()[1..]), None);
        assert_eq!(FdRequest::decode(&[0; 32]), None);
        let refused = FdReply::Refused(Reason::TooMany);
        assert_eq!(FdReply::decode(&refused.encode()), Some(refused));
    }
}
