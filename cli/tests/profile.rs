//! `consonance run --profile`: the timeline of all workers' calls.
#![cfg(target_os = "linux")]

use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command, Output},
};

const CONSONANCE: &str = env!("CARGO_BIN_EXE_consonance");

/// A run or a call on a track.
struct Slice {
    name: String,
    begin: f64,
    end: f64,
    args: Value,
}

impl Slice {
    fn is_call(&self) -> bool {
        self.args["kind"].is_string()
    }

    fn replica(&self) -> u64 {
        self.args["replica"].as_u64().expect("a replica")
    }
}

/// The slices of a track, in the order of the file.
type Tracks = BTreeMap<(u64, u64), Vec<Slice>>;

struct Timeline {
    /// The names of processes, and of tracks.
    processes: BTreeMap<u64, String>,
    names: BTreeMap<(u64, u64), String>,
    tracks: Tracks,
}

impl Timeline {
    fn read(path: &Path) -> Timeline {
        let json: Value = serde_json::from_slice(&fs::read(path).expect("a profile")).expect("JSON");
        let mut timeline = Timeline { processes: BTreeMap::new(), names: BTreeMap::new(), tracks: BTreeMap::new() };
        for event in json["traceEvents"].as_array().expect("events") {
            let number = |key: &str| event[key].as_u64().expect("a number");
            let track = (number("pid"), number("tid"));
            let name = || event["args"]["name"].as_str().unwrap_or_default().to_owned();
            match (event["ph"].as_str(), event["name"].as_str().expect("a name")) {
                (Some("M"), "process_name") => _ = timeline.processes.insert(track.0, name()),
                (Some("M"), "thread_name") => _ = timeline.names.insert(track, name()),
                (Some("M"), _) => {}
                (Some("X"), name) => {
                    let time = |key: &str| event[key].as_f64().expect("a time");
                    let (begin, end) = (time("ts"), time("ts") + time("dur"));
                    let slice = Slice { name: name.to_owned(), begin, end, args: event["args"].clone() };
                    timeline.tracks.entry(track).or_default().push(slice);
                }
                other => panic!("{other:?}"),
            }
        }
        timeline.check();
        timeline
    }

    /// Checks that slices begin one after the other, and that two slices of a track are apart or
    /// one in the other.
    fn check(&self) {
        // The times are nanoseconds, printed as microseconds.
        const ROUNDING: f64 = 1e-3;
        for (track, slices) in &self.tracks {
            assert!(self.processes.contains_key(&track.0) && self.names.contains_key(track), "{track:?}");
            let mut open: Vec<&Slice> = Vec::new();
            let mut before = 0.0;
            for slice in slices {
                assert!(before <= slice.begin && slice.begin <= slice.end, "{track:?}: times go on");
                before = slice.begin;
                open.retain(|outer| outer.end > slice.begin + ROUNDING);
                if let Some(outer) = open.last() {
                    assert!(slice.end <= outer.end + ROUNDING, "{track:?}: {} in {}", slice.name, outer.name);
                    assert!(!outer.is_call(), "{track:?}: nothing is in {}", outer.name);
                }
                open.push(slice);
            }
        }
    }

    fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.tracks.values().flatten()
    }

    /// Returns the id of the process of a worker.
    fn process(&self, worker: usize) -> u64 {
        let of_worker = |name: &String| name.starts_with(&format!("worker {worker} (pid "));
        *self.processes.iter().find(|(_, name)| of_worker(name)).unwrap_or_else(|| panic!("no worker {worker}")).0
    }
}

/// A path for a profile. The drop removes the file.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        Temporary(env::temp_dir().join(format!("consonance-profile-test-{}-{name}.json", process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn example(name: &str) -> String {
    let path = Path::new(CONSONANCE).with_file_name("examples").join(name);
    assert!(path.exists(), "cargo test --workspace builds {}", path.display());
    path.display().to_string()
}

/// Runs a launch with a profile, and checks its status.
fn launch(profile: &Path, options: &str, program: &[&str], status: i32) -> Output {
    let mut command = Command::new(CONSONANCE);
    command.arg("run").args(["--timeout", "100s"]).args(options.split_whitespace()).arg("--profile").arg(profile);
    command.arg("--").args(program).env_remove("TF_CONFIG").env_remove("CONSONANCE_PROFILE");
    let output = command.output().expect("the launcher runs");
    assert_eq!(output.status.code(), Some(status), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn every_call_of_every_worker_is_on_the_timeline() {
    let temporary = Temporary::new("workers");
    let digits = example("digits");
    // With the proof: several groups, of processes, of threads and of messages.
    let output = launch(&temporary.0, "-n 3", &[&digits, "--epochs", "1", "--hidden", "12"], 0);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let timeline = Timeline::read(&temporary.0);
    assert_eq!(timeline.processes.len(), 3, "{:?}", timeline.processes);
    for worker in 0..3 {
        let process = timeline.process(worker);
        let name = format!("replica {worker}");
        let of_worker = |track: &(u64, u64)| track.0 == process;
        assert!(timeline.names.iter().any(|(track, found)| of_worker(track) && *found == name), "{:?}", timeline.names);
    }

    let calls: Vec<&Slice> = timeline.slices().filter(|slice| slice.is_call()).collect();
    let transports: BTreeSet<&str> = calls.iter().filter_map(|call| call.args["transport"].as_str()).collect();
    assert_eq!(transports, BTreeSet::from(["messages", "processes", "threads"]));
    // Every replica of a group makes the same all-reduces.
    let mut counts: BTreeMap<&str, BTreeMap<u64, usize>> = BTreeMap::new();
    for call in &calls {
        assert_eq!((call.args["replicas"].as_u64(), call.args.get("unfinished")), (Some(3), None), "{}", call.args);
        assert_eq!(call.args.get("failed"), None, "{}", call.args);
        assert_eq!(call.args["kind"].as_str(), Some(&*call.name));
        if call.name == "all_reduce" {
            let args = &call.args;
            assert_eq!((args["op"].as_str(), args["dtype"].as_str()), (Some("sum"), Some("f32")), "{args}");
            assert!(args["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{args}");
            let transport = args["transport"].as_str().expect("a transport");
            let waited = args["waited_us"].as_f64();
            assert!(waited.map_or(transport == "messages", |waited| waited <= call.end - call.begin), "{args}");
            *counts.entry(transport).or_default().entry(call.replica()).or_default() += 1;
        }
    }
    for (transport, counts) in &counts {
        assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [0, 1, 2], "{transport}");
        assert_eq!(counts.values().collect::<BTreeSet<_>>().len(), 1, "{transport}: {counts:?}");
    }
    assert!(calls.iter().any(|call| call.name == "training::compare_parameters"));

    // A training is a run on each replica, with calls in it.
    for replica in 0..3 {
        let on = |track: &&Vec<Slice>| track.iter().any(|slice| slice.replica() == replica && slice.name == "run");
        let has_calls = timeline.tracks.values().filter(on).any(|track| {
            let runs = track.iter().filter(|slice| slice.name == "run");
            let is_within = |run: &Slice, call: &Slice| run.begin <= call.begin && call.end <= run.end;
            runs.clone().any(|run| track.iter().filter(|slice| slice.is_call()).any(|call| is_within(run, call)))
        });
        assert!(has_calls, "replica {replica}");
    }
}

#[test]
fn a_profile_has_the_calls_of_a_killed_worker_and_of_the_next_group() {
    let temporary = Temporary::new("killed");
    let elastic = format!("exec {} --steps 60 --at 20", example("elastic"));
    let script = format!("case $TF_CONFIG in *'\"index\": 1}}'*) {elastic} --doomed;; *) {elastic};; esac");
    launch(&temporary.0, "-n 3 --keep-going", &["sh", "-c", &script], 0);
    let timeline = Timeline::read(&temporary.0);
    let of_worker = |worker: usize| {
        let process = timeline.process(worker);
        timeline.tracks.iter().filter(move |(track, _)| track.0 == process).flat_map(|(_, slices)| slices)
    };
    let killed = of_worker(1).filter(|slice| slice.is_call()).count();
    assert!(killed >= 20, "the killed worker made {killed} calls");
    for worker in [0, 2] {
        let sizes: BTreeSet<u64> = of_worker(worker)
            .filter(|slice| slice.is_call())
            .filter_map(|call| call.args["replicas"].as_u64())
            .collect();
        assert_eq!(sizes, BTreeSet::from([2, 3]), "worker {worker}");
        assert!(of_worker(worker).any(|slice| slice.args["failed"] == true), "worker {worker} was told of the loss");
    }
}

/// Runs `consonance timeline`. Returns the status and the words on both outputs.
fn timeline(arguments: &[&Path]) -> (Option<i32>, [String; 2]) {
    let output = Command::new(CONSONANCE).arg("timeline").args(arguments).output().expect("the command runs");
    let Output { status, stdout, stderr } = output;
    (status.code(), [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// The launcher of the processes makes no profile here.
#[test]
fn records_of_another_launcher_become_a_timeline() {
    let temporary = Temporary::new("joined");
    let folder = temporary.0.with_extension("records");
    fs::create_dir(&folder).expect("a folder");
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "-n", "2", "--timeout", "100s", "--", &example("elastic"), "--steps", "20"]);
    let output =
        command.env_remove("TF_CONFIG").env("CONSONANCE_PROFILE", &folder).output().expect("the launcher runs");
    assert!(output.status.success(), "{output:?}");
    let entries = || fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    // A process that was killed while it created its file, and what is no file of records.
    fs::write(folder.join("torn.calls"), [0; 40]).expect("a file");
    fs::write(folder.join("other"), "text").expect("a file");

    let (status, [said, problem]) = timeline(&[&temporary.0, &folder]);
    assert!(
        status == Some(0) && problem.starts_with("consonance: unread files, ") && problem.ends_with(": 1\n"),
        "{problem}"
    );
    let joined = Timeline::read(&temporary.0);
    let slices = joined.slices().count();
    assert_eq!(said, format!("{}: {slices} runs and calls of 2 processes\n", temporary.0.display()));
    let names: BTreeSet<&str> =
        joined.processes.values().filter_map(|name| Some(name.split_once(" (pid ")?.0)).collect();
    assert_eq!(names, BTreeSet::from(["replica 0", "replica 1"]));
    let calls = |replica: u64| joined.slices().filter(|slice| slice.is_call() && slice.replica() == replica).count();
    assert!(calls(0) > 0 && calls(0) == calls(1), "{} and {}", calls(0), calls(1));
    assert!(entries().count() > 3, "the records stay");

    // A folder that does not exist, one without records, and a file that cannot be written.
    let nowhere = folder.join("nowhere");
    let (status, [_, problem]) = timeline(&[&temporary.0, &folder, &nowhere]);
    assert!(status == Some(1) && problem.starts_with(&format!("consonance: {}: ", nowhere.display())), "{problem}");
    let (status, [_, problem]) = timeline(&[&nowhere.join("out.json"), &folder]);
    assert!(status == Some(1) && problem.starts_with(&format!("consonance: {}", nowhere.display())), "{problem}");
    entries().filter(|path| !path.ends_with("torn.calls")).for_each(|path| fs::remove_file(path).expect("a file"));
    let (status, [_, problem]) = timeline(&[&temporary.0, &folder]);
    assert!(status == Some(1) && problem.contains("no records of calls"), "{problem}");
    assert_eq!(timeline(&[&temporary.0]).0, Some(2), "a folder is needed");
    fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn an_unwritable_profile_is_refused_before_any_worker_starts() {
    for (path, why) in [("/no/such/folder/p.json", "No such file or directory"), ("/", "Is a directory")] {
        let output = launch(Path::new(path), "-n 2", &["echo", "started"], 125);
        assert_eq!(output.stdout, b"");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.starts_with(&format!("consonance: cannot write the profile: {path}: {why}")), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn a_launch_without_calls_says_so() {
    let temporary = Temporary::new("empty");
    let output = launch(&temporary.0, "-n 2", &["true"], 0);
    assert_eq!(output.stderr, b"consonance: the profile is empty: no worker made a call\n");
    assert_eq!(Timeline::read(&temporary.0).slices().count(), 0);
}

#[test]
fn a_failed_start_leaves_no_profile() {
    let temporary = Temporary::new("none");
    launch(&temporary.0, "-n 2", &["/no/such/program"], 127);
    assert!(!temporary.0.exists());
}

#[test]
fn closures_of_workers_and_requests_of_servers_are_on_the_timeline() {
    let temporary = Temporary::new("servers");
    launch(&temporary.0, "--chief --ps 1 -n 2", &[&example("recommender")], 0);
    let timeline = Timeline::read(&temporary.0);
    let of = |process: &str, name: &str| {
        let is_of = |track: &(u64, u64)| timeline.processes[&track.0].starts_with(process);
        let all = timeline.tracks.iter().filter(|(track, _)| is_of(track)).flat_map(|(_, slices)| slices);
        all.filter(|slice| slice.name == name).count()
    };
    let closures = of("worker 0", "step") + of("worker 1", "step");
    assert!(closures > 0 && of("ps 0", "stage") >= closures && of("ps 0", "commit") > 0, "{:?}", timeline.processes);
    assert!(of("chief", "commit") > 0 && of("chief", "step") == 0, "{:?}", timeline.processes);
    // Processes have the names of their roles, and tracks of a server those of its readers.
    let tracks: BTreeSet<(&str, &str)> = timeline
        .names
        .iter()
        .map(|(track, name)| (timeline.processes[&track.0].split(" (pid ").next().expect("a role"), &name[..]))
        .collect();
    for role in ["ps 0: chief", "ps 0: worker 0", "ps 0: worker 1"] {
        assert!(tracks.contains(&("ps 0", role)), "{tracks:?}");
    }
    assert!(tracks.contains(&("worker 1", "main")), "{tracks:?}");
    assert!(tracks.iter().any(|&(process, _)| process == "chief"), "{tracks:?}");
    assert!(!tracks.iter().any(|(_, track)| track.contains("replica")), "{tracks:?}");
}
