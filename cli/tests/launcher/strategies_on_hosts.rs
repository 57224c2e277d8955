//! Strategies whose workers are on two hosts that this machine plays: bits, faults, and the groups
//! of those that are left. Take root, the commands that make namespaces, and UCX.

use super::{CONSONANCE, Launch, hosts::can_play, reforms, replacements, until};
use consonance::{
    CommunicationOptions, Error, MultiWorkerMirroredStrategy, ProcessGroup, ReduceOp, Tensor, UniqueId, checkpoint,
};
use rustix::{
    process::{Signal, getpid, kill_process},
    time::{ClockId, clock_gettime},
};
use std::{
    collections::BTreeMap,
    env, fs,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Set to the scene in a worker that is a process of this program.
pub(super) const SCENE: &str = "CONSONANCE_TEST_ACROSS";

pub(super) const NAME: &str = "strategies_on_hosts::a_worker_of_a_scene";

/// More than one message of UCX, and more than one of ours.
const ELEMENTS: usize = 100_000;

/// Returns whether this process may play hosts with a wire; otherwise says that a test is skipped.
pub(super) fn can_cross() -> bool {
    let wire = consonance::raw::Wire::open(None);
    if let Err(absent) = &wire {
        println!("skipped: workers on several hosts: {absent}");
    }
    wire.is_ok() && can_play()
}

/// Plays a scene with two hosts of two workers each. Returns the lines of each worker.
pub(super) fn play(scene: &str) -> BTreeMap<usize, Vec<String>> {
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "--hosts", "2", "-n", "2", "--keep-going", "--timeout", "20", "--"]);
    command.arg(env::current_exe().expect("a test")).args(["--exact", NAME, "--nocapture"]).env(SCENE, scene);
    said_by(command, scene)
}

/// Returns the lines of each worker of a launch.
pub(super) fn said_by(command: Command, scene: &str) -> BTreeMap<usize, Vec<String>> {
    let output = Launch::of(command).finish();
    let mut lines = BTreeMap::<usize, Vec<String>>::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let said = line.strip_prefix("[worker ").and_then(|line| line.split_once("] > "));
        if let Some((worker, said)) = said {
            lines.entry(worker.parse().expect("a number")).or_default().push(said.to_owned());
        }
    }
    println!("{scene}: {lines:?}\n{}", String::from_utf8_lossy(&output.stderr));
    lines
}

/// Returns the contribution of a replica. The sum of all depends on the order of the additions.
fn brings(replica: usize) -> Tensor {
    let data: Vec<f32> = (0..ELEMENTS).map(|place| (1.0 + replica as f32 * 1e-3) / (place as f32 + 0.1)).collect();
    Tensor::from(data)
}

/// Returns a digest of the bits of the sum over all replicas.
pub(super) fn sum(strategy: &MultiWorkerMirroredStrategy, op: ReduceOp) -> consonance::Result<String> {
    let sums = strategy.run(|replica| replica.all_reduce(op, brings(replica.replica_id_in_sync_group())))?;
    let data = sums.values()[0].as_slice::<f32>().expect("floats").to_vec();
    let digest = data.iter().fold(0u64, |digest, sum| digest.rotate_left(7) ^ u64::from(sum.to_bits()));
    Ok(format!("{digest:016x} of {}", strategy.num_replicas_in_sync()))
}

pub(super) fn in_words(error: &Error) -> String {
    match error {
        Error::Left { replica, lost: true, .. } | Error::Aborted { replica, lost: true, .. } => {
            format!("lost {replica}")
        }
        Error::Mismatch { replica, argument, .. } => format!("mismatch of {replica} in {argument}"),
        Error::Timeout { missing, .. } => format!("late {:?}", missing.iter().map(|late| late.0).collect::<Vec<_>>()),
        Error::Aborted { replica, .. } => format!("aborted by {replica}"),
        Error::Meeting { missing, .. } => format!("cut off from {missing:?}"),
        error => error.to_string(),
    }
}

pub(super) fn say(said: impl std::fmt::Display) {
    println!("\n> {said}");
}

/// Returns the bytes that the processes of this host have sent each other over a network.
fn on_the_loopback() -> u64 {
    let devices = fs::read_to_string("/proc/net/dev").expect("a list of devices");
    let device = devices.lines().find_map(|line| line.trim().strip_prefix("lo:")).expect("a loopback");
    device.split_whitespace().next().expect("a count").parse().expect("a number")
}

/// Joins a group by an id that rank 1 makes and passes on in a file. Returns its members and a sum.
fn by_id(path: &str) -> consonance::Result<String> {
    let rank: usize = env::var("RANK").expect("the launcher's").parse().expect("a number");
    let id = match rank {
        1 => {
            let id = UniqueId::across_hosts()?;
            fs::write(format!("{path}.new"), id.to_string()).expect("a file");
            fs::rename(format!("{path}.new"), path).expect("a file");
            id
        }
        _ => {
            until("rank 1 has made an id", || fs::exists(path).expect("a folder"));
            fs::read_to_string(path).expect("a file").parse()?
        }
    };
    let mut group = ProcessGroup::with_id(&id, rank, 4).timeout(Duration::from_secs(20))?.join()?;
    let mut sum = [1u32 << (8 * rank)];
    group.communicators().remove(0).all_reduce(ReduceOp::Sum, &mut sum)?;
    let members: Vec<String> = group.members().map(|(task, ranks)| format!("{task} {ranks:?}")).collect();
    Ok(format!("{} {:08x}", members.join(", "), sum[0]))
}

/// Makes calls of many kinds and sizes. In the middle of one the worker of the seed's choice is
/// killed; the others say who was lost and when they knew it, and sum without it.
fn die_or_go_on(seed: u64) {
    let options = CommunicationOptions::new().timeout(Duration::from_secs(10)).expect("a timeout");
    let strategy = MultiWorkerMirroredStrategy::from_environment().expect("a cluster").options(options);
    let strategy = strategy.build().expect("the workers meet");
    let (worker, size) = (strategy.local_replicas().start, strategy.num_replicas_in_sync());
    let mut next = random(seed);
    let (victim, after) = (next() as usize % size, Duration::from_micros(next() % 60_000));
    sum(&strategy, ReduceOp::Sum).expect("all are here");
    if worker == victim {
        thread::spawn(move || {
            thread::sleep(after);
            say(format_args!("at {}", nanos()));
            kill_process(getpid(), Signal::KILL).expect("this process");
        });
    }
    // A worker is killed in its time, however many calls are made before.
    let error = loop {
        let (kind, elements) = (next() % 4, 1 << (next() % 21));
        let root = next() as usize % size;
        let made = strategy.run(|replica| {
            let own = Tensor::from(vec![1.0f32; elements]);
            match kind {
                0 => replica.all_reduce(ReduceOp::Sum, own),
                1 => replica.all_gather(Tensor::from(vec![1.0f32; elements.min(1 << 18)]), 0),
                2 => replica.broadcast(own, root),
                _ => replica.all_reduce(ReduceOp::Mean, own),
            }
        });
        if let Err(error) = made {
            break error;
        }
    };
    say(format_args!("{} {}", nanos(), in_words(&error)));
    if error.is_loss() {
        let reformed = strategy.reform(Duration::ZERO).and_then(|()| sum(&strategy, ReduceOp::Sum));
        say(reformed.unwrap_or_else(|error| in_words(&error)));
    }
}

/// Returns the generator of the numbers of a seed.
pub(super) fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    // SplitMix64.
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Returns the number in a variable of the environment.
pub(super) fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// The time of the system's clock that all processes share, in ns.
fn nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Runs as one of the workers if the environment says so.
#[test]
fn a_worker_of_a_scene() {
    let Ok(scene) = env::var(SCENE) else { return };
    if let Some(path) = scene.strip_prefix("id at ") {
        return say(by_id(path).unwrap_or_else(|error| in_words(&error)));
    }
    if let Some(victim) = scene.strip_prefix("group without ") {
        return reforms::work(victim.parse().expect("a number"));
    }
    if let Some(seed) = scene.strip_prefix("replaced ") {
        return replacements::work(seed.parse().expect("a number"));
    }
    if let Some(seed) = scene.strip_prefix("seed ") {
        return die_or_go_on(seed.parse().expect("a number"));
    }
    let options = CommunicationOptions::new().timeout(Duration::from_secs(2)).expect("a timeout");
    let options = if scene == "late" { options } else { CommunicationOptions::new() };
    let strategy = MultiWorkerMirroredStrategy::from_environment().expect("a cluster").options(options);
    let strategy = strategy.build().expect("the workers meet");
    let worker = strategy.local_replicas().start;
    say(sum(&strategy, ReduceOp::Sum).expect("all are here"));
    if scene == "memory" {
        for _ in 0..9 {
            sum(&strategy, ReduceOp::Sum).expect("all are here");
        }
        return say(on_the_loopback());
    }
    if scene == "checkpoint" {
        return restore(&strategy).expect("the chief has the file");
    }
    let end = |signal| {
        // Its messages have arrived by then.
        thread::sleep(Duration::from_millis(300));
        kill_process(getpid(), signal).expect("this process");
        // Another thread may take the signal.
        thread::sleep(Duration::from_secs(60));
    };
    let (begin, is_over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    match (&*scene, worker) {
        ("mismatch", 3) => {
            return say(in_words(&sum(&strategy, ReduceOp::Max).expect_err("the others sum")));
        }
        ("death", 2) | ("host", 2 | 3) => end(Signal::KILL),
        ("late", 2) => end(Signal::STOP),
        ("cut", 2) => {
            thread::sleep(Duration::from_millis(300));
            let cut = Command::new("ip").args(["link", "set", "eth0", "down"]).status();
            assert!(cut.expect("ip runs").success());
        }
        ("break", 2) => {
            let (set, is_over) = (
                |state| Command::new("ip").args(["link", "set", "eth0", state]).status().expect("ip runs"),
                is_over.clone(),
            );
            thread::spawn(move || {
                assert!(set("down").success());
                thread::sleep(Duration::from_secs(1));
                assert!(set("up").success());
                is_over.store(true, Ordering::Relaxed);
            });
        }
        _ => {}
    }
    if scene == "break" {
        let mut longest = Duration::ZERO;
        let mut sums = || loop {
            let (begin, is_over) = (Instant::now(), Tensor::from([u32::from(is_over.load(Ordering::Relaxed))]));
            let is_over = strategy.run(|replica| replica.all_reduce(ReduceOp::Max, is_over.clone()))?;
            let last = sum(&strategy, ReduceOp::Sum)?;
            longest = longest.max(begin.elapsed());
            if is_over.values()[0].as_slice::<u32>().expect("numbers") == [1] {
                return Ok(format!(
                    "{last}, {}",
                    if longest > Duration::from_millis(300) { "after a break" } else { "" }
                ));
            }
        };
        return say(sums().unwrap_or_else(|error: Error| in_words(&error)));
    }
    let error = loop {
        if let Err(error) = sum(&strategy, ReduceOp::Sum) {
            break error;
        }
    };
    if scene == "cut" {
        // Each side of the network takes a worker of the other one for lost.
        assert!(error.is_loss(), "{error}");
        say(if begin.elapsed() < Duration::from_secs(10) { "lost in time".to_owned() } else { error.to_string() });
    } else {
        say(in_words(&error));
    }
    if scene == "late" {
        say(error.to_string().replace('\n', " "));
    }
    if error.is_loss() {
        let reformed = strategy.reform(Duration::ZERO).and_then(|()| sum(&strategy, ReduceOp::Sum));
        let is_refused = matches!(reformed, Err(Error::Meeting { .. }));
        say(reformed.unwrap_or_else(|error| in_words(&error)));
        if is_refused {
            let sum = strategy.reform_without_majority().and_then(|()| sum(&strategy, ReduceOp::Sum));
            say(sum.unwrap_or_else(|error| in_words(&error)));
        }
    }
}

/// Restores a file that the chief alone has, and then one that none has.
fn restore(strategy: &MultiWorkerMirroredStrategy) -> consonance::Result<()> {
    let is_chief = strategy.local_replicas().start == 0;
    let weights = strategy.variable(|| brings(1))?;
    let name = format!("consonance-across-{}-{is_chief}.safetensors", std::os::unix::process::parent_id());
    let path = env::temp_dir().join(name);
    checkpoint::save(&path, [("weights", &weights)])?;
    weights.assign(brings(2))?;
    checkpoint::restore(&path, [("weights", &weights)])?;
    say(if weights.read()? == brings(1) { "restored" } else { "other values" });
    if is_chief {
        std::fs::remove_file(&path).expect("the chief has written it");
    }
    let error = checkpoint::restore(&path, [("weights", &weights)]).expect_err("there is no file");
    say(match &error {
        Error::Mismatch { replica: 0, found, .. } if found.contains("No such file") => "told by the chief",
        Error::System { .. } if is_chief => "no file",
        _ => "another error",
    });
    say(if weights.read()? == brings(1) { "unchanged" } else { "other values" });
    Ok(())
}

/// Returns what a worker says of the sum over this number of replicas, by threads of one process.
pub(super) fn sum_of_threads(replicas: usize) -> String {
    let alone = consonance::TfConfigClusterResolver::from_text("{}").expect("no cluster");
    let strategy = MultiWorkerMirroredStrategy::builder(alone).replicas(replicas).build().expect("one worker");
    sum(&strategy, ReduceOp::Sum).expect("all are here")
}

/// Plays a scene and compares the lines of each worker after the first, which is the sum of all.
fn expect(scene: &str, lines: [&[&str]; 4]) {
    let (played, all) = (play(scene), sum_of_threads(4));
    for (worker, lines) in lines.into_iter().enumerate() {
        let expected: Vec<&str> = [&*all].into_iter().chain(lines.iter().copied()).collect();
        assert_eq!(played[&worker], expected, "{scene}, worker {worker}");
    }
}

#[test]
fn another_op_on_another_host_is_blamed_on_its_worker_by_all() {
    if can_cross() {
        let played = play("mismatch");
        for worker in 0..4 {
            // A worker of which another one is ahead hears of the abort of that one.
            let last = played[&worker].last().expect("it says");
            assert!(["mismatch of 3 in op", "aborted by 3"].contains(&&**last), "worker {worker}: {last}");
        }
        let first = played.values().filter(|said| said.last().is_some_and(|last| last.starts_with("mismatch")));
        assert!(first.count() > 0);
    }
}

#[test]
fn workers_of_one_host_send_their_data_through_memory() {
    if can_cross() {
        for (worker, said) in play("memory") {
            let [_, bytes] = &said[..] else { panic!("worker {worker}: {said:?}") };
            // Ten sums, of which each takes a part of each worker's data from one to another.
            let bytes: usize = bytes.parse().expect("a number");
            assert!(bytes < ELEMENTS * size_of::<f32>(), "worker {worker}: {bytes} bytes on the loopback");
        }
    }
}

/// They meet as those of several hosts do, since none knows the number of those on its host.
#[test]
fn workers_of_one_host_alone_use_the_wire_they_ask_for() {
    const SCRIPT: &str = "ip link set lo up && ip link add eth0 type veth peer name eth1 && \
                          ip link set eth1 up && ip link set eth0 up && ip addr add 192.0.2.1/24 dev eth0 && exec \"$0\" run -n 2 --keep-going --timeout 20 -- \
                          env -u TF_CONFIG -u LOCAL_WORLD_SIZE CONSONANCE_CHIEF=192.0.2.1:4000 \"$@\"";
    if !can_cross() {
        return;
    }
    for (wire, is_asked_for) in [("", false), ("ucx", true)] {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", SCRIPT, CONSONANCE]).arg(env::current_exe().expect("a test"));
        command.args(["--exact", NAME, "--nocapture"]).env(SCENE, "memory").env("CONSONANCE_WIRE", wire);
        let played = said_by(command, "memory");
        assert_eq!(played.len(), 2);
        for said in played.values() {
            let [_, bytes] = &said[..] else { panic!("{said:?}") };
            let bytes: usize = bytes.parse().expect("a number");
            assert_eq!(bytes > ELEMENTS * size_of::<f32>(), is_asked_for, "{bytes} bytes on the loopback");
        }
    }
}

#[test]
fn workers_of_other_hosts_need_no_file_of_a_checkpoint() {
    if can_cross() {
        let told: &[&str] = &["restored", "told by the chief", "unchanged"];
        expect("checkpoint", [&["restored", "no file", "unchanged"], told, told, told]);
    }
}

#[test]
fn an_id_joins_processes_of_two_hosts() {
    if can_cross() {
        let path = env::temp_dir().join(format!("consonance-id-{}", std::process::id()));
        let played = play(&format!("id at {}", path.display()));
        _ = fs::remove_file(path);
        let expected = "rank 0 0..1, rank 1 1..2, rank 2 2..3, rank 3 3..4 01010101";
        assert!(played.len() == 4 && played.values().all(|said| said == &[expected]), "{played:?}");
    }
}

/// `CONSONANCE_TEST_KILLS` is the number of kills, `CONSONANCE_TEST_SEED` the first seed.
#[test]
fn a_worker_killed_in_any_call_is_named_by_all_others_and_they_go_on() {
    if !can_cross() {
        return;
    }
    let (kills, first) = (number("CONSONANCE_TEST_KILLS").unwrap_or(4), number("CONSONANCE_TEST_SEED").unwrap_or(1));
    let left = sum_of_threads(3);
    let mut latencies = Vec::new();
    for seed in first..first + kills {
        let played = play(&format!("seed {seed}"));
        let (victim, at) = played
            .iter()
            .find_map(|(worker, said)| Some((*worker, said[0].strip_prefix("at ")?.parse::<u64>().ok()?)))
            .unwrap_or_else(|| panic!("seed {seed}: nobody was killed: {played:?}"));
        for worker in (0..4).filter(|worker| *worker != victim) {
            let [heard, sum] = &played[&worker][..] else { panic!("seed {seed}, worker {worker}: {played:?}") };
            let (when, what) = heard.split_once(' ').expect("a time");
            assert_eq!((what, sum), (&*format!("lost {victim}"), &left), "seed {seed}, worker {worker}");
            latencies.push(when.parse::<u64>().expect("a time").saturating_sub(at));
        }
    }
    latencies.sort_unstable();
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize] as f64 / 1e6;
    println!("{kills} kills, errors after {:.1} ms (median), {:.1} (99 %), {:.1} (most)", at(0.5), at(0.99), at(1.0));
}

#[test]
fn a_killed_worker_is_named_on_all_hosts_and_the_others_go_on() {
    if can_cross() {
        let left = sum_of_threads(3);
        let lines: &[&str] = &["lost 2", &left];
        expect("death", [lines, lines, &[], lines]);
    }
}

#[test]
fn a_stopped_worker_is_named_at_the_deadline_on_all_hosts() {
    if can_cross() {
        let late: &[&str] = &["late [2]"];
        let (played, mut knows) = (play("late"), false);
        for worker in [0, 1, 3] {
            let [_, error, words] = &played[&worker][..] else { panic!("worker {worker}: {played:?}") };
            assert!([late[0], "aborted by 2"].contains(&&**error), "worker {worker}: {error}");
            // Worker 3 of its host knows, and answers in time unless the machine is busy.
            let states = [" on host1, is stopped", " on host1, is silent"];
            assert!(states.iter().any(|state| words.ends_with(state)), "worker {worker}: {words}");
            knows |= words.ends_with(states[0]);
        }
        assert!(knows, "{played:?}");
    }
}

#[test]
fn the_workers_of_one_host_go_on_after_the_end_of_all_of_another() {
    if can_cross() {
        let (played, left) = (play("host"), sum_of_threads(2));
        for worker in [0, 1] {
            let [_, lost, last] = &played[&worker][..] else { panic!("{played:?}") };
            assert!(["lost 2", "lost 3"].contains(&&**lost), "{lost}");
            assert_eq!(*last, left);
        }
    }
}

#[test]
fn a_break_of_the_network_for_a_second_ends_nothing() {
    if can_cross() {
        let all = format!("{}, after a break", sum_of_threads(4));
        let lines: &[&str] = &[&all];
        expect("break", [lines; 4]);
    }
}

#[test]
fn only_the_side_of_the_chief_goes_on_by_itself_after_a_cut_into_halves() {
    if can_cross() {
        let left = sum_of_threads(2);
        let [chief, other]: [&[&str]; 2] = [&["lost in time", &left], &["lost in time", "cut off from [0, 1]", &left]];
        expect("cut", [chief, chief, other, other]);
    }
}
