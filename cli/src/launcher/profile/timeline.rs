//! The timeline as a file: a process for each process, a track for each thread that made calls, a
//! slice for each run and call. All times are those of host 0's clock.

use super::clocks::{Clock, Nanoseconds};
use crate::launcher::task::Task;
use consonance::profile::{Event, GpuRecord, Record};
use consonance_kernels::{
    cuda::Uuid,
    os::record_file::{self, Contents},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write},
    mem,
    path::PathBuf,
    time::Duration,
};

/// A number above all process ids. Perfetto takes ids of processes below 2^32, which those of 256
/// hosts are.
const BEYOND_IDS: u64 = 1 << 22;

/// The clocks of the hosts, by their numbers. There are none if there is one host.
pub(super) type Clocks = BTreeMap<usize, Clock>;

/// The calls of one thread of a worker's process.
pub(super) struct Track {
    worker: Task,
    host: usize,
    clock: Clock,
    contents: Contents,
    /// The actions of the thread, without the identities of GPUs.
    records: Vec<Record>,
    /// The identities of GPUs, by their numbers in the process.
    gpus: BTreeMap<usize, Uuid>,
}

/// Reads the files of a worker, in an order that does not depend on that of `paths`.
pub(super) fn tracks_of(paths: &[PathBuf], worker: Task, host: usize, clocks: &Clocks) -> io::Result<Vec<Track>> {
    let clock = clocks.get(&host).copied().unwrap_or_else(Clock::of_host_0);
    let mut tracks = Vec::new();
    for path in paths {
        // A process that was killed while it created the file has left no header.
        let Some(mut contents) = record_file::read(&fs::read(path)?) else { continue };
        let (mut records, mut gpus) = (Vec::new(), BTreeMap::new());
        for record in mem::take(&mut contents.records).iter().filter_map(Record::from_words) {
            match record.event {
                Event::Gpu(GpuRecord { ordinal, uuid }) => _ = gpus.insert(ordinal, uuid),
                Event::Run | Event::Call(_) | Event::Closure(_) | Event::Request(_) => records.push(record),
            }
        }
        tracks.push(Track { worker, host, clock, contents, records, gpus });
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

    fn begin(&self) -> Option<Nanoseconds> {
        self.records.iter().map(|record| self.time(record.begin)).min()
    }

    /// Returns the time of host 0 at a time of the track's host.
    fn time(&self, own: Duration) -> Nanoseconds {
        self.clock.at_host_0(Nanoseconds::try_from(own.as_nanos()).unwrap_or(Nanoseconds::MAX))
    }

    /// Returns the times of a record. One that did not end lasts until `last`.
    fn times(&self, record: &Record, last: Nanoseconds) -> [Nanoseconds; 2] {
        [self.time(record.begin), record.end.map_or(last, |end| self.time(end))]
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

/// The number of runs and calls of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) slices: usize,
    /// The number of those that had no room.
    pub(super) dropped: u64,
}

/// Counts the runs and calls of these tracks.
pub(super) fn count(tracks: &[Track]) -> Count {
    Count {
        slices: tracks.iter().map(|track| track.records.len()).sum(),
        dropped: tracks.iter().map(|track| track.contents.dropped).sum(),
    }
}

/// Writes the tracks as JSON, one event a line. Times begin at `zero`, a time of host 0, or else at
/// the first record.
pub(super) fn write(
    tracks: &[Track],
    clocks: &Clocks,
    zero: Option<Nanoseconds>,
    out: &mut impl Write,
) -> io::Result<Count> {
    let zero = zero.or_else(|| tracks.iter().filter_map(Track::begin).min()).unwrap_or_default();
    let ends = |track: &Track, record: &Record| track.time(record.end.unwrap_or(record.begin));
    let ends = tracks.iter().flat_map(|track| track.records.iter().map(move |record| ends(track, record)));
    let last = ends.max().unwrap_or_default();
    let count = count(tracks);
    let mut about = json!({ "consonance": env!("CARGO_PKG_VERSION"), "dropped": count.dropped });
    if !clocks.is_empty() {
        about["hosts"] = clocks.iter().map(about_host).collect();
    }
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
        let mut of_process = format!("{} (pid {})", track.worker, track.contents.process);
        if !clocks.is_empty() {
            of_process += &format!(" on host {}", track.host);
        }
        put(out, name("process_name", "name", of_process.into()))?;
        put(out, name("process_sort_index", "sort_index", track.worker.index.into()))?;
        put(out, name("thread_name", "name", track.name(tracks).into()))?;
        put(out, name("thread_sort_index", "sort_index", thread.into()))?;
        for record in &track.records {
            let times = track.times(record, last).map(|time| time - zero);
            let mut slice = slice(record, &track.gpus, times);
            slice["pid"] = process.into();
            slice["tid"] = thread.into();
            put(out, slice)?;
        }
    }
    out.write_all(b"\n]}\n")?;
    Ok(count)
}

/// Returns a host's number, the offset by which its times were corrected, the limit on its error,
/// and its change. The last three are null if the clocks were not compared.
fn about_host((host, clock): (&usize, &Clock)) -> Value {
    let [offset, error, drift] = match clock.offset_error_and_drift() {
        Some(values) => values.map(|value| Value::from(microseconds(value))),
        None => [Value::Null, Value::Null, Value::Null],
    };
    json!({ "host": host, "offset_us": offset, "error_us": error, "drift_us": drift })
}

fn microseconds(time: Nanoseconds) -> f64 {
    time as f64 / 1e3
}

/// Returns a slice without its place, from its begin to its end.
fn slice(record: &Record, gpus: &BTreeMap<usize, Uuid>, [begin, end]: [Nanoseconds; 2]) -> Value {
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
                ("waited_us", call.waited.map(|waited| microseconds(waited.as_nanos() as Nanoseconds).into())),
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
    let (start, took) = (microseconds(begin), microseconds((end - begin).max(0)));
    json!({ "ph": "X", "name": name, "cat": category, "ts": start, "dur": took, "args": args })
}
