//! The connection to the store that holds the directory: made when it is needed, dropped when anything goes wrong with
//! it, and left alone for a while when it does not answer.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use parking_lot::Mutex as SyncMutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Pipeline, RedisError, RedisResult, TlsMode, Value,
};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout_at;

use super::breaker::{Breaker, BreakerTerms};
use super::uri::{DirectoryKind, DirectoryUri};
use crate::task::Group;

/// One slow answer on a busy host is no outage; three in a row are. Probes are cheap, so it is looked for soon.
const BREAKER: BreakerTerms =
    BreakerTerms { failures: 3, wait_min: Duration::from_millis(250), wait_max: Duration::from_secs(5) };

/// Questions at once that go on without their callers.
const MOST_BEHIND: usize = 64;

/// Why the directory did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// It has not answered for a while and is not asked now.
    #[error("the directory does not answer and is left alone for a moment")]
    BreakerOpen,
    /// Not in time.
    #[error("the directory did not answer in time")]
    Deadline,
    /// It answered with an error, or could not be reached.
    #[error("the directory cannot be used: {0}")]
    Store(#[from] RedisError),
    /// A generation that no reset gives.
    #[error("the namespace's generation in the directory is damaged; reset the namespace")]
    Damaged,
    /// An answer that makes no sense.
    #[error("the directory answered what no daemon understands")]
    Garbage,
}

/// Commands on one key: in a cluster they go to one server, together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ask(pub(crate) Vec<Cmd>);

/// The connection.
pub(crate) struct Link {
    line: Arc<Line>,
    /// Questions whose callers could not wait any longer.
    behind: SyncMutex<Group>,
    places_behind: Arc<Semaphore>,
}

/// What all questions share.
struct Line {
    route: Route,
    /// For one question, and for connecting.
    timeout: Duration,
    connection: Mutex<Option<Connection>>,
    breaker: SyncMutex<Breaker>,
}

enum Route {
    Single(Client),
    Sentinel(Mutex<SentinelClient>),
    Cluster(ClusterClient),
}

#[derive(Clone)]
enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Link {
    /// Nothing is connected yet.
    pub(crate) fn new(uri: &DirectoryUri, timeout: Duration) -> RedisResult<Self> {
        // TLS needs a provider for the process; whoever installed one before is right too.
        _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let route = match &uri.kind {
            DirectoryKind::Single => {
                let address = uri.addresses().next();
                let address = address.ok_or((redis::ErrorKind::InvalidClientConfig, "no server is named"))?;
                Route::Single(Client::open(address.into_connection_info()?.set_redis_settings(uri.login()))?)
            }
            DirectoryKind::Sentinel(service) => {
                let mut node = SentinelNodeConnectionInfo::default().set_redis_connection_info(uri.login());
                if uri.tls {
                    node = node.set_tls_mode(TlsMode::Secure);
                }
                // Sentinels are asked without a login: those that want one have another than their servers.
                let sentinels = uri.addresses().collect();
                let client =
                    SentinelClient::build(sentinels, service, Some(node), SentinelServerType::Master)?;
                Route::Sentinel(Mutex::new(client))
            }
            DirectoryKind::Cluster => Route::Cluster(
                ClusterClient::builder(uri.servers()?)
                    .connection_timeout(timeout)
                    .response_timeout(timeout)
                    .retries(2)
                    .build()?,
            ),
        };
        let line = Line {
            route,
            timeout,
            connection: Mutex::default(),
            breaker: SyncMutex::new(Breaker::new(BREAKER)),
        };
        Ok(Self {
            line: Arc::new(line),
            behind: SyncMutex::new(Group::new("directory, behind")),
            places_behind: Arc::new(Semaphore::new(MOST_BEHIND)),
        })
    }

    /// Whether it is worth asking now.
    pub(crate) fn is_up(&self) -> bool {
        self.line.breaker.lock().allows(Instant::now())
    }

    /// Asks everything in one round trip: one list of answers for each `Ask`, in order. All or nothing. A caller in a
    /// hurry says nothing of the directory: the question goes on without, and the breaker hears how that ended.
    pub(crate) async fn ask(&self, asks: Vec<Ask>, deadline: Instant) -> Result<Vec<Vec<Value>>, LinkError> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        if !self.line.breaker.lock().take_turn(Instant::now()) {
            return Err(LinkError::BreakerOpen);
        }
        let line = Arc::clone(&self.line);
        let mut asking = Box::pin(async move {
            let outcome = line.ask(&asks, None).await;
            match &outcome {
                Ok(_) => line.breaker.lock().succeeded(),
                Err(_) => line.breaker.lock().failed(Instant::now()),
            }
            outcome
        });
        if let Ok(outcome) = timeout_at(deadline.into(), &mut asking).await {
            return outcome;
        }
        if let Ok(place) = Arc::clone(&self.places_behind).try_acquire_owned() {
            self.behind.lock().spawn(async move {
                _ = asking.await;
                drop(place);
            });
        }
        Err(LinkError::Deadline)
    }

    /// The same for an operator who waits for the outcome: asked whatever happened before, and not after the deadline.
    pub(crate) async fn ask_now(
        &self,
        asks: &[Ask],
        deadline: Instant,
    ) -> Result<Vec<Vec<Value>>, LinkError> {
        self.line.ask(asks, Some(deadline)).await
    }
}

impl Line {
    /// Without a deadline, as long as an answer may take.
    async fn ask(&self, asks: &[Ask], deadline: Option<Instant>) -> Result<Vec<Vec<Value>>, LinkError> {
        let longest = Instant::now() + self.timeout;
        let hurried = deadline.is_some_and(|deadline| deadline < longest);
        let deadline = deadline.map_or(longest, |deadline| deadline.min(longest));
        let asked = async { self.connected().await?.ask(asks).await };
        let outcome = match timeout_at(deadline.into(), asked).await {
            Ok(Ok(answers)) => check(asks, answers),
            Ok(Err(error)) => Err(LinkError::Store(error)),
            Err(_) => Err(LinkError::Deadline),
        };
        let in_a_hurry = hurried && matches!(outcome, Err(LinkError::Deadline));
        if outcome.is_err() && !in_a_hurry {
            // A server that was demoted, a socket that is dead: the next question begins anew. A caller that could not wait
            // says nothing of the connection.
            if let Ok(mut connection) = self.connection.try_lock() {
                *connection = None;
            }
        }
        outcome
    }

    async fn connected(&self) -> RedisResult<Connection> {
        let mut slot = self.connection.lock().await;
        if let Some(connection) = &*slot {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout));
        let connection = match &self.route {
            Route::Single(client) => {
                Connection::Server(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
            Route::Sentinel(client) => {
                Connection::Server(client.lock().await.get_async_connection_with_config(&config).await?)
            }
            Route::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
        };
        *slot = Some(connection.clone());
        Ok(connection)
    }
}

impl Connection {
    async fn ask(self, asks: &[Ask]) -> RedisResult<Vec<Vec<Value>>> {
        match self {
            Self::Server(mut connection) => {
                let mut answers = send(&mut connection, asks).await?.into_iter();
                Ok(asks.iter().map(|ask| answers.by_ref().take(ask.0.len()).collect()).collect())
            }
            // The client sorts them by server; those for one server share its connection, and none waits for another.
            Self::Cluster(connection) => {
                let one = |ask| {
                    let mut connection = connection.clone();
                    async move { send(&mut connection, std::slice::from_ref(ask)).await }
                };
                try_join_all(asks.iter().map(one)).await
            }
        }
    }
}

async fn send(connection: &mut impl ConnectionLike, asks: &[Ask]) -> RedisResult<Vec<Value>> {
    let commands = asks.iter().flat_map(|ask| &ask.0);
    let mut pipeline = Pipeline::with_capacity(asks.len());
    commands.for_each(|command| _ = pipeline.add_command(command.clone()));
    pipeline.query_async(connection).await
}

fn check(asks: &[Ask], answers: Vec<Vec<Value>>) -> Result<Vec<Vec<Value>>, LinkError> {
    let complete = asks.len() == answers.len()
        && asks.iter().zip(&answers).all(|(ask, answers)| ask.0.len() == answers.len());
    if complete { Ok(answers) } else { Err(LinkError::Garbage) }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("breaker", &*self.line.breaker.lock()).finish_non_exhaustive()
    }
}
