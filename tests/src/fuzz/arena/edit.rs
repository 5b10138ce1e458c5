//! What happens to a file between two daemons.

use arbitrary::Arbitrary;
use tender_daemon::fuzzing::{Places, places, seal_header, seal_record};
use tender_proto::Descriptor;

use super::image::Image;
use crate::fuzz::descriptor;
use crate::fuzz::small::{ARENA_BYTES, descriptor as model};

/// Slots that edits choose from: those in use, and some behind them.
const SLOTS: usize = 24;
const PAGE: usize = 4096;

#[derive(Arbitrary, Debug)]
pub(super) enum Edit {
    /// Bytes as they come, anywhere in the header, the records, the descriptors or the chunks.
    Bytes {
        place: u8,
        at: u16,
        bytes: [u8; 4],
        count: u8,
    },
    /// A number of the header.
    Header {
        field: u8,
        value: Number,
        seal: bool,
    },
    /// A number of a record.
    Record {
        slot: u8,
        field: u8,
        value: Number,
        seal: bool,
    },
    Copy {
        from: u8,
        to: u8,
    },
    Clear {
        slot: u8,
    },
    /// A namespace's record and its descriptor.
    Namespace {
        slot: u8,
        page: u8,
        epoch: Number,
        descriptor: Described,
    },
    /// The file becomes longer or shorter.
    Length {
        pages: i8,
        bytes: i8,
    },
}

#[derive(Arbitrary, Debug)]
pub(super) enum Described {
    Model(u8),
    Drawn(Box<descriptor::Draft>),
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Number {
    Small(u8),
    Page(u8),
    /// Added to what is there.
    More(i8),
    Any(u64),
}

impl Number {
    fn apply(self, old: u64) -> u64 {
        match self {
            Self::Small(n) => n.into(),
            Self::Page(n) => u64::from(n) * PAGE as u64,
            Self::More(n) => old.wrapping_add_signed(n.into()),
            Self::Any(n) => n,
        }
    }
}

/// Where a record's numbers are, and how many bytes they have: kind, group, part, namespace or epoch, epoch, boot,
/// sequence, first, coverage, the hash's and the digest's first bytes, offset, bytes.
const RECORD_FIELDS: &[(usize, usize)] = &[
    (8, 1),
    (10, 2),
    (12, 2),
    (12, 4),
    (16, 4),
    (20, 4),
    (24, 4),
    (28, 4),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (80, 8),
    (112, 8),
    (120, 8),
];
/// Format, process, size of the file, size of the pool, slots, starts, used slots.
const HEADER_FIELDS: &[(usize, usize)] = &[(8, 4), (12, 4), (16, 8), (24, 8), (32, 4), (40, 4), (44, 4)];

/// The file after its edits.
pub(super) struct Edited {
    pub(super) file: Vec<u8>,
    pub(super) places: Places,
    /// Some record was made anew, with a checksum that is right.
    pub(super) forged: bool,
    /// Bytes of chunks were changed.
    pub(super) flipped: bool,
}

impl Edited {
    pub(super) fn new(image: &Image, edits: impl Iterator<Item = Edit>) -> Self {
        let places = places(ARENA_BYTES);
        assert_eq!(image.file.len(), places.file_bytes);
        let mut edited = Self { file: image.file.clone(), places, forged: false, flipped: false };
        let mut length = image.file.len();
        for edit in edits {
            edited.apply(edit, &mut length);
        }
        edited.file.resize(length, 0);
        edited
    }

    fn apply(&mut self, edit: Edit, length: &mut usize) {
        match edit {
            Edit::Bytes { place, at, bytes, count } => {
                self.bytes(place, at, &bytes[..usize::from(count % 4) + 1])
            }
            Edit::Header { field, value, seal } => {
                change(&mut self.file, HEADER_FIELDS[usize::from(field) % HEADER_FIELDS.len()], value);
                if seal {
                    seal_header(&mut self.file);
                }
            }
            Edit::Record { slot, field, value, seal } => {
                let record = self.record(slot);
                change(record, RECORD_FIELDS[usize::from(field) % RECORD_FIELDS.len()], value);
                if seal {
                    seal_record(record);
                    self.forged = true;
                }
            }
            Edit::Copy { from, to } => {
                let from = self.record(from).to_vec();
                self.record(to).copy_from_slice(&from);
            }
            Edit::Clear { slot } => self.record(slot)[..8].fill(0),
            Edit::Namespace { slot, page, epoch, descriptor } => {
                self.namespace(slot, page, epoch, descriptor)
            }
            Edit::Length { pages, bytes } => {
                let more = isize::from(pages) * PAGE.cast_signed() + isize::from(bytes);
                *length = length.saturating_add_signed(more).min(2 * self.places.file_bytes);
            }
        }
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = &[u8]> {
        let records = self.file.get(self.places.records..self.places.descriptors).unwrap_or_default();
        records.chunks_exact(self.places.record_bytes).take(SLOTS)
    }

    fn record(&mut self, slot: u8) -> &mut [u8] {
        let Places { records, record_bytes, .. } = self.places;
        let at = records + usize::from(slot) % SLOTS * record_bytes;
        &mut self.file[at..at + record_bytes]
    }

    fn bytes(&mut self, place: u8, at: u16, bytes: &[u8]) {
        let Places { records, descriptors, pool, .. } = self.places;
        let start = [0, records, descriptors, pool][usize::from(place) % 4];
        let at = start + usize::from(at);
        // Records are followed by descriptors, which a large number reaches; the pool is the last.
        self.flipped |= at + bytes.len() > pool;
        for (to, from) in self.file.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    }

    fn namespace(&mut self, slot: u8, page: u8, epoch: Number, described: Described) {
        let descriptor = match described {
            Described::Model(n) => Ok(model(n)),
            Described::Drawn(draft) => Descriptor::parse(&descriptor::message(*draft)),
            Described::Raw(raw) => Descriptor::decode(&raw),
        };
        let Ok(descriptor) = descriptor else { return };
        let raw = descriptor.encode();
        let (offset, start) = (usize::from(page) * PAGE, self.places.descriptors);
        let Some(room) = self.file.get_mut(start + offset..self.places.pool) else { return };
        if raw.len() > room.len() {
            return;
        }
        room[..raw.len()].copy_from_slice(&raw);
        let record = self.record(slot);
        record[8..12].copy_from_slice(&[2, 0, 0, 0]);
        change(record, (12, 4), epoch);
        record[16..48].copy_from_slice(descriptor.digest().as_bytes());
        record[48..56].copy_from_slice(&(offset as u64).to_le_bytes());
        record[56..64].copy_from_slice(&(raw.len() as u64).to_le_bytes());
        record[64..].fill(0);
        seal_record(record);
        self.forged = true;
    }
}

fn change(from: &mut [u8], (at, bytes): (usize, usize), value: Number) {
    let Some(field) = from.get_mut(at..at + bytes) else { return };
    let mut old = [0; 8];
    old[..bytes].copy_from_slice(field);
    let new = value.apply(u64::from_le_bytes(old)).to_le_bytes();
    field.copy_from_slice(&new[..bytes]);
}
