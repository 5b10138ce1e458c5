//! Stands between a daemon and a store, and stops passing bytes on when told to.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::task::{Task, spawn};

/// What happens once the bytes from the store are used up.
#[derive(Clone, Copy)]
pub(super) enum Then {
    /// The connection ends.
    Cut,
    /// Nothing comes any more.
    Stall,
}

/// Passes everything on until a budget is set.
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    left_bytes: Arc<AtomicU64>,
    delay_ms: Arc<AtomicU64>,
    _task: Task,
}

impl Relay {
    pub(super) async fn to(store: SocketAddr, then: Then) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let left_bytes = Arc::new(AtomicU64::new(u64::MAX));
        let left = Arc::clone(&left_bytes);
        let delay_ms = Arc::new(AtomicU64::new(0));
        let delay = Arc::clone(&delay_ms);
        let task = spawn("relay", async move {
            let mut connections = crate::task::Group::new("relayed");
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                let (left, delay) = (Arc::clone(&left), Arc::clone(&delay));
                connections.spawn(async move {
                    let Ok(server) = TcpStream::connect(store).await else { return };
                    pass(client, server, &left, &delay, then).await;
                });
            }
        });
        Self { address, left_bytes, delay_ms, _task: task }
    }

    /// Whatever the store says comes so much later.
    pub(super) fn slow_down(&self, delay: Duration) {
        self.delay_ms.store(u64::try_from(delay.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// So many bytes from the store still come through.
    pub(super) fn leave(&self, bytes: u64) {
        self.left_bytes.store(bytes, Ordering::SeqCst);
    }
}

async fn pass(client: TcpStream, server: TcpStream, left: &AtomicU64, delay_ms: &AtomicU64, then: Then) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async { _ = tokio::io::copy(&mut from_client, &mut to_server).await };
    let down = async {
        let mut buffer = vec![0; 16 << 10];
        loop {
            let Ok(n @ 1..) = from_server.read(&mut buffer).await else { return };
            tokio::time::sleep(Duration::from_millis(delay_ms.load(Ordering::SeqCst))).await;
            let allowed = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                Some(if left == u64::MAX { left } else { left.saturating_sub(n as u64) })
            });
            if allowed.unwrap() < n as u64 {
                match then {
                    Then::Cut => return,
                    Then::Stall => std::future::pending().await,
                }
            }
            if to_client.write_all(&buffer[..n]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! { () = up => {}, () = down => {} }
}
