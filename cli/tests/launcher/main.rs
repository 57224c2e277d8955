//! `consonance run`, with shells as workers. The tests wait for expected events up to [`LIMIT`].

mod faults;
mod strategies_on_hosts;
mod hosts;
mod mpi;
mod nodes;
mod profiles;
mod reforms;
mod replacements;
mod roles;

use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead, BufReader, Read},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{self, Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Far longer than any test here takes.
const LIMIT: Duration = Duration::from_secs(30);

const CONSONANCE: &str = env!("CARGO_BIN_EXE_consonance");

/// A launch. Dropping it kills its launcher, and the workers with it.
struct Launch {
    child: Child,
    /// The launcher's standard output, unless a test closes it.
    lines: Option<BufReader<ChildStdout>>,
    errors: BufReader<ChildStderr>,
}

impl Launch {
    /// Starts `consonance run` with these options, and a shell with this script as each worker.
    fn shell(options: &str, script: &str) -> Launch {
        let mut command = Command::new(CONSONANCE);
        command.arg("run").args(options.split(' ')).args(["--", "sh", "-c", script]);
        Launch::of(command)
    }

    fn of(mut command: Command) -> Launch {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the launcher can be started");
        let lines = child.stdout.take().map(BufReader::new);
        let errors = BufReader::new(child.stderr.take().expect("a pipe"));
        Launch { child, lines, errors }
    }

    /// Returns the next line of standard output, without its end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.as_mut().expect("an open pipe").read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// Returns the next line of standard error, without its end.
    fn error(&mut self) -> String {
        let mut line = String::new();
        self.errors.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// Returns the process ids that workers write, `count` lines of the form `[worker i] pid`, in
    /// the order of the workers.
    fn pids(&mut self, count: usize) -> Vec<i32> {
        let mut lines: Vec<String> = (0..count).map(|_| self.line()).collect();
        lines.sort_by_key(|line| line.split(']').next().map(str::to_owned));
        let number = |line: &String| line.rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid");
        lines.iter().map(number).collect()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the launcher runs");
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the launcher ends", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("it has ended")
    }

    /// Waits for the end, and returns the rest of the output.
    fn finish(mut self) -> Output {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let (lines, errors) = (self.lines.as_mut().expect("an open pipe"), &mut self.errors);
        thread::scope(|scope| {
            scope.spawn(|| errors.read_to_end(&mut stderr).expect("output"));
            lines.read_to_end(&mut stdout).expect("output");
        });
        Output { status: self.wait(), stdout, stderr }
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Holds workers until the test opens it.
struct Gate(PathBuf);

impl Gate {
    fn new() -> Gate {
        static GATES: AtomicUsize = AtomicUsize::new(0);
        let number = GATES.fetch_add(1, Ordering::Relaxed);
        Gate(env::temp_dir().join(format!("consonance-gate-{}-{number}", process::id())))
    }

    /// Returns a script that waits until the gate is open, and goes on with `then`.
    fn then(&self, then: &str) -> String {
        format!("while ! [ -e {} ]; do sleep 0.01; done; {then}", self.0.display())
    }

    fn open(&self) {
        fs::write(&self.0, "").expect("a file");
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a process is gone, or a zombie that its parent has not reaped.
fn until_gone(pid: i32) {
    until(&format!("process {pid} ends"), || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with(['Z', 'X']))
    });
}

/// Returns the result of a launch that ends by itself: status, standard output, standard error.
fn result(options: &str, script: &str) -> (Option<i32>, String, String) {
    let output = Launch::shell(options, script).finish();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Tries longer and longer timeouts, until the workers were in time to do what `attempt` is about.
/// The attempt returns false if they were not.
fn with_time(attempt: impl Fn(Duration) -> bool) {
    let mut timeouts = (0..7).map(|doublings| Duration::from_millis(300 << doublings));
    assert!(timeouts.any(attempt), "the workers were never in time");
}

/// Returns a script that runs `what` on the worker with this index, and `others` on the other
/// workers.
fn on(index: usize, what: &str, others: &str) -> String {
    format!("case $TF_CONFIG in *'\"index\": {index}}}'*) {what};; *) {others};; esac")
}

#[test]
fn workers_get_the_cluster_and_their_index() {
    let (status, stdout, stderr) = result("-n 3 --replicas 2", "echo \"$CONSONANCE_REPLICAS $TF_CONFIG\"");
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    let mut clusters = BTreeSet::new();
    let mut indices = BTreeSet::new();
    for line in stdout.lines() {
        let (prefix, config) = line.split_once("] 2 ").expect("a prefix and the replicas");
        let config: serde_json::Value = serde_json::from_str(config).expect("JSON");
        assert_eq!(config["task"]["type"], "worker");
        assert_eq!(prefix, format!("[worker {}", config["task"]["index"]));
        indices.insert(config["task"]["index"].as_u64());
        clusters.insert(config["cluster"].to_string());
        let workers = config["cluster"]["worker"].as_array().expect("a list");
        let distinct: BTreeSet<_> = workers.iter().map(|worker| worker.as_str().expect("an address")).collect();
        assert_eq!(distinct.len(), 3, "{workers:?}");
        assert!(distinct.iter().all(|worker| worker.starts_with("127.0.0.1:")), "{workers:?}");
    }
    assert_eq!((clusters.len(), indices), (1, (0..3).map(Some).collect()));
}

#[test]
fn workers_have_the_variables_of_torchrun() {
    let names = "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT";
    let (status, stdout, stderr) = result("-n 2", &format!("echo \"{names}\""));
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    let mut masters = BTreeSet::new();
    for (index, line) in stdout.lines().collect::<BTreeSet<_>>().into_iter().enumerate() {
        let expected = format!("[worker {index}] {index} 2 {index} 2 127.0.0.1 ");
        masters.insert(line.strip_prefix(&expected).unwrap_or_else(|| panic!("{line}")).to_owned());
    }
    assert_eq!(masters.len(), 1, "{masters:?}");
}

#[test]
fn every_launch_is_another_job() {
    let jobs = |_| {
        let (status, stdout, _) = result("-n 2", "echo $CONSONANCE_JOB");
        let jobs: BTreeSet<_> =
            stdout.lines().filter_map(|line| line.split_once("] ")).map(|(_, job)| job.to_owned()).collect();
        assert_eq!((status, jobs.len()), (Some(0), 1), "{stdout}");
        jobs
    };
    let launches: BTreeSet<_> = (0..2).flat_map(jobs).collect();
    assert_eq!(launches.len(), 2, "{launches:?}");
}

#[test]
fn no_line_is_torn() {
    let script = "i=0; while [ $i -lt 300 ]; do printf \"a $i \"; printf 'b '; echo c; i=$((i + 1)); done; printf end";
    let (status, stdout, _) = result("-n 4", script);
    assert_eq!(status, Some(0));
    for worker in 0..4 {
        let prefix = format!("[worker {worker}] ");
        let lines: Vec<&str> = stdout.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let whole: Vec<String> = (0..300).map(|i| format!("a {i} b c")).chain(["end".to_owned()]).collect();
        assert!(lines == whole, "of worker {worker}: {lines:?}");
    }
    assert_eq!(stdout.lines().count(), 4 * 301);
}

#[test]
fn bytes_and_streams_are_kept() {
    let output = Launch::shell("-n 1", "printf '\\377\\0x'; printf 'to\\nerr' >&2").finish();
    assert_eq!(output.stdout, b"[worker 0] \xff\0x\n");
    assert_eq!(output.stderr, b"[worker 0] to\n[worker 0] err\n");
}

#[test]
fn a_worker_may_close_its_output_and_go_on() {
    let (status, stdout, stderr) = result("-n 1", "echo out; exec >&- 2>&-; sleep 0.1; exit 3");
    assert_eq!((status, stdout.as_str()), (Some(3), "[worker 0] out\n"));
    assert!(stderr.ends_with("): exit status 3\n"), "{stderr}");
}

#[test]
fn a_worker_may_end_before_the_others() {
    let (status, stdout, _) = result("-n 2", &on(0, "exit 0", "sleep 0.2; echo late"));
    assert_eq!((status, stdout.as_str()), (Some(0), "[worker 1] late\n"));
}

#[test]
fn the_first_failure_is_named_and_ends_the_others() {
    let gate = Gate::new();
    // The others have children, which must end with them.
    let script = on(2, &gate.then("exit 3"), "sleep 60 & echo $!; echo $$; wait");
    let mut launch = Launch::shell("-n 3", &script);
    let pids = launch.pids(4);
    gate.open();
    let output = launch.finish();
    assert_eq!(output.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.starts_with("consonance: worker 2 (pid ") && stderr.ends_with("): exit status 3\n"), "{stderr}");
    pids.into_iter().for_each(until_gone);
}

#[test]
fn the_others_go_on_if_they_are_to() {
    let gate = Gate::new();
    let others = gate.then("echo late; exit 6");
    let mut launch = Launch::shell("-n 3 --keep-going", &on(1, "exit 5", &format!("echo $$; {others}")));
    let (pids, first) = (launch.pids(2), launch.error());
    assert!(first.starts_with("consonance: worker 1 (pid "), "{first}");
    assert!(first.ends_with("): exit status 5; the others go on"), "{first}");
    gate.open();
    let output = launch.finish();
    assert_eq!(output.status.code(), Some(5), "the status is that of the first failure");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let lines: BTreeSet<_> = stdout.lines().collect();
    assert_eq!(lines, BTreeSet::from(["[worker 0] late", "[worker 2] late"]));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.ends_with("): exit status 5\n"), "{stderr}");
    pids.into_iter().for_each(until_gone);
}

#[test]
fn a_launch_has_recovered_if_its_last_workers_succeed() {
    let gate = Gate::new();
    let mut launch = Launch::shell("-n 2 --keep-going", &on(0, "kill -9 $$", &gate.then("echo late")));
    let first = launch.error();
    assert!(first.ends_with("): killed by SIGKILL; the others go on"), "{first}");
    gate.open();
    let output = launch.finish();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"[worker 1] late\n"[..]), "{output:?}");
    assert_eq!(output.stderr, b"");
    // A worker that was done before the failure is not one that recovered from it.
    let gate = Gate::new();
    let mut launch = Launch::shell("-n 2 --keep-going", &on(0, "echo $$", &gate.then("exit 4")));
    launch.pids(1).into_iter().for_each(until_gone);
    gate.open();
    let output = launch.finish();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
}

#[test]
fn a_worker_ended_by_a_signal_has_not_recovered() {
    let (status, _, _) =
        result("-n 2", &on(0, "sleep 0.2; exit 3", "trap 'exit 0' TERM; while :; do sleep 0.02; done"));
    assert_eq!(status, Some(3));
}

#[test]
fn a_lost_worker_is_replaced_with_its_environment() {
    let variables = "$TF_CONFIG $CONSONANCE_JOB $CONSONANCE_REPLICAS $RANK $MASTER_PORT $TORCHELASTIC_MAX_RESTARTS";
    let doomed = "case $TORCHELASTIC_RESTART_COUNT in 0) kill -9 $$;; 1) exit 9;; esac";
    let script = format!("echo \"{variables} $TORCHELASTIC_RESTART_COUNT\"; {}", on(1, doomed, "sleep 0.5"));
    let (status, stdout, stderr) = result("-n 2 --replicas 3 --max-restarts 2", &script);
    assert_eq!(status, Some(0), "{stderr}");
    let [first, second, third] = stdout.lines().filter(|line| line.starts_with("[worker 1]")).collect::<Vec<_>>()[..]
    else {
        panic!("{stdout}")
    };
    let environment = first.strip_suffix('0').expect("the restarts");
    assert!(environment.ends_with(" 2 ") && environment.contains(" 3 1 "), "{stdout}");
    for (line, restarts) in [(second, "1"), (third, "2")] {
        assert_eq!(line.strip_suffix(restarts), Some(environment), "{stdout}");
    }
    let [first, second] = stderr.lines().collect::<Vec<_>>()[..] else { panic!("{stderr}") };
    assert!(
        first.contains("): killed by SIGKILL; pid ") && first.ends_with(" replaces it (restart 1 of 2)"),
        "{first}"
    );
    assert!(second.contains("): exit status 9; pid ") && second.ends_with(" replaces it (restart 2 of 2)"), "{second}");
}

#[test]
fn the_failure_after_the_last_restart_ends_the_launch() {
    let (status, _, stderr) = result("-n 2 --max-restarts 1", &on(1, "exit 6", "exec sleep 60"));
    assert_eq!((status, stderr.lines().count()), (Some(6), 2), "{stderr}");
    assert!(stderr.ends_with("): exit status 6\n"), "{stderr}");
    let gate = Gate::new();
    let mut launch = Launch::shell("-n 2 --max-restarts 1 --keep-going", &on(1, "exit 6", &gate.then("true")));
    let [replaced, left] = [launch.error(), launch.error()];
    assert!(replaced.ends_with(" replaces it (restart 1 of 1)"), "{replaced}");
    assert!(left.ends_with("): exit status 6, and no restart is left; the others go on"), "{left}");
    gate.open();
    assert_eq!(launch.finish().status.code(), Some(0));
}

#[test]
fn children_of_a_lost_worker_end_before_its_replacement_begins() {
    let gate = Gate::new();
    let doomed =
        format!("case $TORCHELASTIC_RESTART_COUNT in 0) sleep 60 & echo $!; exit 1;; *) {};; esac", gate.then("true"));
    let mut launch = Launch::shell("-n 1 --max-restarts 1", &doomed);
    let pids = launch.pids(1);
    pids.into_iter().for_each(until_gone);
    assert!(launch.child.try_wait().expect("a child").is_none(), "the replacement still runs");
    gate.open();
    assert_eq!(launch.finish().status.code(), Some(0));
}

/// A part of a script: a worker tells the launcher this.
fn tell(news: &str) -> String {
    format!("set -- $CONSONANCE_LAUNCHER; echo \"$1 $$ {news}\" > $3")
}

#[test]
fn a_replacement_without_peers_ends_the_launch_and_names_the_ended_worker() {
    let lost = format!("case $TORCHELASTIC_RESTART_COUNT in 0) {}; exit 1;; esac", tell("joined"));
    let script = on(0, &format!("{lost}; {}; sleep 60", tell("waits")), &tell("joined"));
    let (status, _, stderr) = result("-n 2 --max-restarts 1", &script);
    let last = stderr.lines().rfind(|line| line.starts_with("consonance: worker 1 (pid ")).unwrap_or_default();
    assert!(status == Some(1) && last.ends_with(") ended with status 0; worker 0 waits for it"), "{stderr}");
}

/// A worker may leave at once, while another one has not run since the group was formed.
#[test]
fn a_worker_may_leave_while_another_still_joins() {
    let script = on(1, &tell("joined"), &format!("{}; sleep 2.5", tell("waits")));
    assert_eq!(result("-n 2", &script), (Some(0), String::new(), String::new()));
}

#[test]
fn a_worker_may_tell_more_than_the_pipe_takes_at_a_time() {
    let script = "set -- $CONSONANCE_LAUNCHER; yes \"$1 $$ here\" | head -c 200000 > $3";
    assert_eq!(result("-n 1 --timeout 20s", script), (Some(0), String::new(), String::new()));
}

#[test]
fn immediate_failures_are_replaced_after_growing_pauses() {
    let begin = Instant::now();
    let (status, _, stderr) = result("-n 1 --max-restarts 5", "exit 3");
    // 0, 100, 200, 400 and 800 ms.
    assert!(begin.elapsed() >= Duration::from_millis(1500), "{:?}", begin.elapsed());
    assert_eq!((status, stderr.lines().count()), (Some(3), 6), "{stderr}");
}

#[test]
fn a_signal_ends_the_pause_before_a_restart() {
    let mut launch = Launch::shell("-n 1 --max-restarts 200", "exit 3");
    // The last of these begins a pause of 1.6 s.
    for _ in 0..5 {
        launch.error();
    }
    launch.signal(Signal::TERM);
    let output = launch.finish();
    assert_eq!(output.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.lines().count() <= 2 && stderr.ends_with("): exit status 3\n"), "{stderr}");
}

#[test]
fn unwritable_output_is_a_failure() {
    for script in ["echo hi", "echo hi; exec sleep 60"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let mut command = Command::new(CONSONANCE);
        let output = command.args(["run", "-n", "2", "--", "sh", "-c", script]).stdout(full).output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr, "consonance: cannot write the workers' output: No space left on device (os error 28)\n");
    }
}

#[test]
fn more_workers_than_files_are_refused_before_any_starts() {
    let script = format!("ulimit -n 100; exec {CONSONANCE} run -n 50 -- echo started");
    let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), &b""[..]));
    let expected =
        "consonance: -n 50: expected a limit of 232 open files or more, found 100; `ulimit -n 232` raises it\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

#[test]
fn the_environment_is_printed_as_a_shell_takes_it() {
    let names = ["TF_CONFIG", "CONSONANCE_JOB", "RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"];
    let values = names.map(|name| format!("${name}")).join(" ");
    let (status, stdout, stderr) = result("-n 2 --print-environment", &format!("echo \"{values}\""));
    assert_eq!((status, stderr.lines().count()), (Some(0), 2), "{stderr}");
    for (index, line) in stderr.lines().enumerate() {
        let own = format!("consonance: worker {index} (pid ");
        let (_, variables) = line.strip_prefix(&own).and_then(|line| line.split_once("): ")).expect("variables");
        let script = format!("{variables} sh -c 'echo \"{values}\"'");
        let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
        let found = format!("[worker {index}] {}", String::from_utf8_lossy(&output.stdout));
        assert!(stdout.contains(&found), "{found:?} in {stdout:?}");
    }
}

#[test]
fn of_workers_found_ended_together_the_first_is_named() {
    let [first, later] = [Gate::new(), Gate::new()];
    let [one, others] = [first.then("exit 7"), later.then("exit 3")].map(|wait| format!("echo $$; {wait}"));
    let mut launch = Launch::shell("-n 3 --keep-going", &on(1, &one, &others));
    let pids = launch.pids(3);
    launch.signal(Signal::STOP);
    first.open();
    until_gone(pids[1]);
    later.open();
    pids.into_iter().for_each(until_gone);
    launch.signal(Signal::CONT);
    let output = launch.finish();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(7) && stderr.starts_with("consonance: worker 1 (pid "), "{stderr}");
}

#[test]
fn remaining_workers_end_when_the_time_is_up() {
    // Our signal ends the worker that the failed one names. This is not its own failure.
    for failure in ["exit 3", &format!("{}; exit 3", tell("gave-up 0"))] {
        with_time(|timeout| {
            let options = format!("-n 2 --keep-going --timeout {}ms", timeout.as_millis());
            let (status, _, stderr) = result(&options, &on(1, failure, "sleep 60"));
            assert_eq!(status, Some(124), "{stderr}");
            if stderr == format!("consonance: after {timeout:?} workers 0, 1 still ran\n") {
                return false;
            }
            assert!(stderr.starts_with("consonance: worker 1 (pid "), "{stderr}");
            let end = format!("): exit status 3; the others go on\nconsonance: after {timeout:?} worker 0 still ran\n");
            assert!(stderr.ends_with(&end), "{stderr}");
            true
        });
    }
}

#[test]
fn a_machine_without_proc_is_refused_with_the_reason() {
    // The status is 99 if this process may not hide /proc.
    let script = format!("mount -t tmpfs none /proc || exit 99; exec {CONSONANCE} run -n 2 -- echo started");
    let mut command = Command::new("unshare");
    let output = command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).output();
    let Some(output) = output.ok().filter(|output| ![Some(1), Some(99)].contains(&output.status.code())) else {
        println!("skipped: a machine without /proc; this process may make no namespace");
        return;
    };
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), &b""[..]), "{output:?}");
    let expected = "consonance: cannot listen to signals: /proc/self/status: No such file or directory (os error 2) (the \
                    command needs /proc; in a container, mount it)\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

#[test]
fn a_signal_is_named() {
    let (status, _, stderr) = result("-n 2", &on(1, "kill -9 $$", "sleep 60"));
    assert_eq!(status, Some(128 + 9));
    assert!(stderr.starts_with("consonance: worker 1 (pid ") && stderr.ends_with("): killed by SIGKILL\n"), "{stderr}");
}

#[test]
fn a_worker_ignoring_the_signal_is_killed() {
    let others = "trap '' TERM; echo $$; while :; do sleep 60; done";
    let gate = Gate::new();
    let mut launch = Launch::shell("-n 2", &on(0, &gate.then("exit 7"), others));
    let pids = launch.pids(1);
    gate.open();
    let output = launch.finish();
    assert_eq!(output.status.code(), Some(7));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("): exit status 7\nconsonance: worker 1 did not end within 2s "), "{stderr}");
    pids.into_iter().for_each(until_gone);
}

#[test]
fn children_of_workers_end_with_the_launch() {
    let mut launch = Launch::shell("-n 1", "sleep 60 & echo $!");
    let pids = launch.pids(1);
    assert_eq!(launch.finish().status.code(), Some(0));
    pids.into_iter().for_each(until_gone);
}

#[test]
fn a_process_outside_its_group_does_not_hold_the_launcher() {
    let mut launch = Launch::shell("-n 1", "setsid sleep 60 & echo $!; sleep 0.1");
    let pids = launch.pids(1);
    let status = launch.wait();
    for pid in pids {
        let _ = kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL);
    }
    assert_eq!(status.code(), Some(0));
}

#[test]
fn signals_are_forwarded_to_groups() {
    // The shell goes on only when its child ends, so the child must get the signal, too.
    let child = "trap 'echo child; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let mut launch = Launch::shell("-n 2", &format!("trap 'got=TERM' TERM; sh -c \"{child}\"; echo $got"));
    assert!((0..2).all(|_| launch.line().ends_with("ready")));
    launch.signal(Signal::TERM);
    let output = launch.finish();
    assert_eq!(output.status.code(), Some(0));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let lines: BTreeSet<_> = stdout.lines().collect();
    let expected = ["[worker 0] TERM", "[worker 0] child", "[worker 1] TERM", "[worker 1] child"];
    assert_eq!(lines, BTreeSet::from(expected));
}

#[test]
fn a_second_interrupt_kills() {
    let status = fs::read_to_string("/proc/self/status").expect("a process");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask of signals");
    if u64::from_str_radix(mask.trim(), 16).expect("a number") & 1 << (Signal::INT.as_raw() - 1) != 0 {
        println!("skipped: SIGINT is ignored here, as in the background of a script; run the tests in the foreground");
        return;
    }
    let mut launch = Launch::shell("-n 1", "trap 'echo got' INT; echo ready; while :; do sleep 0.02; done");
    for line in ["[worker 0] ready", "[worker 0] got"] {
        assert_eq!(launch.line(), line);
        launch.signal(Signal::INT);
    }
    let output = launch.finish();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(output.stderr, b"consonance: killed by a second SIGINT\n");
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let mut command = Command::new("sh");
    let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", CONSONANCE, "run", "-n", "1", "sh", "-c", script]);
    let mut launch = Launch::of(command);
    assert_eq!(launch.line(), "[worker 0] ready");
    launch.signal(Signal::HUP);
    launch.signal(Signal::TERM);
    assert_eq!(launch.finish().status.code(), Some(0));
}

#[test]
fn workers_die_with_the_launcher() {
    let mut launch = Launch::shell("-n 3", "echo $$; while :; do sleep 0.05; done");
    let pids = launch.pids(3);
    launch.signal(Signal::KILL);
    assert_eq!(launch.wait().signal(), Some(9));
    pids.into_iter().for_each(until_gone);
}

#[test]
fn a_closed_reader_ends_the_workers() {
    let mut launch = Launch::shell("-n 1", "exec yes");
    assert_eq!(launch.line(), "[worker 0] y");
    drop(launch.lines.take());
    assert_eq!(launch.wait().code(), Some(128 + 13));
}

/// The pipes are open, but nobody reads them until the launcher has ended.
#[test]
fn an_idle_reader_does_not_hold_the_launcher() {
    with_time(|timeout| {
        let options = format!("-n 1 --timeout {}ms", timeout.as_millis());
        let mut launches = ["exec yes", "exec yes >&2"].map(|script| Launch::shell(&options, script));
        for launch in &mut launches {
            assert_eq!(launch.wait().code(), Some(124));
        }
        let [launch, _] = launches;
        let stderr = String::from_utf8(launch.finish().stderr).expect("UTF-8");
        let up = format!("consonance: after {timeout:?} worker 0 still ran\n");
        if stderr == up {
            // Not enough was written by then to fill the pipes.
            return false;
        }
        assert_eq!(stderr, format!("{up}consonance: output was not read within 5s of the end: left\n"));
        true
    });
}

#[test]
fn the_time_is_limited() {
    with_time(|timeout| {
        let options = format!("-n 3 --timeout {}ms", timeout.as_millis());
        let (status, _, stderr) = result(&options, &on(1, "exit 0", "sleep 60"));
        let still_ran = |workers: &str| format!("consonance: after {timeout:?} workers {workers} still ran\n");
        if stderr == still_ran("0, 1, 2") {
            return false;
        }
        assert_eq!((status, stderr), (Some(124), still_ran("0, 2")));
        true
    });
}

#[test]
fn a_failed_start_names_the_program() {
    for (program, status, why) in [
        ("/no/such/program", 127, "cannot start /no/such/program: No such file or directory"),
        ("no-such-program-of-this-name", 127, "cannot start no-such-program-of-this-name: No such file or directory"),
        ("/", 126, "cannot start /: Permission denied"),
        ("/dev/null", 126, "cannot start /dev/null: Permission denied"),
    ] {
        let output = Command::new(CONSONANCE).args(["run", "-n", "3", program]).output().expect("the launcher runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{stderr}");
        assert!(stderr.starts_with(&format!("consonance: {why}")) && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    for arguments in [
        "-n 0 true",
        "-n -1 true",
        "-n 2 --max-restarts -1 true",
        "-n 2 --replicas -1 true",
        "-n",
        "-n 2",
        "true",
        "-n 2 --replicas 0 true",
        "-n 2 --timeout 0s true",
        "-n 2 --timeout 3d true",
        "-n 2 --timeout s true",
        "-n 2 --unknown true",
        "-n 2 --hosts 0 true",
        "-n 2 --hosts -1 true",
        "-n 2 --hosts 251 true",
    ] {
        let output =
            Command::new(CONSONANCE).arg("run").args(arguments.split(' ')).output().expect("the launcher runs");
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.starts_with("error: "), "{arguments}");
        let is_negative = arguments.contains("-1");
        assert!(!is_negative || stderr.starts_with("error: invalid value '-1' for '"), "{arguments}: {stderr}");
    }
}
