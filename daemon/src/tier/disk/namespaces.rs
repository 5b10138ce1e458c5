//! Which namespaces have records here, and which of those records count.
//!
//! A namespace has a generation, drawn by chance, that its records carry. A reset draws another one and writes it down:
//! from then on no older record is anything but room, also after a kill. Since no generation is ever drawn twice, one
//! that got lost on its way to the disk makes records unknown, never wrong.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tender_proto::{Descriptor, NamespaceDigest};

use crate::fault::{self, Fault};

const NAME: &str = "namespaces";
const MAGIC: [u8; 8] = *b"TENDERN1";
/// What does not fit in it is not kept; namespaces without records make room at the next start.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// The old file and the next one, and what is small.
pub(super) const ROOM_BYTES: u64 = 2 * MAX_FILE_BYTES + (1 << 20);
/// For an earlier write of it to end.
const SAVE_PATIENCE: Duration = Duration::from_secs(5);
/// Digest, generation and length, before each descriptor.
const ENTRY_BYTES: u64 = 48;

/// What is known of one.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) generation: u64,
    pub(super) descriptor: Descriptor,
    descriptor_bytes: u64,
    /// It is in the file.
    saved: AtomicBool,
    /// Something was stored in it since the start.
    used: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Namespaces {
    folder: PathBuf,
    known: RwLock<HashMap<NamespaceDigest, Arc<Known>>>,
    /// One writer at a time, each with all that is known then.
    saving: Mutex<()>,
}

impl Namespaces {
    /// Reads the file. One that is damaged is as if there were none: all records are unknown then.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let known = match fs::metadata(folder.join(NAME)) {
            Ok(metadata) if metadata.len() > MAX_FILE_BYTES => None,
            Ok(_) => decode(&fs::read(folder.join(NAME))?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(HashMap::new()),
            Err(error) => return Err(error),
        };
        if known.is_none() {
            tracing::warn!(
                folder = %folder.display(),
                "the disk tier's list of namespaces is damaged: what it had stored is forgotten"
            );
        }
        let known = RwLock::new(known.unwrap_or_default());
        Ok(Self { folder: folder.to_owned(), known, saving: Mutex::default() })
    }

    pub(super) fn get(&self, namespace: NamespaceDigest) -> Option<Arc<Known>> {
        self.known.read().get(&namespace).cloned()
    }

    /// The same for one that may be new; `None` when there are too many.
    pub(super) fn know(&self, namespace: NamespaceDigest, descriptor: &Descriptor) -> Option<Arc<Known>> {
        if let Some(known) = self.known.read().get(&namespace) {
            // Under the lock: see `forget_all_but`.
            known.used.store(true, Ordering::Release);
            return Some(Arc::clone(known));
        }
        let mut all = self.known.write();
        let fresh = Known::draw(descriptor);
        let bytes: u64 = all.values().chain([&fresh]).map(|known| ENTRY_BYTES + known.descriptor_bytes).sum();
        let known = match all.get(&namespace) {
            Some(known) => Arc::clone(known),
            None if bytes + 40 > MAX_FILE_BYTES => return None,
            None => Arc::clone(all.entry(namespace).or_insert(fresh)),
        };
        known.used.store(true, Ordering::Release);
        Some(known)
    }

    /// Whether it still has this generation.
    pub(super) fn is_current(&self, namespace: NamespaceDigest, generation: u64) -> bool {
        self.get(namespace).is_some_and(|known| known.generation == generation)
    }

    /// Writes it down unless that was done.
    pub(super) fn save(&self, known: &Known) -> io::Result<()> {
        if known.saved.load(Ordering::Acquire) { Ok(()) } else { self.save_all() }
    }

    /// Ends its generation, on the medium too when this returns `Ok`.
    pub(super) fn forget(&self, namespace: NamespaceDigest) -> io::Result<()> {
        {
            let mut all = self.known.write();
            let Some(old) = all.get(&namespace) else { return Ok(()) };
            let fresh = Known::draw(&old.descriptor);
            all.insert(namespace, fresh);
        }
        self.save_all()
    }

    /// The same for all of them.
    pub(super) fn forget_all(&self) -> io::Result<()> {
        self.known.write().values_mut().for_each(|known| *known = Known::draw(&known.descriptor));
        self.save_all()
    }

    /// Forgets those that have neither records nor a user since the start.
    pub(super) fn forget_all_but(&self, used: &HashSet<NamespaceDigest>) {
        let keep = |known: &Known| known.used.load(Ordering::Acquire);
        self.known.write().retain(|namespace, known| used.contains(namespace) || keep(known));
    }

    fn save_all(&self) -> io::Result<()> {
        // One that hangs must not take a thread from the others with each try.
        let Some(_one) = self.saving.try_lock_for(SAVE_PATIENCE) else {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "an earlier write hangs"));
        };
        let all: Vec<_> =
            self.known.read().iter().map(|(digest, known)| (*digest, Arc::clone(known))).collect();
        fault::check(Fault::DiskNamespaces)?;
        replace(&self.folder, NAME, &encode(&all))?;
        all.iter().for_each(|(_, known)| known.saved.store(true, Ordering::Release));
        Ok(())
    }
}

impl Known {
    fn draw(descriptor: &Descriptor) -> Arc<Self> {
        Arc::new(Self::of(descriptor.clone(), rand::random(), false))
    }
    fn of(descriptor: Descriptor, generation: u64, saved: bool) -> Self {
        let descriptor_bytes = descriptor.encode().len() as u64;
        let (saved, used) = (AtomicBool::new(saved), AtomicBool::new(false));
        Self { generation, descriptor, descriptor_bytes, saved, used }
    }
}

/// Puts a file in the place of one, whole and on the medium, or leaves the old one.
pub(super) fn replace(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let fresh = folder.join(format!("{name}.new"));
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, folder.join(name))?;
    File::open(folder)?.sync_all()
}

fn encode(all: &[(NamespaceDigest, Arc<Known>)]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for (digest, known) in all {
        let descriptor = known.descriptor.encode();
        out.extend(digest.as_bytes());
        out.extend(known.generation.to_le_bytes());
        out.extend((descriptor.len() as u64).to_le_bytes());
        out.extend(descriptor);
    }
    let sum = blake3::hash(&out);
    out.extend(sum.as_bytes());
    out
}

fn decode(raw: &[u8]) -> Option<HashMap<NamespaceDigest, Arc<Known>>> {
    let (body, sum) = raw.split_last_chunk::<32>()?;
    let mut rest = body.strip_prefix(&MAGIC)?;
    if blake3::hash(body) != *sum {
        return None;
    }
    let mut all = HashMap::new();
    while !rest.is_empty() {
        let (digest, after) = rest.split_first_chunk::<32>()?;
        let (generation, after) = after.split_first_chunk::<8>()?;
        let (len, after) = after.split_first_chunk::<8>()?;
        let (descriptor, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        rest = after;
        let digest = NamespaceDigest::from_bytes(*digest);
        // One that this version reads otherwise is not the one that was meant.
        let Some(descriptor) = Descriptor::decode(descriptor).ok().filter(|read| read.digest() == digest)
        else {
            continue;
        };
        let generation = u64::from_le_bytes(*generation);
        all.insert(digest, Arc::new(Known::of(descriptor, generation, true)));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{a, b, descriptor};

    #[test]
    fn a_reset_is_on_the_disk_when_it_returns() {
        let dir = tempfile::tempdir().unwrap();
        let generation = |namespaces: &Namespaces, of| namespaces.get(of).map(|known| known.generation);
        let first = Namespaces::open(dir.path()).unwrap();
        let known = first.know(a(), &descriptor("a")).unwrap();
        assert_eq!(generation(&Namespaces::open(dir.path()).unwrap(), a()), None, "not saved");
        first.save(&known).unwrap();
        first.save(&first.know(b(), &descriptor("b")).unwrap()).unwrap();
        first.forget(a()).unwrap();
        let second = Namespaces::open(dir.path()).unwrap();
        assert_eq!(generation(&second, a()), generation(&first, a()));
        assert_ne!(generation(&second, a()), Some(known.generation));
        assert!(second.is_current(b(), generation(&first, b()).unwrap()));
        second.forget_all_but(&HashSet::from([b()]));
        assert_eq!(generation(&second, a()), None);
    }

    #[test]
    fn a_damaged_list_makes_everything_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let first = Namespaces::open(dir.path()).unwrap();
        first.save(&first.know(a(), &descriptor("a")).unwrap()).unwrap();
        let good = fs::read(dir.path().join(NAME)).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(decode(&bad).is_none(), "byte {at}");
            assert!(decode(&good[..at]).is_none(), "cut at {at}");
        }
        fs::write(dir.path().join(NAME), &good[..50]).unwrap();
        assert!(Namespaces::open(dir.path()).unwrap().get(a()).is_none());
    }
}
