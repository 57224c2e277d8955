//! Collectives of two pinned threads, beside the limits of the machine, measured in the same run.
//! The threads are two ranks of one process, or communicate as two processes do.
//!
//! `cargo bench -p consonance-cli --bench collectives` prints tables first. They compare the 8-byte
//! all-reduce with the round trip of a cache line between the two cores, every collective with a
//! copy of the bytes that it must move at least, and ragged with even all-gathers. The figures are
//! medians of interleaved rounds, A B A B, because the machine is shared: read the ratios. The
//! benchmarks after the tables have names such as `all_reduce/threads/8`, by which they can be
//! selected.

use consonance::{Communicator, DType, ReduceOp};
use consonance_cli::bench::case::{Case, Collective};
use consonance_harness::counted_calls::pair_of_processes;
use consonance_kernels::os::thread_pool::Team;
use criterion::{BenchmarkId, Criterion, Throughput};
use std::{
    hint::{black_box, spin_loop},
    sync::{
        Barrier, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Rounds of each measurement in the tables, which print the median.
const ROUNDS: usize = 15;

/// A collective on a buffer to send and a buffer for the result, each as large as the larger of the
/// two.
type Call = fn(&mut Communicator, &[f32], &mut [f32]) -> consonance::Result<()>;

/// The measured collectives. The first element of every result equals the first element that both
/// ranks send.
const CALLS: [(Collective, Call); 6] = [
    (Collective::AllReduce, |rank, send, recv| rank.all_reduce_into(ReduceOp::Max, send, recv)),
    (Collective::AllGather, |rank, send, recv| rank.all_gather_into(&send[..send.len() / 2], recv)),
    (Collective::ReduceScatter, |rank, send, recv| {
        rank.reduce_scatter_into(ReduceOp::Max, send, &mut recv[..send.len() / 2])
    }),
    (Collective::Broadcast, |rank, send, recv| {
        if rank.rank() == 0 {
            recv[0] = send[0];
        }
        rank.broadcast(recv, 0)
    }),
    (Collective::AllToAll, |rank, send, recv| rank.all_to_all_into(send, recv)),
    (Collective::Barrier, |rank, send, recv| {
        recv[0] = send[0];
        rank.barrier()
    }),
];

/// An all-gather of the same bytes as the even one, with parts 10 % below and above the average.
const RAGGED: Call = |rank, send, recv| {
    let first = recv.len() * 9 / 20;
    let counts = [first, recv.len() - first];
    rank.all_gather_v(Some(&send[..counts[rank.rank()]]), recv, &counts)
};

/// A word in its own pair of cache lines.
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

    /// Makes ranks that share memory only as processes do.
    fn processes() -> Pair {
        Pair::of(pair_of_processes().into())
    }

    fn of(ranks: Vec<Communicator>) -> Pair {
        let team = Team::new("bench", &[Some(0), Some(1)]).expect("two cores that this process may use");
        let mut ranks = ranks.into_iter().map(Mutex::new);
        Pair { team, ranks: std::array::from_fn(|_| ranks.next().expect("two ranks")) }
    }

    /// Returns the time of `work` on the slower of both threads, which begin together.
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

    /// Makes `calls` calls on the same buffers of `count` floats each. Each call sends another
    /// number as its first element, and checks that the result has it. The other elements stay as
    /// the call before left them, so that the collective is measured and not the filling.
    fn calls(&mut self, call: Call, count: usize, calls: usize) -> Duration {
        self.time(|_, rank| {
            let (mut send, mut recv) = (vec![1.0f32; count], vec![0.0f32; count]);
            for number in 0..calls {
                let mark = (number % 1000 + 2) as f32;
                // The first element of each block.
                (send[0], send[count / 2], recv[0]) = (mark, mark, 0.0);
                call(rank, &send, &mut recv).expect("both ranks make the same calls");
                assert_eq!(recv[0], mark);
            }
        })
    }

    /// Makes `trips` round trips of a cache line between the two cores.
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

/// Returns the medians of measurements taken in turn, in seconds a call.
fn interleaved<const N: usize>(calls: usize, mut measurements: [&mut dyn FnMut() -> Duration; N]) -> [f64; N] {
    let mut times = [const { Vec::new() }; N];
    for _ in 0..ROUNDS {
        for (times, measure) in times.iter_mut().zip(&mut measurements) {
            times.push(measure());
        }
    }
    times.map(|times| median(times) / calls as f64)
}

/// Returns the elements that each core copies in a copy of the bytes that a collective of `count`
/// elements must move at least.
fn least_copy(collective: Collective, count: usize) -> usize {
    let (dtype, op) = (DType::F32, ReduceOp::Max);
    let case = Case { collective, ranks: 2, count: 0, dtype, op, in_place: false, spread: 0 }.with_bytes(4 * count);
    case.data(1).least().div_ceil(2)
}

fn tables() {
    let (mut threads, mut processes, mut other) = (Pair::threads(), Pair::processes(), Pair::threads());
    println!("2 threads on 2 cores, as such and as 2 processes; f32; medians of {ROUNDS} interleaved rounds, in us\n");
    let (calls, all_reduce) = (50_000, CALLS[0].1);
    let [of_threads, of_processes, trip] = interleaved(
        calls,
        [&mut || threads.calls(all_reduce, 2, calls), &mut || processes.calls(all_reduce, 2, calls), &mut || {
            other.round_trips(calls as u64)
        }],
    );
    println!("cache-line round trip            {:8.3}", trip * 1e6);
    for (name, time) in [("threads", of_threads), ("processes", of_processes)] {
        println!(
            "all_reduce of 8 bytes, {name:<9} {:8.3}   {:.2} round trips (below 2 is the aim)",
            time * 1e6,
            time / trip
        );
    }

    println!("\n{:<16} {:>9} {:>9}  {:>18}  {:>18}", "", "bytes", "copy", "threads, copy / it", "processes, copy / it");
    for (collective, call) in CALLS {
        for bytes in [64 << 10, 1 << 20, 16 << 20] {
            let (calls, count) = (((16 << 20) / bytes).clamp(2, 200), bytes / 4);
            let copied = least_copy(collective, count);
            if copied == 0 {
                continue;
            }
            let [of_threads, of_processes, copy] = interleaved(
                calls,
                [&mut || threads.calls(call, count, calls), &mut || processes.calls(call, count, calls), &mut || {
                    other.copies(copied, calls)
                }],
            );
            let (a, b) = (copy / of_threads, copy / of_processes);
            let [copy, of_threads, of_processes] = [copy, of_threads, of_processes].map(|time| time * 1e6);
            println!(
                "{:<16} {bytes:>9} {copy:9.2}  {of_threads:11.2} {a:6.2}  {of_processes:13.2} {b:6.2}",
                collective.name()
            );
        }
    }

    println!(
        "\n{:<16} {:>9}  {:>9}  {:>9}   even / ragged all-gather of equal bytes",
        "", "bytes", "threads", "processes"
    );
    for bytes in [64, 4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let (calls, count, even) = (((16 << 20) / bytes).clamp(2, 20_000), bytes / 4, CALLS[1].1);
        let ratios = [&mut threads, &mut processes].map(|pair| {
            let pair = std::cell::RefCell::new(pair);
            let [even, ragged] = interleaved(
                calls,
                [&mut || pair.borrow_mut().calls(even, count, calls), &mut || {
                    pair.borrow_mut().calls(RAGGED, count, calls)
                }],
            );
            even / ragged
        });
        println!("{:<16} {bytes:>9}  {:9.3}  {:9.3}", "all_gather_v", ratios[0], ratios[1]);
    }
}

fn criterion_groups(criterion: &mut Criterion) {
    let sizes = [8usize, 512, 16 << 10, 512 << 10, 16 << 20];
    let (mut threads, mut processes, mut other) = (Pair::threads(), Pair::processes(), Pair::threads());
    for (collective, call) in CALLS {
        let mut group = criterion.benchmark_group(collective.name());
        group.sample_size(10).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(500));
        let sizes = if collective == Collective::Barrier { &sizes[..1] } else { &sizes };
        for &bytes in sizes {
            group.throughput(Throughput::Bytes(bytes as u64));
            for (name, pair) in [("threads", &mut threads), ("processes", &mut processes)] {
                group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                    bencher.iter_custom(|calls| pair.calls(call, bytes / 4, calls as usize));
                });
            }
        }
        group.finish();
    }
    let mut group = criterion.benchmark_group("copy");
    group.sample_size(10).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(500));
    for bytes in sizes {
        group.throughput(Throughput::Bytes(2 * bytes as u64));
        group.bench_function(BenchmarkId::new("threads", bytes), |bencher| {
            bencher.iter_custom(|calls| other.copies(bytes / 4, calls as usize));
        });
    }
    group.finish();
}

fn main() {
    // If benchmarks are selected by name, the tables are not printed.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--bench")
        && arguments.iter().all(|argument| argument.starts_with('-'))
    {
        tables();
    }
    let mut criterion = Criterion::default().configure_from_args();
    criterion_groups(&mut criterion);
    criterion.final_summary();
}
