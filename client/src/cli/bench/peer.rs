//! The yardstick of the network: a second process that moves bytes over a bare tokio TCP stream.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::failed;
use crate::error::ClientError;

/// Bytes handed to the socket at a time, the payload of our own frames.
const PIECE: usize = 1 << 20;

const PULL: u8 = b'r';
const PUSH: u8 = b'w';

/// The other process's side; started by `tender bench`, not by people.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Peer {
    bytes: usize,
}

impl Peer {
    /// Serves one connection until it closes. Prints its port first.
    pub(in crate::cli) fn run(&self) -> Result<String, ClientError> {
        runtime()?.block_on(self.serve()).map_err(|error| failed("the bare peer", error))?;
        Ok(String::new())
    }

    async fn serve(&self) -> std::io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let mut buffer = vec![1u8; self.bytes];
        loop {
            match stream.read_u8().await {
                Ok(PULL) => send(&mut stream, &buffer).await?,
                Ok(_) => {
                    receive(&mut stream, &mut buffer).await?;
                    stream.write_u8(PUSH).await?;
                }
                Err(_) => return Ok(()),
            }
        }
    }
}

/// Our side. The process is ended with this.
pub(super) struct BarePeer {
    child: Child,
    runtime: Runtime,
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl BarePeer {
    pub(super) fn start(bytes: usize) -> Result<Self, ClientError> {
        let error = |error| failed("the bare peer", error);
        let mut child = Command::new(std::env::current_exe().map_err(error)?)
            .args(["bench-peer", &bytes.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(error)?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).map_err(error)?;
        }
        let port: u16 = line.trim().parse().map_err(|_| failed("the bare peer", "it told no port"))?;
        let runtime = runtime()?;
        let stream = runtime.block_on(TcpStream::connect(("127.0.0.1", port))).map_err(error)?;
        stream.set_nodelay(true).map_err(error)?;
        Ok(Self { child, runtime, stream, buffer: vec![2; bytes] })
    }
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// The peer sends, we receive.
    pub(super) fn pull(&mut self) -> Result<(), ClientError> {
        let Self { runtime, stream, buffer, .. } = self;
        let moved = runtime.block_on(async {
            stream.write_u8(PULL).await?;
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

impl Drop for BarePeer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

async fn send(stream: &mut TcpStream, buffer: &[u8]) -> std::io::Result<()> {
    for piece in buffer.chunks(PIECE) {
        stream.write_all(piece).await?;
    }
    stream.flush().await
}

async fn receive(stream: &mut TcpStream, buffer: &mut [u8]) -> std::io::Result<()> {
    for piece in buffer.chunks_mut(PIECE) {
        stream.read_exact(piece).await?;
    }
    Ok(())
}

fn runtime() -> Result<Runtime, ClientError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|source| ClientError::Start { what: "a runtime", source })
}
