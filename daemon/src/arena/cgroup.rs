//! How much memory this process's control group leaves. Shared memory is charged to the group that touches
//! it first, so an arena beyond the limit would end in an out-of-memory kill long after start.

use std::fs;
use std::path::{Path, PathBuf};

/// What one limit leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Headroom {
    /// The file that states the limit.
    pub(crate) limit: PathBuf,
    /// Limit minus what is used and cannot be reclaimed.
    pub(crate) available_bytes: u64,
}

/// The tightest limit over this process; `None` without any.
pub(crate) fn headroom() -> Option<Headroom> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    headroom_in(Path::new("/sys/fs/cgroup"), &membership)
}

/// The same for a tree mounted at `root` and the text of a `/proc/PID/cgroup`. A group's ancestors limit it
/// too; a path that is not visible here (another cgroup namespace) is looked for upwards until it is.
fn headroom_in(root: &Path, membership: &str) -> Option<Headroom> {
    let mut found = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            for mount in [root.to_owned(), root.join("unified")] {
                found.extend(walk(&mount, path, &V2));
            }
        } else if controllers.split(',').any(|name| name == "memory") {
            found.extend(walk(&root.join("memory"), path, &V1));
        }
    }
    found.into_iter().min_by_key(|headroom| headroom.available_bytes)
}

/// File and field names of one version of the interface.
struct Names {
    limit: &'static str,
    usage: &'static str,
    file_cache: [&'static str; 2],
}

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    file_cache: ["total_inactive_file", "total_active_file"],
};
const V2: Names =
    Names { limit: "memory.max", usage: "memory.current", file_cache: ["inactive_file", "active_file"] };

fn walk(mount: &Path, path: &str, names: &Names) -> Vec<Headroom> {
    let mut found = Vec::new();
    let mut directory = mount.join(path);
    loop {
        found.extend(one(&directory, names));
        if directory == mount || !directory.pop() || !directory.starts_with(mount) {
            return found;
        }
    }
}

fn one(directory: &Path, names: &Names) -> Option<Headroom> {
    let limit = directory.join(names.limit);
    // "max" in version 2 does not parse; no limit in version 1 is a number near 2^63.
    let limit_bytes: u64 = fs::read_to_string(&limit).ok()?.trim().parse().ok()?;
    let usage: u64 = fs::read_to_string(directory.join(names.usage)).ok()?.trim().parse().ok()?;
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    // Pages of ordinary files go when memory is short; shared memory does not count among them.
    let reclaimable: u64 = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| names.file_cache.contains(name))
        .filter_map(|(_, value)| value.parse::<u64>().ok())
        .sum();
    let available_bytes = limit_bytes.saturating_sub(usage.saturating_sub(reclaimable));
    Some(Headroom { limit, available_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(root: &Path, path: &str, files: &[(&str, &str)]) {
        fs::create_dir_all(root.join(path)).unwrap();
        for (name, text) in files {
            fs::write(root.join(path).join(name), text).unwrap();
        }
    }

    #[test]
    fn version_2_counts_ancestors_and_spares_file_cache() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "pod", &[("memory.max", "1000\n"), ("memory.current", "400\n")]);
        group(
            root.path(),
            "pod/app",
            &[
                ("memory.max", "max\n"),
                ("memory.current", "300\n"),
                ("memory.stat", "anon 10\ninactive_file 50\nactive_file 40\n"),
            ],
        );
        let found = headroom_in(root.path(), "0::/pod/app\n").unwrap();
        assert_eq!(found.available_bytes, 600);
        assert_eq!(found.limit, root.path().join("pod/memory.max"));
        group(root.path(), "pod/app", &[("memory.max", "500\n")]);
        assert_eq!(headroom_in(root.path(), "0::/pod/app\n").unwrap().available_bytes, 500 - (300 - 90));
    }

    #[test]
    fn version_1_is_read_from_the_memory_hierarchy() {
        let root = tempfile::tempdir().unwrap();
        group(
            root.path(),
            "memory/job",
            &[("memory.limit_in_bytes", "1000"), ("memory.usage_in_bytes", "100")],
        );
        let found = headroom_in(root.path(), "5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n").unwrap();
        assert_eq!(found.available_bytes, 900);
    }

    #[test]
    fn a_path_of_another_namespace_falls_back_to_what_is_visible() {
        let root = tempfile::tempdir().unwrap();
        group(root.path(), "", &[("memory.max", "1000"), ("memory.current", "1")]);
        assert_eq!(headroom_in(root.path(), "0::/kubepods/pod7\n").unwrap().available_bytes, 999);
        assert_eq!(headroom_in(root.path(), "garbage"), None);
    }
}
