//! What a flood of one tenant does to the lookups of another: `tender-flood [SECONDS [ROUNDS]]`. The daemon, the one who
//! floods and the one who looks things up are processes of their own, over TLS with certificates made for this run.
//!
//! Each round looks up alone, beside a process that only burns one processor, and beside the flood. The second tells what
//! a machine shared with the one who floods costs whatever the daemon does. Prints medians over the rounds.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tender_proto::limits::{HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_FRAME_BYTES, HTTP2_STREAM_WINDOW_BYTES};
use tender_tests::daemon::{ChildDaemon, Setup};
use tender_tests::fixture::{self, PART};
use tender_tests::raw::{Ask, RawClient, RawSession, Target};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const NAME: &str = "tender.test";
/// Connections of the flood, each with stores and loads one after another.
const FLOODERS: u64 = 4;
const FLOOD_BLOCK_BYTES: u64 = 1 << 20;
const LOOKED_UP: u64 = 32;
/// Between two lookups: an engine asks now and then.
const PAUSE: Duration = Duration::from_millis(2);

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match words[..] {
        ["flood", dir, port] => runtime.block_on(flood(Path::new(dir), port)),
        ["burn"] => loop {
            std::hint::spin_loop();
        },
        [] => runtime.block_on(measure(5, 1)),
        [seconds] => runtime.block_on(measure(seconds.parse()?, 1)),
        [seconds, rounds] => runtime.block_on(measure(seconds.parse()?, rounds.parse()?)),
        _ => Err("usage: tender-flood [SECONDS [ROUNDS]]".into()),
    }
}

/// Ended with this program.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

async fn measure(seconds: u64, rounds: usize) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    certify(dir.path())?;
    let policy = ["quiet", "flood"].map(|name| {
        format!("[[tenant]]\nname = \"{name}\"\nidentities = [\"dns:{name}.test\"]\nallow = [\"read\", \"write\"]\n")
    });
    std::fs::write(dir.path().join("policy.toml"), policy.concat())?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let _daemon = start(dir.path(), &port)?;
    let client = eventually(dir.path(), "quiet", &port).await?;
    let model = fixture::small("quiet", 4096);
    let session = client.open_registered(&model).await;
    for n in 0..LOOKED_UP {
        session.must_store(&model, fixture::chunk(n), PART, fixture::full(&model)).await;
    }
    let time = Duration::from_secs(seconds);
    look_up(&session, time.min(Duration::from_secs(1))).await?;
    let (mut alone, mut burnt, mut flooded, mut stores) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..rounds.max(1) {
        alone.push(look_up(&session, time).await?);
        burnt.push(beside_a_burner(&session, time).await?);
        let (seen, stored) = beside_a_flood(&session, time, dir.path(), &port).await?;
        flooded.push(seen);
        stores += stored;
    }
    println!(
        "lookups of {LOOKED_UP} keys over TLS, one every {PAUSE:?} and their own time, medians of {rounds} rounds:"
    );
    let alone = Medians::of(&alone);
    for (what, seen) in [
        ("alone", alone),
        ("beside a burnt processor", Medians::of(&burnt)),
        ("beside the flood", Medians::of(&flooded)),
    ] {
        let (p50, p99) = (seen.p50.div_duration_f64(alone.p50), seen.p99.div_duration_f64(alone.p99));
        println!("  {what:<24} p50 {:>9.2?} ({p50:>4.1} x)  p99 {:>9.2?} ({p99:>4.1} x)", seen.p50, seen.p99);
    }
    println!("the flood: {stores} stores and loads of {} MiB", (4 * FLOOD_BLOCK_BYTES) >> 20);
    Ok(())
}

async fn beside_a_burner(session: &RawSession, time: Duration) -> Result<Seen, Failure> {
    let _burning = Running(Command::new(std::env::current_exe()?).arg("burn").spawn()?);
    look_up(session, time).await
}

/// With the number of chunks that the flood stored and loaded.
async fn beside_a_flood(
    session: &RawSession,
    time: Duration,
    dir: &Path,
    port: &str,
) -> Result<(Seen, usize), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("flood").args([dir, Path::new(port)]).stdout(Stdio::piped());
    let mut flooding = Running(command.spawn()?);
    // It says each store with one byte, and is under way with the first.
    let mut said = flooding.0.stdout.take().ok_or("a pipe")?;
    said.read_exact(&mut [0])?;
    let seen = look_up(session, time).await?;
    drop(flooding);
    let mut stores = Vec::new();
    said.read_to_end(&mut stores)?;
    Ok((seen, stores.len()))
}

/// Of some rounds.
#[derive(Clone, Copy)]
struct Medians {
    p50: Duration,
    p99: Duration,
}

impl Medians {
    fn of(rounds: &[Seen]) -> Self {
        let median = |of: fn(&Seen) -> Duration| {
            let mut all: Vec<_> = rounds.iter().map(of).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        Self { p50: median(|seen| seen.p50), p99: median(|seen| seen.p99) }
    }
}

struct Seen {
    p50: Duration,
    p99: Duration,
}

async fn look_up(session: &RawSession, time: Duration) -> Result<Seen, Failure> {
    let chunks: Vec<_> = (0..LOOKED_UP).map(fixture::chunk).collect();
    let namespace = fixture::small("quiet", 4096).digest();
    let (begin, mut took) = (Instant::now(), Vec::new());
    while begin.elapsed() < time || took.len() < 100 {
        let start = Instant::now();
        session.lookup(namespace, &chunks, Ask::LOOK).await?;
        took.push(start.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
    took.sort_unstable();
    Ok(Seen { p50: took[took.len() / 2], p99: took[took.len() * 99 / 100] })
}

async fn flood(dir: &Path, port: &str) -> Result<(), Failure> {
    let model = fixture::small("flood", FLOOD_BLOCK_BYTES);
    let mut work = tokio::task::JoinSet::new();
    for n in 1..=FLOODERS {
        let session = connect(dir, "flood", port).await?.open_registered(&model).await;
        let model = model.clone();
        work.spawn(async move {
            let bytes = vec![7; usize::try_from(4 * FLOOD_BLOCK_BYTES).unwrap_or_default()];
            for at in n * 1_000_000.. {
                let chunk = fixture::chunk(at);
                // Refused where there is no room at this moment.
                if session.store(model.digest(), chunk, PART, fixture::full(&model), &bytes).await.is_ok() {
                    session.read(model.digest(), chunk, PART).await;
                    let mut out = std::io::stdout();
                    if out.write_all(b".").and_then(|()| out.flush()).is_err() {
                        return;
                    }
                }
            }
        });
    }
    while work.join_next().await.is_some() {}
    Ok(())
}

fn start(dir: &Path, port: &str) -> Result<Running, Failure> {
    let path = |name: &str| dir.join(name);
    let mut command = ChildDaemon::with_setup(&Setup { arena_bytes: 256 << 20, ..Setup::default() }, dir);
    command.arg("--listen").arg(format!("tls://{port}")).arg("--policy").arg(path("policy.toml"));
    command.arg("--tls-cert").arg(path("cert.pem")).arg("--tls-key").arg(path("key.pem"));
    command.arg("--tls-client-ca").arg(path("ca.pem")).args(["--log-level", "error"]);
    Ok(Running(command.spawn()?))
}

/// An authority, and the three certificates that it signs.
fn certify(dir: &Path) -> Result<(), Failure> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    std::fs::write(dir.join("ca.pem"), authority.pem())?;
    for (file, name) in [("", NAME), ("quiet-", "quiet.test"), ("flood-", "flood.test")] {
        let key = KeyPair::generate()?;
        let cert = CertificateParams::new(vec![name.into()])?.signed_by(&key, &authority)?;
        std::fs::write(dir.join(format!("{file}cert.pem")), cert.pem())?;
        std::fs::write(dir.join(format!("{file}key.pem")), key.serialize_pem())?;
    }
    Ok(())
}

async fn connect(dir: &Path, who: &str, port: &str) -> Result<RawClient, Failure> {
    let read = |name: PathBuf| std::fs::read_to_string(name);
    let identity = Identity::from_pem(
        read(dir.join(format!("{who}-cert.pem")))?,
        read(dir.join(format!("{who}-key.pem")))?,
    );
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read(dir.join("ca.pem"))?))
        .domain_name(NAME)
        .identity(identity);
    let endpoint = Endpoint::from_shared(format!("https://{port}"))?
        .tls_config(tls)?
        .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP2_FRAME_BYTES);
    Ok(RawClient::over(endpoint.connect().await?))
}

/// Waits for a daemon that has just been started.
async fn eventually(dir: &Path, who: &str, port: &str) -> Result<RawClient, Failure> {
    let local = Target::Unix(dir.join("tenderd.sock"));
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        if let Ok(client) = RawClient::connect(&local).await
            && client.ping().await.is_ok_and(|answer| answer.ready)
        {
            return connect(dir, who, port).await;
        }
        if Instant::now() > give_up {
            return Err("the daemon does not get ready".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
