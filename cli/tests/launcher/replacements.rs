//! Workers on two hosts that are killed and replaced until the training is done. Take root, the
//! commands that make namespaces, and UCX.

use super::{
    CONSONANCE,
    strategies_on_hosts::{NAME, SCENE, can_cross, number, random, said_by, say},
};
use consonance::{
    CommunicationOptions, Error, MultiWorkerMirroredStrategy, ReduceOp, Result, Strategy, Tensor,
    TfConfigClusterResolver,
};
use rustix::process::{Signal, getpid, kill_process};
use std::{
    collections::BTreeMap,
    env,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

const STEPS: u64 = 150;

/// The step from which on nobody is killed: others may be done.
const LAST_KILL: u64 = STEPS - 20;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A worker that is killed: its index, the number of processes before in its place, and the time.
struct Kill {
    worker: u64,
    before: u64,
    after: Duration,
}

/// Returns the kills of a seed. One worker at least is never killed, so one has the state.
fn kills(seed: u64) -> Vec<Kill> {
    let mut next = random(seed);
    let mut workers: Vec<u64> = (0..4).collect();
    let mut kill = |worker, before, most| Kill { worker, before, after: Duration::from_micros(next() % most) };
    if seed.is_multiple_of(3) {
        // All workers of a host at once.
        let first = kill(2 * (seed / 3 % 2), 0, 150_000);
        return vec![Kill { worker: first.worker + 1, ..first }, first];
    }
    let mut kills = Vec::new();
    for _ in 0..1 + seed % 3 {
        let at = kill(0, 0, 4).after.as_micros() as usize % workers.len();
        let worker = workers.swap_remove(at);
        kills.push(kill(worker, 0, 150_000));
        if seed.is_multiple_of(2) {
            // The replacement, too: while it waits, or later.
            kills.push(kill(worker, 1, 600_000));
        }
    }
    kills
}

type State = (u64, Tensor);

/// Trains with the others until all steps are done, and dies as the seed says.
pub(super) fn work(seed: u64) {
    let variable = |name: &str| number(name).expect("the launcher's");
    let (worker, before) = (variable("RANK"), variable("TORCHELASTIC_RESTART_COUNT"));
    let step = Arc::new(AtomicU64::new(0));
    let die = || {
        for kill in kills(seed).into_iter().filter(|kill| (kill.worker, kill.before) == (worker, before)) {
            let step = step.clone();
            thread::spawn(move || {
                thread::sleep(kill.after);
                if step.load(Ordering::Relaxed) < LAST_KILL {
                    say("killed");
                    kill_process(getpid(), Signal::KILL).expect("this process");
                }
            });
        }
    };
    if before > 0 {
        die();
    }
    let options = CommunicationOptions::new().timeout(TIMEOUT).expect("a timeout");
    let strategy = MultiWorkerMirroredStrategy::from_environment().expect("a cluster").options(options);
    let strategy = strategy.meeting(|group| group.timeout(TIMEOUT)).build().expect("the workers meet");
    if before == 0 {
        die();
    }
    let mut state = first();
    while let Err(error) = train(&strategy, &mut state, &step, Duration::from_millis(2)) {
        if error.is_loss() {
            strategy.reform(TIMEOUT).unwrap_or_else(|error| panic!("{error}"));
        } else {
            assert!(matches!(error.root(), Error::Aborted { .. }), "{error}");
        }
    }
    say(result(&state, &strategy));
}

fn first() -> State {
    (0, Tensor::from(vec![1.0f32; 1000]))
}

fn result((_, data): &State, strategy: &Strategy) -> String {
    let data = data.as_slice::<f32>().expect("floats");
    let digest = data.iter().fold(0u64, |digest, sum| digest.rotate_left(7) ^ u64::from(sum.to_bits()));
    format!("{digest:016x} of {}", strategy.num_replicas_in_sync())
}

/// Goes on from the newest state of all.
fn train(strategy: &Strategy, state: &mut State, done: &AtomicU64, pause: Duration) -> Result<()> {
    let states = strategy.run(|replica| {
        let steps = replica.all_gather(Tensor::from([state.0]), 0)?;
        let steps = steps.as_slice::<u64>()?;
        let newest = (0..steps.len()).max_by_key(|&id| steps[id]).unwrap_or(0);
        replica.broadcast(state.clone(), newest)
    })?;
    *state = states.values()[0].clone();
    while state.0 < STEPS {
        done.store(state.0, Ordering::Relaxed);
        let sums = strategy.run(|replica| {
            let own = (replica.replica_id_in_sync_group() + 1) as f32 * 0.3;
            let data: Vec<f32> = state.1.as_slice::<f32>()?.iter().map(|last| last * 0.7 + own).collect();
            replica.all_reduce(ReduceOp::Mean, Tensor::from(data))
        })?;
        *state = (state.0 + 1, sums.values()[0].clone());
        thread::sleep(pause);
    }
    Ok(())
}

/// Plays rounds of kills: `play` starts two workers on each of two hosts with these options and
/// this scene, and returns the lines of each worker. `CONSONANCE_TEST_KILLS` is the number of
/// rounds, `CONSONANCE_TEST_SEED` the first seed.
pub(super) fn check(rounds: u64, play: impl Fn(&str, &str) -> BTreeMap<usize, Vec<String>>) {
    let alone = TfConfigClusterResolver::from_text("{}").expect("no cluster");
    let alone = MultiWorkerMirroredStrategy::builder(alone).replicas(4).build().expect("one worker");
    let mut state = first();
    train(&alone, &mut state, &AtomicU64::new(0), Duration::ZERO).expect("nobody is killed");
    let expected = result(&state, &alone);
    let (rounds, first) =
        (number("CONSONANCE_TEST_KILLS").unwrap_or(rounds), number("CONSONANCE_TEST_SEED").unwrap_or(1));
    let mut killed = 0;
    for seed in first..first + rounds {
        // A new process that meets the others while one of them is killed fails, and another one is
        // started.
        let restarts = 2 * kills(seed).len() + 2;
        let said = play(&format!("--max-restarts {restarts}"), &format!("replaced {seed}"));
        for worker in 0..4 {
            let last = said.get(&worker).and_then(|lines| lines.last());
            assert_eq!(last, Some(&expected), "seed {seed}, worker {worker}");
        }
        killed += said.values().flatten().filter(|line| *line == "killed").count();
    }
    println!("{killed} workers were killed in {rounds} rounds");
    assert!(killed as u64 >= rounds, "each first process of a round that is to be killed is");
}

#[test]
fn killed_workers_of_two_hosts_are_replaced_and_the_bits_stay() {
    if !can_cross() {
        return;
    }
    check(4, |options, scene| {
        let mut command = Command::new(CONSONANCE);
        command.args(["run", "--hosts", "2", "-n", "2", "--timeout", "60"]).args(options.split(' ')).arg("--");
        command.arg(env::current_exe().expect("a test")).args(["--exact", NAME, "--nocapture"]);
        command.env(SCENE, scene);
        said_by(command, scene)
    });
}
