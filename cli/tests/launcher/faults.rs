//! `consonance run`, with processes of this program as workers, one of which has a fault.

use super::{CONSONANCE, LIMIT, Launch};
use rustix::process::{Signal, getpid, kill_process};
use std::{
    env,
    process::{self, Command},
    thread,
    time::Duration,
};

/// Set in a worker that is a process of this program.
pub(super) const PLAYED: &str = "CONSONANCE_TEST_PLAYED";

/// The chief panics, and ends after the others have got their errors and have ended.
#[test]
fn only_the_panicking_worker_is_named() {
    let name = "faults::only_the_panicking_worker_is_named";
    if env::var_os(PLAYED).is_some() {
        play_the_panicking_chief();
    }
    for (options, lines) in [("-n 3", 1), ("-n 3 --keep-going", 3)] {
        let mut command = Command::new(CONSONANCE);
        command.arg("run").args(options.split(' ')).arg("--").arg(env::current_exe().expect("a test"));
        command.args(["--exact", name, "--nocapture"]).env(PLAYED, "1");
        let output = Launch::of(command).finish();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let own: Vec<&str> = stderr.lines().filter(|line| line.starts_with("consonance: ")).collect();
        assert_eq!((output.status.code(), own.len()), (Some(101), lines), "{stderr}");
        let last = own.last().expect("a line");
        assert!(last.starts_with("consonance: worker 0 (pid ") && last.ends_with("): exit status 101"), "{stderr}");
    }
}

fn play_the_panicking_chief() -> ! {
    let strategy = consonance::MultiWorkerMirroredStrategy::new().expect("a group");
    let chief = strategy.local_replicas().start == 0;
    let result = strategy.run(|replica| match chief {
        true => panic!("the chief's own fault"),
        false => replica.all_reduce("sum", 1),
    });
    assert!(result.is_err());
    if chief {
        thread::sleep(Duration::from_millis(500));
    }
    process::exit(if chief { 101 } else { 1 })
}

/// Worker 1 is at fault. Each fault is played so often, since the order of ends differs.
const RUNS: usize = 10;

/// Launches three workers of which the one with index 1 has this fault, [`RUNS`] times, and returns
/// the last lines of the launcher, without the worker and its process id.
fn last_lines(fault: &str) -> Vec<String> {
    let run = || {
        let mut command = Command::new(CONSONANCE);
        command.args(["run", "-n", "3", "--"]).arg(env::current_exe().expect("a test"));
        command.args(["--exact", "faults::workers_with_a_fault", "--nocapture"]).env(PLAYED, fault);
        let output = Launch::of(command).finish();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let status = if fault == "kill" { 128 + 9 } else { 1 };
        assert_eq!(output.status.code(), Some(status), "{fault}: {stderr}");
        let last = stderr.lines().rfind(|line| line.contains("(pid ")).unwrap_or_default();
        let what = last.strip_prefix("consonance: worker 1 (pid ").and_then(|rest| rest.split_once("): "));
        what.unwrap_or_else(|| panic!("{fault}: {stderr}")).1.to_owned()
    };
    // Most of the time is that of deadlines.
    thread::scope(|scope| {
        let runs: Vec<_> = (0..RUNS).map(|_| scope.spawn(run)).collect();
        runs.into_iter().map(|run| run.join().expect("the right last line")).collect()
    })
}

/// Returns whether a last line names another worker, too, as the one that failed.
fn names_another_failure(line: &str, culprit: &str) -> bool {
    let other = line.strip_prefix(culprit).and_then(|rest| rest.strip_prefix("; worker "));
    other.is_some_and(|other| other.starts_with(['0', '2']) && other.ends_with("): exit status 1"))
}

#[test]
fn a_worker_with_an_error_of_its_own_or_a_signal_is_named() {
    let failed = ["error", "panic", "late message"].map(|fault| (fault, "exit status 1"));
    for (fault, end) in failed.into_iter().chain([("kill", "killed by SIGKILL")]) {
        last_lines(fault).iter().for_each(|line| assert_eq!(line, end, "{fault}"));
    }
}

#[test]
fn a_worker_with_a_different_call_is_named() {
    for line in last_lines("shape") {
        assert_eq!(line, "exit status 1; named by the others: its call differs from theirs");
    }
}

#[test]
fn a_worker_leaving_with_status_0_is_named() {
    for fault in ["exit", "return", "forget"] {
        for line in last_lines(fault) {
            let culprit = "left with status 0 before a call of the others";
            assert!(names_another_failure(&line, culprit), "{fault}: {line}");
        }
    }
}

#[test]
fn a_stopped_worker_is_named() {
    for line in last_lines("stop") {
        let culprit = "stopped; named by the others: it did not come before a deadline";
        assert!(names_another_failure(&line, culprit), "{line}");
    }
}

#[test]
fn a_worker_late_for_the_others_deadline_is_named_as_running() {
    for line in last_lines("sleep") {
        let culprit = "still ran; named by the others: it did not come before a deadline";
        assert!(names_another_failure(&line, culprit), "{line}");
    }
}

/// The workers of [`last_lines`].
#[test]
fn workers_with_a_fault() {
    if let Ok(fault) = env::var(PLAYED) {
        let status = match train_with(&fault) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("{error}");
                1
            }
        };
        process::exit(status);
    }
}

/// Waits in a group that has the size of the launch, but whose ranks are both of this process.
fn form_a_private_group() -> consonance::Result<()> {
    let id = consonance::UniqueId::new()?;
    let join = |rank| consonance::ProcessGroup::with_id(&id, rank, 2).join().map(drop);
    thread::scope(|scope| {
        let first = scope.spawn(|| join(0));
        thread::sleep(Duration::from_millis(2500));
        join(1).and(first.join().expect("no panic"))
    })
}

/// Worker 1 waits for a message in vain, and fails of something else later.
fn wait_for_a_message() -> consonance::Result<()> {
    let mut group = consonance::ProcessGroup::from_env()?.join()?;
    let mut communicator = group.communicators().remove(0);
    if communicator.rank() == 1 {
        let mailbox = communicator.mailbox()?;
        let late = mailbox.recv(&mut [0u8][..], Some(0), 0, Some(Duration::from_millis(100)));
        assert!(matches!(late, Err(consonance::Error::Timeout { .. })), "{late:?}");
        return Err(consonance::Error::other("no more data"));
    }
    thread::sleep(LIMIT);
    Ok(())
}

fn train_with(fault: &str) -> consonance::Result<()> {
    use consonance::{CommunicationOptions, Error, MultiWorkerMirroredStrategy, Tensor};

    match fault {
        "private group" => return form_a_private_group(),
        "late message" => return wait_for_a_message(),
        _ => {}
    }
    let seconds = if ["stop", "sleep"].contains(&fault) { 3 } else { 20 };
    let options = CommunicationOptions::new().timeout(Duration::from_secs(seconds))?;
    let strategy = MultiWorkerMirroredStrategy::from_environment()?.options(options).build()?;
    let faulty = strategy.local_replicas().start == 1;
    for step in 0..6 {
        let fault = if faulty && step == 3 { fault } else { "" };
        strategy.run(|replica| {
            let count = if fault == "shape" { 3 } else { 2 };
            match fault {
                "error" => return Err(Error::other("no more data")),
                "panic" => panic!("a fault"),
                "kill" => end_by(Signal::KILL),
                "stop" => end_by(Signal::STOP),
                "sleep" => thread::sleep(LIMIT),
                "exit" => process::exit(0),
                "return" | "forget" => return Ok(()),
                _ => {}
            }
            replica.all_reduce("sum", Tensor::from(vec![1.0f32; count])).map(drop)
        })?;
        if fault == "return" {
            return Ok(());
        }
    }
    Ok(())
}

/// Sends this process a signal, and waits: this thread may run on until the signal arrives.
fn end_by(signal: Signal) {
    kill_process(getpid(), signal).expect("a process");
    thread::sleep(LIMIT);
}

/// Returns the command that launches two workers with these options. `before` is a shell's part
/// before the worker joins.
fn joining(options: &str, before: &str) -> Command {
    let program = env::current_exe().expect("a test");
    let script = format!("{before}; exec {} --exact faults::workers_with_a_fault --nocapture", program.display());
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "-n", "2"]).args(options.split_whitespace()).args(["--", "sh", "-c", &script]);
    command.env(PLAYED, "none");
    command
}

/// Returns whether a line of the launcher says that worker 1 never joined, and ends so.
fn says_never_joined(line: &str, end: &str) -> bool {
    let what = line.strip_prefix("consonance: worker 1 (pid ").and_then(|rest| rest.split_once(") "));
    what.is_some_and(|(_, what)| what == format!("ended with status 0 and never joined; worker 0 waits for it{end}"))
}

#[test]
fn an_end_before_joining_ends_the_others() {
    let output = Launch::of(joining("", "[ $RANK = 1 ] && exit 0")).finish();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(says_never_joined(stderr.lines().last().unwrap_or_default(), ""), "{stderr}");
}

#[test]
fn a_wait_in_a_private_group_is_for_no_worker() {
    let mut command = joining("", "[ $RANK = 1 ] && exit 0");
    command.env(PLAYED, "private group");
    let output = Launch::of(command).finish();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn an_end_before_joining_is_reported_once_if_the_others_go_on() {
    let mut launch = Launch::of(joining("--keep-going", "[ $RANK = 1 ] && exit 0"));
    let mut line = launch.error();
    while !line.starts_with("consonance: ") {
        line = launch.error();
    }
    assert!(says_never_joined(&line, "; the others go on"), "{line}");
    assert!(launch.child.try_wait().expect("a child").is_none(), "the other goes on");
}

#[test]
fn an_end_before_joining_leads_to_an_allowed_replacement() {
    let before = "[ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && exit 0";
    let output = Launch::of(joining("--max-restarts 1", before)).finish();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let own: Vec<&str> = stderr.lines().filter(|line| line.starts_with("consonance: worker 1 (pid ")).collect();
    let [line] = own[..] else { panic!("{stderr}") };
    let (why, replaced) = line.rsplit_once("; pid ").expect("a replacement");
    assert!(says_never_joined(why, "") && replaced.ends_with(" replaces it (restart 1 of 1)"), "{stderr}");
}
