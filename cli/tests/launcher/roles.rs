//! Launches with a chief and parameter servers.

use super::{CONSONANCE, Gate, Launch, hosts::can_play, strategies_on_hosts::can_cross, until};
use consonance::{ClusterResolver, TfConfigClusterResolver};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Output},
};

/// A script in which each role goes on with its own text.
fn by_role(chief: &str, worker: &str, server: &str) -> String {
    format!(
        r#"case "$TF_CONFIG" in *'"type": "chief"'*) {chief} ;; *'"type": "worker"'*) {worker} ;; *) {server} ;; esac"#
    )
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("it runs");
}

/// Returns the process ids that all processes write, by their names.
fn pids(launch: &mut Launch, count: usize) -> BTreeMap<String, i32> {
    let pid = |line: String| {
        let (name, pid) = line.rsplit_once(' ').expect("a name and a pid");
        (name.to_owned(), pid.parse().expect("a pid"))
    };
    (0..count).map(|_| pid(launch.line())).collect()
}

#[test]
fn each_process_gets_the_cluster_and_its_role() {
    let script = r#"echo "$TF_CONFIG|$CONSONANCE_JOB|${RANK-none}|${MASTER_ADDR-none}""#;
    let output = Launch::shell("--chief --ps 2 -n 3", script).finish();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut found = BTreeMap::new();
    let (mut clusters, mut jobs) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let (name, rest) = line.split_once("] ").expect("a name");
        let [tf_config, job, rank, master] = rest.split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert_eq!((rank, master), ("none", "none"));
        let resolver = TfConfigClusterResolver::from_text(tf_config).expect("a cluster");
        let task = format!("{} {}", resolver.task_type().expect("a job"), resolver.task_id().expect("an index"));
        found.insert(name.trim_start_matches('[').to_owned(), task);
        clusters.push(resolver.cluster_spec().clone());
        jobs.push(job.to_owned());
    }
    let expected = [
        ("chief", "chief 0"),
        ("ps 0", "ps 0"),
        ("ps 1", "ps 1"),
        ("worker 0", "worker 0"),
        ("worker 1", "worker 1"),
        ("worker 2", "worker 2"),
    ];
    assert_eq!(found, expected.map(|(name, task)| (name.to_owned(), task.to_owned())).into());
    assert!(clusters.iter().all(|cluster| *cluster == clusters[0]) && jobs.iter().all(|job| *job == jobs[0]));
    assert!(!jobs[0].is_empty());
    let sizes = ["chief", "worker", "ps"].map(|job| clusters[0].num_tasks(job).expect("a job"));
    assert_eq!(sizes, [1, 3, 2]);
}

#[test]
fn the_launch_ends_with_its_chief() {
    let gate = Gate::new();
    let mut launch = Launch::shell(
        "--chief --ps 1 -n 2",
        &by_role(
            &gate.then("exit 0"),
            "trap 'echo asked; exit 3' TERM; echo w $$; sleep 60 & wait",
            "trap '' TERM; echo s $$; while :; do sleep 0.1; done",
        ),
    );
    let pids: Vec<i32> =
        (0..3).map(|_| launch.line().rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid")).collect();
    gate.open();
    let output = launch.finish();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).matches("asked").count(), 2);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("ps 0 did not end") && !told.contains("worker"), "{told}");
    for pid in pids {
        until("it has ended", || test_kill_process(Pid::from_raw(pid).expect("a pid")).is_err());
    }
}

#[test]
fn nobody_ending_with_the_chief_is_asked() {
    let gate = Gate::new();
    let others = gate.then("sleep 0.3; echo done");
    let launch = Launch::shell("--chief --ps 1 -n 1", &by_role(&gate.then("exit 0"), &others, &others));
    gate.open();
    let output = launch.finish();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).matches("done").count(), 2);
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_failed_chief_ends_the_launch_without_a_replacement() {
    for options in ["--chief --ps 1 -n 1", "--chief --ps 1 -n 1 --max-restarts 5", "--chief --ps 1 -n 1 --keep-going"] {
        let output = Launch::shell(options, &by_role("exit 7", "sleep 60", "sleep 60")).finish();
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("chief (pid ") && told.contains("exit status 7"), "{told}");
        assert!(!told.contains("replaces"), "{told}");
    }
}

#[test]
fn workers_and_servers_are_replaced() {
    let gate = Gate::new();
    let script = by_role(
        &gate.then("exit 0"),
        "echo w $TORCHELASTIC_RESTART_COUNT $$; sleep 60",
        "echo s $TORCHELASTIC_RESTART_COUNT $$; sleep 60",
    );
    let mut launch = Launch::shell("--chief --ps 1 -n 2 --max-restarts 2", &script);
    let first = pids(&mut launch, 3);
    assert_eq!(first.keys().collect::<Vec<_>>(), ["[ps 0] s 0", "[worker 0] w 0", "[worker 1] w 0"]);
    kill(first["[worker 1] w 0"]);
    assert_eq!(pids(&mut launch, 1).into_keys().collect::<Vec<_>>(), ["[worker 1] w 1"]);
    let told = launch.error();
    assert!(told.starts_with("consonance: worker 1 (pid ") && told.ends_with("(restart 1 of 2)"), "{told}");
    kill(first["[ps 0] s 0"]);
    assert_eq!(pids(&mut launch, 1).into_keys().collect::<Vec<_>>(), ["[ps 0] s 1"]);
    let told = launch.error();
    assert!(told.starts_with("consonance: ps 0 (pid ") && told.ends_with("(restart 2 of 2)"), "{told}");
    gate.open();
    assert_eq!(launch.finish().status.code(), Some(0));
}

#[test]
fn a_failed_server_ends_the_launch_if_no_restart_is_left() {
    let mut launch = Launch::shell(
        "--chief --ps 2 -n 1",
        &by_role("echo c $$; sleep 60", "echo w $$; sleep 60", "echo s $$; sleep 60"),
    );
    let pids = pids(&mut launch, 4);
    kill(pids["[ps 1] s"]);
    let output = launch.finish();
    assert_eq!(output.status.code(), Some(128 + 9), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.starts_with(&format!("consonance: ps 1 (pid {}): killed by SIGKILL", pids["[ps 1] s"])), "{told}");
}

#[test]
fn the_others_go_on_without_a_worker() {
    let gate = Gate::new();
    let script = by_role(&gate.then("exit 0"), "exit 4", "sleep 60");
    let mut launch = Launch::shell("--chief --ps 1 -n 1 --keep-going", &script);
    let told = launch.error();
    assert!(told.starts_with("consonance: worker 0 (pid ") && told.ends_with("the others go on"), "{told}");
    gate.open();
    assert_eq!(launch.finish().status.code(), Some(0));
}

#[test]
fn a_chief_without_servers_and_servers_without_a_chief_are_refused() {
    for (options, told) in [
        ("--chief -n 2", "needs '--ps <P>'"),
        ("--ps 2 -n 2", "--chief"),
        ("--chief localhost:5 --ps 2 -n 2", "expected '--nodes <N>'"),
        ("--chief --nodes 2 --node 0 -n 2", "needs '--ps <P>'"),
        ("--chief --ps 0 -n 2", "at least 1"),
        ("--chief --ps 1 --nodes 2 --node 0 -n 2", "cannot be used with"),
    ] {
        let output = Command::new(CONSONANCE)
            .arg("run")
            .args(options.split(' '))
            .args(["--", "true"])
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options}: {text}");
        assert!(text.contains(told), "{options}: {text}");
    }
}

#[test]
fn roles_are_dealt_to_the_hosts_of_a_launch() {
    if !can_play() {
        return;
    }
    let output = Launch::shell("--hosts 2 --chief --ps 3 -n 2", r#"echo "$(uname -n)|$TF_CONFIG""#).finish();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut hosts = BTreeMap::new();
    for line in text.lines() {
        let (name, rest) = line.split_once("] ").expect("a name");
        let (host, tf_config) = rest.split_once('|').expect("a host and a cluster");
        let resolver = TfConfigClusterResolver::from_text(tf_config).expect("a cluster");
        let (job, index) = (resolver.task_type().expect("a job"), resolver.task_id().expect("an index"));
        let address = resolver.cluster_spec().task_address(job, index).expect("the task of the process");
        let place =
            host.strip_prefix("host").expect("a host that the launch plays").parse::<usize>().expect("a number");
        assert!(address.starts_with(&format!("10.77.0.{}:", place + 1)), "{line}");
        hosts.insert(name.trim_start_matches('[').to_owned(), place);
    }
    let expected = [
        ("chief", 0),
        ("worker 0", 0),
        ("worker 1", 0),
        ("worker 2", 1),
        ("worker 3", 1),
        ("ps 0", 0),
        ("ps 1", 1),
        ("ps 2", 0),
    ];
    assert_eq!(hosts, expected.map(|(name, host)| (name.to_owned(), host)).into());
}

/// The window decides, and not where servers and workers are.
#[test]
fn a_recommender_on_two_hosts_has_the_bits_of_one_process() {
    if !can_cross() {
        return;
    }
    let example = Path::new(CONSONANCE).with_file_name("examples").join("recommender");
    let digest = |output: Output| {
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        let (_, rest) = text.split_once("digest of the tables ").expect("a digest");
        rest.lines().next().expect("a line").to_owned()
    };
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "--timeout", "60", "--hosts", "2", "-n", "1", "--chief", "--ps", "2", "--"]);
    command.arg(&example).args(["--epochs", "2"]);
    let on_hosts = digest(Launch::of(command).finish());
    let mut command = Command::new(&example);
    let alone = command.args(["--epochs", "2", "--threads"]).output().expect("the examples are built");
    assert_eq!(on_hosts, digest(alone));
}
