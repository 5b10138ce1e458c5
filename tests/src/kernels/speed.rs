//! How fast the kernels are, against plain copies measured in the same run.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngCore, SeedableRng};
use tender_kernels::cuda::{Batch, Direction, Limits, MapIndex, Messages, Packed, SegmentTable};
use tender_kernels::{Move, PageMap, Segment};

use super::gpu::Gpu;
use super::report::Report;
use super::{Device, Outcome, same, upload_words};

/// Pages of one layer in one block.
const PAGE_BYTES: [u64; 11] = [
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
];
/// Layers of a block, each in a tensor of its own.
const LAYERS: u64 = 8;
const RUNS: usize = 9;

/// Plain copies of as many bytes.
struct Base {
    device: f64,
    to_device: f64,
    to_host: f64,
}

fn gb_per_second(bytes: u64, milliseconds: f32) -> f64 {
    // A fake device may be done at once.
    bytes as f64 / 1e6 / f64::from(milliseconds.max(1e-4))
}

fn size_name(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// Measures everything with `moved` bytes at a time (at least 16 MiB, for the largest pages).
pub fn measure(gpu: &Gpu, moved: u64, report: &mut Report) -> Outcome<()> {
    let base = measure_copies(gpu, moved, report)?;
    for page_bytes in PAGE_BYTES {
        measure_pages(gpu, moved, page_bytes, &base, report)?;
    }
    measure_mapped(gpu, moved, &base, report)?;
    measure_hash(gpu, moved, report)
}

fn measure_copies(gpu: &Gpu, moved: u64, report: &mut Report) -> Outcome<Base> {
    let bytes = usize::try_from(moved)?;
    let (mut first, mut second) = (gpu.bytes(bytes)?, gpu.bytes(bytes)?);
    let mut host = gpu.pinned(bytes)?;
    let device = gb_per_second(moved, gpu.milliseconds(RUNS, || gpu.copy_inside(&first, &mut second))?);
    let to_device = gb_per_second(moved, gpu.milliseconds(RUNS, || gpu.copy_in(&host, &mut first))?);
    let to_host = gb_per_second(moved, gpu.milliseconds(RUNS, || gpu.copy_out(&second, &mut host))?);
    gpu.stream().synchronize()?;
    let size = size_name(moved);
    report.rate("copy inside the device", &size, device, None);
    report.rate("copy from pinned host memory", &size, to_device, None);
    report.rate("copy to pinned host memory", &size, to_host, None);
    Ok(Base { device, to_device, to_host })
}

/// Half of a pool's blocks, in random order.
fn scattered_moves(blocks: u64) -> Outcome<Vec<Move>> {
    let mut ids: Vec<u32> = (1..u32::try_from(2 * blocks)? + 1).collect();
    ids.shuffle(&mut StdRng::seed_from_u64(blocks));
    ids.truncate(usize::try_from(blocks)?);
    Ok(ids.into_iter().zip(0..).map(|(block, slot)| Move { block, slot }).collect())
}

/// Layers that lie in tensors of their own, so that none of their pages touch in a block.
fn layers(base: u64, pool: u64, page_bytes: u64) -> Outcome<PageMap> {
    let of = |nth| Segment::new(base + nth * (pool * page_bytes + 256), page_bytes, &[], page_bytes);
    Ok(PageMap::new((0..LAYERS).map(of).collect::<Result<_, _>>()?)?)
}

fn measure_pages(gpu: &Gpu, moved: u64, page_bytes: u64, base: &Base, report: &mut Report) -> Outcome<()> {
    let blocks = (moved / (LAYERS * page_bytes)).max(2);
    let pool = 2 * blocks + 1;
    let mut pages = gpu.bytes(usize::try_from(LAYERS * (pool * page_bytes + 256))?)?;
    let mut packed = gpu.bytes(usize::try_from(blocks * LAYERS * page_bytes)?)?;
    let map = layers(gpu.address_mut(&mut pages), pool, page_bytes)?;
    let table = SegmentTable::new([&map])?;
    let words = upload_words(gpu, table.words())?;
    let moves = scattered_moves(blocks)?;
    let at = Packed { address: gpu.address_mut(&mut packed), offset_bytes: 0, bytes: packed.len() as u64 };
    let goal = match page_bytes {
        4096.. => Some(0.9),
        1024 => Some(0.6),
        _ => None,
    };
    for (direction, name) in [(Direction::Gather, "gather"), (Direction::Scatter, "scatter")] {
        let mut batch = Batch::new(&table, direction);
        batch.push(MapIndex(0), &moves, at)?;
        let area = upload_words(gpu, &batch.words())?;
        let launch = batch.launch(Limits { sms: gpu.sms() });
        let arguments = batch.arguments(words.address, area.address);
        let took = gpu.milliseconds(RUNS, || gpu.enqueue(&launch, &arguments))?;
        let rate = gb_per_second(batch.bytes(), took);
        report.rate(
            name,
            &format!("pages of {}", size_name(page_bytes)),
            rate,
            Some(("copy", base.device, goal)),
        );
    }
    Ok(())
}

/// The same kernels with packed bytes in pinned host memory: no staging, but the link's pace.
fn measure_mapped(gpu: &Gpu, moved: u64, base: &Base, report: &mut Report) -> Outcome<()> {
    let page_bytes = 16 << 10;
    let blocks = (moved / (LAYERS * page_bytes)).max(2);
    let pool = 2 * blocks + 1;
    let mut pages = gpu.bytes(usize::try_from(LAYERS * (pool * page_bytes + 256))?)?;
    let mut packed = gpu.pinned(usize::try_from(blocks * LAYERS * page_bytes)?)?;
    let map = layers(gpu.address_mut(&mut pages), pool, page_bytes)?;
    let table = SegmentTable::new([&map])?;
    let words = upload_words(gpu, table.words())?;
    let bytes = blocks * LAYERS * page_bytes;
    let at = Packed { address: gpu.mapped(&mut packed)?, offset_bytes: 0, bytes };
    let both = [
        (Direction::Gather, "gather to mapped host memory", base.to_host),
        (Direction::Scatter, "scatter from mapped host memory", base.to_device),
    ];
    for (direction, name, link) in both {
        let mut batch = Batch::new(&table, direction);
        batch.push(MapIndex(0), &scattered_moves(blocks)?, at)?;
        let area = upload_words(gpu, &batch.words())?;
        let launch = batch.launch(Limits { sms: 16 });
        let arguments = batch.arguments(words.address, area.address);
        let took = gpu.milliseconds(RUNS, || gpu.enqueue(&launch, &arguments))?;
        report.rate(name, "pages of 16 KiB", gb_per_second(bytes, took), Some(("copy", link, None)));
    }
    Ok(())
}

fn measure_hash(gpu: &Gpu, moved: u64, report: &mut Report) -> Outcome<()> {
    for message_bytes in [256 << 10, 1 << 20, 16 << 20] {
        let count = (moved / message_bytes).max(1);
        let mut content = vec![0; usize::try_from(count * message_bytes)?];
        StdRng::seed_from_u64(message_bytes).fill_bytes(&mut content);
        let memory = super::upload(gpu, &content, 0)?;
        let mut messages = Messages::new();
        for nth in 0..count {
            messages.push(memory.address + nth * message_bytes, message_bytes);
        }
        let table = upload_words(gpu, messages.words())?;
        let scratch = gpu.area(usize::try_from(messages.scratch_bytes())?, 0)?;
        let digests = gpu.area(usize::try_from(messages.digest_bytes())?, 0)?;
        let (limits, at) = (Limits { sms: gpu.sms() }, (table.address, scratch.address, digests.address));
        let (groups, first) = messages.groups(limits, at.0, at.1, at.2);
        let roots = messages.roots(limits, at.0, at.1, at.2);
        let runs = if gpu.is_fake() { 1 } else { RUNS };
        let took = gpu.milliseconds(runs, || {
            gpu.enqueue(&groups, &first)?;
            roots.iter().try_for_each(|(launch, second)| gpu.enqueue(launch, second))
        })?;
        let expected: Vec<u8> = content
            .chunks(usize::try_from(message_bytes)?)
            .flat_map(|message| *blake3::hash(message).as_bytes())
            .collect();
        let size = format!("messages of {}", size_name(message_bytes));
        report.checked("digests", &size, same("digests", &gpu.read(&digests)?, &expected));
        report.rate(
            "BLAKE3",
            &size,
            gb_per_second(messages.bytes(), took),
            Some(("100 GB/s", 100.0, Some(1.0))),
        );
    }
    Ok(())
}
