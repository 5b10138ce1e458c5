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
}

/// The relay. It and its connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    control: watch::Sender<Control>,
    from_daemon: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Listens on a free port and relays to `upstream`.
    pub async fn start(upstream: Target) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (control, watched) = watch::channel(Control { mode: Mode::Pass, cut: 0, fuse_bytes: None });
        let from_daemon = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, upstream, watched, from_daemon.clone()));
        Ok(Self { address, control, from_daemon, _tasks: tasks })
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
        let at = self.from_daemon.load(Ordering::SeqCst) + bytes;
        self.control.send_modify(|control| control.fuse_bytes = Some(at));
    }
    /// Forgets what [`Proxy::cut_after`] asked for.
    pub fn heal(&self) {
        self.control.send_modify(|control| control.fuse_bytes = None);
    }
    /// Bytes that came from the daemon so far.
    pub fn daemon_bytes(&self) -> u64 {
        self.from_daemon.load(Ordering::SeqCst)
    }
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

async fn accept(
    listener: TcpListener,
    upstream: Target,
    control: watch::Receiver<Control>,
    from_daemon: Arc<AtomicU64>,
) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        if control.borrow().mode == Mode::Refuse {
            continue;
        }
        let daemon: Box<dyn Wire> = match &upstream {
            Target::Tcp(address) => match TcpStream::connect(address).await {
                Ok(stream) => Box::new(stream),
                Err(_) => continue,
            },
            Target::Unix(path) => match UnixStream::connect(path).await {
                Ok(stream) => Box::new(stream),
                Err(_) => continue,
            },
        };
        connections.spawn(relay(client, daemon, control.clone(), from_daemon.clone()));
    }
}

async fn relay(
    client: TcpStream,
    daemon: Box<dyn Wire>,
    control: watch::Receiver<Control>,
    from_daemon: Arc<AtomicU64>,
) {
    let began = control.borrow().cut;
    let (client_read, client_write) = tokio::io::split(client);
    let (daemon_read, daemon_write) = tokio::io::split(daemon);
    let mut watching = control.clone();
    let cut = watching.wait_for(|now| now.cut != began || now.mode == Mode::Refuse);
    tokio::select! {
        _ = cut => {}
        () = pump(client_read, daemon_write, control.clone(), None) => {}
        () = pump(daemon_read, client_write, control.clone(), Some(from_daemon)) => {}
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut control: watch::Receiver<Control>,
    counter: Option<Arc<AtomicU64>>,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        if control.wait_for(|now| now.mode != Mode::StopReading).await.is_err() {
            return;
        }
        let mut limit = buffer.len();
        let fuse = control.borrow().fuse_bytes;
        if let (Some(counter), Some(fuse)) = (&counter, fuse) {
            let left = fuse.saturating_sub(counter.load(Ordering::SeqCst));
            if left == 0 {
                return;
            }
            limit = limit.min(usize::try_from(left).unwrap_or(limit));
        }
        let Ok(count @ 1..) = from.read(&mut buffer[..limit]).await else { return };
        if let Some(counter) = &counter {
            counter.fetch_add(count as u64, Ordering::SeqCst);
        }
        // A read may have begun before somebody stopped reading.
        let mode = match control.wait_for(|now| now.mode != Mode::StopReading).await {
            Ok(now) => now.mode,
            Err(_) => return,
        };
        match mode {
            Mode::BlackHole => continue,
            Mode::Delay(by) => tokio::time::sleep(by).await,
            _ => {}
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
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
