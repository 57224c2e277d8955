//! The timeline of all workers' calls. Perfetto and `chrome://tracing` open it.
//!
//! Each worker gets a folder of its own in the variable `CONSONANCE_PROFILE`. Its processes write
//! there what they do, a file for each thread, while they do it. After the end of the workers they
//! are merged (`cli/src/timeline`).
//!
//! With `--nodes` there is one timeline for all hosts. The launches meet before their workers begin
//! and compare their clocks with that of host 0 (`sender.rs`); after the workers have ended they
//! compare them again and hand the files over to the launch of host 0 (`exchange.rs`, with the two
//! ends `collector.rs` and `sender.rs`, and their words in `link.rs`). A launch that cannot hand
//! over writes a timeline of its own host, which begins at the same time.

mod link;
mod collector;
mod sender;
mod exchange;

pub(super) use collector::files;
pub(super) use exchange::Exchange;

use super::{Launch, task::Task};
use crate::{
    timeline::{self, Clock, Clocks, Count, Recorded, Worker},
    writable::writable,
};
use consonance::profile::EXTENSION;
use consonance_kernels::os::clock_comparison::Nanoseconds;
use std::{
    env, fmt,
    fs::{self, File},
    io::{self, BufWriter, Write},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process,
    time::{SystemTime, UNIX_EPOCH},
};

/// A profile of a launch. Dropping it removes the workers' files.
pub(super) struct Profile {
    path: PathBuf,
    /// The workers of the launch.
    workers: Vec<Task>,
    /// The host of each worker.
    host_of: Vec<usize>,
    /// The number of hosts, of which the workers of one or of all are of the launch.
    hosts: usize,
    /// The folder of the workers' folders.
    folder: PathBuf,
}

/// The fate of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profiled {
    /// The number of runs and calls in it.
    pub slices: usize,
    /// The number of runs and calls that had no room in a worker's file.
    pub dropped: u64,
    /// The fate of those of other hosts.
    pub others: Others,
}

/// The fate of the runs and calls of hosts whose workers are of other launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Others {
    /// They are in the file, or there are none.
    Merged,
    /// Those of these hosts are missing: their launches have not handed them over in time.
    Missing {
        /// The hosts.
        hosts: Vec<usize>,
    },
    /// The launch of host 0 has taken those of this launch, and writes the file.
    HandedOver,
    /// The launch of host 0 has not taken those of this launch. They alone are in this file.
    Apart {
        /// The file.
        path: PathBuf,
        /// The reason in words.
        why: String,
    },
}

/// The facts of other launches that a timeline needs.
struct Gathered {
    clocks: Clocks,
    /// The time of host 0 at which the timeline begins; `None`: that of the first record.
    zero: Option<Nanoseconds>,
    /// Files of workers of other launches.
    files: Vec<(Task, PathBuf)>,
    others: Others,
}

impl Profile {
    /// Prepares a profile of a launch. A file that cannot be written is refused now.
    pub(super) fn begin(path: &Path, launch: &Launch) -> io::Result<Profile> {
        let (workers, host_of) = (launch.tasks(), launch.hosts_of_tasks());
        let path = match launch.node.as_ref().map_or(0, |node| node.node) {
            0 => path.to_owned(),
            host => of_host_alone(path, host),
        };
        let of_nodes = launch.node.as_ref().map(|node| node.nodes);
        Profile::of(path, workers, host_of, of_nodes.or(launch.hosts).map_or(1, NonZeroUsize::get))
    }

    fn of(path: PathBuf, workers: Vec<Task>, host_of: Vec<usize>, hosts: usize) -> io::Result<Profile> {
        writable(&path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let folder = env::temp_dir().join(format!("consonance-profile-{}-{}", process::id(), now.as_nanos()));
        Ok(Profile { path, workers, host_of, hosts, folder })
    }

    /// Makes the workers' folders. A signal that ends this process before leaves nothing.
    pub(super) fn make_folders(&self) -> io::Result<()> {
        self.workers.iter().try_for_each(|worker| fs::create_dir_all(self.folder(worker.index)))
    }

    /// Returns the value of the variable for a worker.
    pub(super) fn folder(&self, worker: usize) -> PathBuf {
        self.folder.join(worker.to_string())
    }

    /// Returns the files that a worker of the launch has written.
    fn files(&self, worker: usize) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(self.folder(worker))? {
            paths.push(entry?.path());
        }
        paths.retain(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
        Ok(paths)
    }

    /// Merges what the workers of the launch have written, whose hosts have one clock.
    pub(super) fn write(&mut self) -> Result<Profiled, String> {
        let of_host = |host| (host, Clock::of_host_0());
        let clocks = (0..self.hosts).filter(|_| self.hosts > 1).map(of_host).collect();
        self.write_with(Gathered { clocks, zero: None, files: Vec::new(), others: Others::Merged })
    }

    /// Merges what the workers of all launches have written. An error is in words.
    fn write_with(&mut self, gathered: Gathered) -> Result<Profiled, String> {
        self.merge(gathered).map_err(|error| format!("cannot write the profile: {}: {error}", self.path.display()))
    }

    fn merge(&mut self, Gathered { clocks, zero, files, others }: Gathered) -> io::Result<Profiled> {
        let mut tracks = Vec::new();
        let mut add = |worker: Task, paths: &[PathBuf]| {
            let host = self.host_of[worker.index];
            let files: io::Result<Vec<Option<Recorded>>> = paths.iter().map(|path| Recorded::read(path)).collect();
            let files = files?.into_iter().flatten().collect();
            let worker = Worker { name: worker.to_string(), index: worker.index };
            tracks.extend(timeline::tracks_of(files, &worker, host, &clocks));
            Ok::<(), io::Error>(())
        };
        for &worker in &self.workers {
            add(worker, &self.files(worker.index)?)?;
        }
        for of_worker in files.chunk_by(|(before, _), (worker, _)| before == worker) {
            let paths: Vec<PathBuf> = of_worker.iter().map(|(_, path)| path.clone()).collect();
            add(of_worker[0].0, &paths)?;
        }
        let Count { slices, dropped } = match others {
            Others::HandedOver => {
                // A file of an earlier launch, if there is one.
                let _ = fs::remove_file(&self.path);
                timeline::count(&tracks)
            }
            Others::Merged | Others::Missing { .. } | Others::Apart { .. } => {
                let mut out = BufWriter::new(File::create(&self.path)?);
                let count = timeline::write(&tracks, &clocks, zero, &mut out)?;
                out.flush()?;
                count
            }
        };
        Ok(Profiled { slices, dropped, others })
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        // Nothing else can be done about it.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the path of the profile of a host alone: `out.host1.json` for `out.json`. Hosts may
/// share a folder.
fn of_host_alone(path: &Path, host: usize) -> PathBuf {
    match path.extension() {
        Some(extension) => path.with_extension(format!("host{host}.{}", extension.display())),
        None => path.with_extension(format!("host{host}")),
    }
}

/// Writes the lines of a report about a profile, if it lacks something.
pub(super) fn write_words(profiled: &Result<Profiled, String>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Profiled { slices, dropped, others } = match profiled {
        Err(problem) => return writeln!(f, "{problem}"),
        Ok(profiled) => profiled,
    };
    match others {
        // The launch of host 0 writes the other lines.
        Others::HandedOver => return Ok(()),
        Others::Merged => {}
        Others::Missing { hosts } => {
            let hosts: Vec<String> = hosts.iter().map(usize::to_string).collect();
            let name = if hosts.len() == 1 { "host" } else { "hosts" };
            let (hosts, limit) = (hosts.join(", "), collector::OTHERS);
            writeln!(f, "the profile lacks the calls of {name} {hosts}, not handed over within {limit:?} of the end")?;
        }
        Others::Apart { path, why } => {
            let path = path.display();
            writeln!(f, "the profile of this host alone is {path}: host 0 has not taken its calls: {why}")?;
        }
    }
    match (slices, dropped) {
        (0, 0) => writeln!(f, "the profile is empty: no worker made a call"),
        (_, 0) => Ok(()),
        _ => writeln!(f, "the profile has the first {slices} runs and calls; {dropped} later ones had no room"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance::{
        DType, ReduceOp,
        profile::{self, CallRecord, Event, GpuRecord, Record, Transport},
    };
    use consonance_kernels::{
        cuda::Uuid,
        os::{clock_comparison::Comparison, record_file::RecordFile},
    };
    use consonance_spec::Kind;
    use serde_json::{Value, json};
    use std::{collections::BTreeSet, time::Duration};

    fn at(nanoseconds: u64) -> Duration {
        Duration::from_nanos(nanoseconds)
    }

    fn run(begin: u64, end: Option<u64>, replica: usize) -> Record {
        Record { begin: at(begin), end: end.map(at), replica, replicas: 3, event: Event::Run }
    }

    fn call(begin: u64, end: Option<u64>, replica: usize) -> Record {
        let call = CallRecord {
            name: Kind::AllReduce,
            step: Kind::AllReduce,
            op: Some(ReduceOp::Sum),
            dtype: Some(DType::F32),
            bytes: 400,
            transport: Some(Transport::Processes),
            path: end.map(|_| profile::Path::TwoShot),
            gpu: None,
            is_fold: false,
            waited: end.map(|_| at(1500)),
            failed: false,
            culprit: None,
        };
        Record { event: Event::Call(call), ..run(begin, end, replica) }
    }

    /// Merges the files, given as worker, name, room and records.
    fn merged(files: &[(usize, &str, usize, &[Record])]) -> (Profiled, Value) {
        merged_of_hosts([0, 0], files)
    }

    /// Like [`merged`], with the workers on these hosts.
    fn merged_of_hosts(host_of: [usize; 2], files: &[(usize, &str, usize, &[Record])]) -> (Profiled, Value) {
        let (process, thread) = (process::id(), std::thread::current().id());
        let path = env::temp_dir().join(format!("consonance-merged-{process}-{thread:?}.json"));
        let mut profile =
            Profile::of(path.clone(), vec![Task::worker(0), Task::worker(1)], host_of.to_vec(), 1 + host_of[1])
                .unwrap();
        profile.make_folders().unwrap();
        for (index, (worker, name, room, records)) in files.iter().enumerate() {
            let file = profile.folder(*worker).join(format!("{index}.{EXTENSION}"));
            let mut file = RecordFile::create(&file, name, *room).unwrap();
            records.iter().for_each(|record| _ = file.append(record.to_words()));
        }
        fs::write(profile.folder(0).join(format!("torn.{EXTENSION}")), [0; 40]).unwrap();
        fs::write(profile.folder(0).join("other"), "text").unwrap();
        let profiled = profile.write().expect("a profile");
        let folder = profile.folder.clone();
        drop(profile);
        assert!(!folder.exists(), "the workers' files are removed");
        let json = serde_json::from_slice(&fs::read(&path).unwrap()).expect("JSON");
        fs::remove_file(&path).unwrap();
        (profiled, json)
    }

    /// The two files are of one process here, as if two hosts had processes of the same id.
    #[test]
    fn processes_of_two_hosts_are_apart() {
        let records = [0, 1].map(|replica| [run(10, Some(90), replica)]);
        let files = [0, 1].map(|worker| (worker, "main", 9, &records[worker][..]));
        for (host_of, expected) in [([0, 0], 1), ([0, 1], 2)] {
            let (_, json) = merged_of_hosts(host_of, &files);
            let events = json["traceEvents"].as_array().unwrap();
            let ids: BTreeSet<Option<u64>> = events.iter().map(|event| event["pid"].as_u64()).collect();
            assert_eq!(ids.len(), expected, "{ids:?}");
            assert!(
                ids.iter().all(|id| id.is_some_and(|id| id <= u32::MAX.into())),
                "Perfetto takes no others: {ids:?}"
            );
        }
    }

    /// The files of the second host come from its launch, and its clock is 5 µs behind.
    #[test]
    fn times_of_another_host_are_corrected() {
        let path = env::temp_dir().join(format!("consonance-hosts-{}.json", process::id()));
        let mut profile = Profile::of(path.clone(), vec![Task::worker(0)], vec![0, 1], 2).unwrap();
        profile.make_folders().unwrap();
        let other = profile.folder.join("other");
        for (path, begin) in [(profile.folder(0).join(format!("0.{EXTENSION}")), 21_000), (other.clone(), 16_000)] {
            let mut file = RecordFile::create(&path, "main", 9).unwrap();
            file.append(run(begin, Some(begin + 2000), 0).to_words());
        }
        let compared = Comparison { at: 9000, offset: 5000, error: 70 };
        let clocks = [Clock::of_host_0(), Clock::of(Some(compared), None)];
        let gathered = Gathered {
            clocks: clocks.into_iter().enumerate().collect(),
            zero: Some(20_000),
            files: vec![(Task::worker(1), other)],
            others: Others::Missing { hosts: vec![2] },
        };
        let profiled = profile.write_with(gathered).unwrap();
        assert_eq!(profiled, Profiled { slices: 2, dropped: 0, others: Others::Missing { hosts: vec![2] } });
        let json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).expect("JSON");
        fs::remove_file(&path).unwrap();
        let about = |host: usize, offset: f64, error: f64| json!({ "host": host, "offset_us": offset, "error_us": error, "drift_us": 0.0 });
        assert_eq!(json["otherData"]["hosts"], json!([about(0, 0.0, 0.0), about(1, 5.0, 0.07)]));
        let events = json["traceEvents"].as_array().unwrap();
        let of = |name: &'static str| events.iter().filter(move |event| event["name"] == name);
        let times: Vec<[f64; 2]> = of("run").map(|run| ["ts", "dur"].map(|key| run[key].as_f64().unwrap())).collect();
        assert_eq!(times, [[1.0, 2.0]; 2]);
        let names: Vec<&Value> = of("process_name").map(|event| &event["args"]["name"]).collect();
        let id = process::id();
        assert_eq!(names, [0, 1].map(|host| format!("worker {host} (pid {id}) on host {host}")).each_ref());
    }

    #[test]
    fn the_file_of_a_host_alone_has_its_number() {
        for (path, of_host) in [("a/out.json", "a/out.host3.json"), ("a.b/out", "a.b/out.host3")] {
            assert_eq!(of_host_alone(Path::new(path), 3), Path::new(of_host));
        }
    }

    #[test]
    fn a_track_has_names_and_slices_from_the_first_record_on() {
        let (profiled, json) = merged(&[
            (1, "main", 9, &[run(10_000, Some(90_000), 2), call(20_000, Some(30_500), 2)]),
            (0, "buckets", 9, &[call(12_000, None, 1)]),
        ]);
        assert_eq!(profiled, Profiled { slices: 3, dropped: 0, others: Others::Merged });
        let events = json["traceEvents"].as_array().unwrap();
        let names: Vec<&str> = events.iter().filter_map(|event| event["args"]["name"].as_str()).collect();
        let id = process::id();
        let workers = [format!("worker 0 (pid {id})"), format!("worker 1 (pid {id})")];
        assert_eq!(names, [&workers[0], "replica 1: buckets", &workers[1], "replica 2"]);
        let slices: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(
            *slices[0],
            json!({
                "ph": "X", "pid": id, "tid": 1, "name": "all_reduce", "cat": "call", "ts": 2.0, "dur": 78.0,
                "args": {
                    "kind": "all_reduce", "op": "sum", "dtype": "f32", "bytes": 400, "transport": "processes",
                    "replica": 1, "replicas": 3, "unfinished": true,
                },
            })
        );
        assert_eq!(
            (&slices[1]["name"], &slices[1]["ts"], &slices[1]["dur"]),
            (&json!("run"), &json!(0.0), &json!(80.0))
        );
        assert_eq!((&slices[2]["ts"], &slices[2]["dur"]), (&json!(10.0), &json!(10.5)));
        assert_eq!((&slices[2]["args"]["waited_us"], &slices[2]["args"]["path"]), (&json!(1.5), &json!("two-shot")));
    }

    #[test]
    fn calls_on_a_gpu_name_it_by_its_uuid() {
        let gpu = |ordinal, uuid| Event::Gpu(GpuRecord { ordinal, uuid: Uuid([uuid; 16]) });
        let on_gpu = |record: Record, gpu: Option<usize>, is_fold| match record.event {
            Event::Call(call) => Record { event: Event::Call(CallRecord { gpu, is_fold, ..call }), ..record },
            Event::Run | Event::Closure(_) | Event::Request(_) | Event::Gpu(_) | Event::Clock(_) => record,
        };
        let first = [
            Record { event: gpu(0, 0xab), ..run(5, Some(5), 0) },
            on_gpu(call(10, Some(20), 0), Some(0), true),
            on_gpu(call(30, Some(40), 0), None, false),
        ];
        let second = [
            Record { event: gpu(0, 0xcd), ..run(5, Some(5), 1) },
            on_gpu(call(10, None, 1), Some(0), false),
            on_gpu(call(50, Some(60), 1), Some(1), false),
        ];
        let (profiled, json) = merged(&[(0, "main", 9, &first[..]), (1, "main", 9, &second[..])]);
        assert_eq!((profiled.slices, profiled.dropped), (4, 0));
        let events = json["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
        let named = events.map(|event| ["gpu", "gpu_uuid", "gpu_way"].map(|key| event["args"][key].as_str()));
        let [one, two] = ["ab", "cd"].map(|byte| {
            let part = |bytes: usize| byte.repeat(bytes);
            format!("GPU-{}-{}-{}-{}-{}", part(4), part(2), part(2), part(2), part(6))
        });
        let expected = [
            [Some("cuda:0"), Some(&one), Some("fold")],
            [None; 3],
            [Some("cuda:0"), Some(&two), Some("copies")],
            // The record of its identity was lost.
            [Some("cuda:1"), None, Some("copies")],
        ];
        assert_eq!(named.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_main_thread_beside_those_of_replicas_has_the_workers_name() {
        let records = |begin, replica| [run(begin, Some(90_000), replica)];
        let (first, second, alone) = (records(1, 0), records(2, 1), records(3, 2));
        let files = [(0, "main", 9, &first[..]), (0, "replica 0", 9, &second[..]), (1, "main", 9, &alone[..])];
        let (_, json) = merged(&files);
        let events = json["traceEvents"].as_array().unwrap().iter();
        let tracks = events.filter(|event| event["name"] == "thread_name").map(|event| &event["args"]["name"]);
        assert_eq!(tracks.collect::<Vec<_>>(), ["worker 0: main", "replica 1", "replica 2"]);
    }

    #[test]
    fn dropped_records_are_counted() {
        let records: Vec<Record> = (0..5).map(|number| run(number, Some(number), 0)).collect();
        let (profiled, json) = merged(&[(0, "", 3, &records), (1, "", 0, &records), (1, "", 9, &records)]);
        assert_eq!(profiled, Profiled { slices: 8, dropped: 7, others: Others::Merged });
        assert_eq!(json["otherData"]["dropped"], 7);
    }

    #[test]
    fn a_launch_without_a_record_has_an_empty_timeline() {
        let (profiled, json) = merged(&[]);
        assert_eq!((profiled.slices, &json["traceEvents"]), (0, &json!([])));
    }

    #[test]
    fn a_failed_start_leaves_no_file_and_keeps_an_old_one() {
        let path = env::temp_dir().join(format!("consonance-kept-{}.json", process::id()));
        drop(Profile::of(path.clone(), vec![Task::worker(0)], vec![0], 1).unwrap());
        assert!(!path.exists());
        fs::write(&path, "old").unwrap();
        drop(Profile::of(path.clone(), vec![Task::worker(0)], vec![0], 1).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        fs::remove_file(&path).unwrap();
    }
}
