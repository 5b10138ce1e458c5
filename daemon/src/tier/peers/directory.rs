//! Who holds what, in a store of the Redis protocol. Soft state: every word in it expires, and none is believed without
//! looking. docs/directory.md has the layout.

use std::time::{Duration, Instant};

use redis::{Cmd, FromRedisValue, Value, cmd};
use tender_proto::{ChunkId, NamespaceDigest};

use super::entry::{DaemonId, Entry, Holder, Keys, MAX_HOLDERS, now_s};
use super::link::{Ask, Link, LinkError};
use crate::tier::generations::{self, GENERATION_END};

/// Sets a number to at least ARGV[1], adds ARGV[2], and tells the outcome. One from ARGV[3] on is damage, and forgotten.
const RAISE: &str = "local n = tonumber(redis.call('GET', KEYS[1]) or '0') \
                     if not n or not (n >= 0 and n < tonumber(ARGV[3])) then n = 0 end \
                     n = math.max(n, tonumber(ARGV[1])) + tonumber(ARGV[2]) \
                     redis.call('SET', KEYS[1], string.format('%.0f', n)) return n";
/// Takes a field out if it still has this value: its holder may have renewed it meanwhile.
const FORGET: &str = "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then return redis.call('HDEL', KEYS[1], ARGV[1]) end return 0";

/// The directory as one daemon sees it.
#[derive(Debug)]
pub(crate) struct Directory {
    link: Link,
    keys: Keys,
    me: DaemonId,
    /// Whole seconds, at least 1.
    ttl: Duration,
}

/// One chunk in one generation of its namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Listed {
    pub(crate) namespace: NamespaceDigest,
    pub(crate) generation: u64,
    pub(crate) chunk: ChunkId,
}

/// What this daemon has to say about a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// It is here.
    Publish(Listed, Entry),
    /// It is no longer here.
    Withdraw(Listed),
    /// Another daemon says so, and it is not true.
    Forget(Listed, Holder),
}

/// What the directory says about chunks of one namespace.
#[derive(Debug)]
pub(crate) struct Found {
    /// The namespace's generation now. If it is not the one that was asked for, nothing else here counts.
    pub(crate) generation: u64,
    /// In the order of the question; other daemons only, and only what has not expired.
    pub(crate) holders: Vec<Vec<Holder>>,
}

impl Directory {
    pub(crate) fn new(link: Link, prefix: &str, me: DaemonId, ttl: Duration) -> Self {
        Self { link, keys: Keys::new(prefix), me, ttl }
    }
    pub(crate) fn me(&self) -> DaemonId {
        self.me
    }
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }
    /// Whether it is worth asking now.
    pub(crate) fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// Who holds these chunks. One round trip.
    pub(crate) async fn find(
        &self,
        namespace: NamespaceDigest,
        generation: u64,
        chunks: &[ChunkId],
        deadline: Instant,
    ) -> Result<Found, LinkError> {
        let entry = |&chunk: &ChunkId| self.one("HGETALL", self.keys.chunk(namespace, generation, chunk));
        let mut asks = vec![self.ask_generation(namespace)];
        asks.extend(chunks.iter().map(entry));
        let mut answers = self.link.ask(asks, deadline).await?.into_iter();
        let generation = answers.next().ok_or(LinkError::Garbage).and_then(read_generation)?;
        let now_s = now_s();
        let holders = answers.map(|answer| self.others(answer, now_s)).collect();
        Ok(Found { generation, holders })
    }

    /// Says all this, and reads the generation of every namespace in it. One round trip, and a second one for entries
    /// that have too many holders.
    pub(crate) async fn apply(
        &self,
        changes: &[Change],
        deadline: Instant,
    ) -> Result<Vec<(NamespaceDigest, u64)>, LinkError> {
        let mut namespaces: Vec<_> = changes.iter().map(|change| change.listed().namespace).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        let expires_s = now_s().saturating_add(u32::try_from(self.ttl.as_secs()).unwrap_or(u32::MAX));
        let mut asks: Vec<_> = namespaces.iter().map(|&namespace| self.ask_generation(namespace)).collect();
        asks.extend(changes.iter().map(|change| self.ask_change(*change, expires_s)));
        let mut answers = self.link.ask(asks, deadline).await?.into_iter();
        let generations: Vec<_> = answers.by_ref().take(namespaces.len()).map(read_generation).collect();
        let crowded = changes.iter().zip(answers).filter_map(|(change, answer)| match change {
            Change::Publish(listed, _) if is_crowded(&answer) => Some(*listed),
            _ => None,
        });
        self.make_room(crowded.collect(), deadline).await?;
        let known = |(namespace, generation)| match generation {
            // One that is damaged says nothing about the others.
            Err(LinkError::Damaged) => {
                tracing::warn!(%namespace, "its generation in the directory is damaged; reset the namespace");
                None
            }
            generation => Some(generation.map(|generation| (namespace, generation))),
        };
        namespaces.into_iter().zip(generations).filter_map(known).collect()
    }

    /// The namespace's generation.
    pub(crate) async fn generation(
        &self,
        namespace: NamespaceDigest,
        deadline: Instant,
    ) -> Result<u64, LinkError> {
        let answers = self.link.ask(vec![self.ask_generation(namespace)], deadline).await?;
        answers.into_iter().next().ok_or(LinkError::Garbage).and_then(read_generation)
    }

    /// Makes the generation at least `floor` and then `step` more; returns what it is. One that is damaged begins anew from
    /// `floor`. Asked even while the directory is
    /// left alone: somebody waits for the outcome.
    pub(crate) async fn raise(
        &self,
        namespace: NamespaceDigest,
        floor: u64,
        step: u64,
        deadline: Instant,
    ) -> Result<u64, LinkError> {
        let mut raise = cmd("EVAL");
        raise.arg(RAISE).arg(1).arg(self.keys.generation(namespace)).arg(floor).arg(step).arg(GENERATION_END);
        let answers = self.link.ask_now(&[Ask(vec![raise])], deadline).await?;
        read_generation(answers.into_iter().flatten().collect())
    }

    /// This daemon lives and is reached there.
    pub(crate) async fn announce(&self, address: &str, deadline: Instant) -> Result<(), LinkError> {
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let mut mine = cmd("SET");
        mine.arg(self.keys.daemon(self.me)).arg(address).arg("PX").arg(ttl_ms);
        let (now_s, ttl_s) = (u64::from(now_s()), self.ttl.as_secs());
        let (mut list, mut sweep) = (cmd("ZADD"), cmd("ZREMRANGEBYSCORE"));
        list.arg(self.keys.daemons()).arg(now_s + ttl_s).arg(self.me.as_bytes());
        sweep.arg(self.keys.daemons()).arg("-inf").arg(now_s);
        self.link.ask(vec![Ask(vec![mine]), Ask(vec![list, sweep])], deadline).await.map(drop)
    }

    /// This daemon is no longer reached anywhere: nobody who reads its entries finds it.
    pub(crate) async fn leave(&self, deadline: Instant) -> Result<(), LinkError> {
        let mut list = cmd("ZREM");
        list.arg(self.keys.daemons()).arg(self.me.as_bytes());
        let mine = self.one("DEL", self.keys.daemon(self.me).into_bytes());
        self.link.ask(vec![mine, Ask(vec![list])], deadline).await.map(drop)
    }

    /// Where daemons are reached; `None` for those that are gone.
    pub(crate) async fn addresses(
        &self,
        daemons: &[DaemonId],
        deadline: Instant,
    ) -> Result<Vec<Option<String>>, LinkError> {
        let address = |&daemon: &DaemonId| self.one("GET", self.keys.daemon(daemon).into_bytes());
        let asks: Vec<_> = daemons.iter().map(address).collect();
        let answers = self.link.ask(asks, deadline).await?;
        answers.into_iter().map(|answer| read(answer.into_iter().next())).collect()
    }

    /// Other daemons that live, at most `most` of them.
    pub(crate) async fn others_alive(
        &self,
        most: usize,
        deadline: Instant,
    ) -> Result<Vec<DaemonId>, LinkError> {
        let mut list = cmd("ZRANGEBYSCORE");
        list.arg(self.keys.daemons()).arg(now_s()).arg("+inf").arg("LIMIT").arg(0).arg(most);
        let answers = self.link.ask(vec![Ask(vec![list])], deadline).await?;
        let ids: Vec<Vec<u8>> = read(answers.into_iter().flatten().next())?;
        Ok(ids.iter().filter_map(|id| DaemonId::parse(id)).filter(|&id| id != self.me).collect())
    }

    /// An entry names at most [`MAX_HOLDERS`]: those that have expired go, and if that is not enough this daemon does.
    /// The first ones see no crowd and stay, so an entry never loses all of its holders to this.
    async fn make_room(&self, crowded: Vec<Listed>, deadline: Instant) -> Result<(), LinkError> {
        if crowded.is_empty() {
            return Ok(());
        }
        let key = |listed: &Listed| self.keys.chunk(listed.namespace, listed.generation, listed.chunk);
        let asks: Vec<_> = crowded.iter().map(|listed| self.one("HGETALL", key(listed))).collect();
        let answers = self.link.ask(asks, deadline).await?;
        let mut removals = Vec::new();
        for (listed, answer) in crowded.iter().zip(answers) {
            let (live, dead): (Vec<_>, Vec<_>) = fields(answer).into_iter().partition(|(daemon, value)| {
                Holder::parse(daemon, value).is_some_and(|holder| holder.expires_s > now_s())
            });
            let mut remove = cmd("HDEL");
            remove.arg(key(listed));
            dead.iter().for_each(|(daemon, _)| _ = remove.arg(daemon));
            if live.len() > MAX_HOLDERS {
                remove.arg(self.me.as_bytes());
            }
            if !dead.is_empty() || live.len() > MAX_HOLDERS {
                removals.push(Ask(vec![remove]));
            }
        }
        self.link.ask(removals, deadline).await.map(drop)
    }

    fn others(&self, answer: Vec<Value>, now_s: u32) -> Vec<Holder> {
        let holders = fields(answer).into_iter().filter_map(|(daemon, value)| Holder::parse(&daemon, &value));
        holders.filter(|holder| holder.daemon != self.me && holder.expires_s > now_s).collect()
    }

    fn ask_generation(&self, namespace: NamespaceDigest) -> Ask {
        self.one("GET", self.keys.generation(namespace).into_bytes())
    }

    fn ask_change(&self, change: Change, expires_s: u32) -> Ask {
        let key = |listed: Listed| self.keys.chunk(listed.namespace, listed.generation, listed.chunk);
        match change {
            Change::Publish(listed, entry) => {
                let holder = Holder { daemon: self.me, entry, expires_s };
                let (mut set, mut count, mut expire) = (cmd("HSET"), cmd("HLEN"), cmd("EXPIRE"));
                set.arg(key(listed)).arg(self.me.as_bytes()).arg(holder.value());
                count.arg(key(listed));
                expire.arg(key(listed)).arg(self.ttl.as_secs());
                Ask(vec![set, count, expire])
            }
            Change::Withdraw(listed) => {
                let mut remove = cmd("HDEL");
                remove.arg(key(listed)).arg(self.me.as_bytes());
                Ask(vec![remove])
            }
            Change::Forget(listed, holder) => {
                let mut forget = cmd("EVAL");
                forget.arg(FORGET).arg(1).arg(key(listed)).arg(holder.daemon.as_bytes()).arg(holder.value());
                Ask(vec![forget])
            }
        }
    }

    fn one(&self, name: &str, key: Vec<u8>) -> Ask {
        let mut command = Cmd::new();
        command.arg(name).arg(key);
        Ask(vec![command])
    }
}

impl Change {
    fn listed(&self) -> Listed {
        match self {
            Self::Publish(listed, _) | Self::Withdraw(listed) | Self::Forget(listed, _) => *listed,
        }
    }
}

/// A new field, and more of them than there should be.
fn is_crowded(answer: &[Value]) -> bool {
    matches!(answer, [Value::Int(1), Value::Int(count), _] if usize::try_from(*count).is_ok_and(|n| n > MAX_HOLDERS))
}

fn read<T: FromRedisValue>(value: Option<Value>) -> Result<T, LinkError> {
    T::from_redis_value(value.ok_or(LinkError::Garbage)?).map_err(|_| LinkError::Garbage)
}

/// A namespace that was never reset has no key.
fn read_generation(answer: Vec<Value>) -> Result<u64, LinkError> {
    let raw = read::<Option<Vec<u8>>>(answer.into_iter().next().map(as_text))?;
    let Some(raw) = raw else { return Ok(0) };
    let number = std::str::from_utf8(&raw).ok().and_then(|text| text.parse().ok());
    number.and_then(generations::parse).ok_or(LinkError::Damaged)
}

/// A script answers with a number where a key has text.
fn as_text(value: Value) -> Value {
    match value {
        Value::Int(number) => Value::BulkString(number.to_string().into_bytes()),
        value => value,
    }
}

/// A hash's fields; what is no hash has none.
fn fields(answer: Vec<Value>) -> Vec<(Vec<u8>, Vec<u8>)> {
    read(answer.into_iter().next()).unwrap_or_default()
}
