//! A process of a soak: makes the calls of each round with the others, and reports to the parent
//! how they ended.
//!
//! It writes its reports ([`Told`]) to standard output, one a line. It ends after the round in
//! which its standard input is closed.

use super::{
    messages::beside,
    plan::{Plan, What},
    stop::{Stop, now, timed, unless_lost},
};
use crate::launcher::{hosts::address, worker::end_with};
use consonance::{
    ClusterSpec, CommunicationOptions, Communicator, Error, ProcessGroup, ReduceOp, SimpleClusterResolver,
};
use consonance_harness::compare::{Part, given, message, parts, start_all};
use std::{
    fmt,
    io::{self, Read, Write},
    panic,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The deadline of a call if no process is stopped, enough on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// The deadline of a call in a round in which a process is stopped. It is short, so that the others
/// give the process up.
const GIVES_UP: Duration = Duration::from_millis(400);

/// The time that processes wait for each other to form a group.
const MEETS: Duration = Duration::from_secs(30);

/// The staging memory of a rank: even data of some KiB pass through it in several parts, and large
/// data in some hundred.
const STAGING_BYTES: usize = 8 << 10;

/// The port of the first process, if the processes are on several hosts. Those of the others
/// follow.
const FIRST_PORT: usize = 4000;

/// The interval at which a process reports its round if it is not affected by a fault.
const TELLS: Duration = Duration::from_millis(50);

/// A report of a process to its parent, on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The process is in a group.
    Formed,
    /// The process begins this round, and has contributed this many bytes in the rounds before.
    Round(u64, u64),
    /// A call of the round failed because the group ended. It began and ended at these times, in ns
    /// since 1970.
    Lost { round: u64, begin: u64, end: u64, text: String },
    /// The process may not form a group again, since others that it does not hear may have one.
    CutOff(String),
    /// A failure in this round; 0 is the current round.
    Wrong(u64, String),
    /// The process ends, and has contributed this many bytes.
    End(u64),
}

/// A process.
#[derive(Clone, Debug)]
pub struct Worker {
    /// The calls and faults.
    pub plan: Plan,
    /// The index of this process.
    pub index: usize,
    /// The first round.
    pub round: u64,
    /// The id of the process that started this one, or the name of the host to join.
    pub parent: String,
}

impl Worker {
    /// Runs rounds until standard input is closed, and returns the exit status.
    pub fn run(self) -> i32 {
        if let Err(error) = end_with(&self.parent) {
            tell(&Told::Wrong(0, error.to_string()));
            return 1;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        thread::spawn(move || {
            // The input is closed, with or without an error.
            let _ = io::stdin().read_to_end(&mut Vec::new());
            seen.store(true, Ordering::Relaxed);
        });
        report_panics();
        let mut state = Progress { plan: self.plan, index: self.index, round: self.round, bytes: 0, told: None, stop };
        if let Err(wrong) = self.rounds(&mut state) {
            tell(&Told::Wrong(state.round, wrong));
            // The process stays for inspection until the parent kills it.
            loop {
                thread::park();
            }
        }
        tell(&Told::End(state.bytes));
        0
    }

    fn rounds(&self, state: &mut Progress) -> Result<(), String> {
        let mut group = self.join().map_err(|error| error.to_string())?;
        loop {
            tell(&Told::Formed);
            if state.until_lost(group.communicators())? || state.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            match group.reform(MEETS) {
                Ok(_) => {}
                Err(error @ Error::Meeting { .. }) if self.plan.hosts > 1 => {
                    tell(&Told::CutOff(error.to_string()));
                    // Until the parent starts another process in its place.
                    loop {
                        thread::park();
                    }
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn join(&self) -> Result<ProcessGroup, Error> {
        let Plan { processes, replicas, hosts, .. } = self.plan;
        let addresses = (0..processes).map(|index| match hosts {
            1 => format!("localhost:{}", index + 1),
            _ => format!("{}:{}", address(index % hosts), FIRST_PORT + index),
        });
        let task = SimpleClusterResolver::new(ClusterSpec::new().job("worker", addresses)?);
        let builder = ProcessGroup::builder(task.with_task("worker", self.index)?).replicas(replicas);
        let options = CommunicationOptions::new().timeout(DEADLINE)?;
        let builder = builder.options(options).staging_bytes(STAGING_BYTES).reads_directly(true);
        builder.timeout(MEETS)?.on_wait(|_| {}).join()
    }
}

struct Progress {
    plan: Plan,
    index: usize,
    round: u64,
    bytes: u64,
    /// The time at which this process last reported its round.
    told: Option<Instant>,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Makes calls until the group ends. Returns true if the soak ends instead.
    fn until_lost(&mut self, mut ranks: Vec<Communicator>) -> Result<bool, String> {
        loop {
            // All ranks agree on the round, and on whether there is another one.
            let own = [self.stop.load(Ordering::Relaxed).into(), self.round];
            let met = on_ranks(ranks.iter_mut().collect(), |rank: &mut Communicator| {
                let mut words: [u64; 2] = own;
                timed(|| rank.all_reduce(ReduceOp::Max, &mut words)).map(|()| words)
            });
            // A loss here belongs to the round before: the next round has not begun.
            let Some(met) = self.unless_lost(met, self.round.saturating_sub(1))? else { return Ok(false) };
            let [stop, round] = met[0];
            if stop != 0 {
                return Ok(true);
            }
            self.round = round;
            let fault = self.plan.fault(round);
            if fault.is_some_and(|fault| fault.victim == self.index)
                || self.told.is_none_or(|told| told.elapsed() > TELLS)
            {
                self.told = Some(Instant::now());
                tell(&Told::Round(round, self.bytes));
            }

            let repeated = fault.is_some_and(|fault| fault.what.ends());
            if fault.is_some_and(|fault| fault.what == What::Stop) {
                ranks.iter_mut().for_each(|rank| rank.set_timeout(GIVES_UP).expect("a timeout that ends"));
            }
            let script = self.plan.script(round);
            let mut calls: Vec<Vec<Box<dyn Part>>> = ranks.iter().map(|_| Vec::new()).collect();
            for call in &script.calls {
                let own = ranks[0].rank()..ranks[0].rank() + ranks.len();
                let elements: usize = own.clone().map(|rank| given(call, script.size, rank)).sum();
                self.bytes += (elements * call.dtype.size()) as u64;
                let parts = parts(call, script.size).into_iter().skip(own.start);
                calls.iter_mut().zip(parts).for_each(|(calls, part)| calls.push(part));
            }
            let (asynchronous, implementation) = (script.asynchronous, script.implementation);
            let messages = self.plan.messages(round);
            let results = on_ranks(ranks.iter_mut().zip(calls).collect(), |(rank, mut calls)| {
                rank.set_implementation(implementation);
                let placed = calls.iter_mut().try_for_each(|call| call.place(rank));
                placed.map_err(|error| Stop::Wrong(error.to_string()))?;
                loop {
                    beside(messages, rank, |rank| make(rank, &mut calls, asynchronous))?;
                    if !repeated {
                        return Ok(());
                    }
                    // A rank that takes no part in a send and a receive learns of a lost process
                    // only here.
                    timed(|| rank.barrier())?;
                }
            });
            let lost = self.unless_lost(results, self.round)?.is_none();
            // A round that is meant to end with an error is over then. Another round that ends with
            // an error is begun again.
            if repeated || !lost {
                self.round += 1;
            }
            if lost {
                return Ok(false);
            }
        }
    }

    /// Returns the results of all ranks, or `None` if a rank's call was lost. Reports a loss for
    /// this round.
    fn unless_lost<R>(&self, results: Vec<Result<R, Stop>>, round: u64) -> Result<Option<Vec<R>>, String> {
        let mut all = Some(Vec::new());
        for result in results {
            match result {
                Ok(result) => _ = all.as_mut().map(|all| all.push(result)),
                Err(Stop::Wrong(wrong)) => return Err(wrong),
                Err(Stop::Lost { begin, end, text }) => {
                    tell(&Told::Lost { round, begin, end, text });
                    all = None;
                }
            }
        }
        Ok(all)
    }
}

/// Makes calls one after another, or all at once, and judges their results.
fn make(rank: &mut Communicator, calls: &mut [Box<dyn Part>], asynchronous: bool) -> Result<(), Stop> {
    let number = rank.rank();
    let judge = |index: usize, call: &dyn Part, result| {
        call.judge(result).map_err(|wrong| Stop::Wrong(format!("rank {number}, call {index}: {wrong}")))
    };
    if asynchronous {
        let begin = now();
        let results = start_all(rank, calls).map_err(Stop::Wrong)?;
        for (index, (call, result)) in calls.iter().zip(results).enumerate() {
            judge(index, &**call, unless_lost(begin, result)?)?;
        }
        return Ok(());
    }
    for (index, call) in calls.iter_mut().enumerate() {
        let begin = now();
        let result = unless_lost(begin, call.make(rank))?;
        judge(index, &**call, result)?;
    }
    Ok(())
}

/// Runs `body` on a thread for each rank.
fn on_ranks<A: Send, R: Send>(ranks: Vec<A>, body: impl Fn(A) -> Result<R, Stop> + Sync) -> Vec<Result<R, Stop>> {
    let body = &body;
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || body(rank))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<R, Stop>>| {
            thread.join().unwrap_or_else(|panic| Err(Stop::Wrong(message(&*panic))))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Reports a panic on any thread, including the threads that calls start.
pub(super) fn report_panics() {
    panic::set_hook(Box::new(|panic| tell(&Told::Wrong(0, panic.to_string()))));
}

pub(super) fn tell(told: &Told) {
    // Fails if the parent is gone.
    let _ = writeln!(io::stdout(), "{told}");
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Told::Formed => write!(f, "formed"),
            Told::Round(round, bytes) => write!(f, "round {round} {bytes}"),
            Told::Lost { round, begin, end, text } => {
                write!(f, "lost {round} {begin} {end} {}", text.replace('\n', " "))
            }
            Told::CutOff(text) => write!(f, "cut-off {}", text.replace('\n', " ")),
            Told::Wrong(round, text) => write!(f, "wrong {round} {}", text.replace('\n', " ")),
            Told::End(bytes) => write!(f, "end {bytes}"),
        }
    }
}

impl FromStr for Told {
    type Err = ();

    fn from_str(line: &str) -> Result<Told, ()> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = rest.splitn(if word == "lost" { 4 } else { 2 }, ' ');
        let mut text = || words.next().ok_or(());
        let number = |text: &str| text.parse::<u64>().map_err(drop);
        Ok(match word {
            "formed" => Told::Formed,
            "round" => Told::Round(number(text()?)?, number(text()?)?),
            "lost" => Told::Lost {
                round: number(text()?)?,
                begin: number(text()?)?,
                end: number(text()?)?,
                text: text()?.to_owned(),
            },
            "cut-off" if !rest.is_empty() => Told::CutOff(rest.to_owned()),
            "wrong" => Told::Wrong(number(text()?)?, text()?.to_owned()),
            "end" => Told::End(number(text()?)?),
            _ => return Err(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_report_line_parses_back() {
        let text = "call: replica 1 was lost; its last call".to_owned();
        for told in [
            Told::Formed,
            Told::Round(3, 4),
            Told::Lost { round: 3, begin: 4, end: 5, text: text.clone() },
            Told::CutOff(text.clone()),
            Told::Wrong(6, text),
            Told::End(7),
        ] {
            assert_eq!(told.to_string().parse(), Ok(told));
        }
        for line in ["", "formd", "round 3", "lost 3 4 5", "cut-off", "wrong x y", "end"] {
            assert_eq!(line.parse::<Told>(), Err(()), "{line}");
        }
    }
}
