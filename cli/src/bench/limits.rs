//! `consonance bench limits`: what this machine can do, with any library.
//!
//! Each figure is the median of several turns. In a turn, threads begin together, each on its own
//! core with its own buffers, and the time of the slowest counts. GB/s count the bytes that are
//! read and the bytes that are written.
//!
//! A copy is our own, in the way that is the fastest for these buffers (`fastest`), and so is a
//! copy of a buffer onto itself, which a reduction in place does at least: it reads no lines only
//! to write them. The bench's rows of the limit, this table and `consonance explain` all measure
//! them so.
//!
//! The last rows are the times by which a process chooses how it copies its own data, and a group
//! of two how it moves data: of each value of a knob, in the measurement that every program makes.

pub(crate) use super::group::cores;

use consonance_harness::counted_calls::choose_pipelines;
use consonance_kernels::{
    cpu::{
        reduce::Reducer,
        ways::{copy_by, rewrite_by},
    },
    memory::{HostBuf, HostMemory},
    os::thread_pool::Team,
    tuning::{self, Way, settled},
};
use consonance_spec::{DType, ReduceOp};
use serde_json::{Value, json};
use std::{
    fmt,
    hint::{black_box, spin_loop},
    io,
    sync::{
        Barrier, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Turns of a measurement.
const TURNS: usize = 9;

/// The least time of a turn, so that the resolution of the clock does not matter.
const TURN: Duration = Duration::from_millis(3);

/// Turns with each way to copy, and the least time of a turn, by which the fastest is found.
const WAY_TURNS: usize = 3;
const WAY_TURN: Duration = Duration::from_micros(50);

/// Turns of round trips, and trips in a turn. There are many short turns, because a turn in which a
/// thread loses its core is useless.
const TRIP_TURNS: usize = 201;
const TRIPS: u64 = 200;

/// Turns of a probe of the round trip, and the time after which it ends with fewer: threads that
/// share their cores with other programs may take long.
const PROBE_TURNS: usize = 21;
const PROBE: Duration = Duration::from_millis(3);

/// The numbers of buffers to sum.
const INPUTS: [usize; 3] = [2, 4, 8];

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// The work of the threads.
    pub what: What,
    /// The number of threads.
    pub threads: usize,
    /// Bytes of one buffer of one thread.
    pub bytes: usize,
    /// The median time of the work on the slowest thread.
    pub time_us_median: f64,
}

/// The work that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Copies one buffer into another.
    Copy,
    /// Copies a buffer onto itself.
    Rewrite,
    /// Sums this many buffers of f32 into another.
    Sum(usize),
    /// Moves a cache line from one core to another and back.
    RoundTrip,
    /// Moves data with this value of a knob.
    Choice(&'static str, tuning::Value),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Copy => f.pad("copy"),
            What::Rewrite => f.pad("copy in place"),
            What::Sum(inputs) => f.pad(&format!("sum of {inputs}")),
            What::RoundTrip => f.pad("cache-line round trip"),
            What::Choice(knob, value) => f.pad(&format!("{knob} = {value}")),
        }
    }
}

impl Limit {
    /// Returns the bytes that all threads together read and wrote in a second, in GB/s. `None` for
    /// a round trip, and for a knob's value.
    pub fn gbps(&self) -> Option<f64> {
        let buffers = match self.what {
            What::Copy | What::Rewrite => 2,
            What::Sum(inputs) => inputs + 1,
            What::RoundTrip | What::Choice(..) => return None,
        };
        Some((self.threads * buffers * self.bytes) as f64 / self.time_us_median / 1e3)
    }

    /// Returns the measurement as a JSON object.
    pub fn json(&self) -> Value {
        json!({
            "what": self.what.to_string(),
            "threads": self.threads,
            "bytes": self.bytes,
            "time_us_median": self.time_us_median,
            "GBps": self.gbps(),
        })
    }

    /// Returns the names of the table's columns.
    pub fn header() -> String {
        format!("# {:<22} {:>7} {:>10} {:>10} {:>8}", "what", "threads", "bytes", "time (us)", "GB/s")
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit { what, threads, bytes, time_us_median: time, .. } = self;
        write!(f, "  {what:<22} {threads:>7} {bytes:>10} {time:>10.3}")?;
        self.gbps().map_or(Ok(()), |gbps| write!(f, " {gbps:>8.2}"))
    }
}

/// Measures everything with buffers of these sizes, on one core and on all. Passes each result to
/// `limit`, and calls `progress` before each measurement.
///
/// # Errors
/// The system's, if it gives no thread or refuses a core, and those of a group that does not form.
pub fn limits(
    sizes: &[usize],
    mut limit: impl FnMut(Limit),
    mut progress: impl FnMut(usize, usize, String),
) -> io::Result<()> {
    let mut counts = vec![1, cores()];
    counts.dedup();
    let whats = || [What::Copy, What::Rewrite].into_iter().chain(INPUTS.map(What::Sum));
    let total = 2 + counts.len() * sizes.len() * whats().count();
    progress(0, total, What::RoundTrip.to_string());
    if let Some(seconds) = round_trip()? {
        limit(Limit { what: What::RoundTrip, threads: 2, bytes: 64, time_us_median: seconds * 1e6 });
    }
    let mut done = 1;
    for threads in counts {
        let mut team = Team::new("limit", &(0..threads).map(Some).collect::<Vec<_>>())?;
        for what in whats() {
            for &bytes in sizes {
                progress(done, total, format!("{what}, {bytes} bytes"));
                done += 1;
                limit(Limit { what, threads, bytes, time_us_median: 1e6 * moved(&mut team, what, bytes) });
            }
        }
    }
    progress(done, total, "the choice of pipelines".to_owned());
    choose_pipelines().map_err(io::Error::other)?;
    for trial in settled().map_err(io::Error::other)?.trials {
        let (what, time_us_median) = (What::Choice(trial.knob, trial.value), trial.time.as_secs_f64() * 1e6);
        // A rank copies its own data alone.
        let threads = if trial.knob == "own" { 1 } else { 2 };
        limit(Limit { what, threads, bytes: trial.bytes, time_us_median });
    }
    Ok(())
}

/// Returns the seconds of a copy of `bytes` bytes on each core, on all cores at the same time: of a
/// buffer onto itself if it is `in_place`.
///
/// # Errors
/// The system's, if it has no memory for the copies, gives no thread or refuses a core.
pub(crate) fn copy(bytes: usize, in_place: bool) -> io::Result<f64> {
    // A thread that gets no memory would end the process. While a thread makes its buffers, it has
    // three of this size.
    let all = bytes.saturating_mul(3 * cores());
    Vec::<u8>::new().try_reserve_exact(all).map_err(|_| {
        let why = format!("no memory for copies of {bytes} bytes on each of {} cores", cores());
        io::Error::new(io::ErrorKind::OutOfMemory, why)
    })?;
    let mut team = Team::new("limit", &(0..cores()).map(Some).collect::<Vec<_>>())?;
    Ok(moved(&mut team, if in_place { What::Rewrite } else { What::Copy }, bytes))
}

/// Returns the way in which `copy` took the least time.
pub(super) fn fastest(mut copy: impl FnMut(Way)) -> Way {
    let mut turn = |way: Way| {
        let (begin, mut copies) = (Instant::now(), 0u32);
        while copies == 0 || begin.elapsed() < WAY_TURN {
            copy(way);
            copies += 1;
        }
        begin.elapsed().as_secs_f64() / f64::from(copies)
    };
    // The first turn of all also brings the buffers into the caches.
    turn(Way::Vector);
    let mut best = (f64::INFINITY, Way::Vector);
    for way in (0..WAY_TURNS).flat_map(|_| Way::ALL) {
        let seconds = turn(way);
        if seconds < best.0 {
            best = (seconds, way);
        }
    }
    best.1
}

/// Returns the seconds in which each thread of the team does `what` once.
fn moved(team: &mut Team, what: What, bytes: usize) -> f64 {
    let (start, times) = (Barrier::new(team.size()), Mutex::new(vec![0f64; TURNS]));
    let rounds = Mutex::new(0usize);
    team.run(&|_| {
        let count = (bytes / 4).max(1);
        let inputs = if let What::Sum(inputs) = what { inputs } else { 1 };
        let sources: Vec<HostMemory> = (0..inputs).map(|_| HostMemory::from(&vec![1f32; count][..])).collect();
        let mut target = HostMemory::from(&vec![2f32; count][..]);
        let sum = Reducer::new(ReduceOp::Sum, DType::F32).expect("floats have sums");
        let copy = |way: Way, target: &mut HostMemory| match what {
            What::Rewrite => rewrite_by(way, black_box(&mut target.as_buf_mut())),
            _ => copy_by(way, black_box(sources[0].as_buf()), &mut target.as_buf_mut()),
        };
        let way = fastest(|way| copy(way, &mut target));
        let mut work = || match what {
            What::Sum(_) => {
                let sources: Vec<HostBuf<'_>> = sources.iter().map(HostMemory::as_buf).collect();
                sum.reduce(black_box(&sources), &mut target.as_buf_mut());
            }
            _ => copy(way, &mut target),
        };
        work();
        let begin = Instant::now();
        work();
        let fit = (TURN.as_secs_f64() / begin.elapsed().as_secs_f64()).ceil();
        {
            let mut rounds = rounds.lock().expect("nobody panics holding it");
            *rounds = (fit as usize).max(*rounds);
        }
        start.wait();
        let rounds = *rounds.lock().expect("nobody panics holding it");
        for turn in 0..TURNS {
            start.wait();
            let begin = Instant::now();
            (0..rounds).for_each(|_| work());
            let seconds = begin.elapsed().as_secs_f64() / rounds as f64;
            let slowest = &mut times.lock().expect("nobody panics holding it")[turn];
            *slowest = slowest.max(seconds);
        }
    });
    median(times.into_inner().expect("nobody panics holding it"))
}

/// A word in its own pair of cache lines.
#[repr(align(128))]
#[derive(Default)]
struct Alone(AtomicU64);

/// Returns the seconds that a cache line takes from the first core to the second and back. `None`
/// if there is only one core.
///
/// # Errors
/// The system's, if it gives no thread or refuses a core.
pub fn round_trip() -> io::Result<Option<f64>> {
    round_trips(TRIP_TURNS, Duration::MAX)
}

/// Returns about what [`round_trip`] returns, within milliseconds. A virtual machine's cores move
/// nearer and further: only calls at the same distance can be compared.
///
/// # Errors
/// As [`round_trip`].
pub(super) fn probe() -> io::Result<Option<f64>> {
    round_trips(PROBE_TURNS, PROBE)
}

fn round_trips(turns: usize, limit: Duration) -> io::Result<Option<f64>> {
    if cores() < 2 {
        return Ok(None);
    }
    let mut team = Team::new("limit", &[Some(0), Some(1)])?;
    let times = Mutex::new(Vec::new());
    let begin = Instant::now();
    for turn in 0..turns {
        if turn > 0 && begin.elapsed() > limit {
            break;
        }
        let words = [Alone::default(), Alone::default()];
        team.run(&|index| {
            let mut begin = Instant::now();
            for trip in 0..=TRIPS {
                // In the first trip the threads wait until both have begun.
                if trip == 1 {
                    begin = Instant::now();
                }
                if index == 0 {
                    words[0].0.store(trip + 1, Ordering::Release);
                }
                while words[1 - index].0.load(Ordering::Acquire) <= trip {
                    spin_loop();
                }
                if index == 1 {
                    words[1].0.store(trip + 1, Ordering::Release);
                }
            }
            if index == 0 {
                times.lock().expect("nobody panics holding it").push(begin.elapsed().as_secs_f64() / TRIPS as f64);
            }
        });
    }
    Ok(Some(median(times.into_inner().expect("nobody panics holding it"))))
}

/// Returns the median of at least one time.
pub(crate) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
