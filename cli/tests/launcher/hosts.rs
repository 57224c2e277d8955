//! `consonance run --hosts`: hosts that this machine plays. Takes root and the commands that make
//! namespaces.

use super::{CONSONANCE, Gate, Launch, on, strategies_on_hosts, until, until_gone};
use rustix::process::{Signal, geteuid};
use std::{
    collections::BTreeSet,
    env, fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{self, Command, Output},
    thread,
    time::Duration,
};

/// Set in a worker that is a process of this program.
const PLAYED: &str = "CONSONANCE_TEST_HOST";

/// Returns whether this process may make namespaces; otherwise says that a test is skipped.
pub(super) fn can_play() -> bool {
    let script = "ip link set lo up && mount -t proc proc /proc && nsenter --version";
    let unshare = ["--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "sh", "-c", script];
    let output = Command::new("unshare").args(unshare).output();
    let can = geteuid().is_root() && output.is_ok_and(|output| output.status.success());
    if !can {
        println!("skipped: hosts on this machine; run the tests as root, with iproute2 and util-linux");
    }
    can
}

/// Returns whether this machine has cables; otherwise says that a test is skipped.
fn can_plug() -> bool {
    let device = fs::File::options().read(true).write(true).open("/dev/net/tun");
    if let Err(error) = &device {
        println!("skipped: cables between hosts take the device /dev/net/tun: {error}");
    }
    device.is_ok()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the result of a launch with these options: status, standard output, standard error.
fn result(options: &str, script: &str) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Launch::shell(options, script).finish();
    (status.code(), text(&stdout), text(&stderr))
}

/// Returns the lines of an output without their prefix, in the order of the workers.
fn by_worker(stdout: &str) -> Vec<String> {
    let mut lines: Vec<(&str, &str)> = stdout.lines().filter_map(|line| line.split_once("] ")).collect();
    lines.sort_by_key(|(worker, _)| *worker);
    lines.into_iter().map(|(_, line)| line.to_owned()).collect()
}

/// The namespaces of a process.
fn namespaces(pid: i32) -> Vec<PathBuf> {
    ["net", "pid", "uts", "mnt", "ipc"]
        .iter()
        .filter_map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok())
        .collect()
}

/// Returns all processes of this machine.
fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("the system's files").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the processes that a process has started, and those that they have.
fn descendants(pid: i32) -> Vec<i32> {
    let parent = |pid: i32| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
    };
    let all = processes();
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&of) = found.get(at) {
        found.extend(all.iter().filter(|&&pid| parent(pid) == Some(of)));
        at += 1;
    }
    found.split_off(1)
}

/// Processes and namespaces of a launch, without its own.
struct Made {
    processes: Vec<i32>,
    namespaces: BTreeSet<PathBuf>,
}

impl Made {
    /// Finds what a launch of two hosts has made so far.
    fn of(launch: &Launch) -> Made {
        let own: BTreeSet<PathBuf> = namespaces(process::id() as i32).into_iter().collect();
        let processes = descendants(launch.child.id() as i32);
        let namespaces: BTreeSet<_> = processes.iter().flat_map(|&pid| namespaces(pid)).collect();
        let namespaces: BTreeSet<_> = namespaces.difference(&own).cloned().collect();
        let of_kind = |kind: &str| namespaces.iter().filter(|name| name.to_string_lossy().starts_with(kind)).count();
        // The bridge has one, too.
        assert_eq!((of_kind("net"), of_kind("pid"), of_kind("uts")), (3, 2, 2), "{namespaces:?}");
        Made { processes, namespaces }
    }

    /// Waits until nothing of it is left.
    fn until_gone(self) {
        self.processes.into_iter().for_each(until_gone);
        until("no process is in a namespace of the launch", || {
            let mut left = processes().into_iter().flat_map(namespaces);
            !left.any(|namespace| self.namespaces.contains(&namespace))
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the system's files");
        for namespace in &self.namespaces {
            assert!(!mounts.contains(&*namespace.to_string_lossy()), "{namespace:?} has a name: {mounts}");
        }
        let links = fs::read_to_string("/proc/net/dev").expect("the system's files");
        assert!(!["bridge:", "port1:", "port2:"].iter().any(|link| links.contains(link)), "{links}");
    }
}

#[test]
fn workers_of_a_host_have_its_name_address_and_ports() {
    if !can_play() {
        return;
    }
    let script = "read -r name </proc/sys/kernel/hostname; pids=$(cd /proc && echo [0-9]*); \
                  address=$(ip -4 -o address show dev eth0 | sed 's/.*inet //; s/ .*//'); devices=$(cd /sys/class/net && echo *); \
                  echo \"$name $address $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $CONSONANCE_REPLICAS $MASTER_ADDR $devices|$TF_CONFIG|$pids\"";
    let (status, stdout, stderr) = result("--hosts 2 -n 2 --replicas 3", script);
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{stdout}");
    let lines = by_worker(&stdout);
    assert_eq!(lines.len(), 4, "{stdout}");
    for (index, line) in lines.iter().enumerate() {
        let (host, local) = (index / 2, index % 2);
        let [about, config, pids] = line.split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let address = |host| format!("10.77.0.{}", host + 1);
        let expected = format!("host{host} {}/24 {index}/4 {local}/2 3 10.77.0.1 eth0 lo", address(host));
        assert_eq!(about, expected);
        // The processes of the host, not those of this machine.
        assert!(pids.starts_with("1 ") && pids.split(' ').count() < 9, "{pids}");
        let config: serde_json::Value = serde_json::from_str(config).expect("JSON");
        assert_eq!(config["task"]["index"], index);
        let workers = config["cluster"]["worker"].as_array().expect("a list");
        let workers: Vec<&str> = workers.iter().map(|worker| worker.as_str().expect("an address")).collect();
        let hosts: Vec<String> = workers.iter().map(|at| at.split(':').next().expect("a host").to_owned()).collect();
        assert_eq!(hosts, [0, 0, 1, 1].map(address));
        assert_eq!(workers.iter().collect::<BTreeSet<_>>().len(), 4, "{workers:?}");
    }
}

#[test]
fn a_worker_starts_in_the_folder_of_the_launcher() {
    if !can_play() {
        return;
    }
    let folder = env::temp_dir();
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "--hosts", "2", "-n", "1", "pwd"]).current_dir(&folder);
    let output = Launch::of(command).finish();
    let folder = folder.canonicalize().expect("a folder").display().to_string();
    assert_eq!(by_worker(&text(&output.stdout)), [folder.clone(), folder], "{output:?}");
}

/// The address of a task in `TF_CONFIG`, and the index of this one.
fn task(of: usize) -> (SocketAddr, u64) {
    let config: serde_json::Value = serde_json::from_str(&env::var("TF_CONFIG").expect("a task")).expect("JSON");
    let address = config["cluster"]["worker"][of].as_str().and_then(|address| address.parse().ok());
    (address.expect("an address"), config["task"]["index"].as_u64().expect("an index"))
}

/// Worker 0 listens at its address, and the others reach it. None reaches this machine.
fn play_a_conversation(outside: &str) -> ! {
    let (chief, index) = task(0);
    if index == 0 {
        let listener = TcpListener::bind(chief).expect("its own address");
        let mut from = BTreeSet::new();
        for _ in 0..3 {
            let (mut peer, address) = listener.accept().expect("a peer");
            let mut word = String::new();
            peer.read_to_string(&mut word).expect("a word");
            from.insert((word, address.ip().to_string()));
        }
        println!("heard {from:?}");
    } else {
        let mut peer = None;
        until("the chief listens", || {
            peer = TcpStream::connect(chief).ok();
            peer.is_some()
        });
        peer.expect("a peer").write_all(format!("hello of {index}").as_bytes()).expect("room");
    }
    let outside: SocketAddr = outside.parse().expect("an address");
    assert!(TcpStream::connect_timeout(&outside, Duration::from_millis(200)).is_err(), "{outside} is reached");
    process::exit(0)
}

#[test]
fn hosts_reach_each_other_and_nothing_else() {
    let name = "hosts::hosts_reach_each_other_and_nothing_else";
    if let Ok(outside) = env::var(PLAYED) {
        play_a_conversation(&outside);
    }
    if !can_play() {
        return;
    }
    let outside = TcpListener::bind("0.0.0.0:0").and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (outside, _listener) = outside.expect("a port");
    let play = |cable: &[&str]| {
        let mut command = Command::new(CONSONANCE);
        command.args(["run", "--hosts", "2", "-n", "2", "--timeout", "60"]).args(cable);
        command.arg("--").arg(env::current_exe().expect("a test"));
        command.args(["--exact", name, "--nocapture"]).env(PLAYED, format!("127.0.0.1:{}", outside.port()));
        let output = Launch::of(command).finish();
        let stdout = text(&output.stdout);
        let heard =
            ["1", "2", "3"].map(|of| (format!("hello of {of}"), if of == "1" { "10.77.0.1" } else { "10.77.0.2" }));
        let heard = format!("heard {:?}", BTreeSet::from(heard));
        assert!(output.status.success() && stdout.contains(&heard), "{output:?}");
    };
    // Launches at the same time have the same addresses, and do not meet.
    let cable: &[&str] = &["--cable", "delay=1ms,spread=2ms,loss=0.05,seed=3"];
    let cables: [&[&str]; 3] = [&[], &[], if can_plug() { cable } else { &[] }];
    thread::scope(|scope| cables.iter().for_each(|cable| _ = scope.spawn(|| play(cable))));
}

/// Nobody listens at the port: a host that is reached says so.
#[test]
fn no_frame_passes_a_cable_of_loss_1() {
    const CONNECT: &str = "LC_ALL=C bash -c ': </dev/tcp/10.77.0.1/9' 2>&1 | grep -m 1 -o refused || echo silent";
    if !can_play() || !can_plug() {
        return;
    }
    for (cable, said) in [("seed=1", "refused"), ("loss=1", "silent")] {
        let gate = Gate::new();
        let script = format!("{CONNECT}; {}", gate.then("exit 0"));
        let mut launch = Launch::shell(&format!("--hosts 2 -n 1 --cable {cable}"), &script);
        // Each host reaches itself: of worker 0 the first one.
        let mut lines = [launch.line(), launch.line()];
        lines.sort();
        assert_eq!(lines, ["[worker 0] refused".to_owned(), format!("[worker 1] {said}")]);
        let made = Made::of(&launch);
        gate.open();
        assert!(launch.finish().status.success());
        made.until_gone();
    }
}

#[test]
fn the_failed_worker_is_named_and_ends_the_workers_of_all_hosts() {
    if !can_play() {
        return;
    }
    // The children of the others leave their groups.
    let script = on(3, "sleep 0.5; exit 3", "setsid sleep 60 & echo ready; wait");
    let mut launch = Launch::shell("--hosts 2 -n 2", &script);
    (0..3).for_each(|_| assert!(launch.line().ends_with("ready")));
    let made = Made::of(&launch);
    let output = launch.finish();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.starts_with("consonance: worker 3 (pid ") && stderr.ends_with("): exit status 3\n"), "{stderr}");
    made.until_gone();
}

#[test]
fn nothing_is_left_of_hosts_after_a_launch() {
    if !can_play() {
        return;
    }
    let mut launch = Launch::shell("--hosts 2 -n 1", "setsid sleep 60 & echo ready; sleep 0.5");
    (0..2).for_each(|_| assert!(launch.line().ends_with("ready")));
    let made = Made::of(&launch);
    let output = launch.finish();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    made.until_gone();
}

#[test]
fn hosts_end_with_a_killed_launcher() {
    if !can_play() {
        return;
    }
    let mut launch = Launch::shell("--hosts 2 -n 2", "setsid sleep 60 & echo ready; wait");
    (0..4).for_each(|_| assert!(launch.line().ends_with("ready")));
    let made = Made::of(&launch);
    launch.signal(Signal::KILL);
    assert_eq!(launch.wait().signal(), Some(9));
    made.until_gone();
}

#[test]
fn an_absent_program_is_named() {
    if !can_play() {
        return;
    }
    let output = Command::new(CONSONANCE).args(["run", "--hosts", "2", "-n", "1", "/no/such/program"]).output();
    let output = output.expect("the launcher runs");
    let expected = "consonance: cannot start /no/such/program: No such file or directory (os error 2)\n";
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(127), expected));
}

#[test]
fn signals_reach_the_workers_of_all_hosts() {
    if !can_play() {
        return;
    }
    let script = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.02; done";
    let mut launch = Launch::shell("--hosts 2 -n 1", script);
    (0..2).for_each(|_| assert!(launch.line().ends_with("ready")));
    launch.signal(Signal::TERM);
    let output = launch.finish();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert_eq!(by_worker(&text(&output.stdout)), ["got", "got"]);
}

#[test]
fn a_replacement_is_on_the_same_host() {
    if !can_play() {
        return;
    }
    let doomed = "case $TORCHELASTIC_RESTART_COUNT in 0) kill -9 $$;; esac";
    let script = format!("read -r name </proc/sys/kernel/hostname; echo $name; {}", on(2, doomed, "sleep 0.5"));
    let (status, stdout, stderr) = result("--hosts 2 -n 2 --max-restarts 1", &script);
    assert_eq!(
        (status, by_worker(&stdout)),
        (Some(0), ["host0", "host0", "host1", "host1", "host1"].map(str::to_owned).to_vec()),
        "{stderr}"
    );
    assert!(stderr.contains("worker 2 (pid ") && stderr.contains(" replaces it (restart 1 of 1)"), "{stderr}");
}

/// A worker tells the launcher of others by the process ids of its host, which two hosts may share.
#[test]
fn a_worker_named_by_its_process_id_is_one_of_the_same_host() {
    if !can_play() {
        return;
    }
    let pids = env::temp_dir().join(format!("consonance-hosts-{}", process::id()));
    fs::create_dir(&pids).expect("a folder");
    let at = pids.display();
    let blamed = format!("echo $$ >{at}/$RANK.new; mv {at}/$RANK.new {at}/$RANK; sleep 60");
    let blames = format!(
        "until [ -e {at}/0 ] && [ -e {at}/3 ]; do sleep 0.01; done; read -r culprit <{at}/0; set -- $CONSONANCE_LAUNCHER; \
         echo \"$1 $$ blames $culprit missing\" >$3; exit 4"
    );
    let (status, _, stderr) = result("--hosts 2 -n 2", &on(1, &blames, &blamed));
    fs::remove_dir_all(&pids).expect("a folder");
    assert_eq!(status, Some(4), "{stderr}");
    let first = stderr.lines().next().unwrap_or_default();
    assert!(first.starts_with("consonance: worker 0 (pid "), "{stderr}");
}

#[test]
fn a_launcher_unable_to_play_hosts_says_how_to_mend_it() {
    let run = format!("{CONSONANCE} run --hosts 2 -n 1 -- echo started");
    let no_path = format!("PATH=/nonexistent {run}");
    if !can_play() {
        return;
    }
    for (script, expected) in [
        // The user is nobody there.
        (format!("exec unshare --user {run}"), "--hosts: expected root; `sudo` before the command gives it"),
        (no_path, "--hosts: expected the command `ip` in PATH; the package iproute2 has it"),
        (
            format!("exec setpriv --bounding-set -sys_admin {run}"),
            "--hosts: it takes root with CAP_SYS_ADMIN, as `docker run --privileged` gives; unshare: ",
        ),
    ] {
        let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
        let stderr = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), &b""[..]), "{script}: {stderr}");
        assert!(stderr.starts_with(&format!("consonance: {expected}")), "{stderr}");
    }
}

/// Processes of a host and of several find each other and name the one at fault, as without
/// `--hosts`.
#[test]
fn the_library_on_hosts_names_the_worker_at_fault() {
    if !can_play() {
        return;
    }
    let ends = [
        ("error", "exit status 1"),
        ("stop", "stopped; named by the others: it did not come before a deadline"),
        ("exit", "left with status 0 before a call of the others"),
    ];
    let several: &[[&str; 2]] = if strategies_on_hosts::can_cross() { &[["3", "1"]] } else { &[] };
    let cases = [["1", "3"]].iter().chain(several).flat_map(|hosts| ends.map(|fault| (hosts, fault)));
    for ([hosts, workers], (fault, end)) in cases {
        let mut command = Command::new(CONSONANCE);
        command.args(["run", "--hosts", hosts, "-n", workers, "--"]).arg(env::current_exe().expect("a test"));
        command.args(["--exact", "faults::workers_with_a_fault", "--nocapture"]).env(super::faults::PLAYED, fault);
        let output = Launch::of(command).finish();
        let stderr = text(&output.stderr);
        let named = stderr.lines().find(|line| line.starts_with("consonance: worker 1 (pid ")).unwrap_or_default();
        let (_, why) = named.split_once("): ").unwrap_or_else(|| panic!("{fault}: {stderr}"));
        assert!(why.starts_with(end), "{fault}: {stderr}");
    }
}
