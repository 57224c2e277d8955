//! Collectives of two pinned threads, beside what the machine allows, measured in the same run. The threads are two ranks of one
//! process, or meet as two processes do.
//!
//! `cargo bench -p consonance-harness --bench collectives` prints a table first: the 8-byte all-reduce against the round trip of
//! a cache line between the two cores, and large all-reduces in place against a copy of as many bytes. Medians of
//! interleaved rounds, A B A B, because the machine is shared: read the ratios.

use consonance::{Communicator, ReduceOp};
use consonance_harness::counted::pair_of_processes;
use consonance_kernels::team::Team;
use criterion::{BenchmarkId, Criterion, Throughput};
use std::{
    hint::{black_box, spin_loop},
    sync::{
        Barrier, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Rounds of each measurement in the table, of which the median is printed.
const ROUNDS: usize = 15;

/// A word alone on its pair of cache lines.
#[repr(align(128))]
#[derive(Default)]
struct Alone(AtomicU64);

/// Two threads on two cores, each with its rank.
struct Pair {
    team: Team,
    ranks: [Mutex<Communicator>; 2],
}

impl Pair {
    fn threads() -> Pair {
        Pair::of(Communicator::threads(2))
    }

    /// Ranks that share no memory but what processes share.
    fn processes() -> Pair {
        Pair::of(pair_of_processes().into())
    }

    fn of(ranks: Vec<Communicator>) -> Pair {
        let team = Team::new("bench", &[Some(0), Some(1)]).expect("two cores that this process may use");
        let mut ranks = ranks.into_iter().map(Mutex::new);
        Pair { team, ranks: std::array::from_fn(|_| ranks.next().expect("two ranks")) }
    }

    /// The time of `work` on the slower of both threads, which begin together.
    fn time(&mut self, work: impl Fn(usize, &mut Communicator) + Sync) -> Duration {
        let (start, longest) = (Barrier::new(2), Mutex::new(Duration::ZERO));
        let ranks = &self.ranks;
        self.team.run(&|index| {
            let mut rank = ranks[index].lock().expect("one thread a rank");
            start.wait();
            let begin = Instant::now();
            work(index, &mut rank);
            let mut longest = longest.lock().expect("nobody panics holding it");
            *longest = begin.elapsed().max(*longest);
        });
        longest.into_inner().expect("nobody panics holding it")
    }

    /// `calls` all-reduces (max) in place of `count` floats; the ends of the buffers are changed before each, and checked after.
    fn all_reduce(&mut self, count: usize, calls: usize) -> Duration {
        self.time(|index, rank| {
            let mut data = vec![1.0f32; count];
            for call in 0..calls {
                // The rest is as the call before left it, so that what is measured is the collective and not the filling.
                (data[0], data[count - 1]) = ((call + index) as f32, (call + 1 - index) as f32);
                rank.all_reduce(ReduceOp::Max, &mut data).expect("both ranks make the same calls");
                assert_eq!((data[0], data[count - 1]), ((call + 1) as f32, (call + 1) as f32));
            }
        })
    }

    /// `trips` round trips of a cache line between the two cores.
    fn round_trips(&mut self, trips: u64) -> Duration {
        let words = [Alone::default(), Alone::default()];
        self.time(|index, _| {
            for trip in 1..=trips {
                if index == 0 {
                    words[0].0.store(trip, Ordering::Release);
                }
                while words[1 - index].0.load(Ordering::Acquire) < trip {
                    spin_loop();
                }
                if index == 1 {
                    words[1].0.store(trip, Ordering::Release);
                }
            }
        })
    }

    /// Copies `count` floats `calls` times on each thread.
    fn copies(&mut self, count: usize, calls: usize) -> Duration {
        self.time(|_, _| {
            let (source, mut target) = (vec![1.0f32; count], vec![0.0f32; count]);
            for _ in 0..calls {
                target.copy_from_slice(black_box(&source));
                black_box(&mut target);
            }
        })
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

/// Medians of measurements taken in turn, in seconds a call.
fn interleaved<const N: usize>(calls: usize, mut measurements: [&mut dyn FnMut() -> Duration; N]) -> [f64; N] {
    let mut times = [const { Vec::new() }; N];
    for _ in 0..ROUNDS {
        for (times, measure) in times.iter_mut().zip(&mut measurements) {
            times.push(measure());
        }
    }
    times.map(|times| median(times) / calls as f64)
}

fn table() {
    let (mut threads, mut processes, mut other) = (Pair::threads(), Pair::processes(), Pair::threads());
    println!(
        "2 threads on 2 cores, as such and as 2 processes; in place, f32; medians of {ROUNDS} interleaved rounds\n"
    );
    let calls = 50_000;
    let [of_threads, of_processes, trip] = interleaved(
        calls,
        [&mut || threads.all_reduce(2, calls), &mut || processes.all_reduce(2, calls), &mut || {
            other.round_trips(calls as u64)
        }],
    );
    println!("cache-line round trip            {:8.3} us", trip * 1e6);
    for (name, time) in [("threads", of_threads), ("processes", of_processes)] {
        println!(
            "all_reduce of 8 bytes, {name:<9} {:8.3} us   {:.2} round trips (below 2 is the aim)",
            time * 1e6,
            time / trip
        );
    }
    let ([a, b], [c, d]) = (["threads us", "copy / it"], ["processes us", "copy / it"]);
    println!("\n{:>10}  {:>22}  {a:>12} {b:>9}  {c:>12} {d:>9}", "bytes", "copy of the traffic us");
    for bytes in [64 << 10, 1 << 20, 16 << 20, 64 << 20] {
        let calls = ((64 << 20) / bytes).clamp(2, 200);
        let count = bytes / 4;
        // In place each thread reads `bytes` and writes `bytes`: half of both buffers each way. So does a copy of `bytes`.
        let [of_threads, of_processes, copy] = interleaved(
            calls,
            [&mut || threads.all_reduce(count, calls), &mut || processes.all_reduce(count, calls), &mut || {
                other.copies(count, calls)
            }],
        );
        let (a, b, c, d) = (of_threads * 1e6, copy / of_threads, of_processes * 1e6, copy / of_processes);
        println!("{bytes:>10}  {:22.2}  {a:12.2} {b:9.2}  {c:12.2} {d:9.2}", copy * 1e6);
    }
}

fn criterion_groups(criterion: &mut Criterion) {
    for (name, mut pair) in [("threads", Pair::threads()), ("processes", Pair::processes())] {
        let mut group = criterion.benchmark_group(format!("all_reduce of 2 {name}, f32 in place"));
        group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
        for bytes in [8usize, 64, 1 << 10, 16 << 10, 256 << 10, 4 << 20] {
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
                bencher.iter_custom(|calls| pair.all_reduce(bytes / 4, calls as usize));
            });
        }
        group.finish();
    }
}

fn main() {
    if std::env::args().any(|argument| argument == "--bench") {
        table();
    }
    let mut criterion = Criterion::default().configure_from_args();
    criterion_groups(&mut criterion);
    criterion.final_summary();
}
