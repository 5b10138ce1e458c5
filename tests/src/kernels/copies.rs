//! Gather and scatter, compared byte by byte with the CPU truth.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngCore, SeedableRng};
use tender_kernels::cuda::{Batch, Direction, Limits, MapIndex, Packed, SegmentTable};
use tender_kernels::{Move, PageMap};

use super::host::Mirror;
use super::table::Case;
use super::{Area, Device, Outcome, POISON, same, upload, upload_words};

/// Untouched bytes that are looked at on either side of packed ones.
const GUARD: usize = 64;
/// Where memory may lie behind a multiple of 256.
const PAST: [usize; 6] = [0, 0, 16, 8, 4, 1];

/// One layout in the device's memory and the same bytes on the host.
struct Engine<'a> {
    case: &'a Case,
    pages: Area,
    map: PageMap,
    mirror: Mirror,
    mirror_map: PageMap,
    moves: Vec<Move>,
}

impl<'a> Engine<'a> {
    fn new(device: &impl Device, case: &'a Case, rng: &mut StdRng) -> Outcome<Self> {
        let mut bytes = vec![0; case.bytes];
        rng.fill_bytes(&mut bytes);
        let pages = upload(device, &bytes, PAST[rng.random_range(0..PAST.len())])?;
        let mut mirror = Mirror::new(bytes);
        let (map, mirror_map) = (case.map(pages.address), case.map(mirror.address()));
        Ok(Self { case, pages, map, mirror, mirror_map, moves: draw(case.pool, rng) })
    }
    /// Bytes of one block.
    fn block_bytes(&self) -> usize {
        usize::try_from(self.map.block_bytes()).expect("64 bits")
    }
    fn packed_bytes(&self) -> usize {
        self.moves.len() * self.block_bytes()
    }
}

/// Some blocks, in any order, never the null block; blocks that are not covered have no slot.
fn draw(pool: u32, rng: &mut StdRng) -> Vec<Move> {
    let mut ids: Vec<u32> = (1..pool).collect();
    ids.shuffle(rng);
    ids.truncate(rng.random_range(1..ids.len() + 1));
    let mut moves: Vec<Move> = ids.into_iter().zip(0..).map(|(block, slot)| Move { block, slot }).collect();
    moves.shuffle(rng);
    moves
}

/// Gathers random blocks of all these layouts by one launch, and scatters other bytes to random blocks, in pieces cut
/// anywhere, by another one. Compares all of the engine's and all packed memory. Returns the bytes that were moved.
pub fn check(device: &impl Device, cases: &[&Case], seed: u64) -> Outcome<u64> {
    let mut rng = StdRng::seed_from_u64(seed);
    let engines = cases.iter().map(|case| Engine::new(device, case, &mut rng));
    let mut engines = engines.collect::<Outcome<Vec<_>>>()?;
    let table = SegmentTable::new(engines.iter().map(|engine| &engine.map))?;
    let words = upload_words(device, table.words())?;
    let gathered = check_gather(device, &mut engines, &table, &words, &mut rng)?;
    for engine in &mut engines {
        engine.moves = draw(engine.case.pool, &mut rng);
    }
    Ok(gathered + check_scatter(device, &mut engines, &table, &words, &mut rng)?)
}

fn check_gather(
    device: &impl Device,
    engines: &mut [Engine<'_>],
    table: &SegmentTable,
    words: &Area,
    rng: &mut StdRng,
) -> Outcome<u64> {
    let mut batch = Batch::new(table, Direction::Gather);
    let mut packed = Vec::new();
    for (nth, engine) in engines.iter().enumerate() {
        let bytes = engine.packed_bytes();
        let area = device.area(GUARD + bytes + GUARD, PAST[rng.random_range(0..PAST.len())])?;
        let at = Packed { address: area.address + GUARD as u64, offset_bytes: 0, bytes: bytes as u64 };
        batch.push(MapIndex(nth), &engine.moves, at)?;
        packed.push(area);
    }
    run(device, &batch, words)?;
    for (engine, area) in engines.iter_mut().zip(&packed) {
        let name = &engine.case.name;
        let mut expected = vec![POISON; area.bytes];
        let inside = GUARD..area.bytes - GUARD;
        engine.mirror.gather(&engine.mirror_map, &engine.moves, &mut expected[inside]);
        same(&format!("{name}: gathered bytes"), &device.read(area)?, &expected)?;
        same(&format!("{name}: pages after a gather"), &device.read(&engine.pages)?, engine.mirror.bytes())?;
    }
    Ok(batch.bytes())
}

fn check_scatter(
    device: &impl Device,
    engines: &mut [Engine<'_>],
    table: &SegmentTable,
    words: &Area,
    rng: &mut StdRng,
) -> Outcome<u64> {
    let mut batch = Batch::new(table, Direction::Scatter);
    let mut pieces = Vec::new();
    for (nth, engine) in engines.iter_mut().enumerate() {
        let mut packed = vec![0; engine.packed_bytes()];
        rng.fill_bytes(&mut packed);
        engine.mirror.scatter(&engine.mirror_map, &engine.moves, &packed);
        let mut cuts: Vec<usize> =
            (0..rng.random_range(0..4)).map(|_| rng.random_range(0..packed.len())).collect();
        cuts.extend([0, packed.len()]);
        cuts.sort_unstable();
        for cut in cuts.windows(2).rev() {
            let piece = &packed[cut[0]..cut[1]];
            // As a client places it, so that vectors stay whole, or anywhere.
            let past = if rng.random() { cut[0] % 16 } else { PAST[rng.random_range(0..PAST.len())] };
            let area = upload(device, piece, past)?;
            let at = Packed { address: area.address, offset_bytes: cut[0] as u64, bytes: piece.len() as u64 };
            batch.push(MapIndex(nth), &engine.moves, at)?;
            pieces.push(area);
        }
    }
    run(device, &batch, words)?;
    for engine in engines.iter() {
        let what = format!("{}: pages after a scatter", engine.case.name);
        same(&what, &device.read(&engine.pages)?, engine.mirror.bytes())?;
    }
    Ok(batch.bytes())
}

/// Runs the batch's kernel to its end; `words` is the table's.
pub fn run(device: &impl Device, batch: &Batch<'_>, words: &Area) -> Outcome<()> {
    let area = upload_words(device, &batch.words())?;
    let launch = batch.launch(Limits { sms: device.sms() });
    device.launch(&launch, &batch.arguments(words.address, area.address))
}
