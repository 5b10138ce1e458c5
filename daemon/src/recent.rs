//! A bounded memory of what ended, so that late callers learn why. Losing an entry costs only the reason.

use std::collections::VecDeque;
use std::hash::Hash;

use hashbrown::HashMap;

/// The last `capacity` keys that were remembered.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    capacity: usize,
    order: VecDeque<K>,
    values: HashMap<K, V>,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    /// Holds nothing yet, and allocates nothing.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, order: VecDeque::new(), values: HashMap::new() }
    }
    /// Remembers a key, in place of the oldest when full. A key that is known keeps its age.
    pub(crate) fn remember(&mut self, key: K, value: V) {
        if self.values.insert(key, value).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }
    /// What was remembered about a key.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first_and_nothing_grows() {
        let mut recent = Recent::new(3);
        for key in 0..10 {
            recent.remember(key, key * 2);
            recent.remember(key, key * 3);
        }
        assert_eq!((recent.get(&6), recent.get(&7), recent.get(&9)), (None, Some(&21), Some(&27)));
        assert_eq!((recent.order.len(), recent.values.len()), (3, 3));
    }
}
