//! Accepting, the same for every listening socket: while the daemon does, each client attended to by a task of its own.

use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;

use crate::fault::{self, Fault};
use crate::shutdown::Phase;
use crate::task::Group;

/// Without descriptors left, accepting fails at once and for as long as that lasts.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that clients come to.
pub(crate) trait Listening: Send + Sync + 'static {
    /// One that came.
    type Client: Send + 'static;
    /// Waits for the next one.
    fn next(&self) -> impl Future<Output = io::Result<Self::Client>> + Send;
}

impl Listening for UnixListener {
    type Client = UnixStream;
    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(client, _)| client)
    }
}

impl Listening for TcpListener {
    type Client = TcpStream;
    async fn next(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(client, _)| client)
    }
}

/// Attends to at most so many clients at one time, and leaves more in the socket's queue. Who connects while the daemon
/// hands over waits there for the next one. `attend` gives `None` for a client that is turned away at once. All clients
/// end with this.
pub(crate) async fn attend_all<L: Listening, W>(
    name: &'static str,
    listener: L,
    most: usize,
    mut phase: watch::Receiver<Phase>,
    attend: impl Fn(L::Client) -> Option<W>,
) where
    W: Future<Output = ()> + Send + 'static,
{
    let mut clients = Group::new(name);
    loop {
        clients.room_for(most).await;
        if phase.wait_for(|phase| phase.accepts()).await.is_err() {
            return;
        }
        let accepted = tokio::select! {
            biased;
            _ = phase.changed() => continue,
            accepted = listener.next() => accepted,
        };
        match accepted.and_then(|client| fault::check(Fault::Accept).map(|()| client)) {
            Ok(client) => {
                if let Some(work) = attend(client) {
                    clients.spawn(work);
                }
            }
            Err(error) => {
                tracing::warn!(name, %error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
