//! What this machine says of itself, read below a root.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};

/// A machine, or a folder that looks like one.
#[derive(Debug)]
pub(super) struct Host {
    root: PathBuf,
}

/// A socket's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Socket {
    Missing,
    Other,
    /// Permission bits, and whether this user may connect.
    There {
        mode: u32,
        usable: bool,
    },
}

/// A soft limit of `/proc/self/limits`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Limit {
    Unlimited,
    Bytes(u64),
}

impl Host {
    pub(super) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn place(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.place(Path::new(path))).ok()
    }

    pub(super) fn socket(&self, path: &Path) -> Socket {
        let place = self.place(path);
        let Ok(found) = fs::metadata(&place) else { return Socket::Missing };
        if !found.file_type().is_socket() {
            return Socket::Other;
        }
        let usable = access(&place, AccessFlags::R_OK | AccessFlags::W_OK).is_ok();
        Socket::There { mode: found.permissions().mode() & 0o777, usable }
    }

    /// Size and free bytes of the filesystem of a folder.
    pub(super) fn filesystem(&self, folder: &Path) -> Option<(u64, u64)> {
        let found = statvfs(&self.place(folder)).ok()?;
        let block = found.fragment_size();
        Some((found.blocks().saturating_mul(block), found.blocks_available().saturating_mul(block)))
    }

    /// The tightest memory limit of this process's control group and of those above it, and the file that says so.
    pub(super) fn memory_limit(&self) -> Option<(u64, PathBuf)> {
        let membership = self.read("/proc/self/cgroup")?;
        let mut found = Vec::new();
        for line in membership.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let (mount, name) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                other if other.split(',').any(|one| one == "memory") => {
                    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
                }
                _ => continue,
            };
            let mut folder = Path::new(mount).join(path.trim_start_matches('/'));
            while folder.starts_with(mount) {
                let file = folder.join(name);
                let limit =
                    self.read(&file.to_string_lossy()).and_then(|text| text.trim().parse::<u64>().ok());
                // No limit in version 1 is a number near 2^63.
                found.extend(limit.filter(|&limit| limit < 1 << 60).map(|limit| (limit, file)));
                if !folder.pop() {
                    break;
                }
            }
        }
        found.into_iter().min_by_key(|(limit, _)| *limit)
    }

    /// The soft limit of locked memory.
    pub(super) fn memlock(&self) -> Option<Limit> {
        let limits = self.read("/proc/self/limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
        match line.split_whitespace().next()? {
            "unlimited" => Some(Limit::Unlimited),
            number => number.parse().ok().map(Limit::Bytes),
        }
    }

    /// What transparent huge pages do for shared memory: the word in brackets.
    pub(super) fn huge_shared_pages(&self) -> Option<String> {
        let text = self.read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    }

    pub(super) fn file(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        fs::read(self.place(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn put(root: &Path, path: &str, text: &str) {
        let place = root.join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, text).unwrap();
    }

    #[test]
    fn the_tightest_limit_of_all_groups_above_counts() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::at(dir.path());
        assert_eq!(host.memory_limit(), None);
        put(dir.path(), "proc/self/cgroup", "0::/pod/engine\n");
        put(dir.path(), "sys/fs/cgroup/pod/engine/memory.max", "max\n");
        assert_eq!(host.memory_limit(), None);
        put(dir.path(), "sys/fs/cgroup/pod/memory.max", "1073741824\n");
        let file = PathBuf::from("/sys/fs/cgroup/pod/memory.max");
        assert_eq!(host.memory_limit(), Some((1 << 30, file)));
    }

    #[test]
    fn the_older_interface_is_read_too() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "proc/self/cgroup", "5:cpu,memory:/a\n1:name=x:/a\n");
        put(dir.path(), "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
        put(dir.path(), "sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n");
        assert_eq!(Host::at(dir.path()).memory_limit().unwrap().0, 4096);
    }

    #[test]
    fn limits_and_huge_pages_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::at(dir.path());
        assert_eq!((host.memlock(), host.huge_shared_pages()), (None, None));
        let head = "Limit                     Soft Limit           Hard Limit           Units\n";
        let line = "Max locked memory         8388608              unlimited            bytes\n";
        put(dir.path(), "proc/self/limits", &format!("{head}{line}"));
        assert_eq!(host.memlock(), Some(Limit::Bytes(8 << 20)));
        put(dir.path(), "proc/self/limits", &line.replace("8388608  ", "unlimited"));
        assert_eq!(host.memlock(), Some(Limit::Unlimited));
        let file = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
        put(dir.path(), file, "always within_size advise [never] deny force\n");
        assert_eq!(host.huge_shared_pages().as_deref(), Some("never"));
    }

    #[test]
    fn a_socket_is_told_from_a_file_and_from_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (host, path) = (Host::at(dir.path()), Path::new("/run/t.sock"));
        assert_eq!(host.socket(path), Socket::Missing);
        put(dir.path(), "run/t.sock", "");
        assert_eq!(host.socket(path), Socket::Other);
        fs::remove_file(dir.path().join("run/t.sock")).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("run/t.sock")).unwrap();
        fs::set_permissions(dir.path().join("run/t.sock"), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(host.socket(path), Socket::There { mode: 0o600, usable: true });
    }
}
