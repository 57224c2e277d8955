//! `consonance soak`, for a short time.

#![cfg(target_os = "linux")]

use std::{
    fs,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

const CONSONANCE: &str = env!("CARGO_BIN_EXE_consonance");

fn soak(arguments: &[&str]) -> Output {
    Command::new(CONSONANCE).arg("soak").args(arguments).output().expect("the command")
}

#[track_caller]
fn report(arguments: &[&str]) -> String {
    let output = soak(arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    text
}

/// The first two rounds of this seed have a kill each, so that a slow machine reaches them, too.
#[test]
fn results_are_right_beside_kills_and_stops() {
    let text = report(&["--seconds", "3", "--processes", "3", "--replicas", "2", "--seed", "338"]);
    assert!(text.starts_with("seed 338, 3 processes of 2 ranks, for 3 s\n"), "{text}");
    assert!(text.ends_with("every result as the spec says\n") && !text.contains(" 0 kills"), "{text}");
}

/// Over the network that joins two hosts, where this machine can play them.
#[test]
fn results_are_right_on_two_hosts_beside_kills_and_stops() {
    let played = ["--hosts", "2", "--seconds", "1", "--processes", "2", "--no-faults"];
    let output = soak(&played);
    if !output.status.success() {
        println!("skipped: a soak of two hosts: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let text = report(&["--hosts", "2", "--seconds", "6", "--processes", "3", "--seed", "338"]);
    assert!(text.starts_with("seed 338, 3 processes of 1 rank on 2 hosts, for 6 s\n"), "{text}");
    assert!(text.ends_with("every result as the spec says\n") && !text.contains(" 0 kills"), "{text}");
    let cable = ["--cable", "delay=1ms,spread=1ms,loss=0.005,cut=300ms,every=2s,seed=5"];
    let output = soak(&[&["--hosts", "2", "--seconds", "6", "--processes", "3", "--seed", "338"], &cable[..]].concat());
    let [text, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    if error.contains("/dev/net/tun") {
        println!("skipped: a soak over cables: {error}");
        return;
    }
    assert!(output.status.success() && text.ends_with("every result as the spec says\n"), "{text}{error}");
}

/// The first three schedules of this seed have kills, joins and resizes.
#[test]
fn trainings_with_grains_end_with_one_digest_beside_kills_joins_and_resizes() {
    let text = report(&["--grains", "--schedules", "3", "--seed", "3"]);
    assert!(text.starts_with("seed 3, 9 grains on 1 to 8 replicas\n"), "{text}");
    assert!(
        text.contains("3 schedules: ") && text.ends_with("; every digest as undisturbed on one replica\n"),
        "{text}"
    );
    assert!([": 0 kills", ", 0 joins", ", 0 resizes"].iter().all(|none| !text.contains(none)), "{text}");
}

/// A kill that the soak did not make is a failure of its schedule.
#[test]
fn a_failed_schedule_names_the_command_to_repeat_it() {
    let mut command = Command::new(CONSONANCE);
    command.args(["soak", "--grains", "--seconds", "100", "--seed", "5"]);
    let mut soak = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command");
    let children = format!("/proc/{0}/task/{0}/children", soak.id());
    // A process may end, or be killed by the soak, before it is killed here.
    while soak.try_wait().expect("a child").is_none() {
        if let Some(worker) = fs::read_to_string(&children).unwrap_or_default().split_whitespace().next() {
            Command::new("kill").args(["-KILL", worker]).stderr(Stdio::null()).status().expect("a shell's tool");
        }
        thread::sleep(Duration::from_millis(1));
    }
    let output = soak.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("consonance: schedule ") && text.contains(": worker["), "{text}");
    assert!(text.contains("to repeat it: consonance soak --grains --seed 5 --round "), "{text}");
}

/// The first jobs of this seed have all kinds of faults.
#[test]
fn effects_happen_once_beside_kills_stops_and_recoveries() {
    let text = report(&["--servers", "--jobs", "3", "--seed", "7"]);
    assert!(text.starts_with("seed 7, jobs with 1 to 3 workers and servers\n3 jobs, "), "{text}");
    assert!(text.ends_with(" recoveries; every effect once\n"), "{text}");
    assert!(
        [": 0 kills", ", 0 stops", ", 0 kills", ", 0 recoveries"].iter().all(|none| !text.contains(none)),
        "{text}"
    );
}

#[test]
fn no_process_is_killed_without_faults() {
    let text = report(&["--seconds", "1", "--processes", "2", "--no-faults"]);
    assert!(text.contains(", 2 processes of 1 rank, for 1 s\n"), "{text}");
    assert!(text.contains(" 0 kills, 0 pauses, 0 stops, 0 reforms,"), "{text}");
}

/// A kill that the soak did not make is a failure like any other.
#[test]
fn a_failure_names_the_command_to_repeat_it() {
    let mut command = Command::new(CONSONANCE);
    command.args(["soak", "--seconds", "100", "--processes", "2", "--seed", "5", "--no-faults"]);
    let soak = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command");
    let children = format!("/proc/{0}/task/{0}/children", soak.id());
    let worker = loop {
        let children = fs::read_to_string(&children).expect("the soak runs");
        if let [worker, _] = children.split_whitespace().collect::<Vec<_>>()[..] {
            break worker.to_owned();
        }
        thread::sleep(Duration::from_millis(1));
    };
    let kill = Command::new("kill").args(["-KILL", &worker]).status().expect("a shell's tool");
    assert!(kill.success());
    let output = soak.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("consonance: round ") && text.contains(&worker), "{text}");
    assert!(text.contains("to repeat it: consonance soak --processes 2 --replicas 1 --seed 5 --round "), "{text}");
}

#[test]
fn invalid_arguments_are_refused() {
    for arguments in [
        &["--seconds", "0"][..],
        &["--seconds", "1", "--processes", "17"],
        &["--replicas", "1"],
        &["--schedules", "1"],
        &["--grains"],
        &["--grains", "--schedules", "1", "--replicas", "2"],
        &["--jobs", "1"],
        &["--servers"],
        &["--servers", "--grains", "--jobs", "1"],
        &["--servers", "--jobs", "1", "--no-faults"],
        &["--servers", "--jobs", "1", "--cable", "loss=1"],
        &["--grains", "--schedules", "1", "--cable", "loss=1"],
        &["--seconds", "1", "--cable", "loss=1"],
    ] {
        let output = soak(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--"), "{arguments:?}");
    }
}
