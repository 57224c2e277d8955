//! `consonance trace` of a process that the test starts.

#![cfg(target_os = "linux")]

use consonance::{
    ClusterResolver, MultiWorkerMirroredStrategy, ReduceOp, ReplicaContext, Tensor, TfConfigClusterResolver,
};
use consonance_kernels::{
    group::Endpoint,
    shm::{GroupId, Segment, Shape, call_log::Outcome},
};
use consonance_spec::{Kind, Signature};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    env,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    process::{self, Child, ChildStdout, Command, Output, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const CONSONANCE: &str = env!("CARGO_BIN_EXE_consonance");

/// The environment variable that makes a test run as the traced process.
const TRACED: &str = "CONSONANCE_TEST_TRACED";

const GROUP: GroupId = GroupId::from_bytes([0x5a; 16]);

/// A process with two ranks. They have met in one barrier; rank 1 waits in the next. The process
/// ends when this is dropped.
struct Traced {
    child: Child,
    /// Kept open, so that the child can write at its end.
    _output: BufReader<ChildStdout>,
}

impl Traced {
    /// Starts the process, which runs the test `test` of this file.
    fn start(test: &str) -> Traced {
        let mut command = Command::new(env::current_exe().expect("this test"));
        command.args(["--exact", test, "--test-threads=1", "--nocapture"]).env(TRACED, test);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let ready = output.by_ref().lines().any(|line| line.expect("a line").contains("ready"));
        assert!(ready, "the process ended");
        Traced { child, _output: output }
    }

    /// Runs as the traced process.
    fn run() -> ! {
        let shape = Shape::new(2, Shape::STAGING_BYTES).expect("a shape");
        let segment = Arc::new(Segment::create(shape, GROUP).expect("a segment"));
        let barrier = |seat: &mut Endpoint| _ = seat.step(&Signature::new(Kind::Barrier)).exchange(None);
        let mut seats = Endpoint::in_segment(&segment, 0..2, 1, &[], Duration::from_secs(600));
        thread::scope(|scope| {
            for seat in &mut seats {
                scope.spawn(|| barrier(seat));
            }
        });
        let mut waiting = seats.remove(1);
        thread::spawn(move || barrier(&mut waiting));
        while segment.look().ranks[1].calls.last().is_none_or(|call| (call.number, call.outcome) != (2, Outcome::Begun))
        {
            thread::yield_now();
        }
        println!("ready");
        io::stdin().read_line(&mut String::new()).expect("the end of the input");
        process::exit(0)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The process ends by itself when its input ends.
        let _ = self.child.wait();
    }
}

fn trace(pid: u32, options: &[&str]) -> Output {
    let mut command = Command::new(CONSONANCE);
    command.args(["trace", "--pid", &pid.to_string()]).args(options).output().expect("the command")
}

/// Returns the output of a command that succeeds.
#[track_caller]
fn report(pid: u32, options: &[&str]) -> String {
    let output = trace(pid, options);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the error line of a command that fails.
#[track_caller]
fn complaint(pid: u32, options: &[&str]) -> String {
    let output = trace(pid, options);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn each_rank_shows_where_it_is() {
    let test = "each_rank_shows_where_it_is";
    if env::var(TRACED).as_deref() == Ok(test) {
        Traced::run();
    }
    let traced = Traced::start(test);
    let pid = traced.child.id();
    let group = GROUP.to_string();
    let expected = format!(
        "group {group} of 2 ranks\n\
         rank 0, process {pid}: call 1: barrier(), 0 bytes, done\n\
         rank 1, process {pid}: call 2: barrier(), 0 bytes, not ended\n  \
         waits for rank 0, not yet in call 2\n"
    );
    assert_eq!(report(pid, &[]), expected);
    let expected = format!(
        "group {group} of 2 ranks\n\
         rank 0, process {pid}\n  call 1: barrier(), 0 bytes, done\n\
         rank 1, process {pid}\n  call 1: barrier(), 0 bytes, done\n  call 2: barrier(), 0 bytes, not ended\n  \
         waits for rank 0, not yet in call 2\n"
    );
    assert_eq!(report(pid, &["--calls", "64"]), expected);

    let json = |options: &[&str]| -> Value { serde_json::from_str(&report(pid, options)).expect("JSON") };
    let call = |number, outcome| json!({ "number": number, "call": "barrier()", "bytes": 0, "outcome": outcome });
    let rank = |rank: usize, calls| {
        let waits_for: &[usize] = if rank == 1 { &[0] } else { &[] };
        json!({
            "rank": rank,
            "process": pid,
            "state": "running",
            "gpu": null,
            "gpu_uuid": null,
            "waits_for": waits_for,
            "calls": calls,
        })
    };
    let (first, second) = (call(1, "done"), call(2, "not ended"));
    let ranks = [rank(0, json!([first])), rank(1, json!([second]))];
    assert_eq!(json(&["--json"]), json!([{ "group": group, "ranks": ranks }]));
    let ranks = [rank(0, json!([first])), rank(1, json!([first, second]))];
    assert_eq!(json(&["--json", "--calls", "2"]), json!([{ "group": group, "ranks": ranks }]));
}

#[test]
fn a_stopped_process_is_reported_as_stopped() {
    let test = "a_stopped_process_is_reported_as_stopped";
    if env::var(TRACED).as_deref() == Ok(test) {
        Traced::run();
    }
    let traced = Traced::start(test);
    let pid = traced.child.id();
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, &pid.to_string()]).status().expect("a shell's tool");
        assert!(status.success());
    };
    let line =
        format!("rank 0, process {pid}, is stopped by a signal or a debugger: call 1: barrier(), 0 bytes, done\n");
    signal("-STOP");
    // The signal takes effect at once or a little later.
    let begin = Instant::now();
    while !report(pid, &[]).contains(&line) {
        assert!(begin.elapsed() < Duration::from_secs(30), "{}", report(pid, &[]));
    }
    let json: Value = serde_json::from_str(&report(pid, &["--json"])).expect("JSON");
    assert_eq!(json[0]["ranks"][1]["state"], "stopped");
    signal("-CONT");
}

/// A launch of processes with roles, which ends when this is dropped.
struct Roles {
    launch: Child,
    /// The process ids, by role.
    pids: BTreeMap<String, u32>,
    _output: BufReader<ChildStdout>,
}

impl Roles {
    /// Starts a chief, a server and workers.
    fn start() -> Roles {
        let example = Path::new(CONSONANCE).with_file_name("examples").join("recommender");
        assert!(example.exists(), "cargo test --workspace builds {}", example.display());
        let script = format!("echo pid $$; exec {} --undisturbed --epochs 100000", example.display());
        let mut command = Command::new(CONSONANCE);
        command.args(["run", "--chief", "--ps", "1", "-n", "2", "--", "sh", "-c", &script]);
        Roles::launch(command, 4)
    }

    /// Starts a launch of this many processes, each of which prints its id.
    fn launch(mut command: Command, processes: usize) -> Roles {
        command.env_remove("TF_CONFIG");
        let mut launch = command.stdout(Stdio::piped()).spawn().expect("the launcher runs");
        let mut output = BufReader::new(launch.stdout.take().expect("a pipe"));
        let mut pids = BTreeMap::new();
        while pids.len() < processes {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).expect("a line"), 0, "the launch ended");
            if let Some((role, pid)) = line.trim_end().split_once("] pid ") {
                pids.insert(role.trim_start_matches('[').to_owned(), pid.parse().expect("a pid"));
            }
        }
        Roles { launch, pids, _output: output }
    }
}

impl Drop for Roles {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.launch.id().to_string()).status();
        let _ = self.launch.wait();
    }
}

#[test]
fn processes_with_parameter_servers_show_roles_and_links() {
    let roles = Roles::start();
    let [chief, server, first, second] = ["chief", "ps 0", "worker 0", "worker 1"].map(|role| roles.pids[role]);
    let until = |pid: u32, expected: &str| {
        let begin = Instant::now();
        // Before they have met they share no memory.
        while trace(pid, &[]).stdout != expected.as_bytes() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?} is not {expected}", trace(pid, &[]));
            thread::yield_now();
        }
    };
    until(
        server,
        &format!(
            "ps 0, process {server}, has links to\n  chief, process {chief}: orders, shards\n  \
             worker 0, process {first}: shards\n  worker 1, process {second}: shards\n"
        ),
    );
    until(
        chief,
        &format!(
            "chief, process {chief}, has links to\n  ps 0, process {server}: orders, shards\n  \
             worker 0, process {first}: orders\n  worker 1, process {second}: orders\n"
        ),
    );
    let json: Value = serde_json::from_str(&report(first, &["--json"])).expect("JSON");
    let of = |role: &str, pid: u32, carries: &[&str]| json!({ "role": role, "process": pid, "state": "running", "carries": carries });
    let links = [of("ps 0", server, &["shards"]), of("chief", chief, &["orders"])];
    assert_eq!(json, json!([{ "role": "worker 0", "process": first, "state": "running", "links": links }]));
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, &second.to_string()]).status().expect("a shell's tool");
        assert!(status.success());
    };
    signal("-STOP");
    until(
        server,
        &format!(
            "ps 0, process {server}, has links to\n  chief, process {chief}: orders, shards\n  \
             worker 0, process {first}: shards\n  \
             worker 1, process {second}, is stopped by a signal or a debugger: shards\n"
        ),
    );
    signal("-CONT");
}

/// Longer than the test takes.
const LONG: Duration = Duration::from_secs(120);

/// Runs as a worker: worker 0 is on GPU 1 of the driver for tests, in a call to which worker 1, on
/// the host, does not come.
fn work() {
    let resolver = TfConfigClusterResolver::new().expect("the launcher's variable");
    let is_first = resolver.task_id() == Some(0);
    let device = if is_first { "cuda:1" } else { "cpu:0" };
    let strategy = MultiWorkerMirroredStrategy::builder(resolver).devices([device]).build().expect("a group");
    // The line of the test has begun.
    println!("\npid {}", process::id());
    let begin = Instant::now();
    while !is_first && begin.elapsed() < LONG {
        thread::park_timeout(LONG);
    }
    let call = |replica: &ReplicaContext<'_>| {
        let [device] = replica.devices();
        replica.all_reduce(ReduceOp::Sum, Tensor::from([1.0f32, 2.0]).to(device)?)
    };
    let _ = strategy.run(call);
}

#[test]
fn a_rank_on_a_gpu_names_it() {
    const DRIVER: &str = "CONSONANCE_CUDA_DRIVER";
    let test = "a_rank_on_a_gpu_names_it";
    if env::var(TRACED).as_deref() == Ok(test) {
        return work();
    }
    let this = env::current_exe().expect("this test");
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "-n", "2", "--"]).arg(&this).args(["--exact", test, "--test-threads=1", "--nocapture"]);
    command.env(TRACED, test).env(DRIVER, this.with_file_name("libconsonance_fake_driver.so"));
    command.env("CONSONANCE_FAKE_DRIVER", "devices=2 first=4");
    let roles = Roles::launch(command, 2);
    let [first, second] = ["worker 0", "worker 1"].map(|worker| roles.pids[worker]);
    let begin = Instant::now();
    let ranks = loop {
        let json: Value = serde_json::from_str(&report(second, &["--json"])).expect("JSON");
        if json[0]["ranks"][0]["calls"][0]["outcome"] == "not ended" {
            break json[0]["ranks"].clone();
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{json}");
        thread::yield_now();
    };
    // GPU 1 of the process is GPU 5 of its machine.
    let uuid = "GPU-696e7465-7270-7265-7465-722000000005";
    let of = |rank: usize| ["process", "gpu", "gpu_uuid"].map(|key| ranks[rank][key].clone());
    assert_eq!(of(0), [json!(first), json!("cuda:1"), json!(uuid)]);
    assert_eq!(of(1), [json!(second), Value::Null, Value::Null]);
    let text = report(first, &[]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with(&format!("rank 0, process {first}: call")), "{text}");
    assert_eq!(lines[2], format!("  on cuda:1, {uuid}"), "{text}");
    assert!(lines[3].starts_with("  waits for rank 1, not yet in call"), "{text}");
    assert!(lines[4].starts_with(&format!("rank 1, process {second}: call")) && lines.len() == 5, "{text}");
    let text = report(first, &["--calls", "2"]);
    let [head, gpu] = [format!("rank 0, process {first}"), format!("  on cuda:1, {uuid}")];
    assert!(text.contains(&format!("\n{head}\n{gpu}\n  call ")), "{text}");
}

#[test]
fn a_failed_trace_names_the_reason() {
    // No process has an id this large.
    assert_eq!(complaint(1 << 30, &[]), "consonance: there is no process 1073741824\n");
    let own = std::process::id();
    let expected = format!("consonance: process {own} shares no memory: it is in no group of several processes\n");
    assert_eq!(complaint(own, &[]), expected);
    for calls in ["0", "65", "many"] {
        assert!(complaint(own, &["--calls", calls]).contains("--calls"), "{calls}");
    }
}
