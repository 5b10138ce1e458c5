//! Transfers beside a running matrix product: how much each delays the other.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use tender_kernels::cuda::{Batch, Direction, Launch, Limits, MapIndex, Packed, SegmentTable};
use tender_kernels::{Move, PageMap, Segment};

use super::gpu::{Gpu, PRODUCT};
use super::report::Report;
use super::{Area, Device, Outcome, upload_words};

const LAYERS: u64 = 32;
const PAGE_BYTES: u64 = 32 << 10;

/// A load's transfers: bytes to the device, and a scatter into pages.
struct Transfers {
    stream: Arc<CudaStream>,
    host: cudarc::driver::PinnedHostSlice<u8>,
    staging: cudarc::driver::CudaSlice<u8>,
    scatter: (Launch, [u64; 4]),
    // Read by the kernel.
    _tables: [Area; 2],
    _pages: cudarc::driver::CudaSlice<u8>,
}

impl Transfers {
    fn new(gpu: &Gpu, blocks: u32) -> Outcome<Self> {
        let bytes = u64::from(blocks) * LAYERS * PAGE_BYTES;
        let mut pages = gpu.bytes(usize::try_from(2 * bytes)?)?;
        let mut staging = gpu.bytes(usize::try_from(bytes)?)?;
        let base = gpu.address_mut(&mut pages);
        let layer_bytes = 2 * u64::from(blocks) * PAGE_BYTES;
        let layer = |nth| Segment::new(base + nth * layer_bytes, PAGE_BYTES, &[], PAGE_BYTES);
        let map = PageMap::new((0..LAYERS).map(layer).collect::<Result<_, _>>()?)?;
        let table = SegmentTable::new([&map])?;
        let mut batch = Batch::new(&table, Direction::Scatter);
        // Every other block, so that nothing is one stretch.
        let moves: Vec<Move> = (0..blocks).map(|slot| Move { block: 2 * slot + 1, slot }).collect();
        let at = Packed { address: gpu.address_mut(&mut staging), offset_bytes: 0, bytes };
        batch.push(MapIndex(0), &moves, at)?;
        let tables = [upload_words(gpu, table.words())?, upload_words(gpu, &batch.words())?];
        let launch = batch.launch(Limits { sms: gpu.sms() });
        let arguments = batch.arguments(tables[0].address, tables[1].address);
        Ok(Self {
            stream: gpu.other_stream()?,
            host: gpu.pinned(usize::try_from(bytes)?)?,
            staging,
            scatter: (launch, arguments),
            _tables: tables,
            _pages: pages,
        })
    }
    fn bytes(&self) -> u64 {
        self.staging.len() as u64
    }
    fn enqueue(&mut self, gpu: &Gpu) -> Outcome<()> {
        self.stream.memcpy_htod(&self.host, &mut self.staging)?;
        gpu.enqueue_on(&self.stream, &self.scatter.0, &self.scatter.1)
    }
}

/// Times the product alone, and beside loads that last longer than it.
pub fn measure(gpu: &Gpu, report: &mut Report) -> Outcome<()> {
    let (n, blocks, loads): (u64, u32, usize) = if gpu.is_fake() { (24, 2, 2) } else { (2048, 64, 16) };
    let bytes = usize::try_from(4 * n * n)?;
    let mut matrices = [gpu.bytes(bytes)?, gpu.bytes(bytes)?, gpu.bytes(bytes)?];
    let [a, b, c] = matrices.each_mut().map(|matrix| gpu.address_mut(matrix));
    let grid = u32::try_from((n * n).div_ceil(256))?;
    let product = Launch { kernel: PRODUCT, grid, block: 256, shared_bytes: 0 };
    let mut transfers = Transfers::new(gpu, blocks)?;
    gpu.stream().synchronize()?;

    let alone = gpu.milliseconds(3, || gpu.enqueue(&product, &[a, b, c, n]))?;
    let mut enqueued = 0u64;
    let beside = gpu.milliseconds(3, || {
        for _ in 0..loads {
            transfers.enqueue(gpu)?;
            enqueued += transfers.bytes();
        }
        gpu.enqueue(&product, &[a, b, c, n])
    })?;
    transfers.stream.synchronize()?;
    let slower = f64::from(beside) / f64::from(alone.max(1e-4)) - 1.0;
    let size = format!("{n} x {n}");
    report.figure("matrix product alone", &size, format!("{alone:.2} ms"), String::new(), "");
    let compared = format!("{:+.1} % (load of {} MiB meanwhile)", 100.0 * slower, transfers.bytes() >> 20);
    report.figure("matrix product beside loads", &size, format!("{beside:.2} ms"), compared, "");
    println!("{} MiB were loaded in all", enqueued >> 20);
    Ok(())
}
