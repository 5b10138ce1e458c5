//! A Redis server as a chunk store, as somebody would use one who has no Tender: from the same process and the same paged
//! memory, a value for each chunk. The client here is as lean as one can be: commands are sent without waiting for
//! answers, and values go from and to one buffer.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::daemon::{PrivateFolder, free_port};
use super::memory::EngineMemory;
use super::report::{Goal, Report, Row};
use super::sizes::Sizes;
use super::{Scene, failed, interleaved, local};
use crate::config::TransportChoice;
use crate::error::ClientError;

const PROGRAM: &str = "redis-server";
const VALUE_BYTES: usize = 2 << 20;
const AHEAD: Goal = Goal::MoreThan(1.0);
const PATIENCE: Duration = Duration::from_secs(30);

/// How both are reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// On one host: shared memory, and a Unix socket.
    Local,
    /// TCP on loopback.
    Remote,
}

pub(super) fn measure(scene: &Scene, report: &mut Report) -> Result<(), ClientError> {
    let Some(server) = Server::start()? else {
        report.notes.push(format!("{PROGRAM} is not installed: the rows against Redis are left out."));
        return Ok(());
    };
    for way in [Way::Local, Way::Remote] {
        report.rows.extend(side_by_side(scene, &server, way)?);
    }
    Ok(())
}

fn side_by_side(scene: &Scene, server: &Server, way: Way) -> Result<Vec<Row>, ClientError> {
    let Sizes { bytes, rounds, settle, .. } = scene.sizes;
    let memory = RefCell::new(EngineMemory::new(bytes, VALUE_BYTES)?);
    let (address, transport, ours, theirs, first_round) = match way {
        Way::Local => (&scene.daemon.local, TransportChoice::Shm, "shm", "Unix socket", 3_000_000),
        Way::Remote => (&scene.daemon.remote, TransportChoice::Grpc, "gRPC over TCP", "TCP", 4_000_000),
    };
    let worker = local::worker_after(&memory.borrow(), address, transport, bytes, settle)?;
    let redis = RefCell::new(server.connect(way).map_err(|error| failed("Redis", error))?);
    let round = std::cell::Cell::new(first_round);
    let io = |error| failed("Redis", error);
    let [their_put, put, their_get, get] = interleaved(
        rounds,
        [
            &mut || redis.borrow_mut().put_all(&memory.borrow()).map_err(io),
            &mut || {
                worker.end_step(&memory.borrow().store_plan(round.get()).encode());
                local::flushed(&worker)
            },
            &mut || redis.borrow_mut().get_all(&mut memory.borrow_mut()).map_err(io),
            &mut || {
                let plan = memory.borrow().load_plan(round.get()).encode();
                round.set(round.get() + 1);
                local::load_all(&worker, &plan)
            },
        ],
    )?;
    local::check(&worker)?;
    Ok(vec![
        Row::speed(format!("put of 2 MiB values, Redis over {theirs}"), bytes, their_put),
        Row::speed(format!("put of 2 MiB chunks, Tender over {ours}"), bytes, put),
        Row::ratio(format!("put, {ours} / Redis over {theirs}"), their_put, put, AHEAD),
        Row::speed(format!("get of 2 MiB values, Redis over {theirs}"), bytes, their_get),
        Row::speed(format!("get of 2 MiB chunks, Tender over {ours}"), bytes, get),
        Row::ratio(format!("get, {ours} / Redis over {theirs}"), their_get, get, AHEAD),
    ])
}

/// A server of our own that keeps nothing, killed when dropped.
struct Server {
    child: Child,
    port: u16,
    dir: PrivateFolder,
}

impl Server {
    /// `None` where there is no such program.
    fn start() -> Result<Option<Self>, ClientError> {
        let dir = PrivateFolder::make("redis")?;
        let port = free_port()?;
        let spawned = Command::new(PROGRAM)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
            .arg("--unixsocket")
            .arg(socket(dir.path()))
            .arg("--dir")
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(PROGRAM, error)),
        };
        let mut server = Self { child, port, dir };
        let give_up = Instant::now() + PATIENCE;
        while !server.answers() {
            if Instant::now() > give_up || !matches!(server.child.try_wait(), Ok(None)) {
                return Err(failed(PROGRAM, "it does not answer"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(server))
    }

    fn answers(&self) -> bool {
        [Way::Local, Way::Remote]
            .into_iter()
            .all(|way| self.connect(way).is_ok_and(|mut line| line.ping().is_ok()))
    }

    fn connect(&self, way: Way) -> std::io::Result<Line> {
        let (read, write): (Box<dyn Read>, Box<dyn Write>) = match way {
            Way::Local => {
                let stream = UnixStream::connect(socket(self.dir.path()))?;
                (Box::new(stream.try_clone()?), Box::new(stream))
            }
            Way::Remote => {
                let stream = TcpStream::connect(("127.0.0.1", self.port))?;
                stream.set_nodelay(true)?;
                (Box::new(stream.try_clone()?), Box::new(stream))
            }
        };
        Ok(Line { read: BufReader::new(read), write, value: vec![0; VALUE_BYTES] })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn socket(dir: &Path) -> std::path::PathBuf {
    dir.join("redis.sock")
}

/// One connection.
struct Line {
    read: BufReader<Box<dyn Read>>,
    write: Box<dyn Write>,
    /// Where the pages of one chunk are gathered.
    value: Vec<u8>,
}

impl Line {
    fn ping(&mut self) -> std::io::Result<()> {
        self.write.write_all(b"*1\r\n$4\r\nPING\r\n")?;
        self.expect("+PONG")
    }

    /// Every chunk of the memory, then all answers.
    fn put_all(&mut self, memory: &EngineMemory) -> std::io::Result<()> {
        for chunk in 0..memory.chunks() {
            memory.chunk_out(chunk, &mut self.value);
            let key = key(chunk);
            let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${VALUE_BYTES}\r\n", key.len());
            self.write.write_all(head.as_bytes())?;
            self.write.write_all(&self.value)?;
            self.write.write_all(b"\r\n")?;
        }
        (0..memory.chunks()).try_for_each(|_| self.expect("+OK"))
    }

    /// Asks for every chunk, then reads them into the memory as they come.
    fn get_all(&mut self, memory: &mut EngineMemory) -> std::io::Result<()> {
        for chunk in 0..memory.chunks() {
            let key = key(chunk);
            self.write.write_all(format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).as_bytes())?;
        }
        for chunk in 0..memory.chunks() {
            self.expect(&format!("${VALUE_BYTES}"))?;
            self.read.read_exact(&mut self.value)?;
            memory.chunk_in(chunk, &self.value);
            self.expect("")?;
        }
        Ok(())
    }

    fn expect(&mut self, wanted: &str) -> std::io::Result<()> {
        let mut line = String::new();
        self.read.read_line(&mut line)?;
        if line.trim_end() == wanted {
            return Ok(());
        }
        Err(std::io::Error::other(format!("it said {:?} instead of {wanted:?}", line.trim_end())))
    }
}

fn key(chunk: usize) -> String {
    format!("chunk:{chunk:08}")
}
