//! The yardstick of the network: a second process that moves bytes over a bare tokio TCP stream, or over the same under
//! rustls.

use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::certificates::Certificates;
use super::failed;
use super::helper::Helper;
use crate::error::ClientError;

/// Bytes handed to the socket at a time, the payload of our own frames.
const PIECE: usize = 1 << 20;

const PULL: u8 = b'r';
const PUSH: u8 = b'w';

/// Plain or under TLS: the reading and writing is the same.
trait Duplex: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}
type Stream = Box<dyn Duplex>;

/// Serves one connection until it closes. Prints its port first. With certificates it speaks TLS 1.3.
pub(super) fn serve(bytes: usize, certificates: Option<&Path>) -> Result<(), ClientError> {
    let acceptor = certificates.map(|folder| Certificates::in_folder(folder).acceptor()).transpose()?;
    let serving = async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let stream: Stream = match acceptor {
            Some(acceptor) => Box::new(acceptor.accept(stream).await?),
            None => Box::new(stream),
        };
        answer(stream, vec![1; bytes]).await
    };
    runtime()?.block_on(serving).map_err(|error| failed("the bare peer", error))
}

async fn answer(mut stream: Stream, mut buffer: Vec<u8>) -> std::io::Result<()> {
    loop {
        match stream.read_u8().await {
            Ok(PULL) => send(&mut stream, &buffer).await?,
            Ok(_) => {
                receive(&mut stream, &mut buffer).await?;
                stream.write_u8(PUSH).await?;
                stream.flush().await?;
            }
            Err(_) => return Ok(()),
        }
    }
}

/// Our side. The process is ended with this.
pub(super) struct BarePeer {
    process: Helper,
    runtime: Runtime,
    stream: Stream,
    buffer: Vec<u8>,
}

impl BarePeer {
    /// With certificates, both sides speak TLS 1.3.
    pub(super) fn start(bytes: usize, certificates: Option<&Certificates>) -> Result<Self, ClientError> {
        let mut arguments = vec!["bare".into(), "--bytes".into(), bytes.to_string().into()];
        if let Some(certificates) = certificates {
            arguments
                .extend(["--certificates".into(), PathBuf::from(certificates.folder()).into_os_string()]);
        }
        let process = Helper::start(&arguments)?;
        let port: u16 = process.line().parse().map_err(|_| failed("the bare peer", "it told no port"))?;
        let runtime = runtime()?;
        let tls = certificates.map(Certificates::connector).transpose()?;
        let connected = runtime.block_on(async {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            let stream: Stream = match tls {
                Some((connector, name)) => Box::new(connector.connect(name, stream).await?),
                None => Box::new(stream),
            };
            Ok::<_, std::io::Error>(stream)
        });
        let stream = connected.map_err(|error| failed("the bare peer", error))?;
        Ok(Self { process, runtime, stream, buffer: vec![2; bytes] })
    }
    pub(super) fn process(&self) -> u32 {
        self.process.process()
    }

    /// The peer sends, we receive.
    pub(super) fn pull(&mut self) -> Result<(), ClientError> {
        let Self { runtime, stream, buffer, .. } = self;
        let moved = runtime.block_on(async {
            stream.write_u8(PULL).await?;
            stream.flush().await?;
            receive(stream, buffer).await
        });
        moved.map_err(|error| failed("the bare peer", error))
    }
    /// We send, the peer receives and says so.
    pub(super) fn push(&mut self) -> Result<(), ClientError> {
        let Self { runtime, stream, buffer, .. } = self;
        let moved = runtime.block_on(async {
            stream.write_u8(PUSH).await?;
            send(stream, buffer).await?;
            stream.read_u8().await
        });
        moved.map(drop).map_err(|error| failed("the bare peer", error))
    }
}

async fn send(stream: &mut Stream, buffer: &[u8]) -> std::io::Result<()> {
    for piece in buffer.chunks(PIECE) {
        stream.write_all(piece).await?;
    }
    stream.flush().await
}

async fn receive(stream: &mut Stream, buffer: &mut [u8]) -> std::io::Result<()> {
    for piece in buffer.chunks_mut(PIECE) {
        stream.read_exact(piece).await?;
    }
    Ok(())
}

fn runtime() -> Result<Runtime, ClientError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|source| ClientError::Start { what: "a runtime", source })
}
