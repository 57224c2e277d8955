//! The limits of this process's control groups, of version 1 and version 2.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The folders of one controller's groups, from this process's own group to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Folders {
    /// 1, or 2 for the unified hierarchy.
    version: u8,
    folders: Vec<PathBuf>,
}

/// The control groups of this process.
pub(super) struct Groups {
    memory: Vec<Folders>,
    cpu: Vec<Folders>,
}

/// A limit of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryLimit {
    /// The version of the group.
    pub(super) version: u8,
    /// The most bytes that its processes may use together.
    pub(super) bytes: u64,
    /// The bytes that they do not use yet. Cached files count as used.
    pub(super) left: u64,
}

impl Groups {
    /// Returns the control groups of this process, as far as the system names them.
    pub(super) fn of_this_process() -> Groups {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Groups::new(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
    }

    fn new(cgroup: &str, mounts: &str) -> Groups {
        Groups { memory: folders("memory", cgroup, mounts), cpu: folders("cpu", cgroup, mounts) }
    }

    /// Returns the limit that leaves least memory; `None` if nothing is limited.
    pub(super) fn memory(&self) -> Option<MemoryLimit> {
        let limits = self.memory.iter().flat_map(|Folders { version, folders }| {
            let (most, now) = match version {
                1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                _ => ("memory.max", "memory.current"),
            };
            folders.iter().filter_map(move |folder| {
                let number = |name| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
                // Version 2 says "max" where there is no limit, version 1 the largest multiple of a
                // page.
                let bytes = number(most).filter(|&bytes| bytes < 1 << 62)?;
                Some(MemoryLimit { version: *version, bytes, left: bytes.saturating_sub(number(now).unwrap_or(0)) })
            })
        });
        limits.min_by_key(|limit| limit.left)
    }

    /// Returns the CPU time that the processes may use, in cores; `None` if it is not limited.
    pub(super) fn cores(&self) -> Option<f64> {
        let quotas = self.cpu.iter().flat_map(|Folders { version, folders }| {
            folders.iter().filter_map(move |folder| {
                let read = |name| fs::read_to_string(folder.join(name)).ok();
                let (quota, period) = match version {
                    1 => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
                    _ => read("cpu.max")?.split_once(' ').map(|(quota, period)| (quota.into(), period.into()))?,
                };
                let number = |text: String| text.trim().parse::<f64>().ok().filter(|&number| number > 0.0);
                Some(number(quota)? / number(period)?)
            })
        });
        quotas.min_by(f64::total_cmp)
    }
}

/// Returns the mounted folders of a controller, of version 1 and of version 2, according to
/// `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn folders(controller: &str, cgroup: &str, mounts: &str) -> Vec<Folders> {
    let groups = cgroup.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let version = if controllers.is_empty() { 2 } else { 1 };
        (version == 2 || controllers.split(',').any(|name| name == controller)).then_some((version, group))
    });
    groups
        .filter_map(|(version, group)| {
            let (root, mount) = mounts.lines().find_map(|line| mounted(line, version, controller))?;
            // In a container the path may exist on the host alone.
            let below = Path::new(group).strip_prefix(root).ok().map(|below| mount.join(below));
            let folder = below.filter(|folder| folder.exists()).unwrap_or_else(|| mount.clone());
            let folders = folder.ancestors().take_while(|folder| folder.starts_with(&mount));
            Some(Folders { version, folders: folders.map(Path::to_owned).collect() })
        })
        .collect()
}

/// Returns the group at the root of this mount, and the mount point, if the mount has this version
/// and controller.
fn mounted<'l>(line: &'l str, version: u8, controller: &str) -> Option<(&'l str, PathBuf)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let mut kind = kind.split(' ');
    let is_it = match (version, kind.next()?) {
        (1, "cgroup") => kind.nth(1)?.split(',').any(|option| option == controller),
        (2, "cgroup2") => true,
        _ => false,
    };
    is_it.then_some((mount.next()?, PathBuf::from(mount.next()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{env, process};

    /// A folder that is removed when this is dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = env::temp_dir().join(format!("consonance-doctor-{name}-{}", process::id()));
            fs::create_dir_all(&folder).expect("a folder for temporary files");
            Folder(folder)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder for temporary files");
            fs::write(path, text).expect("a file");
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_narrowest_group_of_version_2_counts() {
        let folder = Folder::new("v2");
        let mounts = format!("31 23 0:28 / {} rw - cgroup2 cgroup2 rw\n", folder.0.display());
        let groups = || Groups::new("0::/a/b\n", &mounts);
        folder.write("a/b/memory.max", "max\n");
        folder.write("a/b/cpu.max", "max 100000\n");
        assert_eq!((groups().memory(), groups().cores()), (None, None));
        folder.write("a/memory.max", "1000\n");
        folder.write("a/memory.current", "400\n");
        folder.write("a/cpu.max", "150000 100000\n");
        assert_eq!(groups().memory(), Some(MemoryLimit { version: 2, bytes: 1000, left: 600 }));
        assert_eq!(groups().cores(), Some(1.5));
    }

    #[test]
    fn groups_of_version_1_count_too_and_a_path_of_the_host_s_is_the_mount() {
        let folder = Folder::new("v1");
        let at = folder.0.display();
        let mounts = format!(
            "1 0 0:1 / {at}/memory rw shared:1 - cgroup cgroup rw,memory\n\
             2 0 0:2 / {at}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        );
        let groups = || Groups::new("4:memory:/of/the/host\n3:cpu,cpuacct:/\n0::/\n", &mounts);
        folder.write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        folder.write("cpu/cpu.cfs_quota_us", "-1\n");
        folder.write("cpu/cpu.cfs_period_us", "100000\n");
        assert_eq!((groups().memory(), groups().cores()), (None, None));
        folder.write("memory/memory.limit_in_bytes", "500\n");
        folder.write("memory/memory.usage_in_bytes", "600\n");
        folder.write("cpu/cpu.cfs_quota_us", "50000\n");
        assert_eq!(groups().memory(), Some(MemoryLimit { version: 1, bytes: 500, left: 0 }));
        assert_eq!(groups().cores(), Some(0.5));
    }

    #[test]
    fn nonsense_limits_nothing() {
        let groups = Groups::new("a\n1:memory\n0::/\n", "x\n31 23 - cgroup2\n");
        assert_eq!((groups.memory(), groups.cores()), (None, None));
    }
}
