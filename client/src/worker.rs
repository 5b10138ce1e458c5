//! The worker's half of a client: it moves the bytes that a step plan names.
//!
//! Everything the engine calls returns at once, except [`WorkerSide::begin_step`] and [`WorkerSide::end_step`],
//! which copy the blocks to be stored into staging first, for `gather_budget` at most, and [`WorkerSide::flush`], which
//! waits by order.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tender_proto::{Descriptor, GroupIndex, NamespaceDigest, Reason, Refusal};

use crate::client::{Client, Purpose};
use crate::config::ClientConfig;
use crate::copy::carrier::{Carrier, Fence, HostCarrier};
use crate::copy::{CopyBackend, EngineStream, HostCopy, cuda};
use crate::counters::Counters;
use crate::error::ClientError;
use crate::fuse::Fuse;
use crate::layout::ProvedLayout;
use crate::load::{LoadDone, Loader};
use crate::plan::StepPlan;
use crate::queue::Queue;
use crate::save::Saver;

/// One rank's worker.
#[derive(Debug)]
pub struct WorkerSide {
    client: Client,
    fuse: Arc<Fuse>,
    loader: Arc<Loader>,
    saver: Arc<Saver>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What a worker's loads and stores share.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) client: Client,
    pub(crate) descriptor: Arc<Descriptor>,
    pub(crate) namespace: NamespaceDigest,
    /// Says which parts of the chunks this rank holds.
    pub(crate) layout: Arc<ProvedLayout>,
    pub(crate) carrier: Arc<dyn Carrier>,
    pub(crate) fuse: Arc<Fuse>,
}

impl Rank {
    /// A lost device is like a panic: nothing of ours is trusted any more, and the engine goes on.
    pub(crate) fn blow_if_lost(&self) {
        if let Some(why) = self.carrier.lost() {
            self.fuse.blow(&why);
        }
    }
}

/// Hashing and storing wait for nobody's answer: where processors are short, the engine's own work comes first, a gather
/// that it waits for included.
const STORE_NICENESS: i32 = 10;

/// Of the calling thread alone: on Linux a niceness is a thread's.
fn give_way() {
    if let Err(error) = rustix::process::setpriority_process(None, STORE_NICENESS) {
        tracing::debug!(%error, "stores compete with the engine for its processors");
    }
}

impl WorkerSide {
    /// Starts a worker over host memory. The layout says which parts of the chunks this rank holds; their blocks must
    /// have the sizes that the descriptor gives those parts. It does not wait for the daemon.
    pub fn new(
        config: ClientConfig,
        descriptor: Arc<Descriptor>,
        layout: Arc<ProvedLayout>,
    ) -> Result<Self, ClientError> {
        let copy = Arc::new(HostCopy::new(Arc::clone(&layout)));
        Self::with_backend(config, descriptor, layout, copy)
    }

    /// The same over the memory of a CUDA device, on which all of the layout lies. Its steps are told the engine's
    /// stream by [`begin_step_on`](Self::begin_step_on) and [`end_step_on`](Self::end_step_on). What keeps the device
    /// from being used is a refusal.
    pub fn on_cuda(
        index: u32,
        config: ClientConfig,
        descriptor: Arc<Descriptor>,
        layout: Arc<ProvedLayout>,
    ) -> Result<Self, ClientError> {
        config.check()?;
        let carrier = Arc::new(cuda::start(index, &layout, &config)?);
        Self::with_carrier(config, descriptor, layout, carrier)
    }

    /// The same over any copies of host memory.
    pub(crate) fn with_backend(
        config: ClientConfig,
        descriptor: Arc<Descriptor>,
        layout: Arc<ProvedLayout>,
        copy: Arc<dyn CopyBackend>,
    ) -> Result<Self, ClientError> {
        Self::with_carrier(config, descriptor, layout, Arc::new(HostCarrier::new(copy)))
    }

    /// The same over any memory.
    pub(crate) fn with_carrier(
        config: ClientConfig,
        descriptor: Arc<Descriptor>,
        layout: Arc<ProvedLayout>,
        carrier: Arc<dyn Carrier>,
    ) -> Result<Self, ClientError> {
        descriptor.check()?;
        check_sizes(&descriptor, &layout)?;
        let (load_queue, store_queue) = (Queue::new(config.load_queue), Queue::new(config.store_queue));
        let client = Client::new(config, Purpose::Data)?;
        let namespace = client.register(Arc::clone(&descriptor));
        let fuse = Arc::new(Fuse::new(Arc::clone(client.tally())));
        let rank = Arc::new(Rank {
            client: client.clone(),
            descriptor,
            namespace,
            layout,
            carrier,
            fuse: Arc::clone(&fuse),
        });
        let loader = Arc::new(Loader { rank: Arc::clone(&rank), queue: load_queue, done: Mutex::default() });
        let saver = Arc::new(Saver { rank, queue: store_queue });
        // From here on its drop ends what was started.
        let worker = Self { client, fuse, loader, saver, threads: Mutex::default() };
        worker.start_threads()?;
        Ok(worker)
    }

    fn start_threads(&self) -> Result<(), ClientError> {
        let config = self.client.config();
        for _ in 0..config.load_threads {
            let loader = Arc::clone(&self.loader);
            self.start("tender-load", move || loader.work())?;
        }
        for _ in 0..config.store_threads {
            let saver = Arc::clone(&self.saver);
            self.start("tender-store", move || {
                give_way();
                saver.work();
            })?;
        }
        Ok(())
    }

    fn start(&self, name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<(), ClientError> {
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(work)
            .map_err(|source| ClientError::Start { what: name, source })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// [`begin_step_on`](Self::begin_step_on) for an engine on the host.
    pub fn begin_step(&self, plan: &[u8]) {
        self.begin_step_on(plan, EngineStream::default());
    }

    /// [`end_step_on`](Self::end_step_on) for an engine on the host.
    pub fn end_step(&self, plan: &[u8]) {
        self.end_step_on(plan, EngineStream::default());
    }

    /// Before the forward pass, which runs on `stream`: gathers what became final by finishing, then begins the loads.
    /// The loads' blocks must not be used until [`WorkerSide::poll`] has reported them.
    pub fn begin_step_on(&self, plan: &[u8], stream: EngineStream) {
        let Some(plan) = self.read_plan(plan) else { return };
        // The gathers first: a load may be into a block that is to be gathered.
        self.fuse.run("begin_step", || (), || self.saver.gather(&plan.stores_before, plan.epoch, stream));
        if !plan.loads.is_empty() {
            let after = self.fuse.run("fence", Fence::default, || self.loader.rank.carrier.fence(stream));
            for job in plan.loads {
                self.loader.submit(job, after.clone());
            }
        }
        self.loader.rank.blow_if_lost();
    }

    /// After the forward pass was begun on `stream`: gathers what it makes final. Work that the engine begins on that
    /// stream afterwards may overwrite it.
    pub fn end_step_on(&self, plan: &[u8], stream: EngineStream) {
        let Some(plan) = self.read_plan(plan) else { return };
        self.fuse.run("end_step", || (), || self.saver.gather(&plan.stores_after, plan.epoch, stream));
        self.loader.rank.blow_if_lost();
    }

    /// Loads that are over since the last call. After that no thread of ours touches their blocks.
    pub fn poll(&self) -> Vec<LoadDone> {
        std::mem::take(&mut *self.loader.done.lock())
    }

    /// Waits until all that was gathered is stored or skipped, and all loads are over. False: it took longer.
    pub fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        self.saver.queue.wait_idle(deadline) && self.loader.queue.wait_idle(deadline)
    }

    /// Waits until a session is up, for programs that want to begin warm.
    pub fn wait_until_up(&self, limit: Duration) -> bool {
        self.client.wait_until_up(limit)
    }

    /// This moment's numbers.
    pub fn counters(&self) -> Counters {
        self.client.counters()
    }

    /// Ends the session and the threads. Loads that are not over fail, stores that are not over are skipped.
    /// When it returns, nothing of ours touches the engine's memory any more. Repeating it is harmless.
    pub fn shutdown(&self) {
        self.client.stop();
        self.loader.rank.carrier.end();
        self.loader.close();
        self.saver.close();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked past its fuse has ended too.
            _ = thread.join();
        }
        self.loader.rank.carrier.close();
        self.client.end_trace();
    }

    fn read_plan(&self, plan: &[u8]) -> Option<StepPlan> {
        // Also when the fuse is blown: whoever is named in the plan waits for an answer.
        match self.fuse.attempt("plan", || StepPlan::decode(plan))? {
            Ok(plan) => Some(plan),
            Err(no) => {
                self.client.tally().bad_plans.one();
                tracing::error!(%no, "a step plan cannot be read; do scheduler and worker run the same version?");
                None
            }
        }
    }
}

impl Drop for WorkerSide {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn check_sizes(descriptor: &Descriptor, layout: &ProvedLayout) -> Result<(), Refusal> {
    let refuse = |subject| {
        Err(Refusal::new(
            Reason::WrongSize,
            subject,
            "make the descriptor from the same layers as the layout",
        ))
    };
    for (i, group) in descriptor.groups.iter().enumerate() {
        let index = GroupIndex(u16::try_from(i).unwrap_or(u16::MAX));
        let parts = layout.parts(index);
        if parts.is_empty() {
            return refuse(format!("group {index}, which the layout does not have"));
        }
        for local in parts {
            let (part, told, proved) = (local.part, group.block_bytes(local.part), local.block_bytes());
            if told != Some(proved) {
                return refuse(format!(
                    "group {index}, part {part}: a block of {told:?} bytes, {proved} in the layout"
                ));
            }
        }
    }
    Ok(())
}
