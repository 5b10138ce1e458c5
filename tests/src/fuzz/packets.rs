//! Packets of the descriptor socket, with descriptors that nobody asked for.

use std::fs::{self, File, Metadata};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use arbitrary::{Arbitrary, Unstructured};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use tender_proto::SessionId;
use tender_proto::shm::{FdReply, FdRequest, recv_with_fds, send_with_fds};

/// Largest packet that is looked at.
const MAX_PACKET_BYTES: usize = 64;

#[derive(Arbitrary, Debug)]
struct Draft<'a> {
    way: Way<'a>,
    descriptors: u8,
}

#[derive(Arbitrary, Debug)]
enum Way<'a> {
    Raw(&'a [u8]),
    Request { session: [u8; 16], staging_bytes: u64, change: Option<(u8, u8)> },
    Reply { reason: u64, arena_bytes: u64, staging_bytes: u64 },
}

/// A packet is sent through a socket of its kind; what is received must be its bytes, and no descriptor may stay behind.
pub fn run(data: &[u8]) {
    let Ok(draft) = Draft::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let packet = match draft.way {
        Way::Raw(raw) => raw.to_vec(),
        Way::Request { session, staging_bytes, change } => {
            let request = FdRequest { session: SessionId::from_random(session), staging_bytes };
            let mut packet = request.encode().to_vec();
            assert_eq!(FdRequest::decode(&packet), Some(request));
            if let Some((at, with)) = change {
                packet[usize::from(at) % FdRequest::LEN] ^= with;
            }
            packet
        }
        Way::Reply { reason, arena_bytes, staging_bytes } => {
            let mut packet = FdReply::Granted { arena_bytes, staging_bytes }.encode().to_vec();
            packet[8..16].copy_from_slice(&reason.to_le_bytes());
            packet
        }
    };
    if let Some(request) = FdRequest::decode(&packet) {
        assert_eq!(request.encode()[..], packet);
    }
    if let Some(reply) = FdReply::decode(&packet) {
        assert_eq!(FdReply::decode(&reply.encode()), Some(reply));
    }
    through_a_socket(&packet, usize::from(draft.descriptors % 16));
}

fn through_a_socket(packet: &[u8], descriptors: usize) {
    let Ok((ours, theirs)) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
    else {
        return;
    };
    let Ok(file) = memfd_create(c"fuzz", MFdFlags::MFD_CLOEXEC).map(File::from) else { return };
    let fds: Vec<BorrowedFd<'_>> = vec![file.as_fd(); descriptors];
    if packet.is_empty() || send_with_fds(ours.as_fd(), packet, &fds).is_err() {
        return;
    }
    if let Ok((received, fds)) = recv_with_fds(theirs.as_fd()) {
        assert_eq!(received, packet[..packet.len().min(MAX_PACKET_BYTES)]);
        assert!(fds.len() <= descriptors);
    }
    drop((ours, theirs));
    assert_eq!(descriptors_of(&file), 1, "a packet with {descriptors} descriptors left some open");
}

/// How often this process has the file open.
fn descriptors_of(file: &File) -> usize {
    let inode = |file: &Metadata| (file.dev(), file.ino());
    let wanted = file.metadata().ok().as_ref().map(inode);
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    open.filter(|entry| fs::metadata(entry.path()).ok().as_ref().map(inode) == wanted).count()
}
