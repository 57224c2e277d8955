//! The amount of memory that this process can still take.

use std::{fs, path::Path};

/// Returns the bytes of memory that are left in the system and in this process's control groups,
/// whichever is less; `None` if neither tells.
pub fn bytes() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of = |kind: &Kind| kind.group(&groups).and_then(|group| left(Path::new(kind.root), group, kind.files));
    KINDS.iter().filter_map(of).chain(system).min()
}

/// The number of bytes for which there is room without a look at the system's memory, which takes
/// longer than a short message.
const SMALL_BYTES: usize = 64 << 20;

/// Returns room for so many bytes of another process's choice. `None` if the system has not the
/// memory: it would promise more than it has, and end a process for that later.
pub fn room(bytes: usize) -> Option<Vec<u8>> {
    let mut room = Vec::new();
    let has_left = || self::bytes().is_none_or(|left| bytes as u64 <= left);
    ((bytes <= SMALL_BYTES || has_left()) && room.try_reserve_exact(bytes).is_ok()).then_some(room)
}

/// Returns the bytes in the line `MemAvailable` of `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// A version of control groups.
struct Kind {
    /// The controllers of the hierarchy in a line of `/proc/self/cgroup`; none if it is unified.
    controller: &'static str,
    /// The folder of all groups.
    root: &'static str,
    /// The files of a group's limit and of what the group has.
    files: [&'static str; 2],
}

const KINDS: [Kind; 2] = [
    Kind { controller: "", root: "/sys/fs/cgroup", files: ["memory.max", "memory.current"] },
    Kind {
        controller: "memory",
        root: "/sys/fs/cgroup/memory",
        files: ["memory.limit_in_bytes", "memory.usage_in_bytes"],
    },
];

impl Kind {
    /// Returns the path of this process's group in `/proc/self/cgroup`.
    fn group<'a>(&self, cgroup: &'a str) -> Option<&'a str> {
        let lines = cgroup.lines().filter_map(|line| line.split_once(':')?.1.split_once(":/"));
        lines
            .into_iter()
            .find(|(controllers, _)| controllers.split(',').any(|one| one == self.controller))
            .map(|of| of.1)
    }
}

/// Returns the least number of bytes that this group or a group above it has left.
fn left(root: &Path, group: &str, [most, now]: [&str; 2]) -> Option<u64> {
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let group = root.join(group);
    let groups = group.ancestors().take_while(|group| group.starts_with(root));
    // The file contains "max", or a number above all memory, if there is no limit.
    let rest = |group: &Path| Some(number(&group.join(most))?.saturating_sub(number(&group.join(now))?));
    groups.filter_map(rest).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_available_memory_is_read_from_the_system() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:    7 kB\n"), Some(7 << 10));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        let [unified, first] = KINDS.map(|kind| move |cgroup| kind.group(cgroup));
        assert_eq!(unified("12:memory:/a\n0::/user/b\n"), Some("user/b"));
        assert_eq!(unified("12:memory:/a\n"), None);
        assert_eq!(first("3:cpu,cpuacct:/c\n12:hugetlb,memory:/a\n0::/user/b\n"), Some("a"));
        assert_eq!(first("3:cpu:/c\n0::/user/b\n"), None);
    }

    #[test]
    fn there_is_no_room_for_more_than_the_memory_left() {
        assert_eq!(room(0).map(|room| room.capacity()), Some(0));
        assert!(room(SMALL_BYTES + 1).is_some_and(|room| room.is_empty() && room.capacity() > SMALL_BYTES));
        assert_eq!(room(usize::MAX), None);
        if let Some(left) = bytes() {
            // The system promises as much.
            assert_eq!(room(left as usize + (64 << 20)), None);
        }
    }

    #[test]
    fn the_narrowest_group_counts() {
        for Kind { files, .. } in KINDS {
            let root = std::env::temp_dir().join(format!("consonance-groups-{}", std::process::id()));
            let write = |group: &str, numbers: [&str; 2]| {
                fs::create_dir_all(root.join(group)).unwrap();
                for (file, number) in files.iter().zip(numbers) {
                    fs::write(root.join(group).join(file), format!("{number}\n")).unwrap();
                }
            };
            write("a/b", ["max", "5"]);
            assert_eq!(left(&root, "a/b", files), None);
            write("a", ["100", "40"]);
            assert_eq!(left(&root, "a/b", files), Some(60));
            write("a/b", ["50", "55"]);
            assert_eq!(left(&root, "a/b", files), Some(0));
            fs::remove_dir_all(root).unwrap();
        }
    }
}
