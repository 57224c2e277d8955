//! Strategies whose workers an MPI's launcher starts, and whose data that MPI carries. All are on
//! this host, and meet at its addresses. Each MPI that is here takes part.

use super::{
    CONSONANCE, LIMIT,
    strategies_on_hosts::{self, say, sum, sum_of_threads},
};
use consonance::{MultiWorkerMirroredStrategy, ReduceOp};
use rustix::time::{ClockId, clock_gettime};
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, iter,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Set to the scene in a worker that is a process of this program.
const SCENE: &str = "CONSONANCE_TEST_MPI";

const NAME: &str = "mpi::a_worker_of_a_scene";

/// Sets the cluster by the launcher's rank, and runs a worker whose words go to a file.
const WORKER: &str = r#"rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
export TF_CONFIG="{\"cluster\":{\"worker\":[$TEST_ADDRESSES]},\"task\":{\"type\":\"worker\",\"index\":$rank}}"
exec "$@" > "$TEST_FOLDER/$rank" 2>&1"#;

/// An MPI: its launcher and its library.
struct Mpi {
    launcher: PathBuf,
    is_open_mpi: bool,
    /// The library, if the loader does not find it.
    library: Option<PathBuf>,
}

/// Finds all MPIs; says that tests are skipped if there is none.
fn all() -> Vec<Mpi> {
    let path = env::var_os("PATH").unwrap_or_default();
    let environment = env::var_os("VIRTUAL_ENV").map(|root| Path::new(&root).join("bin"));
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    for folder in env::split_paths(&path).chain(environment) {
        for name in ["mpiexec.hydra", "mpirun.openmpi", "mpirun"] {
            // It goes by the name that it is called by.
            let launcher = folder.join(name);
            if !launcher.canonicalize().is_ok_and(|file| seen.insert(file)) {
                continue;
            }
            let Ok(output) = Command::new(&launcher).arg("--version").output() else { continue };
            let version = String::from_utf8_lossy(&output.stdout).into_owned();
            let is_open_mpi = version.contains("Open MPI");
            if !(is_open_mpi || version.contains("HYDRA")) {
                continue;
            }
            // A wheel has it beside its launcher.
            let beside = ["libmpi.so.12", "libmpi_abi.so.1"].map(|name| folder.join("../lib").join(name));
            let beside: Vec<PathBuf> = beside.into_iter().filter(|library| !is_open_mpi && library.exists()).collect();
            match beside.is_empty() {
                true => all.push(Mpi { launcher, is_open_mpi, library: None }),
                false => all.extend(beside.into_iter().map(|library| Mpi {
                    launcher: launcher.clone(),
                    is_open_mpi,
                    library: Some(library),
                })),
            }
        }
    }
    if all.is_empty() {
        println!("skipped: workers over MPI: no mpirun of Open MPI and no mpiexec.hydra is here");
    }
    all
}

/// Returns ports at which nobody listens now, of a block that belongs to this process. They are
/// below those that the system chooses for connections: workers also listen again.
fn free_ports() -> [u16; 4] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const BLOCK: u16 = 200;
    let first = (std::process::id() % 90) as u16 * BLOCK;
    [(); 4].map(|()| {
        let ports = iter::repeat_with(|| 12_000 + first + NEXT.fetch_add(1, Ordering::Relaxed) % BLOCK);
        ports.into_iter().find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()).expect("a port is free")
    })
}

impl Mpi {
    /// Plays a scene with four workers. Returns the lines of each, and whether the launcher takes
    /// the program for a success.
    fn play(&self, test: &str, variable: &str, scene: &str) -> (BTreeMap<usize, Vec<String>>, bool) {
        let ports = free_ports();
        let number = ports[0];
        let addresses = ports.map(|port| format!("\"127.0.0.1:{port}\""));
        let folder = env::temp_dir().join(format!("consonance-mpi-{}-{number}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let mut command = Command::new("timeout");
        command.arg("60").arg(&self.launcher);
        if self.is_open_mpi {
            command.args(["--allow-run-as-root", "--oversubscribe"]);
        }
        if scene.starts_with("seed") || scene.starts_with("left") {
            // The end of a process ends no other one.
            command.arg(if self.is_open_mpi { "--enable-recovery" } else { "-disable-auto-cleanup" });
        }
        command.args(["-n", "4", "sh", "-c", WORKER, "sh"]).arg(env::current_exe().expect("a test"));
        command.args(["--exact", test, "--nocapture"]).env(variable, scene).env("CONSONANCE_WIRE", "mpi");
        command.env("TEST_ADDRESSES", addresses.join(",")).env("TEST_FOLDER", &folder);
        if let Some(library) = &self.library {
            command.env("CONSONANCE_MPI", library);
        }
        let output = command.output().expect("the launcher runs");
        let lines = (0..4).map(|rank| {
            let text = fs::read_to_string(folder.join(rank.to_string())).unwrap_or_default();
            (rank, text.lines().filter_map(|line| line.strip_prefix("> ").map(str::to_owned)).collect())
        });
        let lines: BTreeMap<usize, Vec<String>> = lines.collect();
        _ = fs::remove_dir_all(&folder);
        let name = self.library.as_ref().unwrap_or(&self.launcher).display();
        println!("{name}, {scene}: {lines:?}\n{}", String::from_utf8_lossy(&output.stderr));
        (lines, output.status.success())
    }
}

/// Runs as one of the workers if the environment says so.
#[test]
fn a_worker_of_a_scene() {
    let Ok(scene) = env::var(SCENE) else { return };
    let strategy = MultiWorkerMirroredStrategy::from_environment().expect("a cluster").build();
    let strategy = strategy.expect("the workers meet");
    say(sum(&strategy, ReduceOp::Sum).expect("all are here"));
    if scene.ends_with("failure") {
        let is_first = strategy.local_replicas().start == 0;
        drop(strategy);
        assert!(!is_first, "the first worker fails");
        return say("left");
    }
    let time = || {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    if strategy.local_replicas().start == 0 {
        thread::sleep(Duration::from_secs(1));
    }
    let before = time();
    strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, 1.0)).expect("all are here");
    say((time() - before).as_millis());
    // A second group of a process uses the same MPI.
    drop(strategy);
    let strategy = MultiWorkerMirroredStrategy::from_environment().expect("a cluster").build();
    say(sum(&strategy.expect("the workers meet"), ReduceOp::Sum).expect("all are here"));
}

#[test]
fn workers_over_an_mpi_have_the_bits_of_one_process_and_end_as_its_programs_do() {
    let all_four = sum_of_threads(4);
    // A message that nobody receives makes the end of some MPIs a failure.
    for mpi in all().iter().flat_map(|mpi| [mpi; 4]) {
        let (played, is_success) = mpi.play(strategies_on_hosts::NAME, strategies_on_hosts::SCENE, "checkpoint");
        assert!(is_success);
        for (worker, lines) in played {
            let told = if worker == 0 { "no file" } else { "told by the chief" };
            assert_eq!(lines, [&*all_four, "restored", told, "unchanged"], "worker {worker}");
        }
    }
}

#[test]
fn a_wait_of_a_second_takes_little_processor_time_and_a_second_group_forms() {
    let all_four = sum_of_threads(4);
    for mpi in all() {
        let (played, is_success) = mpi.play(NAME, SCENE, "wait");
        assert!(is_success);
        for (worker, lines) in played {
            let [first, used, again] = &lines[..] else { panic!("worker {worker}: {lines:?}") };
            assert_eq!([first, again], [&all_four; 2], "worker {worker}");
            let used: u64 = used.parse().expect("ms");
            assert!(used < 200, "worker {worker}: {used} ms");
        }
    }
}

#[test]
fn a_failed_worker_waits_for_no_other_one() {
    for mpi in all() {
        let begin = Instant::now();
        let (_, is_success) = mpi.play(NAME, SCENE, "failure");
        assert!(!is_success && begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
    }
}

#[test]
fn the_end_of_a_failed_worker_is_waited_for_by_none_also_if_its_launcher_lets_the_others_live() {
    for mpi in all() {
        let begin = Instant::now();
        let (played, _) = mpi.play(NAME, SCENE, "left by a failure");
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        for (worker, lines) in played.iter().filter(|(worker, _)| **worker != 0) {
            assert_eq!(lines.last().map(String::as_str), Some("left"), "worker {worker}");
        }
    }
}

#[test]
fn workers_have_no_variables_of_an_outer_launcher_of_an_mpi() {
    let inherited =
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_FD", "PMIX_RANK", "MPI_LOCALNRANKS"];
    let mut command = Command::new(CONSONANCE);
    command.args(["run", "-n", "2", "--", "env"]).envs(inherited.map(|name| (name, "1"))).env("OMPI_MCA_btl", "self");
    let output = command.output().expect("the command runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = |name: &str| text.matches(&format!("{name}=")).count();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(inherited.map(lines), [0; 6], "{text}");
    assert_eq!(["TF_CONFIG", "OMPI_MCA_btl"].map(lines), [2; 2], "{text}");
}

#[test]
fn a_worker_killed_over_an_mpi_is_named_within_a_second_and_the_others_go_on() {
    let left = sum_of_threads(3);
    for mpi in all() {
        if !mpi.is_open_mpi {
            // Seen: Hydra 5.0.2 itself ends by a signal after the end of a process, also of a C
            // program, and ends the other processes then.
            println!("skipped: {} ends the processes that are left", mpi.launcher.display());
            continue;
        }
        for seed in [1, 2, 3] {
            let (played, _) = mpi.play(strategies_on_hosts::NAME, strategies_on_hosts::SCENE, &format!("seed {seed}"));
            let killed = |(worker, said): (&usize, &Vec<String>)| {
                Some((*worker, said.first()?.strip_prefix("at ")?.parse::<u64>().ok()?))
            };
            let (victim, at) = played.iter().find_map(killed).expect("one is killed");
            for worker in (0..4).filter(|worker| *worker != victim) {
                let [heard, sum] = &played[&worker][..] else { panic!("worker {worker}: {played:?}") };
                let (when, what) = heard.split_once(' ').expect("a time");
                assert_eq!((what, sum), (&*format!("lost {victim}"), &left), "worker {worker}");
                let waited = when.parse::<u64>().expect("a time").saturating_sub(at);
                assert!(waited < 1_000_000_000, "worker {worker}: {waited} ns");
            }
        }
    }
}
