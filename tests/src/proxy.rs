//! A relay on loopback between a client and a daemon that breaks the way networks do.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::raw::Target;

/// What happens to bytes on their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// They are passed on.
    Pass,
    /// Each piece (at most 16 KiB) is passed on after this time.
    Delay(Duration),
    /// Single bytes are passed on, each after this time.
    Drip(Duration),
    /// Of every piece one bit is another when it is passed on.
    Garble,
    /// They vanish, both ways; connections stay open.
    BlackHole,
    /// Nobody reads them, so that the sender's buffers fill.
    StopReading,
    /// Existing connections are cut and new ones are closed at once.
    Refuse,
}

#[derive(Clone, Copy, Debug)]
struct Control {
    mode: Mode,
    // Connections that began under an older number are cut.
    cut: u64,
    // The daemon's bytes that may still pass before everything is cut.
    fuse_bytes: Option<u64>,
    // The byte that arrives with one bit changed: its way, its number on that way, and its bit.
    flip: Option<(Way, u64, u8)>,
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Requests.
    ToDaemon,
    /// Answers.
    FromDaemon,
}

/// Bytes that came so far, by way.
#[derive(Debug, Default)]
struct Passed([AtomicU64; 2]);

impl Passed {
    fn of(&self, way: Way) -> &AtomicU64 {
        &self.0[usize::from(way == Way::FromDaemon)]
    }
}

/// The relay. It and its connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    control: watch::Sender<Control>,
    passed: Arc<Passed>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Listens on a free port and relays to `upstream`.
    pub async fn start(upstream: Target) -> io::Result<Self> {
        Self::balance(vec![upstream]).await
    }
    /// The same, with each connection relayed to the next of several, as a balancer of a cluster does.
    pub async fn balance(upstreams: Vec<Target>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let control = Control { mode: Mode::Pass, cut: 0, fuse_bytes: None, flip: None };
        let (control, watched) = watch::channel(control);
        let passed = Arc::new(Passed::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, upstreams, watched, passed.clone()));
        Ok(Self { address, control, passed, _tasks: tasks })
    }
    /// Where clients connect.
    pub fn target(&self) -> Target {
        Target::Tcp(self.address.to_string())
    }
    /// Port on loopback.
    pub fn port(&self) -> u16 {
        self.address.port()
    }
    /// From now on, for all connections.
    pub fn set(&self, mode: Mode) {
        self.control.send_modify(|control| control.mode = mode);
    }
    /// Cuts every connection there is; new ones work.
    pub fn cut(&self) {
        self.control.send_modify(|control| control.cut += 1);
    }
    /// Cuts every connection once the daemon has sent this many bytes more; new ones work.
    pub fn cut_after(&self, bytes: u64) {
        let at = self.daemon_bytes() + bytes;
        self.control.send_modify(|control| control.fuse_bytes = Some(at));
    }
    /// Forgets what [`Proxy::cut_after`] asked for.
    pub fn heal(&self) {
        self.control.send_modify(|control| control.fuse_bytes = None);
    }
    /// Bytes that came from the daemon so far.
    pub fn daemon_bytes(&self) -> u64 {
        self.passed_bytes(Way::FromDaemon)
    }
    /// Bytes that came so far.
    pub fn passed_bytes(&self, way: Way) -> u64 {
        self.passed.of(way).load(Ordering::SeqCst)
    }
    /// Changes one bit of the byte that comes after `bytes` more of this way, and nothing else. An earlier wish that has
    /// not come true is forgotten.
    pub fn flip_after(&self, way: Way, bytes: u64, bit: u8) {
        let at = self.passed_bytes(way) + bytes;
        self.control.send_modify(|control| control.flip = Some((way, at, bit)));
    }
    /// Whether the byte of the last [`Proxy::flip_after`] has passed.
    pub fn has_flipped(&self) -> bool {
        let flip = self.control.borrow().flip;
        flip.is_some_and(|(way, at, _)| self.passed_bytes(way) > at)
    }
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

async fn accept(
    listener: TcpListener,
    upstreams: Vec<Target>,
    control: watch::Receiver<Control>,
    passed: Arc<Passed>,
) {
    let mut connections = JoinSet::new();
    let mut next = upstreams.iter().cycle();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        if control.borrow().mode == Mode::Refuse {
            continue;
        }
        let Some(upstream) = next.next() else { return };
        let daemon: Box<dyn Wire> = match upstream {
            Target::Tcp(address) => match TcpStream::connect(address).await {
                Ok(stream) => Box::new(stream),
                Err(_) => continue,
            },
            Target::Unix(path) => match UnixStream::connect(path).await {
                Ok(stream) => Box::new(stream),
                Err(_) => continue,
            },
        };
        connections.spawn(relay(client, daemon, control.clone(), passed.clone()));
    }
}

async fn relay(
    client: TcpStream,
    daemon: Box<dyn Wire>,
    control: watch::Receiver<Control>,
    passed: Arc<Passed>,
) {
    let began = control.borrow().cut;
    let (client_read, client_write) = tokio::io::split(client);
    let (daemon_read, daemon_write) = tokio::io::split(daemon);
    let mut watching = control.clone();
    let cut = watching.wait_for(|now| now.cut != began || now.mode == Mode::Refuse);
    tokio::select! {
        _ = cut => {}
        () = pump(client_read, daemon_write, control.clone(), Way::ToDaemon, &passed) => {}
        () = pump(daemon_read, client_write, control.clone(), Way::FromDaemon, &passed) => {}
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut control: watch::Receiver<Control>,
    way: Way,
    passed: &Passed,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        if control.wait_for(|now| now.mode != Mode::StopReading).await.is_err() {
            return;
        }
        let mut limit = buffer.len();
        let fuse = control.borrow().fuse_bytes;
        if let (Way::FromDaemon, Some(fuse)) = (way, fuse) {
            let left = fuse.saturating_sub(passed.of(way).load(Ordering::SeqCst));
            if left == 0 {
                return;
            }
            limit = limit.min(usize::try_from(left).unwrap_or(limit));
        }
        let Ok(count @ 1..) = from.read(&mut buffer[..limit]).await else { return };
        let piece = &mut buffer[..count];
        let first = passed.of(way).fetch_add(count as u64, Ordering::SeqCst);
        if let Some((flipped, at, bit)) = control.borrow().flip
            && let (true, Some(index)) = (flipped == way, at.checked_sub(first))
            && let Some(byte) = usize::try_from(index).ok().and_then(|index| piece.get_mut(index))
        {
            *byte ^= 1 << (bit % 8);
        }
        // A read may have begun before somebody stopped reading.
        let mode = match control.wait_for(|now| now.mode != Mode::StopReading).await {
            Ok(now) => now.mode,
            Err(_) => return,
        };
        match mode {
            Mode::BlackHole => continue,
            Mode::Delay(by) => tokio::time::sleep(by).await,
            // Elsewhere on the way back, or an echo would be whole again.
            Mode::Garble => piece[if way == Way::ToDaemon { count / 3 } else { count / 2 }] ^= 0x10,
            Mode::Drip(by) => {
                if drip(&mut to, piece, by, &control).await.is_err() {
                    return;
                }
                continue;
            }
            _ => {}
        }
        if to.write_all(piece).await.is_err() {
            return;
        }
    }
}

/// Passes a piece on byte by byte, for as long as bytes are to drip.
async fn drip(
    to: &mut (impl AsyncWrite + Unpin),
    piece: &[u8],
    by: Duration,
    control: &watch::Receiver<Control>,
) -> io::Result<()> {
    let mut rest = piece;
    while let [byte, later @ ..] = rest {
        let mode = control.borrow().mode;
        if !matches!(mode, Mode::Drip(_)) {
            break;
        }
        tokio::time::sleep(by).await;
        to.write_all(&[*byte]).await?;
        rest = later;
    }
    to.write_all(rest).await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.into_split();
                    drop(tokio::io::copy(&mut read, &mut write).await);
                });
            }
        });
        Target::Tcp(address)
    }

    async fn ask(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
        stream.write_all(b"hello").await?;
        let mut answer = vec![0; 5];
        let read = stream.read_exact(&mut answer);
        tokio::time::timeout(Duration::from_millis(300), read)
            .await
            .map_err(|_| io::ErrorKind::TimedOut)??;
        Ok(answer)
    }

    #[tokio::test]
    async fn each_mode_does_what_it_says() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        assert_eq!(ask(&mut stream).await.unwrap(), b"hello");
        proxy.set(Mode::BlackHole);
        assert_eq!(ask(&mut stream).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        proxy.set(Mode::Pass);
        assert_eq!(ask(&mut stream).await.unwrap(), b"hello");
        proxy.flip_after(Way::ToDaemon, 1, 0);
        assert!(!proxy.has_flipped());
        assert_eq!(ask(&mut stream).await.unwrap(), b"hdllo");
        assert!(proxy.has_flipped());
        proxy.flip_after(Way::FromDaemon, 4, 5);
        assert_eq!(ask(&mut stream).await.unwrap(), b"hellO");
        assert_eq!(ask(&mut stream).await.unwrap(), b"hello");
        proxy.set(Mode::Drip(Duration::from_millis(1)));
        assert_eq!(ask(&mut stream).await.unwrap(), b"hello");
        proxy.set(Mode::Garble);
        assert_ne!(ask(&mut stream).await.unwrap(), b"hello");
        proxy.set(Mode::Pass);
        proxy.cut();
        assert!(ask(&mut stream).await.is_err());
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        proxy.cut_after(7);
        assert_eq!(ask(&mut stream).await.unwrap(), b"hello");
        assert!(ask(&mut stream).await.is_err());
        proxy.set(Mode::Refuse);
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        assert!(ask(&mut stream).await.is_err());
    }
}
