//! Copies from and to the memory of an NVIDIA GPU, in the order of the engine's stream.
//!
//! ```text
//! store.rs   pages > ring on the device > staging        load.rs   arena > ring on the device > pages
//!     gpu.rs (device, kernels, tables)  pins.rs (memory used in place)  ring.rs, pace.rs (room, rate)
//!         driver: a small trait; real.rs is CUDA, fake.rs a model that tests step through
//!         compile.rs: the kernels, made for the device that is there
//! ```
//! The rules that order them stand in docs/gpu.md, each beside the test that breaks it.

mod compile;
mod digest;
pub(crate) mod driver;
mod flight;
mod gpu;
mod load;
mod pace;
mod pins;
mod ring;
mod settings;
mod start;
mod store;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::sync::Arc;

use tender_proto::Reason;
use tender_proto::shm::Mapping;

use self::driver::Event;
use self::gpu::Gpu;
use self::load::{After, CudaLoading, LoadLanes};
use self::pins::Pins;
pub(crate) use self::start::start;
use self::store::{CudaGathering, StoreLane};
use crate::copy::EngineStream;
use crate::copy::carrier::{Carrier, Fence, Gathering, Loading};

/// Moves a worker's bytes over one device.
pub(crate) struct CudaCarrier {
    gpu: Arc<Gpu>,
    pins: Arc<Pins>,
    stores: Arc<StoreLane>,
    loads: Arc<LoadLanes>,
}

impl fmt::Debug for CudaCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaCarrier").field("device", &self.gpu.driver.about().name).finish_non_exhaustive()
    }
}

impl Carrier for CudaCarrier {
    fn gather(&self, on: EngineStream) -> Box<dyn Gathering + '_> {
        Box::new(CudaGathering::new(&self.stores, on))
    }

    fn fence(&self, on: EngineStream) -> Fence {
        let event = match self.gpu.check_stream(on) {
            Ok(()) => Event::record(&self.gpu.driver, on.0).inspect_err(|fault| self.gpu.note(fault)).ok(),
            Err(_) => None,
        };
        Fence(Some(Arc::new(event.map_or(After::Unknown, After::Event))))
    }

    fn load(&self, after: &Fence, arena: Option<&Arc<Mapping>>) -> Result<Box<dyn Loading>, Reason> {
        let after = after.0.clone().and_then(|after| after.downcast::<After>().ok());
        let arena = arena.map(|arena| (Arc::clone(arena), self.pins.arena(arena)));
        Ok(Box::new(CudaLoading::new(&self.loads, after.ok_or(Reason::Internal)?, arena)?))
    }

    fn lost(&self) -> Option<String> {
        self.gpu.lost()
    }

    fn end(&self) {
        self.gpu.end();
    }

    fn close(&self) {
        self.stores.close();
        self.pins.close();
    }
}
