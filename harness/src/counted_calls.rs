//! Kernels and small collectives whose instructions `harness/perf/compare` counts. Instruction
//! counts are reproducible, times are not.
//!
//! Only the main thread's instructions are counted. In a collective the main thread is rank 0 and
//! calls after the other ranks have begun to wait, so that it never waits itself: the length of a
//! spin is not a property of the program. The ranks are threads, because a segment that processes
//! share does not fit valgrind's address space. Small calls use the same protocol in both.

use crate::addresses::addresses;
use consonance::{ClusterSpec, Communicator, DType, Element, ProcessGroup, ReduceOp, SimpleClusterResolver, bf16, f16};
use consonance_kernels::{
    cpu::{
        axis::{Along, Part},
        reduce::Reducer,
    },
    group::LARGE_BYTES,
    memory::{HostBuf, HostMemory},
};
use std::{hint::black_box, thread, time::Duration};

/// Bytes of each buffer of a kernel.
const BYTES: usize = 64 << 10;

/// Far longer than a rank takes to reach its wait, even in an emulator.
const HEAD_START: Duration = Duration::from_millis(5);

/// A call to count. Makes the call the given number of times.
type Work = fn(usize);

/// All counted calls, with their names.
pub const COUNTED: [(&str, Work); 18] = [
    ("sum of 2 f32", |calls| reduce::<f32>(ReduceOp::Sum, 2, calls)),
    ("sum of 8 f32", |calls| reduce::<f32>(ReduceOp::Sum, 8, calls)),
    ("mean of 4 f32", |calls| reduce::<f32>(ReduceOp::Mean, 4, calls)),
    ("max of 2 f32", |calls| reduce::<f32>(ReduceOp::Max, 2, calls)),
    ("sum of 2 f64", |calls| reduce::<f64>(ReduceOp::Sum, 2, calls)),
    ("sum of 2 bf16", |calls| reduce::<bf16>(ReduceOp::Sum, 2, calls)),
    ("sum of 2 f16", |calls| reduce::<f16>(ReduceOp::Sum, 2, calls)),
    ("sum of 2 i32", |calls| reduce::<i32>(ReduceOp::Sum, 2, calls)),
    ("sum of 2 u8", |calls| reduce::<u8>(ReduceOp::Sum, 2, calls)),
    ("max of 2 i64", |calls| reduce::<i64>(ReduceOp::Max, 2, calls)),
    ("sum of f32 along the last axis", |calls| along([64, BYTES / 4 / 64, 1], calls)),
    ("sum of f32 along the first axis", |calls| along([1, 64, BYTES / 4 / 64], calls)),
    ("all_reduce of 8 bytes, 1 rank", |calls| alone(all_reduce::<2>, calls)),
    ("all_reduce of 8 bytes, 2 threads", |calls| threads(all_reduce::<2>, calls)),
    ("all_reduce of 64 bytes, 2 threads", |calls| threads(all_reduce::<16>, calls)),
    ("all_gather of 8 bytes, 2 threads", |calls| threads(all_gather, calls)),
    ("broadcast of 8 bytes, 2 threads", |calls| threads(broadcast, calls)),
    ("barrier, 2 threads", |calls| threads(barrier, calls)),
];

fn reduce<T: Element>(op: ReduceOp, inputs: usize, calls: usize) {
    let reducer = Reducer::new(op, T::DTYPE).expect("an operation of the type");
    let inputs = vec![HostMemory::zeroed(T::DTYPE, BYTES / size_of::<T>()); inputs];
    let mut output = inputs[0].clone();
    let inputs: Vec<HostBuf<'_>> = inputs.iter().map(HostMemory::as_buf).collect();
    for _ in 0..calls {
        reducer.reduce(black_box(&inputs), &mut output.as_buf_mut());
    }
}

fn along(shape: [usize; 3], calls: usize) {
    let tensor = HostMemory::zeroed(DType::F32, shape.iter().product());
    for _ in 0..calls {
        let along = Along::new(ReduceOp::Sum, black_box(&[(tensor.as_buf(), shape)])).expect("memory");
        let mut along = along.expect("sums are defined");
        along.parts(1).into_iter().for_each(Part::run);
        drop(black_box(along.finish().expect("memory")));
    }
}

fn all_reduce<const COUNT: usize>(rank: &mut Communicator) -> consonance::Result<()> {
    rank.all_reduce(ReduceOp::Sum, black_box(&mut [1f32; COUNT]))
}

fn all_gather(rank: &mut Communicator) -> consonance::Result<()> {
    rank.all_gather(black_box(&mut [1f32; 2]))
}

fn broadcast(rank: &mut Communicator) -> consonance::Result<()> {
    rank.broadcast(black_box(&mut [1f32; 2]), 0)
}

fn barrier(rank: &mut Communicator) -> consonance::Result<()> {
    rank.barrier()
}

type Collective = fn(&mut Communicator) -> consonance::Result<()>;

fn alone(collective: Collective, calls: usize) {
    let mut rank = Communicator::threads(1).remove(0);
    (0..calls).for_each(|_| collective(&mut rank).expect("nobody else"));
}

fn threads(collective: Collective, calls: usize) {
    let mut ranks = Communicator::threads(2);
    let (mut other, mut first) = (ranks.remove(1), ranks.remove(0));
    thread::scope(|scope| {
        scope.spawn(move || {
            (0..calls).for_each(|_| collective(&mut other).expect("rank 0 calls the same"));
        });
        for _ in 0..calls {
            thread::sleep(HEAD_START);
            collective(&mut first).expect("rank 1 calls the same");
        }
    });
}

/// Returns two ranks of this process that meet like ranks of two processes.
pub fn pair_of_processes() -> [Communicator; 2] {
    let mut ranks = two_processes(1, false).into_iter();
    std::array::from_fn(|_| ranks.next().expect("a rank of each process"))
}

/// Makes a large call of two ranks that meet like those of two processes: after it this process has
/// chosen its pipelines, unless a file fixes them.
///
/// # Errors
/// If the call fails.
pub fn choose_pipelines() -> consonance::Result<()> {
    thread::scope(|scope| {
        let calls = pair_of_processes().map(|mut rank| {
            scope.spawn(move || rank.all_reduce(ReduceOp::Max, &mut vec![0f32; LARGE_BYTES / size_of::<f32>()][..]))
        });
        calls.into_iter().try_for_each(|call| call.join().expect("no panic"))
    })
}

/// Returns ranks of this process that meet like those of two processes with `replicas` ranks each.
/// They read each other's memory where all have a core, or where that is `asked`.
pub fn two_processes(replicas: usize, asked: bool) -> Vec<Communicator> {
    let cluster = ClusterSpec::new().job("worker", addresses(2)).expect("two addresses");
    let join = |index: usize| {
        let resolver = SimpleClusterResolver::new(cluster.clone()).with_task("worker", index).expect("a worker");
        let builder = ProcessGroup::builder(resolver).replicas(replicas);
        let builder = if asked { builder.reads_directly(true) } else { builder };
        builder.join().expect("a group of two").communicators()
    };
    thread::scope(|scope| {
        let other = scope.spawn(move || join(1));
        join(0).into_iter().chain(other.join().expect("a process")).collect()
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn two_pairs_of_processes_live_at_a_time() {
        let pairs = [pair_of_processes(), pair_of_processes()];
        assert_eq!(pairs.map(|pair| pair.map(|rank| rank.size())), [[2; 2]; 2]);
    }
}
