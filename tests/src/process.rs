//! What a process holds, as the kernel counts it.

use std::fs;
use std::io;

/// One moment of a process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Its own memory: heap, stacks, private pages.
    pub private_bytes: u64,
    /// Pages of shared memory that it has touched.
    pub shared_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Open file descriptors.
    pub descriptors: u64,
}

impl Usage {
    /// Of the process with this id.
    pub fn of(pid: u32) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            number.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no {name} of {pid}")))
        };
        Ok(Self {
            private_bytes: field("RssAnon")? << 10,
            shared_bytes: field("RssShmem")? << 10,
            threads: field("Threads")?,
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64,
        })
    }
    /// Of this process.
    pub fn of_self() -> io::Result<Self> {
        Self::of(std::process::id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_seen() {
        let before = Usage::of_self().unwrap();
        let held = vec![1_u8; 32 << 20];
        let files: Vec<_> = (0..8).map(|_| fs::File::open("/proc/self/status").unwrap()).collect();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ended.recv().is_err());
        let after = Usage::of_self().unwrap();
        assert!(held.iter().all(|&byte| byte == 1));
        assert!(after.private_bytes >= before.private_bytes + (24 << 20), "{before:?} {after:?}");
        assert!(after.descriptors >= files.len() as u64 + 3);
        assert!(after.threads >= 2);
        drop(end);
        assert!(thread.join().unwrap());
    }
}
