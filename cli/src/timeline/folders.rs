//! The records of processes that another launcher than `consonance run` has started.
//!
//! A process of a group of several hosts tells in its records on which of them it is, and the first
//! process of each host how its clock differs from that of the group's first host.

use super::{Clock, Clocks, Count, Recorded, Worker, tracks_of, write};
use crate::writable::writable;
use consonance::profile::EXTENSION;
use consonance_kernels::os::clock_comparison::Comparison;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// The facts of a timeline that was written.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) count: Count,
    pub(crate) processes: usize,
    /// The number of hosts. Processes that tell of none are on one.
    pub(crate) hosts: usize,
    /// The hosts whose clocks were not compared with that of host 0.
    pub(crate) uncompared: Vec<usize>,
    /// The number of files that were not read: of another version, or not finished.
    pub(crate) unread: usize,
}

/// Writes the timeline of the records in these folders to a file.
///
/// # Errors
/// In words: a folder or a file that cannot be read, or written; folders without records.
pub(crate) fn join(folders: &[PathBuf], out: &Path) -> Result<Joined, String> {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> String {
        move |error| format!("{}: {error}", path.display())
    }
    let (mut processes, mut unread, mut names) = (BTreeMap::<(u32, u64), Process>::new(), 0, BTreeSet::new());
    for folder in folders {
        for path in files_of(folder).map_err(at(folder))? {
            let Some(file) = Recorded::read(&path).map_err(at(&path))? else {
                unread += 1;
                continue;
            };
            // The same folder, or a copy of it, is given twice: the names have the processes.
            if !names.insert(path.file_name().map(OsStr::to_owned)) {
                continue;
            }
            let process = processes.entry((file.contents.process, file.contents.start)).or_default();
            process.files.push(file);
        }
    }
    let mut processes: Vec<Process> = processes.into_values().collect();
    if processes.is_empty() {
        let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        return Err(format!("no records of calls (*.{EXTENSION}) in {}", names.join(", ")));
    }
    let first = |process: &Process| process.replicas().into_iter().next();
    processes.sort_by_key(|process| (first(process).is_none(), first(process)));
    let (hosts, count) = (Hosts::of(&processes), processes.len());
    let mut tracks = Vec::new();
    for (index, process) in processes.into_iter().enumerate() {
        let (worker, host) = (Worker { name: process.name(), index }, hosts.numbers[&process.place()]);
        tracks.extend(tracks_of(process.files, &worker, host, &hosts.clocks));
    }
    writable(out).map_err(at(out))?;
    let written = File::create(out).and_then(|file| {
        let mut file = BufWriter::new(file);
        let count = write(&tracks, &hosts.clocks, None, &mut file)?;
        file.flush().map(|()| count)
    });
    let is_uncompared = |(_, clock): &(&usize, &Clock)| clock.offset_error_and_drift().is_none();
    let uncompared = hosts.clocks.iter().filter(is_uncompared).map(|(&host, _)| host).collect();
    let (written, hosts) = (written.map_err(at(out))?, hosts.numbers.len());
    Ok(Joined { count: written, processes: count, hosts, uncompared, unread })
}

/// Returns the files of records in a folder, in an order that does not depend on the system.
fn files_of(folder: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let paths: io::Result<BTreeSet<PathBuf>> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect();
    let is_of_records = |path: &PathBuf| path.extension().is_some_and(|extension| extension == EXTENSION);
    Ok(paths?.into_iter().filter(is_of_records).collect())
}

/// The files of the threads of a process.
#[derive(Default)]
struct Process {
    files: Vec<Recorded>,
}

impl Process {
    /// Returns the replicas of the largest group in which the process made calls: those of its
    /// parts have other numbers there.
    fn replicas(&self) -> BTreeSet<usize> {
        let ranks = || self.files.iter().flat_map(Recorded::ranks);
        let most = ranks().map(|(_, replicas)| replicas).max();
        ranks().filter(|&(_, replicas)| Some(replicas) == most).map(|(replica, _)| replica).collect()
    }

    /// Returns the name of the process in the timeline: no launcher has told its place in the job.
    fn name(&self) -> String {
        let list: Vec<String> = self.replicas().iter().map(usize::to_string).collect();
        match list.len() {
            0 => "process".to_owned(),
            1 => format!("replica {}", list[0]),
            _ => format!("replicas {}", list.join(", ")),
        }
    }

    /// Returns the number of the host, if the process has told it.
    fn place(&self) -> Option<u64> {
        self.files.iter().flat_map(|file| &file.clocks).map(|(_, clock)| clock.place).next()
    }

    /// Returns the comparisons with the clock of another host, each with the number of that one.
    fn comparisons(&self) -> impl Iterator<Item = (u64, Comparison)> {
        let clocks = self.files.iter().flat_map(|file| &file.clocks);
        clocks.filter(|(_, clock)| clock.reference != clock.place).map(|(at, clock)| {
            let (offset, error) = (clock.offset.into(), clock.error.into());
            (clock.reference, Comparison { at: at.as_nanos() as i128, offset, error })
        })
    }
}

/// The hosts of processes.
struct Hosts {
    /// Their numbers in the timeline. Processes that tell of no host beside others are on one of
    /// their own.
    numbers: BTreeMap<Option<u64>, usize>,
    /// None if there is one host.
    clocks: Clocks,
}

impl Hosts {
    /// Numbers the hosts of these processes: the one with whose clock most were compared is host 0,
    /// and the others follow in the order of the processes.
    fn of(processes: &[Process]) -> Hosts {
        let mut compared: BTreeMap<(Option<u64>, u64), Vec<Comparison>> = BTreeMap::new();
        for process in processes {
            for (reference, comparison) in process.comparisons() {
                compared.entry((process.place(), reference)).or_default().push(comparison);
            }
        }
        let counted = |reference: u64| compared.keys().filter(|(_, other)| *other == reference).count();
        let mut places: Vec<Option<u64>> = Vec::new();
        for place in processes.iter().map(Process::place) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        // The sort keeps the order of equals.
        let host_0 = places.iter().copied().rev().max_by_key(|place| place.map(counted));
        places.sort_by_key(|&place| Some(place) != host_0);
        let numbers: BTreeMap<Option<u64>, usize> = places.iter().copied().zip(0..).collect();
        let clock = |place: Option<u64>| match host_0.flatten() {
            reference if reference == place => Clock::of_host_0(),
            Some(reference) => {
                compared.get(&(place, reference)).map_or(Clock::of(None, None), |all| Clock::of_all(all))
            }
            None => Clock::of(None, None),
        };
        let clocks = numbers.iter().filter(|_| numbers.len() > 1).map(|(&place, &host)| (host, clock(place)));
        Hosts { clocks: clocks.collect(), numbers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance::profile::{ClockRecord, Event, Record};
    use consonance_kernels::os::record_file::RecordFile;
    use serde_json::Value;
    use std::{env, process, time::Duration};

    /// A folder. The drop removes it.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Temporary {
            let folder = env::temp_dir().join(format!("consonance-folders-{}-{name}", process::id()));
            fs::create_dir_all(&folder).expect("a folder");
            Temporary(folder)
        }

        /// Writes a file of the process with this id and start, of a run of a replica from `begin`
        /// on.
        fn put(&self, id: u64, start: u64, [replica, begin]: [usize; 2], clocks: &[(u64, ClockRecord)]) {
            let path = self.0.join(format!("{id}-{start}.{EXTENSION}"));
            let mut file = RecordFile::create(&path, "main", 99).expect("a file");
            let mut record = |begin: u64, end: u64, event: Event| {
                let [begin, end] = [begin, end].map(Duration::from_nanos);
                file.append(Record { begin, end: Some(end), replica, replicas: 4, event }.to_words());
            };
            clocks.iter().for_each(|&(at, clock)| record(at, at, Event::Clock(clock)));
            record(begin as u64, begin as u64 + 1000, Event::Run);
            drop(file);
            // The words of the header that are not this process's.
            let mut bytes = fs::read(&path).expect("the file");
            bytes[24..32].copy_from_slice(&id.to_ne_bytes());
            bytes[32..40].copy_from_slice(&start.to_ne_bytes());
            fs::write(&path, bytes).expect("the file");
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn clock(place: u64, reference: u64, offset: i64, error: u64) -> ClockRecord {
        ClockRecord { place, reference, offset, error }
    }

    /// Two hosts have processes of one id, and so has one host, one after the other.
    #[test]
    fn processes_of_one_id_and_hosts_of_several_clocks_are_apart() {
        let here = |place| (0, clock(place, place, 0, 0));
        let folders = ["one", "two"].map(Temporary::new);
        let [one, two] = &folders;
        one.put(7, 100, [0, 50_000], &[here(5)]);
        one.put(7, 200, [1, 60_000], &[here(5)]);
        // 9 µs behind host 0, as the better comparisons say.
        let compared = [(100, 9000, 50), (110, 20_000, 90_000), (200, 9000, 50)];
        let compared = compared.map(|(at, offset, error)| (at, clock(3, 5, offset, error)));
        let compared: Vec<_> = [here(3)].into_iter().chain(compared).collect();
        two.put(7, 300, [2, 41_000], &compared);
        // Compared with another host alone, and in no group of several hosts.
        two.put(9, 400, [3, 70_000], &[here(4), (1, clock(4, 3, 1, 1))]);
        two.put(10, 500, [0, 80_000], &[]);

        let out = one.0.join("out.json");
        // One of them twice.
        let given = [&one.0, &two.0, &one.0].map(PathBuf::clone);
        let joined = join(&given, &out).expect("a timeline");
        let Joined { count, processes, hosts, uncompared, unread } = joined;
        assert_eq!((count.slices, count.dropped, processes, hosts, unread), (5, 0, 5, 4, 0));
        let json: Value = serde_json::from_slice(&fs::read(&out).expect("a file")).expect("JSON");
        let about = json["otherData"]["hosts"].as_array().expect("hosts");
        let errors: Vec<Option<f64>> = about.iter().map(|host| host["error_us"].as_f64()).collect();
        assert_eq!(errors.iter().filter(|error| error.is_none()).count(), 2, "{errors:?}");
        assert_eq!(uncompared.len(), 2);
        let events = || json["traceEvents"].as_array().expect("events").iter();
        let of = |name: &'static str| events().filter(move |event| event["name"] == name);
        let ids: BTreeSet<Option<u64>> = of("process_name").map(|event| event["pid"].as_u64()).collect();
        assert_eq!(ids.len(), 5, "{ids:?}");
        let run = |replica: u64, at: f64| {
            let is_run = |event: &&Value| event["args"]["replica"] == replica && event["ts"].as_f64() == Some(at);
            assert!(of("run").any(|event| is_run(&event)), "replica {replica} at {at}: {json}");
        };
        // The first time of all is that of replicas 0 and 2, by the clock of host 0.
        [(0, 0.0), (1, 10.0), (2, 0.0), (3, 20.0), (0, 30.0)].into_iter().for_each(|(replica, at)| run(replica, at));
    }
}
