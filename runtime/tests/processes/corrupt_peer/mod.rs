//! A process of a group that writes arbitrary bytes anywhere into the memory that the group shares.
//!
//! It can make the others' results wrong, or make their calls fail by their deadlines. It cannot
//! crash another process, make one wait longer, or make one allocate without bound.
//!
//! A *round* is one group: its processes form it, make random calls until one fails, and report.
//! One of them, the liar, makes the same calls and has a thread that corrupts the memory. Most of
//! the false writes of a round (*lies*) are to one field of the segment's layout; each round takes
//! the next field. Lies and reads are counted by field. At the end, the other processes (*victims*)
//! have read each field in rounds with lies to it.
//!
//! `CONSONANCE_CORRUPT_SECONDS` runs for longer, `CONSONANCE_CORRUPT_SEED` changes the rounds.
//! `CONSONANCE_CORRUPT_FIELD` restricts the rounds to one field.

mod liar;
mod victim;

pub(crate) use victim::corrupts;

use crate::driver::{Job, Process, number};
use consonance_kernels::shm::{Part, Segment, Shape};
use std::{
    collections::BTreeSet,
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// The staging bytes of a rank: few, so that data of some KiB take several windows.
const STAGING_BYTES: usize = 8 << 10;

/// Minimum number of rounds: each field has two turns.
const ROUNDS: usize = 240;

/// The processes of a job.
struct Setup {
    /// The number of ranks of each process.
    ranks: &'static [usize],
    /// The process that lies.
    liar: usize,
    /// Whether ranks read each other's memory directly if the system allows it.
    reads_directly: bool,
    /// Whether they make calls of a strategy instead of communicators.
    is_strategy: bool,
}

const SETUPS: [Setup; 4] = [
    Setup { ranks: &[1, 1], liar: 1, reads_directly: false, is_strategy: false },
    Setup { ranks: &[2, 1, 1], liar: 1, reads_directly: true, is_strategy: false },
    Setup { ranks: &[2, 2], liar: 0, reads_directly: false, is_strategy: true },
    Setup { ranks: &[1, 2], liar: 0, reads_directly: false, is_strategy: false },
];

impl Setup {
    fn shape(&self) -> Shape {
        Shape::new(self.ranks.iter().sum(), STAGING_BYTES).unwrap()
    }
}

/// The key of counts of lies and reads: the area and the name of a part.
type Key = (&'static str, String);

fn keys(parts: &[Part]) -> Vec<Key> {
    let mut keys: Vec<Key> = parts.iter().map(key).collect();
    keys.sort();
    keys.dedup();
    keys
}

fn key(part: &Part) -> Key {
    (part.area, part.name.clone())
}

/// Counts by key, as a process reports them: those that are not 0, with the indices of their keys.
fn to_words(counts: &[u64]) -> String {
    let counts = counts.iter().enumerate().filter(|(_, count)| **count > 0);
    counts.map(|(key, count)| format!("{key}:{count}")).collect::<Vec<_>>().join(",")
}

fn from_words(words: &str) -> Vec<(usize, u64)> {
    let pairs = words.split(',').filter_map(|pair| pair.split_once(':'));
    pairs.map(|(key, count)| (number(key) as usize, number(count))).collect()
}

/// The counts of a key.
#[derive(Clone, Copy, Default)]
struct Told {
    lies: u64,
    /// Reads by victims in rounds with lies to the key.
    reads: u64,
    /// Reads by victims in all rounds.
    all_reads: u64,
}

/// Plays a round and checks how it ended for each process of the job. Counts lies and reads by key.
fn round(job: &mut Job, setup: &Setup, order: &str, told: &mut [Told]) -> String {
    job.all().for_each(|process| process.tell(order));
    let reports: Vec<String> = job.all().map(Process::line).collect();
    let (mut lies, mut reads, mut ends) = (vec![0; told.len()], Vec::new(), Vec::new());
    for (task, report) in reports.iter().enumerate() {
        let mut words = report.strip_prefix("round ").unwrap_or_else(|| panic!("{order}: {report}")).splitn(3, ' ');
        let (read, lied) = (words.next().unwrap(), words.next().unwrap());
        match task == setup.liar {
            true => from_words(lied).into_iter().for_each(|(key, count)| lies[key] = count),
            false => reads.extend(from_words(read)),
        }
        ends.push(words.next().unwrap_or_default());
    }
    told.iter_mut().zip(&lies).for_each(|(told, count)| told.lies += count);
    for (key, count) in reads {
        told[key].all_reads += count;
        told[key].reads += if lies[key] > 0 { count } else { 0 };
    }
    ends.join(" | ")
}

fn start(setup: usize) -> Job {
    let tasks = SETUPS[setup].ranks.len();
    let mut job = Job::new(tasks);
    (0..tasks).for_each(|task| job.launch(task, &format!("corrupts {setup} {task}")));
    job
}

#[test]
fn a_process_writing_anything_anywhere_harms_no_other() {
    let setting = |name| env::var(name).ok().map(|value| number(&value));
    let seconds = Duration::from_secs(setting("CONSONANCE_CORRUPT_SECONDS").unwrap_or(0));
    let seed = setting("CONSONANCE_CORRUPT_SEED").unwrap_or(1);
    let begin = Instant::now();
    let mut jobs = [0, 1, 2, 3].map(start);
    // The keys are the same in each setup.
    let keys = keys(&Segment::parts(SETUPS[0].shape()));
    let mut told = vec![Told::default(); keys.len()];
    let field = env::var("CONSONANCE_CORRUPT_FIELD").ok();
    let is_chosen = |key: &usize| field.as_ref().is_none_or(|field| keys[*key].1 == *field);
    let mut turns: Vec<usize> = (0..keys.len()).filter(is_chosen).collect();
    assert!(!turns.is_empty(), "no field {field:?} in {keys:?}");
    let (mut turn, mut shift) = (0, 0);
    let (mut rounds, mut harms) = (0, Vec::new());
    // A field that no victim has read yet gets more turns.
    let is_read = |told: &[Told], name: &str| keys.iter().zip(told).any(|(key, told)| key.1 == name && told.reads > 0);
    let all_read = |told: &[Told]| field.is_some() || keys.iter().all(|(_, name)| is_read(told, name));
    while rounds < ROUNDS || begin.elapsed() < seconds || (rounds < 4 * ROUNDS && !all_read(&told)) {
        if turn == turns.len() {
            // In some areas no call reads certain fields. Keys that no victim has read until now
            // get no more turns.
            turns.retain(|&key| field.is_some() || told[key].all_reads > 0);
            (turn, shift) = (0, shift + 1);
        }
        // Combine each key with each setup.
        let (key, setup) = (turns[turn], (turn + shift) % SETUPS.len());
        let (area, name) = &keys[key];
        // A strategy does not split groups.
        let is_apart = SETUPS[setup].is_strategy && ["pair", "split"].contains(area);
        let root = || keys.iter().position(|other| *other == ("root", name.clone())).unwrap();
        let key = if is_apart { root() } else { key };
        let order = format!("{} {key}", seed * 1_000_003 + rounds as u64);
        println!("round {rounds}, setup {setup}: {order} {:?}", keys[key]);
        let job = &mut jobs[setup];
        let made = catch_unwind(AssertUnwindSafe(|| round(job, &SETUPS[setup], &order, &mut told)));
        match made {
            Ok(ends) => println!("    {:.1?}: {ends}", begin.elapsed()),
            Err(_) => {
                println!("    {:.1?}: harm", begin.elapsed());
                harms.push((order, &keys[key]));
                jobs[setup] = start(setup);
            }
        }
        (turn, rounds) = (turn + 1, rounds + 1);
    }
    for job in &mut jobs {
        job.all().for_each(|process| process.tell("end"));
        job.all().for_each(Process::end);
    }
    println!("{rounds} rounds in {:.1?}", begin.elapsed());
    for ((area, name), Told { lies, reads, .. }) in keys.iter().zip(&told) {
        println!("{area:8} {name:32} {lies:8} lies, {reads:8} reads");
    }
    assert!(harms.is_empty(), "processes came to harm in rounds with these seeds and fields: {harms:?}");
    let mut unread: BTreeSet<&str> = keys.iter().map(|(_, name)| name.as_str()).collect();
    let read = keys.iter().zip(&told).filter(|(_, told)| told.reads > 0);
    read.for_each(|((_, name), _)| _ = unread.remove(name.as_str()));
    assert!(field.is_some() || unread.is_empty(), "no victim has read these while they were lied of: {unread:?}");
}
