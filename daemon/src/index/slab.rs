//! Entries in pages that never move, so that growing copies nothing and an entry is named by a small number.

use super::Entry;

/// Entries of one page.
pub(super) const PAGE_ENTRIES: usize = 1024;

/// Entries and the numbers that are free.
#[derive(Debug, Default)]
pub(super) struct Slab {
    pages: Vec<Vec<Option<Entry>>>,
    free: Vec<u32>,
    live: usize,
}

impl Slab {
    /// Puts an entry in and returns its number; gives it back when all 2^32 numbers are taken.
    pub(super) fn insert(&mut self, entry: Entry) -> Result<u32, Entry> {
        if let Some(slot) = self.free.pop() {
            let (page, at) = split(slot);
            self.pages[page][at] = Some(entry);
            self.live += 1;
            return Ok(slot);
        }
        if self.pages.last().is_none_or(|page| page.len() == PAGE_ENTRIES) {
            self.pages.push(Vec::with_capacity(PAGE_ENTRIES));
        }
        let page = self.pages.len() - 1;
        let Ok(slot) = u32::try_from(page * PAGE_ENTRIES + self.pages[page].len()) else { return Err(entry) };
        self.pages[page].push(Some(entry));
        self.live += 1;
        Ok(slot)
    }
    /// Takes an entry out; its number may be used again.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Entry> {
        let (page, at) = split(slot);
        let entry = self.pages.get_mut(page)?.get_mut(at)?.take()?;
        self.free.push(slot);
        self.live -= 1;
        Some(entry)
    }
    pub(super) fn get(&self, slot: u32) -> Option<&Entry> {
        let (page, at) = split(slot);
        self.pages.get(page)?.get(at)?.as_ref()
    }
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Entry> {
        let (page, at) = split(slot);
        self.pages.get_mut(page)?.get_mut(at)?.as_mut()
    }
    /// Entries that are in.
    pub(super) fn len(&self) -> usize {
        self.live
    }
    /// Pages that were ever needed.
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }
    /// The numbers in use on one page.
    pub(super) fn slots_of_page(&self, page: usize) -> Vec<u32> {
        let entries = self.pages.get(page).map(Vec::as_slice).unwrap_or_default();
        let used = entries.iter().enumerate().filter(|(_, entry)| entry.is_some());
        used.filter_map(|(at, _)| u32::try_from(page * PAGE_ENTRIES + at).ok()).collect()
    }
}

fn split(slot: u32) -> (usize, usize) {
    (slot as usize / PAGE_ENTRIES, slot as usize % PAGE_ENTRIES)
}
