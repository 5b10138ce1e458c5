//! What copies on their way may still touch, and what happens to it if nobody can tell when they end.

use std::any::Any;

use parking_lot::Mutex;

/// Memory that a copy may still land in, of devices that were lost or never answered.
static FOR_GOOD: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// Keeps something until the process ends. It is lost memory, and better than a copy into memory of somebody else.
pub(super) fn keep_for_good(what: impl Any + Send) {
    FOR_GOOD.lock().push(Box::new(what));
}
