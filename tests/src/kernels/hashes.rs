//! BLAKE3 on a device, compared with the `blake3` crate.

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use tender_kernels::cuda::{Limits, Messages};

use super::{Area, Device, Outcome, same, upload, upload_words};

/// Lengths at which something in the tree changes, and their neighbours: blocks, leaves, groups of leaves, and
/// powers of two of them.
pub fn edge_lengths() -> Vec<usize> {
    let mut all: Vec<usize> = (0..=66).collect();
    let around = |at: usize| [at - 65, at - 64, at - 1, at, at + 1, at + 64, at + 65];
    all.extend((128..=8192).step_by(64).flat_map(|at| [at - 1, at, at + 1]));
    all.extend(
        [16usize, 32, 64, 127, 128, 129, 255, 256, 300].into_iter().flat_map(|leaves| around(leaves << 10)),
    );
    all.sort_unstable();
    all.dedup();
    all
}

/// Hashes messages of these lengths by one launch of each kernel; they lie at every alignment.
pub fn check(device: &impl Device, lengths: &[usize], seed: u64) -> Outcome<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut messages = Messages::new();
    let mut kept = Vec::new();
    for (nth, &len) in lengths.iter().enumerate() {
        let mut bytes = vec![0; len];
        rng.fill_bytes(&mut bytes);
        let area = upload(device, &bytes, [0, 1, 16, 4, 8][nth % 5])?;
        messages.push(area.address, len as u64);
        kept.push((area, bytes));
    }
    let digests = run(device, &messages)?;
    for ((_, bytes), digest) in kept.iter().zip(digests.chunks(32)) {
        same(&format!("digest of {} bytes", bytes.len()), digest, blake3::hash(bytes).as_bytes())?;
    }
    Ok(())
}

/// The digests of all messages, 32 bytes each.
pub fn run(device: &impl Device, messages: &Messages) -> Outcome<Vec<u8>> {
    let size = |bytes: u64| usize::try_from(bytes).expect("64 bits");
    let table = upload_words(device, messages.words())?;
    let scratch = device.area(size(messages.scratch_bytes()), 0)?;
    let digests = device.area(size(messages.digest_bytes()), 0)?;
    launch(device, messages, &table, &scratch, &digests)?;
    device.read(&digests)
}

/// Runs the kernels to their end.
pub fn launch(
    device: &impl Device,
    messages: &Messages,
    table: &Area,
    scratch: &Area,
    digests: &Area,
) -> Outcome<()> {
    let limits = Limits { sms: device.sms() };
    let at = (table.address, scratch.address, digests.address);
    let (groups, arguments) = messages.groups(limits, at.0, at.1, at.2);
    device.launch(&groups, &arguments)?;
    if let Some((roots, arguments)) = messages.roots(limits, at.0, at.1, at.2) {
        device.launch(&roots, &arguments)?;
    }
    Ok(())
}
