//! How much memory this process can still take.

use std::{fs, path::Path};

/// Returns the bytes of memory that are left in the system and in this process's control groups,
/// whichever is less; `None` if neither tells.
pub fn bytes() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").ok();
    let groups = groups.as_deref().and_then(group).and_then(|group| left(Path::new("/sys/fs/cgroup"), group));
    [system, groups].into_iter().flatten().min()
}

/// Returns the bytes in the line `MemAvailable` of `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// Returns the path of the unified control group in `/proc/self/cgroup`.
fn group(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::/"))
}

/// Returns the least number of bytes that this group or a group above it has left.
fn left(root: &Path, group: &str) -> Option<u64> {
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let group = root.join(group);
    let groups = group.ancestors().take_while(|group| group.starts_with(root));
    // The file contains "max" if there is no limit.
    let rest = |group: &Path| {
        let (most, now) = (number(&group.join("memory.max"))?, number(&group.join("memory.current"))?);
        Some(most.saturating_sub(now))
    };
    groups.filter_map(rest).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_is_read_of_the_system() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:    7 kB\n"), Some(7 << 10));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        assert_eq!(group("12:memory:/a\n0::/user/b\n"), Some("user/b"));
        assert_eq!(group("12:memory:/a\n"), None);
    }

    #[test]
    fn the_narrowest_group_counts() {
        let root = std::env::temp_dir().join(format!("consonance-groups-{}", std::process::id()));
        let write = |group: &str, most: &str, now: &str| {
            fs::create_dir_all(root.join(group)).unwrap();
            fs::write(root.join(group).join("memory.max"), format!("{most}\n")).unwrap();
            fs::write(root.join(group).join("memory.current"), format!("{now}\n")).unwrap();
        };
        write("a/b", "max", "5");
        assert_eq!(left(&root, "a/b"), None);
        write("a", "100", "40");
        assert_eq!(left(&root, "a/b"), Some(60));
        write("a/b", "50", "55");
        assert_eq!(left(&root, "a/b"), Some(0));
        fs::remove_dir_all(root).unwrap();
    }
}
