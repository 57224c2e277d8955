//! Workers that leave in every possible way while the others make every kind of call. The errors of
//! the others name the worker that left and no other.
//!
//! A round is a job of a few processes, one of which leaves before a step. `LEAVERS_ROUNDS` is the
//! number of rounds, `LEAVERS_SEED` the seed from which they are drawn.

use crate::{
    calls::{Calls, RAW_CALLS, Random},
    driver::{self, Job, hear, number, say},
};
use consonance::{
    CommunicationOptions, Dataset, Error, MultiWorkerMirroredStrategy, ReduceOp, Result, Strategy, Tensor,
    TfConfigClusterResolver, Variable, VariableAggregation, VariableSynchronization, checkpoint, dataset,
    dataset::{AutoShardPolicy, InputOptions},
};
use nix::sys::signal::{Signal, raise};
use std::{
    env,
    ops::Range,
    os::unix::process::CommandExt,
    process::Command,
    thread,
    time::{Duration, SystemTime},
};

/// A way to leave: its name and function. The process returns from its part with the result of the
/// function.
type Way = (&'static str, fn(&Strategy) -> Result<()>);

const WAYS: &[Way] = &[
    ("returns", |_| Ok(())),
    (STAYS, |_| Ok(())),
    ("fails", |_| Err(Error::other("as it must"))),
    ("panics", |_| panic!("as it must")),
    ("returns from a run", |strategy| strategy.run(|_| Ok(())).map(drop)),
    (FAILS_IN_A_RUN, |strategy| strategy.run(|_| Err::<(), _>(Error::other("as it must"))).map(drop)),
    (PANICS_IN_A_RUN, |strategy| strategy.run(|_| -> Result<()> { panic!("as it must") }).map(drop)),
    ("exits in a run", |strategy| strategy.run(|_| -> Result<()> { std::process::exit(3) }).map(drop)),
    ("exits", |_| std::process::exit(3)),
    ("aborts", |_| std::process::abort()),
    ("is killed", |_| raise(Signal::SIGKILL).map_err(Error::other)),
    ("executes", |_| Err(Error::other(Command::new("sleep").arg("100").exec()))),
];

/// In this way the process continues without its strategy.
const STAYS: &str = "drops its strategy";

/// In these ways the others first get the error of a failed run, after which the worker could
/// continue.
const FAILS_IN_A_RUN: &str = "fails in a run";
const PANICS_IN_A_RUN: &str = "panics in a run";

/// A call of all workers: its name, and the call.
type Call = (&'static str, fn(&Strategy, &Things) -> Result<()>);

pub(crate) const CALLS: &[Call] = &[
    ("all_reduce", |strategy, _| strategy.run(|replica| replica.all_reduce("sum", 1)).map(drop)),
    ("large all_reduce", |strategy, _| {
        strategy.run(|replica| replica.all_reduce("mean", Tensor::from(vec![1f32; 300_000]))).map(drop)
    }),
    ("all_gather", |strategy, _| strategy.run(|replica| replica.all_gather(Tensor::from([1, 2]), 0)).map(drop)),
    ("reduce_scatter", |strategy, _| {
        let part = |replica: &consonance::ReplicaContext<'_>| {
            replica.reduce_scatter("sum", Tensor::from(vec![1; replica.num_replicas_in_sync()]))
        };
        strategy.run(part).map(drop)
    }),
    ("broadcast", |strategy, _| strategy.run(|replica| replica.broadcast(1, 0)).map(drop)),
    ("barrier", |strategy, _| strategy.run(|replica| replica.barrier()).map(drop)),
    ("calls of a run", |strategy, _| {
        strategy.run(|replica| (0..5).try_for_each(|_| replica.all_reduce("sum", 1).map(drop))).map(drop)
    }),
    ("overlap", |strategy, _| {
        let overlap = |replica: &consonance::ReplicaContext<'_>| {
            replica.overlap(|buckets| {
                let gradients = [buckets.all_reduce("sum", 1f32)?, buckets.all_reduce("sum", 2f32)?];
                gradients.into_iter().try_for_each(|gradient| gradient.wait().map(drop))
            })
        };
        strategy.run(overlap).map(drop)
    }),
    ("merge_call", |strategy, _| {
        let merge = |replica: &consonance::ReplicaContext<'_>| {
            replica.merge_call(1, |strategy, all| Ok(strategy.mirror(strategy.reduce("sum", &all, None)?)))
        };
        strategy.run(merge).map(drop)
    }),
    ("assign in a replica", |strategy, things| strategy.run(|replica| replica.assign(&things.weight, 1f32)).map(drop)),
    ("reduce", |strategy, _| strategy.reduce("sum", &ones(strategy)?, None).map(drop)),
    ("gather", |strategy, _| strategy.gather(&ones(strategy)?, 0).map(drop)),
    ("reduce_to", |strategy, _| strategy.reduce_to("sum", &ones(strategy)?, "cpu:0").map(drop)),
    ("variable", |strategy, _| strategy.variable(|| Tensor::from(1f32)).map(drop)),
    ("read", |_, things| things.seen.read().map(drop)),
    #[cfg(feature = "checkpoint")]
    ("save", |_, things| checkpoint::save(&things.path, [("weight", &things.weight)])),
    #[cfg(feature = "checkpoint")]
    ("restore", |_, things| checkpoint::restore(&things.saved, [("weight", &things.weight)]).map(drop)),
    ("next step", |strategy, _| {
        let off = InputOptions::new().auto_shard_policy(AutoShardPolicy::Off);
        let steps = strategy.distribute_dataset_with(dataset::from_fn(|| (0..8).map(Tensor::from)).batch(4), off)?;
        steps.iter().try_for_each(|step| step.map(drop))
    }),
];

/// The arguments of calls.
pub(crate) struct Things {
    weight: Variable,
    seen: Variable,
    /// The path that the chief saves to.
    path: String,
    /// The path that it has saved to.
    saved: String,
}

impl Things {
    pub(crate) fn new(strategy: &Strategy) -> Result<Things> {
        let variable = |aggregation, synchronization| {
            let builder = Variable::builder(|| Tensor::from(1f32)).aggregation(aggregation);
            strategy.scope(|| builder.synchronization(synchronization).build())
        };
        let weight = variable(VariableAggregation::Mean, VariableSynchronization::Auto)?;
        let seen = variable(VariableAggregation::Sum, VariableSynchronization::OnRead)?;
        let job = env::var("CONSONANCE_JOB").map_err(Error::other)?;
        let [path, saved] = ["", "-saved"].map(|which| format!("{}/leavers-{job}{which}", env::temp_dir().display()));
        checkpoint::save(&saved, [("weight", &weight)])?;
        Ok(Things { weight, seen, path, saved })
    }
}

fn ones(strategy: &Strategy) -> Result<consonance::PerReplica<Tensor>> {
    strategy.distribute_values_from_function(|_| Tensor::from([1]))
}

/// Number of steps of the workers.
const STEPS: u64 = 6;

/// The plan of one round.
#[derive(Clone, Copy, Debug)]
struct Round {
    workers: usize,
    /// Replicas of each worker.
    replicas: usize,
    /// An index of [`CALLS`], or after those a kind of the raw layer.
    call: usize,
    way: usize,
    leaver: usize,
    /// The leaver leaves before this step.
    at: u64,
    /// Whether the other workers leave too when they get the error, or continue without the leaver.
    all_leave: bool,
    seed: u64,
}

impl Round {
    fn draw(random: &mut Random, call: usize) -> Round {
        let workers = 2 + random.below(3);
        let is_raw = call >= CALLS.len();
        Round {
            workers,
            replicas: if is_raw { 1 } else { 1 + usize::from(random.below(4) == 0) },
            call,
            way: random.below(WAYS.len()),
            leaver: random.below(workers),
            at: random.below(STEPS as usize) as u64,
            all_leave: random.below(3) == 0,
            seed: random.below(1 << 30) as u64,
        }
    }

    /// Formats the round as the words of a part.
    fn words(&self) -> String {
        let Round { workers, replicas, call, way, leaver, at, all_leave, seed } = *self;
        format!("survives {workers} {replicas} {call} {way} {leaver} {at} {} {seed}", u8::from(all_leave))
    }

    fn read(words: &[&str]) -> Round {
        let numbers: Vec<u64> = words.iter().map(|word| number(word)).collect();
        let [workers, replicas, call, way, leaver, at, all_leave, seed] = numbers[..] else { panic!("eight numbers") };
        let [workers, replicas, call, way, leaver] = [workers, replicas, call, way, leaver].map(|word| word as usize);
        Round { workers, replicas, call, way, leaver, at, all_leave: all_leave == 1, seed }
    }

    fn describe(&self) -> String {
        let call =
            CALLS.get(self.call).map_or_else(|| format!("kind {}", self.call - CALLS.len()), |call| call.0.into());
        format!("worker {} {} before step {} of {call}: {self:?}", self.leaver, WAYS[self.way].0, self.at)
    }

    /// Waits for the end of the job if the process continues after leaving.
    fn stay(&self) {
        if WAYS[self.way].0 == STAYS {
            hear();
        }
    }

    /// Returns the replicas of the worker that leaves.
    fn lost(&self) -> Range<usize> {
        self.leaver * self.replicas..(self.leaver + 1) * self.replicas
    }
}

/// The part of a worker: makes steps until one fails, then does the same as the guide's loop.
pub(crate) fn survives(words: &[&str]) -> Result<()> {
    let round = Round::read(words);
    let resolver = TfConfigClusterResolver::new()?;
    let own = consonance::ClusterResolver::task_id(&resolver).expect("a worker of a cluster");
    let mut pace = Pace(Random(round.seed + own as u64), own);
    if round.call >= CALLS.len() {
        return survives_raw(&round, pace);
    }
    let strategy = MultiWorkerMirroredStrategy::builder(resolver)
        .replicas(round.replicas)
        .options(CommunicationOptions::new().timeout(driver::LONG)?)
        .meeting(|group| group.staging_bytes(8 << 10).timeout(driver::LONG / 2))
        .build()?;
    let things = Things::new(&strategy)?;
    let mut state = (0, 0);
    loop {
        match steps(&strategy, &things, &round, &mut pace, &mut state) {
            Ok(false) => {
                drop((things, strategy));
                round.stay();
                return Ok(());
            }
            Ok(true) => break,
            Err(error) if own == round.leaver => return Err(error),
            Err(error) => {
                tell(&error);
                if round.all_leave {
                    return Ok(());
                }
                if error.is_loss() {
                    strategy.reform(Duration::ZERO)?;
                } else if !matches!(error.root(), Error::Aborted { .. }) {
                    return Err(error);
                }
            }
        }
    }
    say(&format!("done {} {}", state.0, state.1));
    Ok(())
}

/// The pauses of a worker between calls, and its index.
struct Pace(Random, usize);

impl Pace {
    fn wait(&mut self) {
        match self.0.below(4) {
            0 => thread::sleep(Duration::from_micros(self.0.below(3000) as u64)),
            1 => thread::yield_now(),
            _ => {}
        }
    }
}

/// Makes the remaining steps. Returns false if this worker has left.
fn steps(strategy: &Strategy, things: &Things, round: &Round, pace: &mut Pace, state: &mut (u64, u64)) -> Result<bool> {
    let states = strategy.run(|replica| {
        let steps = replica.all_gather(Tensor::from([state.0]), 0)?;
        let steps = steps.as_slice::<u64>()?;
        let newest = (0..steps.len()).max_by_key(|&id| steps[id]).unwrap_or(0);
        replica.broadcast(*state, newest)
    })?;
    *state = states[0];
    while state.0 < STEPS {
        pace.wait();
        if pace.1 == round.leaver && state.0 == round.at {
            return WAYS[round.way].1(strategy).map(|()| false);
        }
        CALLS[round.call].1(strategy, things)?;
        *state = (state.0 + 1, state.1 + strategy.num_replicas_in_sync() as u64);
    }
    Ok(true)
}

/// Does `survives` with communicators.
fn survives_raw(round: &Round, mut pace: Pace) -> Result<()> {
    let mut group = driver::join(1, driver::LONG)?;
    let mut state = [0, 0];
    loop {
        let mut rank = group.communicators().remove(0);
        let mut steps = || {
            // The newest step, and the count up to it.
            rank.all_reduce(ReduceOp::Max, &mut state)?;
            while state[0] < STEPS {
                pace.wait();
                if pace.1 == round.leaver && state[0] == round.at {
                    return WAYS[round.way].1(&Strategy::default_strategy()).map(|()| false);
                }
                let random = Random(round.seed ^ state[0] << 32);
                Calls { random, most: 300_000, checks: false }.call(&mut rank, round.call - CALLS.len())?;
                rank.barrier()?;
                state = [state[0] + 1, state[1] + rank.size() as u64];
            }
            Ok(true)
        };
        match steps() {
            Ok(false) => {
                drop((rank, group));
                round.stay();
                return Ok(());
            }
            Ok(true) => break,
            Err(error) if pace.1 == round.leaver => return Err(error),
            Err(error) => {
                tell(&error);
                if round.all_leave || !error.is_loss() {
                    return Ok(());
                }
                if pace.0.below(2) == 0 {
                    drop(rank);
                }
                group.reform(Duration::ZERO)?;
            }
        }
    }
    say(&format!("done {} {}", state[0], state[1]));
    Ok(())
}

/// Reports the culprit of an error.
fn tell(error: &Error) {
    match error.root() {
        Error::Left { replica, lost, .. } | Error::Aborted { replica, lost, .. } => {
            say(&format!("told {replica} {lost} {}", driver::fields(error)));
        }
        _ => say(&format!("told of nobody {}", driver::fields(error))),
    }
}

/// Plays a round. Returns its faults.
fn play(round: &Round) -> Result<(), String> {
    let mut job = Job::start(round.workers, &round.words());
    let may_go_on = round.call < CALLS.len() && [FAILS_IN_A_RUN, PANICS_IN_A_RUN].contains(&WAYS[round.way].0);
    let (before, after) = (round.workers * round.replicas, (round.workers - 1) * round.replicas);
    let done = format!("done {STEPS} {}", round.at * before as u64 + (STEPS - round.at) * after as u64);
    let mut wrong = Vec::new();
    for worker in (0..round.workers).filter(|&worker| worker != round.leaver) {
        let mut was_lost = false;
        loop {
            let line = job.of(worker).line();
            if line == done && was_lost {
                break;
            }
            let words: Vec<&str> = line.split(' ').collect();
            let is_right = matches!(words[..], ["told", replica, lost, ..] if !was_lost
                && replica.parse().is_ok_and(|replica| round.lost().contains(&replica))
                && (lost == "true" || may_go_on));
            was_lost |= words.get(2) == Some(&"true");
            if !is_right {
                wrong.push(format!("worker {worker}: {line}"));
            }
            if !is_right || round.all_leave {
                break;
            }
        }
    }
    for path in ["", "-saved"].map(|which| format!("{}/leavers-{}{which}", env::temp_dir().display(), job.name())) {
        let _ = std::fs::remove_file(path);
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{}\n  {}", round.describe(), wrong.join("\n  "))) }
}

#[test]
fn a_leaver_is_named_on_all_others_and_they_go_on() {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64 % 1_000_000);
    let setting = |name, default| env::var(name).map_or(default, |text| number(&text));
    let (seed, rounds) = (setting("LEAVERS_SEED", now), setting("LEAVERS_ROUNDS", 64));
    let mut random = Random(seed);
    // Every call in turn, starting from any of them.
    let first = random.below(CALLS.len() + RAW_CALLS);
    let rounds: Vec<Round> = (0..rounds as usize)
        .map(|round| Round::draw(&mut random, (first + round) % (CALLS.len() + RAW_CALLS)))
        .collect();
    let wrong: Vec<String> = rounds.iter().filter_map(|round| play(round).err()).collect();
    assert!(wrong.is_empty(), "LEAVERS_SEED={seed}: {} rounds of {}:\n{}", wrong.len(), rounds.len(), wrong.join("\n"));
}
