//! Gets and puts over TCP, plain and with TLS, against a bare tokio stream of the same kind that moves the same bytes
//! between two processes.

use super::cpu::CpuMeter;
use super::memory::EngineMemory;
use super::peer::BarePeer;
use super::report::{Goal, Row};
use super::sizes::Sizes;
use super::{Scene, interleaved, local};
use crate::config::{ClientConfig, TransportChoice};
use crate::error::ClientError;

const CHUNK_MIB: usize = 4;

/// What is spoken on the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wire {
    Tcp,
    Tls,
}

impl Wire {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Tls => "TLS 1.3",
        }
    }
    fn goal(self) -> Goal {
        match self {
            Self::Tcp => Goal::AtLeast(0.9),
            Self::Tls => Goal::AtLeast(0.7),
        }
    }
    /// The two have one namespace.
    fn first_round(self) -> u64 {
        match self {
            Self::Tcp => 1_000_000,
            Self::Tls => 2_000_000,
        }
    }
}

pub(super) fn measure(scene: &Scene, wire: Wire) -> Result<Vec<Row>, ClientError> {
    let Sizes { bytes, rounds, settle, .. } = scene.sizes;
    let certificates = &scene.daemon.certificates;
    let memory = EngineMemory::new(bytes, CHUNK_MIB << 20)?;
    let (address, certificates) = match wire {
        Wire::Tcp => (&scene.daemon.remote, None),
        Wire::Tls => (&scene.daemon.secure, Some(certificates)),
    };
    let tls = certificates.map(super::certificates::Certificates::client).unwrap_or_default();
    let config = ClientConfig { transport: TransportChoice::Grpc, tls, ..ClientConfig::new(address.clone()) };
    let worker = local::start(&memory, config, bytes, settle)?;
    let round = std::cell::Cell::new(wire.first_round());
    let peer = std::cell::RefCell::new(BarePeer::start(bytes, certificates)?);
    let (get_cpu, bare_cpu) =
        (CpuMeter::with(scene.daemon.process())?, CpuMeter::with(peer.borrow().process())?);
    let [bare_get, put, get, bare_put] = interleaved(
        rounds,
        [
            &mut || bare_cpu.measure(|| peer.borrow_mut().pull()),
            &mut || {
                worker.end_step(&memory.store_plan(round.get()).encode());
                local::flushed(&worker)
            },
            &mut || {
                let plan = memory.load_plan(round.get()).encode();
                get_cpu.measure(|| local::load_all(&worker, &plan))?;
                round.set(round.get() + 1);
                Ok(())
            },
            &mut || peer.borrow_mut().push(),
        ],
    )?;
    local::check(&worker)?;
    let (kind, goal) = (wire.name(), wire.goal());
    let name = |work: String| format!("{work}, {CHUNK_MIB} MiB chunks");
    Ok(vec![
        Row::speed(format!("bare {kind} stream, read"), bytes, bare_get),
        Row::speed(name(format!("get, gRPC over {kind}")), bytes, get),
        Row::ratio(name(format!("get / bare {kind}")), bare_get, get, goal),
        Row::cpu(
            format!("bare {kind} stream, read, processor time of both sides"),
            bytes,
            bare_cpu.seconds(),
        ),
        Row::cpu(name(format!("get over {kind}, processor time of both sides")), bytes, get_cpu.seconds()),
        Row::speed(format!("bare {kind} stream, write"), bytes, bare_put),
        Row::speed(name(format!("put, gRPC over {kind}")), bytes, put),
        Row::ratio(name(format!("put / bare {kind}")), bare_put, put, goal),
    ])
}
