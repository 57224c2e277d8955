//! The part of every process of such a group, also of the one that lies.

use super::{Key, SETUPS, STAGING_BYTES, Setup, key, keys, liar::Liar, to_words};
use crate::{
    calls::{Calls, Random},
    driver::{self, hear, number, say},
};
use consonance::{
    CommunicationOptions, Communicator, Error, Implementation, IndexedSlices, Mailbox, MultiWorkerMirroredStrategy,
    ProcessGroup, ReduceOp, ReplicaContext, Result, Strategy, Tensor, TfConfigClusterResolver, raw::EXTENSIONS,
};
use consonance_kernels::{
    shm::{Part, Segment},
    sync::watch,
};
use nix::sys::resource::{Resource, setrlimit};
use std::{
    collections::HashMap,
    fs::{self, File},
    os::unix::fs::FileExt,
    panic,
    process::{self, abort},
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, ThreadId},
    time::Duration,
};

/// The timeout of a call.
const TIMEOUT: Duration = Duration::from_millis(200);

/// The timeout for forming the next group. The other processes join it, or have an error for a loss
/// and wait for this one.
const MEETING: Duration = Duration::from_secs(2);

/// Limit on the calls of one round.
const CALLS: usize = 24;

/// Runs of a strategy in one round.
const RUNS: usize = 6;

/// Limit on the allocations and on the resident memory of a process.
const MEMORY_BYTES: u64 = 1 << 30;

/// The interval of the thread that checks pending calls.
const TICK: Duration = Duration::from_millis(10);

/// The time that a call may wait beyond its deadline.
const GRACE: Duration = Duration::from_millis(20);

/// The additional time for computing and copying. All these times are counted in checks of a thread
/// of the same process, so a process without CPU time is not late.
const WORK: Duration = Duration::from_secs(1);

/// Pending calls.
struct Call {
    what: String,
    /// Limit on the checks that find it pending.
    most: u32,
    looks: u32,
}

/// The pending calls of each thread.
static UNDER_WAY: LazyLock<Mutex<HashMap<ThreadId, Call>>> = LazyLock::new(Mutex::default);

/// Makes up to `calls` calls in `call`; each must end by its deadline.
fn timed<R>(what: &str, calls: u32, call: impl FnOnce() -> R) -> R {
    let thread = thread::current().id();
    let most = ((calls * (TIMEOUT + GRACE) + WORK).as_millis() / TICK.as_millis()) as u32;
    let before = UNDER_WAY.lock().unwrap().insert(thread, Call { what: what.to_owned(), most, looks: 0 });
    let result = call();
    let mut under_way = UNDER_WAY.lock().unwrap();
    under_way.remove(&thread);
    before.into_iter().for_each(|before| _ = under_way.insert(thread, before));
    result
}

fn look_for_late_calls() {
    loop {
        thread::sleep(TICK);
        for Call { what, most, looks } in UNDER_WAY.lock().unwrap().values_mut() {
            *looks += 1;
            if looks > most {
                say(&format!("late: {what} goes on after {most} times {TICK:?}"));
                abort();
            }
        }
    }
}

/// Returns the raw bytes of values that may be invalid for their type, read by the system.
fn raw(values: &[bool]) -> Vec<u8> {
    let mut bytes = vec![0; values.len()];
    let memory = File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut bytes, values.as_ptr().addr() as u64).unwrap();
    bytes
}

fn check_bools(call: &str, values: &[bool]) {
    if let Some(byte) = raw(values).into_iter().find(|&byte| byte > 1) {
        say(&format!("{call} gave a bool of {byte}"));
        abort();
    }
}

fn check_memory() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
    if number(peak) << 10 > MEMORY_BYTES {
        say(&format!("{peak} kB of memory"));
        abort();
    }
}

/// Sums counts of parts by key.
fn by_key(parts: &[Part], keys: &[Key], counts: &[u32]) -> Vec<u64> {
    let mut sums = vec![0; keys.len()];
    for (part, &count) in parts.iter().zip(counts).filter(|(_, count)| **count > 0) {
        sums[keys.binary_search(&key(part)).unwrap()] += u64::from(count);
    }
    sums
}

/// Makes a round for each line of the test until the line `end`. A line has a seed and the index of
/// a key. In the process that lies a thread corrupts the memory.
pub(crate) fn corrupts(words: &[&str]) -> Result<()> {
    let (setup, task) = (&SETUPS[number(words[0]) as usize], number(words[1]) as usize);
    setrlimit(Resource::RLIMIT_DATA, MEMORY_BYTES, MEMORY_BYTES).unwrap();
    panic::set_hook(Box::new(|panic| {
        say(&format!("panic: {panic}"));
        abort();
    }));
    thread::spawn(look_for_late_calls);
    let parts = Segment::parts(setup.shape());
    let keys = keys(&parts);
    watch::start(parts.iter().map(|part| part.bytes.clone()).collect());
    let mut liar = (task == setup.liar).then(|| Liar::new(parts.clone(), keys.clone()));
    let mut member = Member::new(setup, task);
    loop {
        let order = hear();
        let Some((seed, key)) = order.split_once(' ') else { return Ok(()) };
        let (seed, key, stop) = (number(seed), number(key) as usize, AtomicBool::new(false));
        let (end, told) = thread::scope(|scope| {
            let lies = liar.as_mut().map(|liar| scope.spawn(|| liar.lie(seed, key, &stop)));
            let end = member.round(seed);
            stop.store(true, Ordering::Relaxed);
            (end, lies.map_or_else(Vec::new, |lies| lies.join().unwrap()))
        });
        check_memory();
        let end = end.err().map_or_else(|| "ok".to_owned(), |error| driver::fields(&error));
        let reads = by_key(&parts, &keys, &watch::reads());
        say(&format!("round {} {} {end}", to_words(&reads), to_words(&told)));
    }
}

/// A process of the job, over several groups.
struct Member {
    setup: &'static Setup,
    ranks: usize,
    group: Option<ProcessGroup>,
    strategy: Option<MultiWorkerMirroredStrategy>,
}

impl Member {
    fn new(setup: &'static Setup, task: usize) -> Member {
        Member { setup, ranks: setup.ranks[task], group: None, strategy: None }
    }

    fn round(&mut self, seed: u64) -> Result<()> {
        if self.setup.is_strategy { self.runs(seed) } else { self.calls(seed) }
    }

    fn calls(&mut self, seed: u64) -> Result<()> {
        match &mut self.group {
            Some(group) => group.reform(Duration::ZERO)?,
            None => {
                let builder = driver::builder(self.ranks, TIMEOUT)?.staging_bytes(STAGING_BYTES).timeout(MEETING)?;
                self.group = Some(builder.reads_directly(self.setup.reads_directly).join()?);
            }
        }
        let ranks = self.group.as_mut().expect("just made").communicators();
        let results: Vec<Result<()>> = thread::scope(|scope| {
            let threads: Vec<_> = (ranks.into_iter())
                .map(|mut rank| {
                    scope.spawn(move || {
                        let part = calls(&mut rank, seed);
                        timed("the end of a communicator", 0, || drop(rank));
                        let mut part = part?;
                        // A call in a subgroup whose members leave. Each rank waits there for the
                        // next one.
                        thread::sleep(part.rank() as u32 * Duration::from_millis(5));
                        timed("call in a part", 1, || part.barrier())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        results.into_iter().collect()
    }

    fn runs(&mut self, seed: u64) -> Result<()> {
        match &self.strategy {
            Some(strategy) => timed("reform", 60, || strategy.reform(Duration::ZERO))?,
            None => {
                let options = CommunicationOptions::new().timeout(TIMEOUT)?;
                let builder =
                    MultiWorkerMirroredStrategy::builder(TfConfigClusterResolver::new()?).replicas(self.ranks);
                let meeting =
                    |group: consonance::ProcessGroupBuilder| group.staging_bytes(STAGING_BYTES).timeout(MEETING);
                self.strategy = Some(builder.options(options).meeting(meeting).build()?);
            }
        }
        let strategy = self.strategy.as_ref().expect("just made");
        // An aborted group is renewed in the next run.
        let _ = timed("calls across replicas", 12, || cross_replica_calls(strategy));
        (0..RUNS)
            .map(|run| timed("run", 14, || strategy.run(|replica| replica_calls(replica, seed + run as u64)).map(drop)))
            .fold(Ok(()), Result::and)
    }
}

/// Makes random calls until one of them aborts the group. The last one splits the group into
/// subgroups that include all ranks.
fn calls(rank: &mut Communicator, seed: u64) -> Result<Communicator> {
    let mut random = Random(seed);
    let mut collectives = Calls { random: Random(seed + 1), most: 1 << 20, checks: false };
    for index in 0..random.below(CALLS) {
        let kind = random.below(26);
        let (count, root) = (1 << random.below(17), random.below(rank.size()));
        let call = format!("call {index}, of kind {kind} and {count}");
        let result = match kind {
            0..10 => timed(&call, 3, || collectives.step(rank)),
            _ => timed(&call, 5, || one_call(rank, kind, count, root)),
        };
        match result {
            Ok(()) | Err(Error::Mismatch { .. } | Error::InvalidCall { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    timed("split", 1, || rank.split(Some(0), 0)).map(|part| part.expect("a color was given"))
}

fn one_call(rank: &mut Communicator, kind: usize, count: usize, root: usize) -> Result<()> {
    let (own, size) = (rank.rank(), rank.size());
    match kind {
        10 | 11 => {
            let mut values = vec![own == 0; count];
            rank.all_reduce([ReduceOp::Or, ReduceOp::Min, ReduceOp::Xor][root % 3], &mut values)?;
            check_bools("all_reduce", &values);
        }
        12 => {
            let mut values = vec![false; count * size];
            rank.all_gather_into(&vec![true; count], &mut values)?;
            check_bools("all_gather", &values);
            rank.broadcast(&mut values, root)?;
            check_bools("broadcast", &values);
        }
        13 if own < 2 => {
            let mut values = vec![true; count];
            match own {
                0 => rank.send(&values, 1)?,
                _ => rank.recv(&mut values, 0)?,
            }
            check_bools("recv", &values);
        }
        14..16 => {
            let mut values = rank.alloc::<u32>(count + 8192)?;
            values.fill(own as u32);
            rank.all_reduce(ReduceOp::Sum, &mut values)?;
            rank.broadcast(&mut values, root)?;
            let mut all = vec![0; values.len() * size];
            rank.all_gather_into(&values, &mut all)?;
        }
        16 => {
            let mut values = vec![1.0f64; count + own];
            rank.all_reduce(ReduceOp::Sum, &mut values)?;
        }
        17 if own == root => rank.barrier()?,
        17 => rank.broadcast(&mut vec![0i8; count], root)?,
        18 => {
            let (mut first, mut second) = (vec![1u16; count], vec![1.0f32; 100]);
            rank.scope(|scope| {
                let pending = scope.all_reduce(ReduceOp::Max, &mut first)?;
                scope.broadcast(&mut second, root);
                pending.wait()
            })?;
        }
        19 => {
            // The content may be anything, but inspecting must work.
            let looks = Segment::inspect(process::id()).unwrap_or_default();
            looks.iter().for_each(|look| _ = look.text(100, EXTENSIONS));
        }
        20 => {
            for implementation in [Implementation::OneShot, Implementation::TwoShot, Implementation::Auto] {
                rank.set_implementation(implementation);
                rank.all_reduce(ReduceOp::Mean, &mut vec![1.0f32; count])?;
            }
        }
        21..25 => messages(&rank.mailbox()?, own, count, kind == 21)?,
        _ => {
            let part = rank.split((own != root).then_some((own % 2) as u32), own as i32)?;
            let Some(mut part) = part else { return Ok(()) };
            let mut values = vec![true; count];
            part.all_reduce(ReduceOp::And, &mut values)?;
            check_bools("all_reduce of a part", &values);
            if part.size() > 1 {
                match part.rank() {
                    0 => part.send(&values, 1)?,
                    1 => part.recv(&mut values, 0)?,
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

/// Sends from each even rank to the next, and a short answer back. `is_unlike`: the receive expects
/// more than is sent.
fn messages(mailbox: &Mailbox, own: usize, count: usize, is_unlike: bool) -> Result<()> {
    let (partner, size) = (own ^ 1, mailbox.world().size());
    if partner >= size {
        return Ok(());
    }
    let (mut values, mut answer) = (vec![true; count + usize::from(is_unlike)], [true]);
    if own < partner {
        let sent = mailbox.send(vec![true; count].as_slice(), partner, 1, None);
        mailbox.recv(answer.as_mut_slice(), None, 2, None).and(sent)?;
    } else {
        let received = mailbox.recv(values.as_mut_slice(), Some(partner), 1, None);
        mailbox.send([true].as_slice(), partner, 2, None).and(received.map(drop))?;
    }
    check_bools("Mailbox::recv", &values);
    check_bools("Mailbox::recv of an answer", &answer);
    Ok(())
}

/// Makes cross-replica calls of a strategy: a thread takes part for each replica.
fn cross_replica_calls(strategy: &Strategy) -> Result<()> {
    strategy.variable(|| Tensor::from([1.0f32; 9]))?;
    let values = strategy.distribute_values_from_function(|_| Tensor::from([[true; 2]; 700]))?;
    check_bools("gather of a strategy", strategy.gather(&values, 0)?.as_slice()?);
    check_bools("reduce of a strategy", strategy.reduce(ReduceOp::Or, &values, None)?.as_slice()?);
    let values = strategy.distribute_values_from_function(|_| Tensor::from([[1.0f32; 2]; 700]))?;
    strategy.reduce(ReduceOp::Mean, &values, 0).map(drop)
}

/// Makes replica calls, some of which take sizes from peers.
fn replica_calls(replica: &ReplicaContext, seed: u64) -> Result<()> {
    let mut random = Random(seed);
    let own = replica.replica_id_in_sync_group();
    for _ in 0..4 {
        let (kind, rows) = (random.below(5), random.below(3000) + own);
        timed(&format!("call of kind {kind} and {rows} in a replica"), 3, || match kind {
            0 => {
                let all = replica.all_gather(Tensor::new([rows, 2], &vec![true; 2 * rows])?, 0)?;
                check_bools("all_gather of a strategy", all.as_slice()?);
                Ok(())
            }
            1 => replica.all_gather(Tensor::new([2, rows], &vec![1.0f32; 2 * rows])?, 1).map(drop),
            2 => {
                let (values, indices) =
                    (Tensor::new([rows, 1], &vec![1.0f32; rows])?, Tensor::new([rows], &vec![0i64; rows])?);
                replica.all_reduce(ReduceOp::Sum, IndexedSlices::new(values, indices, Some(vec![3, 1]))?).map(drop)
            }
            3 => replica
                .all_reduce(ReduceOp::Sum, vec![Tensor::from(1.0f32), Tensor::new([9000], &[1.0f32; 9000])?])
                .map(drop),
            _ => replica.broadcast(Tensor::from([own as i32; 3]), 0).map(drop),
        })?;
    }
    Ok(())
}
