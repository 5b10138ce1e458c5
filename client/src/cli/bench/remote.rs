//! Gets and puts over TCP, against a bare tokio TCP stream that moves the same bytes between two processes.

use super::cpu::CpuMeter;
use super::memory::EngineMemory;
use super::peer::BarePeer;
use super::report::Row;
use super::{Scene, interleaved, local};
use crate::config::TransportChoice;
use crate::error::ClientError;

const GET_FLOOR: f64 = 0.6;
const CHUNK_MIB: usize = 4;

pub(super) fn measure(scene: &Scene) -> Result<Vec<Row>, ClientError> {
    let memory = EngineMemory::new(scene.bytes, CHUNK_MIB << 20)?;
    let worker = local::worker(&memory, &scene.daemon.remote, TransportChoice::Grpc, scene.bytes)?;
    let round = std::cell::Cell::new(1_000);
    let peer = std::cell::RefCell::new(BarePeer::start(scene.bytes)?);
    let (get_cpu, bare_cpu) =
        (CpuMeter::with(scene.daemon.process())?, CpuMeter::with(peer.borrow().process())?);
    let [bare_get, put, get, bare_put] = interleaved(
        scene.rounds,
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
    let name = |work: &str| format!("{work}, {CHUNK_MIB} MiB chunks");
    Ok(vec![
        Row::speed("bare TCP stream, read", scene.bytes, bare_get),
        Row::speed(name("get, gRPC over TCP"), scene.bytes, get),
        Row::ratio(name("get / bare TCP"), bare_get, get, GET_FLOOR),
        Row::cpu("bare TCP stream, read, processor time of both sides", scene.bytes, bare_cpu.seconds()),
        Row::cpu(name("get, processor time of both sides"), scene.bytes, get_cpu.seconds()),
        Row::speed("bare TCP stream, write", scene.bytes, bare_put),
        Row::speed(name("put, gRPC over TCP"), scene.bytes, put),
        Row::told_ratio(name("put / bare TCP"), bare_put, put),
    ])
}
