//! The machine in the system's words: its caches.

use std::{fs, path::Path};

/// A cache of data, or of data and instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Its level: 1 is the nearest to the core.
    pub level: u8,
    /// Its size.
    pub bytes: usize,
    /// The cores that share it.
    pub cores: Vec<usize>,
}

/// The facts on which knobs depend. What is unknown is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Every cache, once.
    pub caches: Vec<Cache>,
}

impl Machine {
    /// Returns the facts of this machine. Reads some small files.
    pub fn this() -> Machine {
        Machine::at(Path::new("/"))
    }

    /// Returns the facts in the files of `sys/devices/system/cpu` of this folder.
    pub fn at(root: &Path) -> Machine {
        let cpus = root.join("sys/devices/system/cpu");
        let online = fs::read_to_string(cpus.join("online")).map_or_else(|_| Vec::new(), |text| numbers(&text));
        let mut machine = Machine::default();
        for core in online {
            // The caches of this core are like those of another that shares its last level.
            if machine.caches.iter().any(|cache| cache.level > 2 && cache.cores.contains(&core)) {
                continue;
            }
            for index in 0..MOST_CACHES {
                let Some(cache) = cache(&cpus.join(format!("cpu{core}/cache/index{index}"))) else { continue };
                if !machine.caches.contains(&cache) {
                    machine.caches.push(cache);
                }
            }
        }
        machine
    }

    /// Returns the bytes of a core's own second-level cache: its part, if it is shared by more than
    /// the threads of one core.
    pub fn own_cache_bytes(&self) -> Option<usize> {
        let threads = self.caches.iter().find(|cache| cache.level == 1).map_or(1, |cache| cache.cores.len().max(1));
        let second = self.caches.iter().find(|cache| cache.level == 2)?;
        Some(second.bytes / (second.cores.len() / threads).max(1))
    }

    /// Returns the bytes of all last-level caches together; `None` if there is no third level.
    pub fn last_cache_bytes(&self) -> Option<usize> {
        let level = self.caches.iter().map(|cache| cache.level).max().filter(|&level| level > 2)?;
        Some(self.caches.iter().filter(|cache| cache.level == level).map(|cache| cache.bytes).sum())
    }
}

/// A limit on the caches of a core: four are usual.
const MOST_CACHES: usize = 8;

/// Reads the cache that a folder describes; `None` if there is none, or it has only instructions.
fn cache(folder: &Path) -> Option<Cache> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let (level, size) = (read("level")?.trim().parse().ok()?, read("size")?);
    if read("type")?.trim() == "Instruction" {
        return None;
    }
    let (number, power) = match size.trim().split_at(size.trim().find(|c: char| !c.is_ascii_digit())?) {
        (number, "K") => (number, 10),
        (number, "M") => (number, 20),
        _ => return None,
    };
    let bytes = number.parse::<usize>().ok()?.checked_mul(1 << power)?;
    Some(Cache { level, bytes, cores: numbers(&read("shared_cpu_list")?) })
}

/// Parses a list of numbers as the system writes it, such as `0-3,8`. Leaves out parts that are no
/// numbers.
fn numbers(list: &str) -> Vec<usize> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        // A range with more cores than any system has is ignored.
        (last < 1 << 16).then_some(first..=last)
    };
    list.split(',').filter_map(part).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes what the system of a machine shows, with two threads a core.
    fn model(root: &Path, caches: &[(usize, &str, &str, &str, &str)]) {
        let cpus = root.join("sys/devices/system/cpu");
        fs::create_dir_all(&cpus).unwrap();
        fs::write(cpus.join("online"), "0-3\n").unwrap();
        for core in 0..4 {
            for (index, level, what, size, sharers) in caches {
                let folder = cpus.join(format!("cpu{core}/cache/index{index}"));
                fs::create_dir_all(&folder).unwrap();
                let list = match *sharers {
                    "thread pair" => format!("{}-{}", core / 2 * 2, core / 2 * 2 + 1),
                    list => list.to_owned(),
                };
                let files = [("level", *level), ("type", *what), ("size", *size), ("shared_cpu_list", &*list)];
                for (name, text) in files {
                    fs::write(folder.join(name), format!("{text}\n")).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_machine_is_read_from_the_files_of_the_system() {
        let root = std::env::temp_dir().join(format!("consonance-machine-{}", std::process::id()));
        let caches = [
            (0, "1", "Data", "32K", "thread pair"),
            (1, "1", "Instruction", "32K", "thread pair"),
            (2, "2", "Unified", "512K", "thread pair"),
            (3, "3", "Unified", "16M", "thread pair"),
        ];
        model(&root, &caches);
        let machine = Machine::at(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(machine.caches.len(), 6, "{machine:?}");
        // Two threads of a core share a cache, which is the core's own; there are two cores.
        assert_eq!(machine.own_cache_bytes(), Some(512 << 10));
        assert_eq!(machine.last_cache_bytes(), Some(32 << 20));
    }

    #[test]
    fn unknown_properties_of_the_machine_are_absent() {
        let machine = Machine::at(Path::new("/nowhere/at/all"));
        assert_eq!(machine, Machine::default());
        assert_eq!((machine.own_cache_bytes(), machine.last_cache_bytes()), (None, None));
    }

    #[test]
    fn a_shared_second_level_is_divided() {
        let cache = |level, bytes, cores: &[usize]| Cache { level, bytes, cores: cores.to_vec() };
        let caches = vec![cache(1, 64 << 10, &[0]), cache(2, 4 << 20, &[0, 1, 2, 3])];
        let machine = Machine { caches };
        assert_eq!(machine.own_cache_bytes(), Some(1 << 20));
        assert_eq!(machine.last_cache_bytes(), None);
    }
}
