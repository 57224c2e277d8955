//! The timeline of all workers' calls. Perfetto and `chrome://tracing` open it.
//!
//! Each worker gets a folder of its own in the variable `CONSONANCE_PROFILE`. Its processes write
//! there what they do, a file for each thread, while they do it. After the end of the workers this
//! file merges them: a process for each process, a track for each thread that made calls, a slice
//! for each run and call. All times are of the host's one clock.

use super::task::Task;
use consonance::profile::{EXTENSION, Event, GpuRecord, Record};
use consonance_kernels::{
    cuda::Uuid,
    os::record_file::{self, Contents},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fmt,
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A number above all process ids.
const BEYOND_IDS: u64 = 1 << 32;

/// A profile of a launch. Dropping it removes the workers' files.
pub(super) struct Profile {
    path: PathBuf,
    file: File,
    /// Whether the file is of this launch, and has no profile yet.
    is_new: bool,
    /// The workers of the launch.
    workers: Vec<Task>,
    /// The number of workers of each host.
    workers_of_host: usize,
    /// The folder of the workers' folders.
    folder: PathBuf,
}

/// The fate of a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profiled {
    /// The number of runs and calls in it.
    pub slices: usize,
    /// The number of runs and calls that had no room in a worker's file.
    pub dropped: u64,
}

/// The calls of one thread of a worker's process.
struct Track {
    worker: Task,
    host: usize,
    contents: Contents,
    /// The actions of the thread, without the identities of GPUs.
    records: Vec<Record>,
    /// The identities of GPUs, by their numbers in the process.
    gpus: BTreeMap<usize, Uuid>,
}

impl Profile {
    /// Prepares a profile of these workers, so many on each host. Everything that can be refused is
    /// refused now.
    pub(super) fn begin(path: &Path, workers: Vec<Task>, workers_of_host: usize) -> io::Result<Profile> {
        let is_new = !path.exists();
        // The old content of the file stays until there is a new profile.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let folder = env::temp_dir().join(format!("consonance-profile-{}-{}", process::id(), now.as_nanos()));
        let profile = Profile { path: path.to_owned(), file, is_new, workers, workers_of_host, folder };
        for worker in &profile.workers {
            fs::create_dir_all(profile.folder(worker.index))?;
        }
        Ok(profile)
    }

    /// Returns the value of the variable for a worker.
    pub(super) fn folder(&self, worker: usize) -> PathBuf {
        self.folder.join(worker.to_string())
    }

    /// Merges what the workers have written. An error is in words.
    pub(super) fn write(&mut self) -> Result<Profiled, String> {
        self.merge().map_err(|error| format!("cannot write the profile: {}: {error}", self.path.display()))
    }

    fn merge(&mut self) -> io::Result<Profiled> {
        let mut tracks = Vec::new();
        for &worker in &self.workers {
            tracks.extend(tracks_of(&self.folder(worker.index), worker, worker.index / self.workers_of_host)?);
        }
        self.file.set_len(0)?;
        self.is_new = false;
        let mut out = BufWriter::new(&self.file);
        let profiled = write(&tracks, &mut out)?;
        out.flush()?;
        Ok(profiled)
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        // Nothing else can be done about either.
        let _ = fs::remove_dir_all(&self.folder);
        if self.is_new {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes the line of a report about a profile, if it lacks something.
pub(super) fn write_words(profiled: &Result<Profiled, String>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match profiled {
        Err(problem) => writeln!(f, "{problem}"),
        Ok(Profiled { slices: 0, dropped: 0 }) => writeln!(f, "the profile is empty: no worker made a call"),
        Ok(Profiled { dropped: 0, .. }) => Ok(()),
        Ok(Profiled { slices, dropped }) => {
            writeln!(f, "the profile has the first {slices} runs and calls; {dropped} later ones had no room")
        }
    }
}

/// Reads the files of a worker, in an order that does not depend on the file system.
fn tracks_of(folder: &Path, worker: Task, host: usize) -> io::Result<Vec<Track>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
    let mut tracks = Vec::new();
    for path in paths {
        // A process that was killed while it created the file has left no header.
        let Some(contents) = record_file::read(&fs::read(&path)?) else { continue };
        let (mut records, mut gpus) = (Vec::new(), BTreeMap::new());
        for record in contents.records.iter().filter_map(Record::from_words) {
            match record.event {
                Event::Gpu(GpuRecord { ordinal, uuid }) => _ = gpus.insert(ordinal, uuid),
                Event::Run | Event::Call(_) | Event::Closure(_) | Event::Request(_) => records.push(record),
            }
        }
        tracks.push(Track { worker, host, contents, records, gpus });
    }
    tracks.sort_by_key(|track| (track.contents.process, track.replicas().into_iter().next(), track.begin()));
    Ok(tracks)
}

impl Track {
    /// Returns the replicas that run or call.
    fn replicas(&self) -> BTreeSet<usize> {
        let of = |record: &Record| match record.event {
            Event::Run | Event::Call(_) => Some(record.replica),
            Event::Closure(_) | Event::Request(_) | Event::Gpu(_) => None,
        };
        self.records.iter().filter_map(of).collect()
    }

    fn begin(&self) -> Option<Duration> {
        self.records.iter().map(|record| record.begin).min()
    }

    /// Returns the process's id in the timeline. Processes of two hosts may have the same id.
    fn process(&self) -> u64 {
        self.host as u64 * BEYOND_IDS + u64::from(self.contents.process)
    }

    /// Returns the name of the track among all: the replicas whose calls it has, and the thread if
    /// it is one beside the replica's own. The main thread of a worker is no replica's if a replica
    /// has a thread of its own.
    fn name(&self, all: &[Track]) -> String {
        let list: Vec<String> = self.replicas().iter().map(usize::to_string).collect();
        let replicas = match list.len() {
            0 => return self.contents.name.clone(),
            1 => format!("replica {}", list[0]),
            _ => format!("replicas {}", list.join(", ")),
        };
        let name = &self.contents.name;
        let of_process =
            |other: &&Track| (other.worker, other.contents.process) == (self.worker, self.contents.process);
        if name == "main" && all.iter().filter(of_process).any(|other| other.contents.name.starts_with("replica")) {
            return format!("{}: main", self.worker);
        }
        match name.is_empty() || name == "main" || name.starts_with("replica") {
            true => replicas,
            false => format!("{replicas}: {name}"),
        }
    }
}

/// Writes the tracks as JSON, one event a line. Times begin at the first record.
fn write(tracks: &[Track], out: &mut impl Write) -> io::Result<Profiled> {
    let begin = tracks.iter().filter_map(Track::begin).min().unwrap_or_default();
    let times = tracks.iter().flat_map(|track| &track.records);
    let last = times.map(|record| record.end.unwrap_or(record.begin)).max().unwrap_or_default();
    let profiled = Profiled {
        slices: tracks.iter().map(|track| track.records.len()).sum(),
        dropped: tracks.iter().map(|track| track.contents.dropped).sum(),
    };
    let about = json!({ "consonance": env!("CARGO_PKG_VERSION"), "dropped": profiled.dropped });
    write!(out, "{{\"displayTimeUnit\": \"ms\", \"otherData\": {about}, \"traceEvents\": [")?;
    let mut separator = "\n";
    let mut put = |out: &mut dyn Write, event: Value| {
        write!(out, "{separator}{event}")?;
        separator = ",\n";
        Ok::<(), io::Error>(())
    };
    for (index, track) in tracks.iter().enumerate() {
        let (process, thread) = (track.process(), index + 1);
        let name = |what: &str, key: &str, value: Value| json!({ "ph": "M", "name": what, "pid": process, "tid": thread, "args": { key: value } });
        let of_process = format!("{} (pid {})", track.worker, track.contents.process);
        put(out, name("process_name", "name", of_process.into()))?;
        put(out, name("process_sort_index", "sort_index", track.worker.index.into()))?;
        put(out, name("thread_name", "name", track.name(tracks).into()))?;
        put(out, name("thread_sort_index", "sort_index", thread.into()))?;
        for record in &track.records {
            let mut slice = slice(record, &track.gpus, begin, last);
            slice["pid"] = process.into();
            slice["tid"] = thread.into();
            put(out, slice)?;
        }
    }
    out.write_all(b"\n]}\n")?;
    Ok(profiled)
}

/// Returns a slice without its place. One that did not end lasts until `last`.
fn slice(record: &Record, gpus: &BTreeMap<usize, Uuid>, begin: Duration, last: Duration) -> Value {
    let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
    let mut args = json!({ "replica": record.replica, "replicas": record.replicas });
    let (name, category) = match &record.event {
        Event::Run => ("run", "run"),
        Event::Gpu(_) => unreachable!("a track keeps the identities of GPUs apart"),
        Event::Closure(closure) => {
            args = json!({ "worker": record.replica, "closure": closure.number, "failed": closure.failed });
            (closure.function.as_str(), "closure")
        }
        Event::Request(request) => {
            args = json!({ "bytes": request.bytes, "failed": request.failed });
            (request.name.as_str(), "request")
        }
        Event::Call(call) => {
            args["kind"] = call.name.name().into();
            args["bytes"] = call.bytes.into();
            let known = [
                ("step", (call.step != call.name).then(|| call.step.name().into())),
                ("op", call.op.map(|op| op.name().into())),
                ("dtype", call.dtype.map(|dtype| dtype.name().into())),
                ("transport", call.transport.map(|transport| transport.name().into())),
                ("path", call.path.map(|path| path.name().into())),
                ("gpu", call.gpu.map(|gpu| format!("cuda:{gpu}").into())),
                ("gpu_uuid", call.gpu.and_then(|gpu| gpus.get(&gpu)).map(|uuid| uuid.to_string().into())),
                ("gpu_way", call.gpu.map(|_| if call.is_fold { "fold" } else { "copies" }.into())),
                ("waited_us", call.waited.map(|waited| microseconds(waited).into())),
                ("failed", call.failed.then_some(Value::Bool(true))),
                ("culprit", call.culprit.map(Value::from)),
            ];
            for (key, value) in known {
                if let Some(value) = value {
                    args[key] = value;
                }
            }
            (call.name.name(), "call")
        }
    };
    if record.end.is_none() {
        args["unfinished"] = true.into();
    }
    let took = record.end.unwrap_or(last).saturating_sub(record.begin);
    let start = record.begin.saturating_sub(begin);
    json!({
        "ph": "X", "name": name, "cat": category, "ts": microseconds(start), "dur": microseconds(took), "args": args,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance::{
        DType, ReduceOp,
        profile::{self, CallRecord, Transport},
    };
    use consonance_kernels::os::record_file::RecordFile;
    use consonance_spec::Kind;

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
        merged_of_hosts(2, files)
    }

    /// Like [`merged`], with so many workers on each host.
    fn merged_of_hosts(workers_of_host: usize, files: &[(usize, &str, usize, &[Record])]) -> (Profiled, Value) {
        let (process, thread) = (process::id(), std::thread::current().id());
        let path = env::temp_dir().join(format!("consonance-merged-{process}-{thread:?}.json"));
        let mut profile = Profile::begin(&path, vec![Task::worker(0), Task::worker(1)], workers_of_host).unwrap();
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
        for (workers_of_host, expected) in [(2, 1), (1, 2)] {
            let (_, json) = merged_of_hosts(workers_of_host, &files);
            let events = json["traceEvents"].as_array().unwrap();
            let ids: BTreeSet<Option<u64>> = events.iter().map(|event| event["pid"].as_u64()).collect();
            assert_eq!(ids.len(), expected, "{ids:?}");
        }
    }

    #[test]
    fn a_track_has_names_and_slices_from_the_first_record_on() {
        let (profiled, json) = merged(&[
            (1, "main", 9, &[run(10_000, Some(90_000), 2), call(20_000, Some(30_500), 2)]),
            (0, "buckets", 9, &[call(12_000, None, 1)]),
        ]);
        assert_eq!(profiled, Profiled { slices: 3, dropped: 0 });
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
            Event::Run | Event::Closure(_) | Event::Request(_) | Event::Gpu(_) => record,
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
        assert_eq!(profiled, Profiled { slices: 4, dropped: 0 });
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
        assert_eq!(profiled, Profiled { slices: 8, dropped: 7 });
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
        drop(Profile::begin(&path, vec![Task::worker(0)], 1).unwrap());
        assert!(!path.exists());
        fs::write(&path, "old").unwrap();
        drop(Profile::begin(&path, vec![Task::worker(0)], 1).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        fs::remove_file(&path).unwrap();
    }
}
