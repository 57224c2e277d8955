//! `consonance run --profile` with several hosts: one timeline of all. Where the workers form a
//! group, this machine plays the hosts, and one of them has another clock.

use super::{CONSONANCE, Gate, Launch, hosts::can_play, strategies_on_hosts};
use consonance::{MultiWorkerMirroredStrategy, ReduceOp, profile::VARIABLE};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command, Output},
    sync::atomic::{AtomicU8, Ordering},
};

/// Set in a worker that is a process of this program.
const PLAYED: &str = "CONSONANCE_TEST_PROFILE";

/// The calls of a replica.
const CALLS: usize = 20;

/// The seconds by which the clock of host 1 is ahead.
const AHEAD: f64 = 5000.0;

/// A path for a profile, in a folder of its own, which the drop removes.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        let folder = env::temp_dir().join(format!("consonance-profiles-{}-{name}", process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        Temporary(folder.join("out.json"))
    }

    fn folder(&self) -> &Path {
        self.0.parent().expect("a folder")
    }

    fn of_host_1(&self) -> PathBuf {
        self.0.with_extension("host1.json")
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.folder());
    }
}

/// Returns the address of a chief that no other launch has, although nobody listens there for a
/// while. All addresses of the loopback are of this machine.
fn free_chief() -> String {
    static CHIEFS: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = process::id().to_be_bytes();
    format!("127.{}.{low}.{}:4000", 64 + high % 64, CHIEFS.fetch_add(1, Ordering::Relaxed))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a profile")).expect("JSON")
}

/// Returns the offset of a host and the limit on its error, in microseconds.
fn offset_and_error(profile: &Value, host: usize) -> [f64; 2] {
    let about = &profile["otherData"]["hosts"][host];
    assert_eq!(about["host"], host, "{}", profile["otherData"]);
    ["offset_us", "error_us"].map(|key| about[key].as_f64().expect("a number"))
}

/// Returns the options of a node of two.
fn node(node: usize, chief: &str, profile: &Temporary) -> Vec<String> {
    let options = format!("run --nodes 2 --node {node} --chief {chief} -n 2 --timeout 60 --profile");
    options.split(' ').map(str::to_owned).chain([profile.0.display().to_string()]).collect()
}

/// Starts a node of two, with shells as workers.
fn shells(at: usize, chief: &str, profile: &Temporary, script: &str) -> Launch {
    let mut command = Command::new(CONSONANCE);
    command.args(node(at, chief, profile)).args(["--", "sh", "-c", script]);
    // A launch that is killed leaves its files.
    command.env("TMPDIR", profile.folder());
    Launch::of(command)
}

/// Returns the status of a launch, and its words but those about waits for a busy machine.
fn finish(launch: Launch) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = launch.finish();
    let stderr = text(&stderr);
    let lines = stderr.split_inclusive('\n').filter(|line| !line.starts_with("consonance: has waited "));
    (status.code(), lines.collect())
}

/// Calls with the others, if this process is a worker.
#[test]
fn workers_with_a_profile() {
    if env::var_os(PLAYED).is_none() {
        return;
    }
    let strategy = MultiWorkerMirroredStrategy::new().expect("the workers meet");
    for _ in 0..CALLS {
        strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, 1.0)).expect("a sum");
    }
}

/// Runs the command on two hosts, each with two workers that call. The clock of host 1 is ahead.
/// `options` are those of a host beside its number. `None` if this machine cannot play the hosts.
fn run_with_a_clock_ahead(options: impl Fn(usize) -> String, folder: Option<&Path>) -> Option<()> {
    const SHIFT: [&str; 5] = ["unshare", "--time", "--monotonic", "5000", "--fork"];
    let shifts = Command::new(SHIFT[0]).args(&SHIFT[1..]).arg("true").output();
    if !strategies_on_hosts::can_cross() {
        return None;
    }
    if !shifts.is_ok_and(|output| output.status.success()) {
        println!("skipped: a host with another clock; the system has no namespaces of times");
        return None;
    }
    let program = env::current_exe().expect("a test");
    let of_node = |at: usize| {
        let options = options(at);
        format!("{CONSONANCE} {options} -- {} --exact profiles::workers_with_a_profile", program.display())
    };
    let (first, ahead) = (of_node(0), format!("{} --kill-child {}", SHIFT.join(" "), of_node(1)));
    let script = format!("if [ $RANK = 0 ]; then exec {first}; else exec {ahead}; fi");
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "--hosts", "2", "-n", "1", "--timeout", "60", "--", "sh", "-c", &script]).env(PLAYED, "1");
    command.envs(folder.map(|folder| (VARIABLE, folder)));
    let (status, stderr) = finish(Launch::of(command));
    assert_eq!(status, Some(0), "{stderr}");
    Some(())
}

/// Checks the hosts and the calls on a timeline of such a run. Returns the names of the processes,
/// each with that of its host, the times of the calls, and the limit on the error of these.
fn overlapping(profile: &Value) -> (BTreeMap<String, String>, Vec<f64>, f64) {
    assert_eq!(offset_and_error(profile, 0), [0.0, 0.0]);
    let [offset, error] = offset_and_error(profile, 1);
    assert!((offset + AHEAD * 1e6).abs() <= error, "{offset} ± {error}");
    let mut calls = BTreeMap::<u64, Vec<[f64; 2]>>::new();
    let mut hosts = BTreeMap::new();
    for event in profile["traceEvents"].as_array().expect("events") {
        if event["name"] == "process_name" {
            let name = event["args"]["name"].as_str().expect("a name");
            let (process, rest) = name.split_once(" (pid ").expect("a process");
            hosts.insert(process.to_owned(), rest.split_once(") on ").expect("a host").1.to_owned());
        }
        if event["name"] == "all_reduce" {
            let [begin, length] = ["ts", "dur"].map(|key| event[key].as_f64().expect("a time"));
            let replica = event["args"]["replica"].as_u64().expect("a replica");
            calls.entry(replica).or_default().push([begin, begin + length]);
        }
    }
    assert_eq!(calls.values().map(Vec::len).collect::<Vec<_>>(), [CALLS; 4]);
    for call in 0..CALLS {
        let last_begin = calls.values().map(|calls| calls[call][0]).fold(f64::MIN, f64::max);
        let first_end = calls.values().map(|calls| calls[call][1]).fold(f64::MAX, f64::min);
        assert!(last_begin <= first_end + error, "call {call}: {last_begin} after {first_end}, within {error}");
    }
    (hosts, calls.into_values().flatten().flatten().collect(), error)
}

/// Returns the host of each process, whose names begin like this.
fn hosts_of(processes: &str) -> BTreeMap<String, String> {
    (0..4).map(|number| (format!("{processes} {number}"), format!("host {}", number / 2))).collect()
}

#[test]
fn calls_of_all_hosts_overlap_although_a_clock_is_ahead() {
    let temporary = Temporary::new("ahead");
    let options = |at: usize| node(at, "10.77.0.1:4000", &temporary).join(" ");
    let Some(()) = run_with_a_clock_ahead(options, None) else { return };
    assert!(!temporary.of_host_1().exists(), "host 0 has taken all");
    let (hosts, times, error) = overlapping(&read(&temporary.0));
    assert_eq!(hosts, hosts_of("worker"));
    assert!(times.iter().all(|&time| time >= -error), "times begin when the hosts have met: {times:?}");
    assert!(times.iter().all(|&time| time < AHEAD * 1e6), "{times:?}");
}

/// The processes themselves compare the clocks of their hosts.
#[test]
fn records_of_another_launcher_overlap_although_a_clock_is_ahead() {
    let (temporary, records) = (Temporary::new("records"), Temporary::new("folder"));
    let options = |at: usize| format!("run --nodes 2 --node {at} --chief 10.77.0.1:4000 -n 2 --timeout 60");
    let Some(()) = run_with_a_clock_ahead(options, Some(records.folder())) else { return };
    let output = Command::new(CONSONANCE).arg("timeline").args([&temporary.0, records.folder()]).output();
    let Output { status, stdout, stderr } = output.expect("the command runs");
    assert_eq!((status.code(), text(&stderr)), (Some(0), String::new()));
    let words = text(&stdout);
    assert!(words.contains(" runs and calls of 4 processes on 2 hosts"), "{words}");
    let (hosts, times, _) = overlapping(&read(&temporary.0));
    assert_eq!(hosts, hosts_of("replica"));
    assert!(times.iter().all(|&time| (0.0..AHEAD * 1e6).contains(&time)), "{times:?}");
}

#[test]
fn hosts_of_one_machine_have_its_clock() {
    if !can_play() {
        return;
    }
    let temporary = Temporary::new("played");
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "--hosts", "2", "-n", "1", "--timeout", "60", "--profile"]).arg(&temporary.0);
    command.args(["--", "true"]);
    assert_eq!(finish(Launch::of(command)).0, Some(0));
    let profile = read(&temporary.0);
    assert_eq!([0, 1].map(|host| offset_and_error(&profile, host)), [[0.0; 2]; 2]);
}

#[test]
fn host_0_writes_the_profile_of_two_nodes() {
    let (temporary, chief) = (Temporary::new("two"), free_chief());
    let launches = [0, 1].map(|at| shells(at, &chief, &temporary, "true"));
    let says = "consonance: the profile is empty: no worker made a call\n";
    assert_eq!(launches.map(finish), [(Some(0), says.to_owned()), (Some(0), String::new())]);
    assert!(!temporary.of_host_1().exists());
    let profile = read(&temporary.0);
    let [offset, error] = offset_and_error(&profile, 1);
    assert!(offset.abs() <= error, "one clock: {offset} ± {error}");
}

/// Such launches meet twice, at one address.
#[test]
fn nodes_replacing_workers_have_a_profile() {
    for round in 0..5 {
        let (temporary, chief) = (Temporary::new(&format!("twice-{round}")), free_chief());
        let launches = [0, 1].map(|at| {
            let mut command = Command::new(CONSONANCE);
            command.args(node(at, &chief, &temporary)).args(["--max-restarts", "1", "--", "true"]);
            Launch::of(command)
        });
        let ended = launches.map(finish);
        assert_eq!(ended.each_ref().map(|(status, _)| *status), [Some(0); 2], "{ended:?}");
        assert!(temporary.0.exists() && !temporary.of_host_1().exists());
    }
}

#[test]
fn a_host_keeps_its_profile_if_host_0_is_gone() {
    let (temporary, chief, gate) = (Temporary::new("apart"), free_chief(), Gate::new());
    let mut first = shells(0, &chief, &temporary, "echo here; sleep 60");
    let mut second = shells(1, &chief, &temporary, &format!("echo here; {}", gate.then("true")));
    for launch in [&mut first, &mut second] {
        assert!(launch.line().ends_with("here"), "the hosts have met");
    }
    // Its profile is an empty file still.
    drop(first);
    gate.open();
    let (status, stderr) = finish(second);
    let path = temporary.of_host_1();
    let says = format!("consonance: the profile of this host alone is {}: ", path.display());
    assert!(status == Some(0) && stderr.starts_with(&says), "{status:?}: {stderr}");
    // It was compared with the clock of host 0 before.
    let profile = read(&path);
    assert_eq!(profile["otherData"]["hosts"].as_array().map(Vec::len), Some(1));
    let about = &profile["otherData"]["hosts"][0];
    assert!(about["host"] == 1 && about["error_us"].as_f64().is_some_and(|error| error > 0.0), "{about}");
}

#[test]
fn host_0_writes_a_profile_without_the_calls_of_a_lost_host() {
    let (temporary, chief, gate) = (Temporary::new("gone"), free_chief(), Gate::new());
    let mut first = shells(0, &chief, &temporary, &format!("echo here; {}", gate.then("true")));
    let mut second = shells(1, &chief, &temporary, "echo here; sleep 60");
    for launch in [&mut first, &mut second] {
        assert!(launch.line().ends_with("here"), "the hosts have met");
    }
    drop(second);
    gate.open();
    let (status, stderr) = finish(first);
    let says = "consonance: the profile lacks the calls of host 1, ";
    assert!(status == Some(0) && stderr.starts_with(says), "{status:?}: {stderr}");
    assert_eq!(read(&temporary.0)["otherData"]["hosts"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_host_without_a_profile_is_not_met() {
    let (temporary, chief) = (Temporary::new("without"), free_chief());
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "--nodes", "2", "--node", "0", "--chief", &chief, "-n", "2", "--timeout", "1"]);
    command.arg("--profile").arg(&temporary.0).args(["--", "echo", "started"]);
    let Output { status, stdout, stderr } = Launch::of(command).finish();
    let says = "consonance: --nodes: the launches of the other hosts were not met: ";
    assert_eq!((status.code(), text(&stdout).as_str()), (Some(125), ""));
    assert!(text(&stderr).lines().any(|line| line.starts_with(says)), "{}", text(&stderr));
    assert!(!temporary.0.exists());
}
