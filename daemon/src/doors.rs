//! The places where a daemon listens. Its listening sockets are kept apart from whoever accepts from them, so that they
//! can be handed to another daemon with everybody who waits in their queues.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use tender_proto::shm::fd_socket_path;
use tender_proto::v1;

use crate::config::{Config, HostPort, Listen};
use crate::fds;

/// Where to listen, as configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Unix(PathBuf),
    Tcp(HostPort),
    Tls(HostPort),
    /// Probes and metrics.
    Admin(HostPort),
}

/// One place with its listening sockets.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) place: Place,
    sockets: Sockets,
    /// Of the sockets that have files.
    files: Vec<SocketFile>,
}

#[derive(Debug)]
enum Sockets {
    Unix { grpc: std::os::unix::net::UnixListener, fds: std::os::unix::net::UnixListener },
    Tcp(std::net::TcpListener),
}

/// What somebody can accept from: a socket of its own over the same queue.
pub(crate) enum Accepting {
    Unix { grpc: tokio::net::UnixListener, fds: tokio::net::UnixListener },
    Tcp(tokio::net::TcpListener),
    Tls(tokio::net::TcpListener),
}

impl Place {
    /// All places of a configuration.
    pub(crate) fn all_of(config: &Config) -> Vec<Self> {
        let listen = config.listen.iter().map(|listen| match listen {
            Listen::Unix(path) => Self::Unix(path.clone()),
            Listen::Tcp(address) => Self::Tcp(address.clone()),
            Listen::Tls(address) => Self::Tls(address.clone()),
        });
        listen.chain(config.admin.clone().map(Self::Admin)).collect()
    }

    fn parse(kind: v1::TakeOverKind, configured: &str) -> Option<Self> {
        match kind {
            v1::TakeOverKind::Unix => match configured.parse().ok()? {
                Listen::Unix(path) => Some(Self::Unix(path)),
                Listen::Tcp(_) | Listen::Tls(_) => None,
            },
            v1::TakeOverKind::Tcp => match configured.parse().ok()? {
                Listen::Tcp(address) => Some(Self::Tcp(address)),
                Listen::Unix(_) | Listen::Tls(_) => None,
            },
            v1::TakeOverKind::Tls => match configured.parse().ok()? {
                Listen::Tls(address) => Some(Self::Tls(address)),
                Listen::Unix(_) | Listen::Tcp(_) => None,
            },
            v1::TakeOverKind::Admin => Some(Self::Admin(configured.parse().ok()?)),
            v1::TakeOverKind::Unspecified => None,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => Listen::Unix(path.clone()).fmt(f),
            Self::Tcp(address) => Listen::Tcp(address.clone()).fmt(f),
            Self::Tls(address) => Listen::Tls(address.clone()).fmt(f),
            Self::Admin(address) => write!(f, "{address} (admin)"),
        }
    }
}

impl Door {
    /// Binds the place. A socket that a dead daemon left is removed; one that answers is an error.
    pub(crate) async fn open(place: Place, socket_mode: u32) -> io::Result<Self> {
        let mut files = Vec::new();
        let sockets = match &place {
            Place::Unix(path) => {
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                free_stale(path).await?;
                let grpc = tokio::net::UnixListener::bind(path)?.into_std()?;
                files.push(SocketFile::of(path)?);
                let fd_path = fd_socket_path(path);
                _ = std::fs::remove_file(&fd_path);
                let fds = fds::bind_packets(&fd_path)?.into_std()?;
                files.push(SocketFile::of(&fd_path)?);
                Sockets::Unix { grpc, fds }
            }
            Place::Tcp(address) | Place::Tls(address) | Place::Admin(address) => {
                Sockets::Tcp(tokio::net::TcpListener::bind(address.as_str()).await?.into_std()?)
            }
        };
        let door = Self { place, sockets, files };
        door.set_mode(socket_mode)?;
        Ok(door)
    }

    /// Takes listening sockets that another daemon handed over, in the order of [`Door::descriptors`].
    pub(crate) fn inherit(place: Place, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData));
        let (sockets, files) = match &place {
            Place::Unix(path) => {
                let sockets = Sockets::Unix { grpc: next()?.into(), fds: next()?.into() };
                (sockets, vec![SocketFile::of(path)?, SocketFile::of(&fd_socket_path(path))?])
            }
            Place::Tcp(_) | Place::Tls(_) | Place::Admin(_) => (Sockets::Tcp(next()?.into()), Vec::new()),
        };
        // Whoever takes it over decides later whether the files are its own.
        files.iter().for_each(SocketFile::leave);
        Ok(Self { place, sockets, files })
    }

    /// The same sockets once more; the files are the other one's.
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        let descriptors = self.descriptors().into_iter().map(|fd| fd.try_clone_to_owned());
        Self::inherit(self.place.clone(), descriptors.collect::<io::Result<_>>()?)
    }
    /// From now on the files are this daemon's to remove.
    pub(crate) fn own_files(&self) {
        self.files.iter().for_each(SocketFile::own);
    }
    /// From now on the files are somebody else's.
    pub(crate) fn leave_files(&self) {
        self.files.iter().for_each(SocketFile::leave);
    }
    /// Removes the files that are this daemon's, before it lets go of the arena: whoever gets that then finds the places
    /// free.
    pub(crate) fn remove_files(&self) {
        self.files.iter().for_each(SocketFile::remove);
    }
    /// Whether clients that connect to the place still get here.
    pub(crate) fn is_reachable(&self) -> bool {
        self.files.iter().all(SocketFile::is_there)
    }
    /// Applies the mode of Unix sockets.
    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        let set =
            |file: &SocketFile| std::fs::set_permissions(&file.path, std::fs::Permissions::from_mode(mode));
        self.files.iter().try_for_each(set)
    }

    /// A socket over the same queue to accept from.
    pub(crate) fn accepting(&self) -> io::Result<Accepting> {
        Ok(match &self.sockets {
            Sockets::Unix { grpc, fds } => Accepting::Unix {
                grpc: tokio::net::UnixListener::from_std(grpc.try_clone()?)?,
                fds: tokio::net::UnixListener::from_std(fds.try_clone()?)?,
            },
            Sockets::Tcp(tcp) => {
                let tcp = tokio::net::TcpListener::from_std(tcp.try_clone()?)?;
                if matches!(self.place, Place::Tls(_)) { Accepting::Tls(tcp) } else { Accepting::Tcp(tcp) }
            }
        })
    }
    /// The same for the admin thread.
    pub(crate) fn admin_listener(&self) -> io::Result<Option<std::net::TcpListener>> {
        match (&self.place, &self.sockets) {
            (Place::Admin(_), Sockets::Tcp(tcp)) => tcp.try_clone().map(Some),
            _ => Ok(None),
        }
    }
    /// Where clients connect, with a real port; `None` for the admin port.
    pub(crate) fn address(&self) -> io::Result<Option<Listen>> {
        Ok(match (&self.place, &self.sockets) {
            (Place::Unix(path), _) => Some(Listen::Unix(path.clone())),
            (Place::Tcp(_), Sockets::Tcp(tcp)) => Some(tcp_place("tcp", tcp.local_addr()?)?),
            (Place::Tls(_), Sockets::Tcp(tcp)) => Some(tcp_place("tls", tcp.local_addr()?)?),
            _ => None,
        })
    }

    /// The place as it is told to another daemon.
    pub(crate) fn to_message(&self) -> v1::TakeOverPlace {
        let (kind, configured) = match &self.place {
            Place::Unix(path) => (v1::TakeOverKind::Unix, Listen::Unix(path.clone()).to_string()),
            Place::Tcp(address) => (v1::TakeOverKind::Tcp, Listen::Tcp(address.clone()).to_string()),
            Place::Tls(address) => (v1::TakeOverKind::Tls, Listen::Tls(address.clone()).to_string()),
            Place::Admin(address) => (v1::TakeOverKind::Admin, address.to_string()),
        };
        v1::TakeOverPlace { kind: kind.into(), configured }
    }
    /// Reads it; `None` for a place that this version does not know.
    pub(crate) fn place_of(message: &v1::TakeOverPlace) -> Option<Place> {
        Place::parse(message.kind(), &message.configured)
    }
    /// What goes with it.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match &self.sockets {
            Sockets::Unix { grpc, fds } => vec![grpc.as_fd(), fds.as_fd()],
            Sockets::Tcp(tcp) => vec![tcp.as_fd()],
        }
    }
}

fn tcp_place(scheme: &str, real: SocketAddr) -> io::Result<Listen> {
    format!("{scheme}://{real}").parse().map_err(|_| io::ErrorKind::AddrNotAvailable.into())
}

/// A socket's file. Removed with this, unless it is another daemon's, or somebody has put another one there meanwhile.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
    own: AtomicBool,
}

impl SocketFile {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), inode: inode(path)?, own: AtomicBool::new(true) })
    }
    fn own(&self) {
        self.own.store(true, Ordering::Relaxed);
    }
    fn leave(&self) {
        self.own.store(false, Ordering::Relaxed);
    }
    fn remove(&self) {
        if self.own.swap(false, Ordering::Relaxed) && self.is_there() {
            _ = std::fs::remove_file(&self.path);
        }
    }
    fn is_there(&self) -> bool {
        inode(&self.path).is_ok_and(|there| there == self.inode)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Removes a socket that a dead daemon left. One that answers, or a file that is no socket, is left alone.
async fn free_stale(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    match tokio::net::UnixStream::connect(path).await {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody answers there already")),
        Err(_) => std::fs::remove_file(path),
    }
}
