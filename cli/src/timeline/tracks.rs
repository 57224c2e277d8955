//! The timeline as a file: a process for each process, a track for each thread that made calls, a
//! slice for each run and call. All times are those of host 0's clock.

use super::clocks::Clock;
use consonance::profile::{ClockRecord, Event, GpuRecord, Record};
use consonance_kernels::{
    cuda::Uuid,
    os::{
        clock_comparison::Nanoseconds,
        record_file::{self, Contents},
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write},
    mem,
    path::Path,
    time::Duration,
};

/// A number above all process ids. Perfetto takes ids of processes below 2^32, which those of 256
/// hosts are.
const BEYOND_IDS: u64 = 1 << 22;

/// The clocks of the hosts, by their numbers. There are none if there is one host.
pub(crate) type Clocks = BTreeMap<usize, Clock>;

/// The worker of a track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Worker {
    /// Its name: `worker 3`.
    pub(crate) name: String,
    /// Its place among all.
    pub(crate) index: usize,
}

/// The records of one thread.
pub(crate) struct Recorded {
    pub(crate) contents: Contents,
    /// The actions of the thread.
    records: Vec<Record>,
    /// The identities of GPUs, by their numbers in the process.
    gpus: BTreeMap<usize, Uuid>,
    /// The comparisons of clocks, with their times.
    pub(crate) clocks: Vec<(Duration, ClockRecord)>,
}

impl Recorded {
    /// Reads a file of records. `None` for one of another version, and if a process was killed
    /// while it created the file.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Recorded>> {
        let Some(mut contents) = record_file::read(&fs::read(path)?) else { return Ok(None) };
        let (mut records, mut gpus, mut clocks) = (Vec::new(), BTreeMap::new(), Vec::new());
        for record in mem::take(&mut contents.records).iter().filter_map(Record::from_words) {
            match record.event {
                Event::Gpu(GpuRecord { ordinal, uuid }) => _ = gpus.insert(ordinal, uuid),
                Event::Clock(clock) => clocks.push((record.begin, clock)),
                Event::Run | Event::Call(_) | Event::Closure(_) | Event::Request(_) => records.push(record),
            }
        }
        Ok(Some(Recorded { contents, records, gpus, clocks }))
    }

    /// Returns the replicas that run or call.
    pub(crate) fn replicas(&self) -> BTreeSet<usize> {
        self.ranks().map(|(replica, _)| replica).collect()
    }

    /// Returns the same, each with the number of replicas of its group.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = (usize, usize)> {
        self.records.iter().filter_map(|record| match record.event {
            Event::Run | Event::Call(_) => Some((record.replica, record.replicas)),
            Event::Closure(_) | Event::Request(_) | Event::Gpu(_) | Event::Clock(_) => None,
        })
    }
}

/// The calls of one thread of a worker's process.
pub(crate) struct Track {
    worker: Worker,
    host: usize,
    clock: Clock,
    recorded: Recorded,
}

/// Makes the tracks of a worker, in an order that does not depend on that of the files.
pub(crate) fn tracks_of(files: Vec<Recorded>, worker: &Worker, host: usize, clocks: &Clocks) -> Vec<Track> {
    let clock = clocks.get(&host).copied().unwrap_or_else(Clock::of_host_0);
    let has_actions = |file: &Recorded| !file.records.is_empty() || file.contents.dropped > 0;
    let track = |recorded| Track { worker: worker.clone(), host, clock, recorded };
    let mut tracks: Vec<Track> = files.into_iter().filter(has_actions).map(track).collect();
    tracks.sort_by_key(|track| (track.process(), track.recorded.replicas().into_iter().next(), track.begin()));
    tracks
}

impl Track {
    fn begin(&self) -> Option<Nanoseconds> {
        self.recorded.records.iter().map(|record| self.time(record.begin)).min()
    }

    /// Returns the time of host 0 at a time of the track's host.
    fn time(&self, own: Duration) -> Nanoseconds {
        self.clock.at_host_0(Nanoseconds::try_from(own.as_nanos()).unwrap_or(Nanoseconds::MAX))
    }

    /// Returns the times of a record. One that did not end lasts until `last`.
    fn times(&self, record: &Record, last: Nanoseconds) -> [Nanoseconds; 2] {
        [self.time(record.begin), record.end.map_or(last, |end| self.time(end))]
    }

    /// Returns the process: its host, its id there, and its start.
    fn process(&self) -> (usize, u32, u64) {
        let Contents { process, start, .. } = self.recorded.contents;
        (self.host, process, start)
    }

    /// Returns the name of the track among all: the replicas whose calls it has, and the thread if
    /// it is one beside the replica's own. The main thread of a worker is no replica's if a replica
    /// has a thread of its own.
    fn name(&self, all: &[Track]) -> String {
        let list: Vec<String> = self.recorded.replicas().iter().map(usize::to_string).collect();
        let replicas = match list.len() {
            0 => return self.recorded.contents.name.clone(),
            1 => format!("replica {}", list[0]),
            _ => format!("replicas {}", list.join(", ")),
        };
        let name = &self.recorded.contents.name;
        let of_process = |other: &&Track| (other.worker.index, other.process()) == (self.worker.index, self.process());
        let has_replica = |other: &Track| other.recorded.contents.name.starts_with("replica");
        if name == "main" && all.iter().filter(of_process).any(has_replica) {
            return format!("{}: main", self.worker.name);
        }
        match name.is_empty() || name == "main" || name.starts_with("replica") {
            true => replicas,
            false => format!("{replicas}: {name}"),
        }
    }
}

/// The number of runs and calls of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) slices: usize,
    /// The number of those that had no room.
    pub(crate) dropped: u64,
}

/// Counts the runs and calls of these tracks.
pub(crate) fn count(tracks: &[Track]) -> Count {
    Count {
        slices: tracks.iter().map(|track| track.recorded.records.len()).sum(),
        dropped: tracks.iter().map(|track| track.recorded.contents.dropped).sum(),
    }
}

/// Writes the tracks as JSON, one event a line. Times begin at `zero`, a time of host 0, or else at
/// the first record.
pub(crate) fn write(
    tracks: &[Track],
    clocks: &Clocks,
    zero: Option<Nanoseconds>,
    out: &mut impl Write,
) -> io::Result<Count> {
    let zero = zero.or_else(|| tracks.iter().filter_map(Track::begin).min()).unwrap_or_default();
    let ends = |track: &Track, record: &Record| track.time(record.end.unwrap_or(record.begin));
    let ends = tracks.iter().flat_map(|track| track.recorded.records.iter().map(move |record| ends(track, record)));
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
    let ids = ids(tracks);
    for (index, track) in tracks.iter().enumerate() {
        let (process, thread) = (ids[&track.process()], index + 1);
        let name = |what: &str, key: &str, value: Value| json!({ "ph": "M", "name": what, "pid": process, "tid": thread, "args": { key: value } });
        let mut of_process = format!("{} (pid {})", track.worker.name, track.recorded.contents.process);
        if !clocks.is_empty() {
            of_process += &format!(" on host {}", track.host);
        }
        put(out, name("process_name", "name", of_process.into()))?;
        put(out, name("process_sort_index", "sort_index", track.worker.index.into()))?;
        put(out, name("thread_name", "name", track.name(tracks).into()))?;
        put(out, name("thread_sort_index", "sort_index", thread.into()))?;
        for record in &track.recorded.records {
            let times = track.times(record, last).map(|time| time - zero);
            let mut slice = slice(record, &track.recorded.gpus, times);
            slice["pid"] = process.into();
            slice["tid"] = thread.into();
            put(out, slice)?;
        }
    }
    out.write_all(b"\n]}\n")?;
    Ok(count)
}

/// Returns the ids of the processes in the timeline. Those of two hosts may have the same id of the
/// system, and so may one after the other.
fn ids(tracks: &[Track]) -> BTreeMap<(usize, u32, u64), u64> {
    let (mut ids, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for track in tracks {
        let key @ (host, process, _) = track.process();
        ids.entry(key).or_insert_with(|| {
            let first = host as u64 * BEYOND_IDS + u64::from(process);
            (first..).find(|&id| taken.insert(id)).expect("fewer processes than numbers")
        });
    }
    ids
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
        Event::Gpu(_) | Event::Clock(_) => unreachable!("records of actions alone"),
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
