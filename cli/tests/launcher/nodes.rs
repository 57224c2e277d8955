//! `consonance run --nodes`: one launch on each of several hosts, all of the same program. Where
//! the workers form a group, this machine plays the hosts.

use super::{CONSONANCE, Launch, replacements, strategies_on_hosts};
use std::{
    collections::BTreeMap,
    env,
    net::TcpListener,
    process::{Command, Output},
    time::{Duration, Instant},
};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns a script of which the worker of this rank runs one part, and the others run another.
fn on(rank: usize, script: &str, others: &str) -> String {
    format!("if [ $RANK = {rank} ]; then {script}; else {others}; fi")
}

/// Returns the launch of a node of two, with two shells as workers.
fn node(node: usize, options: &str, script: &str) -> Launch {
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "--nodes", "2", "--node", &node.to_string(), "--chief", "192.0.2.1:4000", "-n", "2"]);
    command.args(options.split_whitespace()).args(["--", "sh", "-c", script]);
    // Those of an earlier launch are not for these workers.
    Launch::of({
        command.env("TF_CONFIG", r#"{"cluster": {"worker": ["a:1"]}}"#).env("CONSONANCE_CHIEF", "b:2");
        command.env("CONSONANCE_JOB", "outer").env("TORCHELASTIC_RUN_ID", "outer");
        command
    })
}

#[test]
fn each_node_starts_its_part_of_the_ranks() {
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $CONSONANCE_CHIEF $MASTER_ADDR $MASTER_PORT \
                  ${TF_CONFIG-none} ${CONSONANCE_JOB-none} ${TORCHELASTIC_RUN_ID-none} ${CONSONANCE_REPLICAS-one}";
    for (at, options, job, replicas) in [(0, "", "none", "one"), (1, "--replicas 3 --job a/7", "a/7", "3")] {
        let Output { status, stdout, stderr } = node(at, options, script).finish();
        assert_eq!((status.code(), text(&stderr).as_str()), (Some(0), ""));
        let stdout = text(&stdout);
        let mut lines: Vec<&str> = stdout.lines().collect();
        lines.sort_unstable();
        let about = format!("192.0.2.1:4000 192.0.2.1 4001 none {job} none {replicas}");
        let line = |local: usize| format!("[worker {0}] {0}/4 {local}/2 {about}", 2 * at + local);
        assert_eq!(lines, [line(0), line(1)]);
    }
}

#[test]
fn the_failed_worker_of_a_node_is_named_by_its_rank() {
    let Output { status, stderr, .. } = node(1, "", &on(3, "exit 3", "sleep 60")).finish();
    let stderr = text(&stderr);
    assert_eq!(status.code(), Some(3), "{stderr}");
    assert!(stderr.starts_with("consonance: worker 3 (pid ") && stderr.ends_with("): exit status 3\n"), "{stderr}");
    let Output { status, stderr, .. } = node(1, "--timeout 300ms", &on(2, "exit 0", "sleep 60")).finish();
    assert_eq!((status.code(), text(&stderr).as_str()), (Some(124), "consonance: after 300ms worker 3 still ran\n"));
}

/// The state of a worker of another node is not known to a launch.
#[test]
fn a_named_worker_of_another_node_is_said_to_be_of_another_launch() {
    let blames = "set -- $CONSONANCE_LAUNCHER; echo \"$1 $$ waits\" >$3; echo \"$1 $$ gave-up 0\" >$3; exit 4";
    let Output { status, stderr, .. } = node(1, "", &on(2, blames, "sleep 60")).finish();
    let stderr = text(&stderr);
    assert_eq!(status.code(), Some(4), "{stderr}");
    let names = "): exit status 4; it names worker 0, of another launch: it did not come before a deadline\n";
    assert!(stderr.starts_with("consonance: worker 2 (pid ") && stderr.ends_with(names), "{stderr}");
}

#[test]
fn a_node_without_an_option_is_refused() {
    for (arguments, says) in [
        ("--nodes 2 --node 2 --chief a:1", "error: invalid value '2' for '--node <I>': expected less than 2, --nodes"),
        ("--nodes 2 --node -1 --chief a:1", "error: invalid value '-1' for '--node <I>': expected a whole number"),
        ("--nodes 0 --node 0 --chief a:1", "error: invalid value '0' for '--nodes <N>': expected a whole number"),
        ("--nodes 2 --node 0", "error: the following required arguments were not provided:\n  --chief [<HOST:PORT>]"),
        ("--nodes 2 --chief a:1", "error: the following required arguments were not provided:\n  --node <I>"),
        ("--node 0 --chief a:1", "error: the following required arguments were not provided:\n  --nodes <N>"),
        (
            "--job 7",
            "error: the following required arguments were not provided:\n  --node <I>\n  --chief [<HOST:PORT>]\n  --nodes <N>",
        ),
        ("--chief a:1", "error: an address for '--chief' is for launches on several hosts: expected '--nodes <N>'"),
        ("--nodes 2 --node 0 --chief", "error: '--chief' needs '--ps <P>', or with '--nodes <N>' an address"),
        ("--nodes 2 --node 0 --chief a", "error: invalid value 'a' for '--chief [<HOST:PORT>]': expected host:port"),
        (
            "--nodes 2 --node 0 --chief a:0",
            "error: invalid value 'a:0' for '--chief [<HOST:PORT>]': expected host:port",
        ),
        ("--nodes 2 --node 0 --chief a:65535", "error: invalid value 'a:65535' for '--chief [<HOST:PORT>]': expected"),
        (
            "--nodes 2 --node 0 --chief a:1 --hosts 2",
            "error: the argument '--nodes <N>' cannot be used with '--hosts <H>'",
        ),
        ("--nodes 9223372036854775807 --node 0 --chief a:1", "error: invalid value '9223372036854775807' for '--nodes"),
    ] {
        let mut command = Command::new(CONSONANCE);
        command.args(["run", "-n", "3"]).args(arguments.split(' ')).args(["--", "echo", "started"]);
        let output = command.output().expect("the launcher runs");
        let stderr = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""), "{arguments}: {stderr}");
        assert!(stderr.starts_with(says), "{arguments}: {stderr}");
    }
}

/// Returns the address of a chief of this machine, with a port that is free.
fn free_chief() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

/// Starts the launch of a node of two, so many of whose workers run a script, and are replaced.
fn replacing(chief: &str, node: usize, workers: usize, timeout: &str, script: &str) -> Launch {
    let (node, workers) = (node.to_string(), workers.to_string());
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "--nodes", "2", "--node", &node, "--chief", chief, "-n", &workers, "--timeout", timeout]);
    command.args(["--max-restarts", "1", "--", "sh", "-c", script]);
    Launch::of(command)
}

#[test]
fn nodes_replacing_workers_know_the_addresses_of_all() {
    let chief = free_chief();
    let says = "echo \"$TF_CONFIG\"";
    let fails = format!("{says}; [ $RANK$TORCHELASTIC_RESTART_COUNT != 20 ]");
    let launches = [replacing(&chief, 0, 2, "60", says), replacing(&chief, 1, 2, "60", &fails)];
    let mut clusters = Vec::new();
    for (launch, ranks) in launches.into_iter().zip([&[0, 1][..], &[2, 2, 3]]) {
        let Output { status, stdout, stderr } = launch.finish();
        assert_eq!(status.code(), Some(0), "{}", text(&stderr));
        let stdout = text(&stdout);
        let mut lines: Vec<&str> = stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines.len(), ranks.len(), "{lines:?}");
        for (line, rank) in lines.into_iter().zip(ranks) {
            let config = line.strip_prefix(&format!("[worker {rank}] {{\"cluster\": ")).expect("a worker");
            let task = format!(", \"task\": {{\"type\": \"worker\", \"index\": {rank}}}}}");
            clusters.push(config.strip_suffix(&task).expect("its task").to_owned());
        }
    }
    assert_eq!(clusters[0].matches("127.0.0.1:").count(), 4, "{clusters:?}");
    assert!(clusters.iter().all(|cluster| *cluster == clusters[0]), "{clusters:?}");
}

#[test]
fn nodes_not_meeting_start_no_worker() {
    let refused = |launch: Launch, says: &str| {
        let Output { status, stdout, stderr } = launch.finish();
        let (stdout, stderr) = (text(&stdout), text(&stderr));
        assert_eq!((status.code(), &*stdout), (Some(125), ""), "{stderr}");
        let last = stderr
            .lines()
            .last()
            .and_then(|line| line.strip_prefix("consonance: --nodes: the launches of the other hosts were not met: "));
        assert!(last.is_some_and(|why| why.contains(says)), "{says}: {stderr}");
    };
    let chief = free_chief();
    refused(
        replacing(&chief, 0, 2, "5", "echo started"),
        " s; these ranks have not asked for the table of addresses: 2, 3",
    );
    refused(
        replacing(&chief, 1, 2, "3", "echo started"),
        " s for the table of addresses: nobody listens at 127.0.0.1:",
    );
    refused(
        replacing("192.0.2.1:4000", 0, 2, "1", "echo started"),
        "listens at 192.0.2.1:4000: this host does not have this address",
    );
    let mut first = replacing(&chief, 0, 2, "20", "echo started");
    // It has claimed its own ranks: of two counts, the later one is refused.
    assert!(first.error().ends_with(" s for the launches of workers 2, 3"));
    refused(replacing(&chief, 1, 3, "20", "echo started"), " counts 4");
    drop(first);
}

/// Runs this test of the program with two hosts, each with a launch of its own of two workers, with
/// these options and this variable. Returns what was written.
fn on_two_nodes(options: &str, test: &str, variable: (&str, &str)) -> [String; 2] {
    let program = env::current_exe().expect("a test");
    let script = format!(
        "exec {CONSONANCE} run --nodes 2 --node $RANK --chief 10.77.0.1:4000 -n 2 {options} -- {} --exact {test} \
         --nocapture",
        program.display(),
    );
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "--hosts", "2", "-n", "1", "--keep-going", "--timeout", "60", "--", "sh", "-c", &script]);
    command.env(variable.0, variable.1);
    let output = Launch::of(command).finish();
    let written = [text(&output.stdout), text(&output.stderr)];
    println!("{variable:?}: {}\n{}", written[0], written[1]);
    written
}

/// Plays a scene on two nodes, with these options. Returns the lines of each worker.
fn play(options: &str, scene: &str) -> BTreeMap<usize, Vec<String>> {
    let [stdout, _] = on_two_nodes(options, strategies_on_hosts::NAME, (strategies_on_hosts::SCENE, scene));
    let mut lines = BTreeMap::<usize, Vec<String>>::new();
    for line in stdout.lines() {
        // Each launcher puts the worker before the line.
        let said = line.split_once("] [worker ").and_then(|(_, line)| line.split_once("] > "));
        if let Some((worker, said)) = said {
            lines.entry(worker.parse().expect("a number")).or_default().push(said.to_owned());
        }
    }
    lines
}

#[test]
fn the_workers_of_two_nodes_train_with_the_bits_of_one_process() {
    if !strategies_on_hosts::can_cross() {
        return;
    }
    let begin = Instant::now();
    let (played, all, left) =
        (play("--keep-going", "death"), strategies_on_hosts::sum_of_threads(4), strategies_on_hosts::sum_of_threads(3));
    assert!(begin.elapsed() < Duration::from_secs(20), "the workers that are left end by themselves");
    for worker in [0, 1, 3] {
        assert_eq!(played[&worker], [&*all, "lost 2", &left], "worker {worker}");
    }
    assert_eq!(played[&2], [all]);
}

#[test]
fn killed_workers_of_two_nodes_are_replaced_and_the_bits_stay() {
    if strategies_on_hosts::can_cross() {
        replacements::check(3, play);
    }
}

/// Each launch names the worker at fault, the one of another host, too.
#[test]
fn both_launches_name_the_worker_at_fault() {
    if !strategies_on_hosts::can_cross() {
        return;
    }
    for (fault, own, elsewhere) in [
        ("error", "exit status 1", "it failed"),
        ("kill", "killed by SIGKILL", "it left before a call of theirs"),
        ("shape", "exit status 1; named by the others: its call differs from theirs", "its call differs from theirs"),
    ] {
        let [_, stderr] = on_two_nodes("", "faults::workers_with_a_fault", (super::faults::PLAYED, fault));
        let says = |node: usize, ends: &str| {
            let of_node = format!("[worker {node}] consonance: worker ");
            stderr.lines().any(|line| line.starts_with(&of_node) && line.ends_with(ends))
        };
        assert!(says(0, &format!("): {own}")), "{fault}: {stderr}");
        assert!(says(1, &format!("; it names worker 1, of another launch: {elsewhere}")), "{fault}: {stderr}");
    }
}
