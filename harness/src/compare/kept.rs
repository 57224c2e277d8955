//! What is kept between cases, because it takes longer to make than a case takes: threads, and
//! groups and strategies that work.

use super::{Verdict, message};
use crate::subjects::{Group, Rank, Replicas};
use consonance::{CommunicationOptions, Strategy};
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

/// How many cases one group serves. A new group begins all its counts anew.
const CASES: usize = 64;

/// A group with the number of cases that it has served.
pub(super) struct Kept {
    key: (&'static str, usize),
    served: usize,
    ranks: Vec<Rank>,
}

static GROUPS: Mutex<BTreeMap<(&str, usize), Vec<Kept>>> = Mutex::new(BTreeMap::new());

/// A group of `size` ranks that nobody else uses. Who does not give it back ends it.
pub(super) fn lend(group: Group, size: usize) -> Kept {
    let key = (group.name, size);
    let kept = lock(&GROUPS).get_mut(&key).and_then(Vec::pop);
    kept.unwrap_or_else(|| Kept { key, served: 0, ranks: (group.make)(size) })
}

impl Kept {
    /// Runs `body` for each rank with its entry of `arguments`; gives the results in rank order, or
    /// the first that is wrong, and the group with the ranks that gave their communicators back.
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

    /// Keeps the group, all of whose ranks are here and work, for another case.
    pub(super) fn give_back(self) {
        if self.served < CASES {
            lock(&GROUPS).entry(self.key).or_default().push(self);
        }
    }
}

/// How many strategies are kept: each has a thread for each replica.
const STRATEGIES: usize = 64;

/// Strategies of one worker that are idle, with what they were made from; the one that was used
/// last is the last.
static IDLE: Mutex<Vec<(Key, Strategy)>> = Mutex::new(Vec::new());

type Key = (&'static str, usize, CommunicationOptions);

/// Does `work` as each worker of a strategy, and judges what each returns. A kind of strategy that
/// cannot have so many replicas is right.
///
/// A strategy of one worker is kept if it is right. One of several workers is made anew, as its
/// group outlives a run.
pub(super) fn on_workers<R: Send>(
    replicas: Replicas,
    size: usize,
    options: CommunicationOptions,
    work: impl Fn(&Strategy) -> R + Sync,
    judge: impl FnOnce(Vec<R>) -> Verdict,
) -> Verdict {
    let Some(shares) = (replicas.workers)(size) else { return Ok(()) };
    let key = (replicas.name, size, options);
    let kept = {
        let mut idle = lock(&IDLE);
        idle.iter().position(|(other, _)| *other == key).map(|place| idle.remove(place).1)
    };
    let strategies = kept.map_or_else(|| (replicas.make)(&shares, options), |strategy| vec![strategy]);
    let [strategy] = &strategies[..] else {
        // No worker leaves before the last one is done.
        return judge(on_threads(strategies.iter(), |strategy| Ok(work(strategy)))?);
    };
    judge(vec![work(strategy)])?;
    let mut idle = lock(&IDLE);
    idle.push((key, strategy.clone()));
    let oldest = (idle.len() > STRATEGIES).then(|| idle.remove(0));
    // Its threads end while nobody waits for the lock.
    drop(idle);
    drop(oldest);
    Ok(())
}

/// Teams that are idle, by their size.
static TEAMS: Mutex<BTreeMap<usize, Vec<Team>>> = Mutex::new(BTreeMap::new());

/// Runs `body` on a thread for each argument; gives the results in order, or the first that is
/// wrong.
fn on_threads<A: Send, R: Send>(
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

/// What a judge does: gives what tells its result, when the judge is idle again.
type Job = Box<dyn FnOnce() -> Box<dyn FnOnce()> + Send>;

static JUDGES: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

/// Carries out `judge` on a thread of its own, which sends the verdict when it has dropped all that
/// it was given.
pub(super) fn on_judge(judge: impl FnOnce() -> Verdict + Send + 'static) -> Receiver<Verdict> {
    let (verdict, judged) = mpsc::channel();
    let job: Job = Box::new(move || {
        let found = catch_unwind(AssertUnwindSafe(judge)).unwrap_or_else(|panic| Err(message(&*panic)));
        // The receiver is gone only if this case has hung before.
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
