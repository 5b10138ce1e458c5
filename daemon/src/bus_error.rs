//! Last words on a bus error. The arena's file was reserved page by page, so touching it cannot fail; unless somebody who
//! may write to it cuts it, or the memory itself is broken. Then the process ends, as it must: a store through the map
//! that did not happen cannot be taken back. An operator should read why.
#![allow(unsafe_code, reason = "installs a signal handler, which does what is allowed in one and no more")]

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::OnceLock;

use nix::libc::{STDERR_FILENO, c_int};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static LAST_WORDS: OnceLock<String> = OnceLock::new();

/// From now on a bus error of this process says on standard error that it was about this arena.
pub(crate) fn explain(arena: &Path) -> io::Result<()> {
    // Made now: a handler must not allocate.
    _ = LAST_WORDS.set(format!(
        "tenderd: bus error: the file of the arena {} was cut while it was in use, or its memory is broken; the next \
         start keeps what it can prove\n",
        arena.display()
    ));
    // The default action comes back with the first signal; the instruction is then run again, and ends the process.
    let flags = SaFlags::SA_RESETHAND | SaFlags::SA_ONSTACK;
    let action = SigAction::new(SigHandler::Handler(say), flags, SigSet::empty());
    // SAFETY: `say` reads what is set by now and makes one system call, both allowed in a signal handler.
    unsafe { sigaction(Signal::SIGBUS, &action) }?;
    Ok(())
}

extern "C" fn say(_: c_int) {
    if let Some(words) = LAST_WORDS.get() {
        // SAFETY: the process ends here; whoever has closed standard error meanwhile gets a line into the wrong place.
        let stderr = unsafe { BorrowedFd::borrow_raw(STDERR_FILENO) };
        _ = nix::unistd::write(stderr, words.as_bytes());
    }
}
