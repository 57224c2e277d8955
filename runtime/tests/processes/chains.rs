//! Ranks that make the same calls in a loop until one of them is stopped, killed, computes for long
//! or returns. The others wait for each other and for that rank; the errors of all of them name
//! that rank and no other.
//!
//! A round is a job of three to five processes. `CONSONANCE_CHAINS_SECONDS` runs for longer,
//! `CONSONANCE_CHAINS_SEED` changes the rounds, and `CONSONANCE_CHAINS_BUSY` is the number of
//! threads that compute beside them.

use crate::{
    calls::Random,
    driver::{self, Job, Process, Signal, hear, number, say},
    leavers,
};
use consonance::{
    CommunicationOptions, Communicator, Error, Mailbox, MultiWorkerMirroredStrategy, ProcessGroup, ReduceOp, Result,
    TfConfigClusterResolver,
};
use std::{
    env,
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// The timeout of calls. The others are scheduled within it, also on a busy machine.
const TIMEOUT: Duration = Duration::from_millis(1500);

/// Rounds that are played at once: most of their time is waiting, but some ranks compute.
const AT_ONCE: usize = 4;

const BYTES: [usize; 5] = [4, 4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// The groups in which a rank makes its calls.
struct Seat {
    whole: Communicator,
    /// The group of the even ranks, or of the odd ones.
    half: Communicator,
    mailbox: Mailbox,
    data: Vec<u8>,
    other: Vec<u8>,
    _group: ProcessGroup,
}

/// A call: its name, and the call with this root.
type Call = (&'static str, fn(&mut Seat, usize) -> Result<()>);

const CALLS: &[Call] = &[
    ("all_reduce", |seat, _| seat.whole.all_reduce(ReduceOp::Max, &mut seat.data)),
    ("reduce", |seat, root| seat.whole.reduce(ReduceOp::Max, &mut seat.data, root)),
    ("broadcast", |seat, root| seat.whole.broadcast(&mut seat.data, root)),
    ("reduce_scatter", |seat, _| seat.whole.reduce_scatter(ReduceOp::Max, &mut seat.data)),
    ("all_gather", |seat, _| seat.whole.all_gather(&mut seat.data)),
    ("gather", |seat, root| {
        let block = seat.data.len() / seat.whole.size();
        let recv = (seat.whole.rank() == root).then_some(&mut seat.data[..]);
        seat.whole.gather(&seat.other[..block], recv, root)
    }),
    ("scatter", |seat, root| {
        let block = seat.data.len() / seat.whole.size();
        let send = (seat.whole.rank() == root).then_some(&seat.data[..]);
        seat.whole.scatter(send, Some(&mut seat.other[..block]), root)
    }),
    ("all_to_all", |seat, _| seat.whole.all_to_all(&mut seat.data)),
    ("barrier", |seat, _| seat.whole.barrier()),
    ("split", |seat, _| seat.whole.split(Some((seat.whole.rank() % 2) as u32), 0).map(drop)),
    ("scope", |seat, root| {
        let Seat { whole, data, other, .. } = seat;
        whole.scope(|scope| {
            scope.broadcast(data, root);
            scope.all_reduce(ReduceOp::Max, other)?.wait()
        })
    }),
    ("calls in a ring", |seat, _| {
        let (rank, size) = (seat.whole.rank(), seat.whole.size());
        let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
        if rank == 0 {
            seat.whole.send(&seat.data, next)?;
            return seat.whole.recv(&mut seat.other, last);
        }
        seat.whole.recv(&mut seat.other, last)?;
        seat.whole.send(&seat.data, next)
    }),
    ("messages in a ring", |seat, _| {
        let (rank, size) = (seat.whole.rank(), seat.whole.size());
        let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
        seat.mailbox.send(&*seat.data, next, 1, None)?;
        seat.mailbox.recv(&mut *seat.other, Some(last), 1, None).map(drop)
    }),
    ("broadcast in halves, then barrier", |seat, _| {
        let root = seat.half.size() - 1;
        seat.half.broadcast(&mut seat.data, root).map_err(|error| in_whole(error, seat.whole.rank()))?;
        seat.whole.barrier()
    }),
];

/// Returns the error of a half as one of the whole group: this rank is even or odd, as its half is.
fn in_whole(mut error: Error, rank: usize) -> Error {
    let rename = |replica: &mut usize| *replica = 2 * *replica + rank % 2;
    match &mut error {
        Error::Left { replica, .. } => rename(replica),
        Error::Timeout { missing, .. } => missing.iter_mut().for_each(|(replica, _)| rename(replica)),
        Error::Aborted { replica, reason, .. } if !reason.starts_with("of a group") => rename(replica),
        _ => {}
    }
    error
}

const WAYS: [&str; 4] = ["stops", "dies", "computes", "returns"];

/// Makes calls until one fails, and reports whom the error names. Words: see [`Round::words`].
pub(crate) fn chains(words: &[&str]) -> Result<()> {
    let round = Round::read(words);
    if let Some(call) = round.call.checked_sub(CALLS.len()) {
        let options = CommunicationOptions::new().timeout(TIMEOUT)?;
        let strategy = MultiWorkerMirroredStrategy::builder(TfConfigClusterResolver::new()?);
        let strategy = strategy.replicas(REPLICAS).options(options).build()?;
        let things = leavers::Things::new(&strategy)?;
        let own = strategy.local_replicas().start / REPLICAS;
        let make = |(strategy, things): &mut (MultiWorkerMirroredStrategy, leavers::Things), _| {
            leavers::CALLS[call].1(strategy, things)
        };
        return repeat(round, own, (strategy, things), make);
    }
    let mut group = driver::join(1, TIMEOUT)?;
    let mut whole = group.communicators().remove(0);
    let half = whole.split(Some((whole.rank() % 2) as u32), 0)?.expect("a color was given");
    let mailbox = whole.mailbox()?;
    let (data, other) = (vec![1; round.bytes()], vec![1; round.bytes()]);
    let own = whole.rank();
    let seat = Seat { whole, half, mailbox, data, other, _group: group };
    repeat(round, own, seat, CALLS[round.call].1)
}

/// Makes a call again and again as process `own`.
fn repeat<S>(round: Round, own: usize, mut seat: S, call: impl Fn(&mut S, usize) -> Result<()>) -> Result<()> {
    say("ready");
    for step in 0.. {
        if own == round.culprit && step == round.at && WAYS[round.way] == "computes" {
            let begin = Instant::now();
            while begin.elapsed() < 3 * TIMEOUT {
                black_box(begin);
            }
        }
        if own == round.culprit && step == round.at && WAYS[round.way] == "returns" {
            break;
        }
        if let Err(error) = call(&mut seat, step % round.ranks) {
            let (replicas, lost) = named(error.root());
            let mut named: Vec<usize> = replicas.iter().map(|replica| replica / round.replicas()).collect();
            named.dedup();
            // A rank may leave because of its error before the others have theirs.
            let stays = Some(seat).filter(|_| round.stays);
            say(&format!("named {named:?} {lost} {}", driver::fields(&error)));
            hear();
            drop(stays);
            return Ok(());
        }
    }
    drop(seat);
    hear();
    Ok(())
}

/// Makes a barrier for each line of the test, and reports its error.
pub(crate) fn barriers(_: &[&str]) -> Result<()> {
    let mut group = driver::join(1, 2 * TIMEOUT)?;
    let mut rank = group.communicators().remove(0);
    say("ready");
    while hear() == "go" {
        match rank.barrier() {
            Ok(()) => say("done"),
            Err(error) => {
                let (named, lost) = named(&error);
                say(&format!("named {named:?} {lost} {} {}", error.is_loss(), driver::fields(&error)));
            }
        }
    }
    Ok(())
}

#[test]
fn every_survivor_gets_a_loss_after_a_deadline() {
    let mut job = Job::start(3, "barriers");
    job.all().for_each(|process| drop(process.expect("ready")));
    job.others(1).for_each(|process| process.tell("go"));
    for process in job.others(1) {
        let error = process.line();
        assert!(error.starts_with("named [1] false false"), "{error}");
    }
    job.of(1).signal(Signal::SIGKILL);
    job.of(1).wait();
    for process in job.others(1) {
        // The death is seen a little later.
        let begin = Instant::now();
        loop {
            process.tell("go");
            let error = process.line();
            if error.starts_with("named [1] true true") {
                break;
            }
            assert!(begin.elapsed() < driver::LONG, "{error}");
        }
    }
}

/// Returns the ranks that an error names, and whether one of them is lost.
fn named(error: &Error) -> (Vec<usize>, bool) {
    match error {
        Error::Left { replica, lost, .. } | Error::Aborted { replica, lost, .. } => (vec![*replica], *lost),
        Error::Timeout { missing, .. } => (missing.iter().map(|(replica, _)| *replica).collect(), false),
        _ => (Vec::new(), false),
    }
}

/// The replicas of a process in rounds with strategies.
const REPLICAS: usize = 2;

/// The plan of one round.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// Processes. Each is a rank, or a worker of a strategy.
    ranks: usize,
    /// An index of [`CALLS`], or after those of [`leavers::CALLS`].
    call: usize,
    size: usize,
    way: usize,
    culprit: usize,
    /// The culprit returns or computes before this step.
    at: usize,
    /// Whether the others keep their groups until all have an error.
    stays: bool,
}

impl Round {
    fn words(self) -> String {
        let Round { ranks, call, size, way, culprit, at, stays } = self;
        format!("chains {ranks} {call} {size} {way} {culprit} {at} {}", u8::from(stays))
    }

    fn read(words: &[&str]) -> Round {
        let numbers: Vec<usize> = words.iter().map(|word| number(word) as usize).collect();
        let [ranks, call, size, way, culprit, at, stays] = numbers[..] else { panic!("seven numbers") };
        Round { ranks, call, size, way, culprit, at, stays: stays == 1 }
    }

    /// Returns the replicas of each process.
    fn replicas(self) -> usize {
        if self.call < CALLS.len() { 1 } else { REPLICAS }
    }

    fn name(self) -> String {
        let of_strategies = || format!("{} of a strategy", leavers::CALLS[self.call - CALLS.len()].0);
        CALLS.get(self.call).map_or_else(of_strategies, |call| call.0.to_owned())
    }

    /// Returns the bytes of a rank's data: whole blocks for each rank.
    fn bytes(self) -> usize {
        BYTES[self.size].next_multiple_of(self.ranks)
    }

    fn start(self) -> Job {
        Job::start(self.ranks, &self.words())
    }

    fn strike(self, job: &mut Job) {
        match WAYS[self.way] {
            "stops" => job.of(self.culprit).signal(Signal::SIGSTOP),
            "dies" => job.of(self.culprit).signal(Signal::SIGKILL),
            _ => {}
        }
    }

    /// Returns what is wrong in the reports of the others.
    fn judge(self, job: &mut Job) -> Vec<String> {
        let reports: Vec<String> = job.others(self.culprit).map(Process::line).collect();
        let is_gone = ["dies", "returns"].contains(&WAYS[self.way]);
        let right = |report: &String| {
            report.starts_with(&format!("named [{}] ", self.culprit))
                && (is_gone || report.starts_with(&format!("named [{}] false", self.culprit)))
        };
        job.all().for_each(|process| process.tell("end"));
        let what = format!("{}, {} bytes, {}: {self:?}", self.name(), self.bytes(), WAYS[self.way]);
        reports.iter().filter(|report| !right(report)).map(|report| format!("{what}\n    {report}")).collect()
    }
}

/// Plays rounds at once. Returns what went wrong.
fn play(rounds: &[Round], random: &mut Random) -> Vec<String> {
    let mut jobs: Vec<(Round, Job)> = rounds.iter().map(|round| (*round, round.start())).collect();
    jobs.iter_mut().for_each(|(_, job)| job.all().for_each(|process| drop(process.expect("ready"))));
    thread::sleep(Duration::from_micros(random.below(60_000) as u64));
    jobs.iter_mut().for_each(|(round, job)| round.strike(job));
    jobs.iter_mut().flat_map(|(round, job)| round.judge(job)).collect()
}

fn draw(random: &mut Random, call: usize) -> Round {
    let (ranks, call) = (3 + random.below(3), call % (CALLS.len() + leavers::CALLS.len()));
    // A long message fills the cells between two ranks many times. Both have to be scheduled each
    // time: on a busy machine 8 MiB take longer than the timeout.
    let sizes = BYTES.len() - usize::from(CALLS.get(call).is_some_and(|call| call.0 == "messages in a ring"));
    Round {
        ranks,
        call,
        size: random.below(sizes),
        way: random.below(WAYS.len()),
        culprit: random.below(ranks),
        at: random.below(20),
        stays: random.below(2) == 0,
    }
}

#[test]
fn every_survivor_names_the_rank_holding_up_all() {
    let setting = |name| env::var(name).ok().map(|value| number(&value));
    let seconds = setting("CONSONANCE_CHAINS_SECONDS").map(Duration::from_secs);
    let mut random = Random(setting("CONSONANCE_CHAINS_SEED").unwrap_or(1));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..setting("CONSONANCE_CHAINS_BUSY").unwrap_or(0) {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    black_box(0);
                }
            });
        }
        let (begin, mut count, mut wrong) = (Instant::now(), 0, Vec::new());
        // Each call twice.
        while count < 2 * (CALLS.len() + leavers::CALLS.len())
            || seconds.is_some_and(|seconds| begin.elapsed() < seconds)
        {
            let batch: Vec<Round> = (count..count + AT_ONCE).map(|call| draw(&mut random, call)).collect();
            wrong.extend(play(&batch, &mut random));
            count += AT_ONCE;
        }
        is_over.store(true, Ordering::Relaxed);
        println!("{count} rounds in {:.1?}", begin.elapsed());
        assert!(wrong.is_empty(), "{} errors are wrong:\n{}", wrong.len(), wrong.join("\n"));
    });
}
