//! Objects that are kept between cases, because making them takes longer than a case: threads, and
//! working groups and strategies.

use super::{Verdict, message};
use crate::subjects::{Group, Rank, Replicas, Settings};
use consonance::Strategy;
use consonance_kernels::os::thread_pool::Team;
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, MutexGuard,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

/// The number of cases that one group runs. A new group starts all its counters again.
const CASES: usize = 64;

/// A group, with the number of cases that it has run.
pub(super) struct Kept {
    key: (&'static str, usize),
    served: usize,
    ranks: Vec<Rank>,
}

static GROUPS: Mutex<BTreeMap<(&str, usize), Vec<Kept>>> = Mutex::new(BTreeMap::new());

/// Returns a group of `size` ranks that no other case uses. Dropping the group ends it;
/// [`give_back`](Kept::give_back) keeps it.
pub(super) fn lend(group: Group, size: usize) -> Kept {
    let key = (group.name, size);
    let kept = lock(&GROUPS).get_mut(&key).and_then(Vec::pop);
    kept.unwrap_or_else(|| Kept { key, served: 0, ranks: (group.make)(size) })
}

/// Ends the groups and strategies that are kept: the next cases make their own, with the knobs that
/// the process has then.
pub fn forget() {
    lock(&GROUPS).clear();
    let idle = std::mem::take(&mut *lock(&IDLE));
    drop(idle);
}

impl Kept {
    /// Runs `body` for each rank with its entry of `arguments`. Returns the results in rank order,
    /// or the first error, and the group with the ranks that `body` returned.
    pub(super) fn on_ranks<A: Send, R: Send>(
        self,
        arguments: impl IntoIterator<Item = A>,
        body: impl Fn(Rank, A) -> Result<(R, Option<Rank>), String> + Sync,
    ) -> Result<(Vec<R>, Kept), String> {
        let Kept { key, served, ranks } = self;
        let results = on_threads(ranks.into_iter().zip(arguments), |(rank, argument)| body(rank, argument));
        let (results, ranks): (Vec<R>, Vec<Option<Rank>>) =
            results.map_err(|wrong| format!("{wrong}\nin case {} of its group", served + 1))?.into_iter().unzip();
        Ok((results, Kept { key, served: served + 1, ranks: ranks.into_iter().flatten().collect() }))
    }

    /// Keeps the group for another case. All its ranks must be present and working.
    pub(super) fn give_back(self) {
        if self.served < CASES {
            lock(&GROUPS).entry(self.key).or_default().push(self);
        }
    }
}

/// The maximum number of kept strategies. Each has a thread for each replica.
const STRATEGIES: usize = 64;

/// Idle strategies of one worker, with the parameters of each. The most recently used one is last.
static IDLE: Mutex<Vec<(Key, Strategy)>> = Mutex::new(Vec::new());

type Key = (&'static str, usize, Settings);

/// Runs `work` as each worker of a strategy, and judges the workers' results. Passes if this kind
/// of strategy cannot have `size` replicas.
///
/// A strategy of one worker is kept if the verdict is right. A strategy of several workers is made
/// anew for each case, because its group outlives a run.
pub(super) fn on_workers<R: Send>(
    replicas: Replicas,
    size: usize,
    settings: Settings,
    work: impl Fn(&Strategy) -> R + Sync,
    judge: impl FnOnce(Vec<R>) -> Verdict,
) -> Verdict {
    let Some(shares) = (replicas.workers)(size) else { return Ok(()) };
    let key = (replicas.name, size, settings);
    let kept = {
        let mut idle = lock(&IDLE);
        idle.iter().position(|(other, _)| *other == key).map(|place| idle.remove(place).1)
    };
    let strategies = kept.map_or_else(|| (replicas.make)(&shares, settings), |strategy| vec![strategy]);
    let [strategy] = &strategies[..] else {
        // No worker drops its strategy before the last one has finished.
        return judge(on_threads(strategies.iter(), |strategy| Ok(work(strategy)))?);
    };
    judge(vec![work(strategy)])?;
    let mut idle = lock(&IDLE);
    idle.push((key, strategy.clone()));
    let oldest = (idle.len() > STRATEGIES).then(|| idle.remove(0));
    // The lock is released before the threads of the oldest strategy end.
    drop(idle);
    drop(oldest);
    Ok(())
}

/// Idle teams, by size.
static TEAMS: Mutex<BTreeMap<usize, Vec<Team>>> = Mutex::new(BTreeMap::new());

/// Runs `body` on a thread for each argument. Returns the results in order, or the first error.
pub(super) fn on_threads<A: Send, R: Send>(
    arguments: impl Iterator<Item = A>,
    body: impl Fn(A) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let arguments: Vec<Mutex<Option<A>>> = arguments.map(|argument| Mutex::new(Some(argument))).collect();
    let size = arguments.len();
    let results: Vec<Mutex<Option<Result<R, String>>>> = (0..size).map(|_| Mutex::new(None)).collect();
    let idle = lock(&TEAMS).get_mut(&size).and_then(Vec::pop);
    let mut team = idle.unwrap_or_else(|| Team::new("rank", &vec![None; size]).expect("threads"));
    team.run(&|place| {
        let argument = lock(&arguments[place]).take().expect("each thread has an argument");
        let result = catch_unwind(AssertUnwindSafe(|| body(argument))).unwrap_or_else(|panic| Err(message(&*panic)));
        *lock(&results[place]) = Some(result);
    });
    lock(&TEAMS).entry(size).or_default().push(team);
    results.iter().map(|result| lock(result).take().expect("each thread has left a result")).collect()
}

/// The work of a judge. Returns a function that sends the verdict, for the judge to call when it is
/// idle again.
type Job = Box<dyn FnOnce() -> Box<dyn FnOnce()> + Send>;

static JUDGES: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

/// Runs `judge` on its own thread, which sends the verdict after it has dropped `judge` and all
/// captured values.
pub(super) fn on_judge(judge: impl FnOnce() -> Verdict + Send + 'static) -> Receiver<Verdict> {
    let (verdict, judged) = mpsc::channel();
    let job: Job = Box::new(move || {
        let found = catch_unwind(AssertUnwindSafe(judge)).unwrap_or_else(|panic| Err(message(&*panic)));
        // The receiver is gone only if this case was reported as hanging.
        Box::new(move || _ = verdict.send(found))
    });
    let idle = lock(&JUDGES).pop().unwrap_or_else(new_judge);
    idle.send(job).expect("a judge takes jobs as long as it may be asked");
    judged
}

fn new_judge() -> Sender<Job> {
    let (ask, asked) = mpsc::channel::<Job>();
    let itself = ask.clone();
    thread::spawn(move || {
        for job in asked {
            let tell = job();
            lock(&JUDGES).push(itself.clone());
            tell();
        }
    });
    ask
}

fn lock<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().expect("nobody panics holding this")
}
