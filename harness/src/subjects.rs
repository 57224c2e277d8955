//! Who is tested: a line for each way to make a group of communicators, and for each strategy.

use consonance::{
    CentralStorageStrategy, ClusterSpec, CommunicationOptions, Communicator, Device, MirroredStrategy,
    MultiWorkerMirroredStrategy, OneDeviceStrategy, SimpleClusterResolver, Strategy,
};
use std::{fmt, thread};
#[cfg(target_os = "linux")]
use {
    consonance::ProcessGroup,
    std::{
        process,
        sync::atomic::{AtomicU32, Ordering},
    },
};

/// One rank of a group under test.
pub struct Rank {
    /// Its communicator.
    pub communicator: Communicator,
    /// The communicator that it was split from, if it was: a group ends with that.
    _whole: Option<Communicator>,
}

/// A way to make a group of communicators.
#[derive(Clone, Copy)]
pub struct Group {
    /// What it is called.
    pub name: &'static str,
    /// A new group of so many ranks, in rank order.
    pub make: fn(usize) -> Vec<Rank>,
}

/// Every way to make a group.
pub const GROUPS: &[Group] = &[
    Group { name: "threads", make: threads }, //
    Group { name: "threads, split", make: threads_split },
    #[cfg(target_os = "linux")]
    Group { name: "processes", make: processes },
    #[cfg(target_os = "linux")]
    Group { name: "processes that do not read each other's memory", make: processes_apart },
    #[cfg(target_os = "linux")]
    Group { name: "processes, split", make: processes_split },
];

/// A kind of strategy.
#[derive(Clone, Copy)]
pub struct Replicas {
    /// What it is called.
    pub name: &'static str,
    /// The strategy with so many replicas; `None` if it cannot have so many. Not every strategy takes the options.
    pub make: fn(usize, CommunicationOptions) -> Option<Strategy>,
}

/// Every kind of strategy.
pub const STRATEGIES: &[Replicas] = &[
    Replicas { name: "MirroredStrategy", make: mirrored },
    Replicas { name: "MultiWorkerMirroredStrategy, one worker", make: one_worker },
    Replicas { name: "CentralStorageStrategy", make: central_storage },
    Replicas { name: "OneDeviceStrategy", make: one_device },
];

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

fn threads(size: usize) -> Vec<Rank> {
    Communicator::threads(size).into_iter().map(|communicator| Rank { communicator, _whole: None }).collect()
}

fn threads_split(size: usize) -> Vec<Rank> {
    split(Communicator::threads(size + 1))
}

/// All but rank 0, in the opposite order, as a group split from the whole.
fn split(whole: Vec<Communicator>) -> Vec<Rank> {
    let split = |mut whole: Communicator| {
        let color = (whole.rank() > 0).then_some(7);
        let part = whole.split(color, -(whole.rank() as i32)).expect("every rank splits");
        part.map(|communicator| Rank { communicator, _whole: Some(whole) })
    };
    let mut ranks: Vec<Rank> = thread::scope(|scope| {
        let threads: Vec<_> = whole.into_iter().map(|whole| scope.spawn(move || split(whole))).collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("no rank panics")).collect()
    });
    ranks.sort_by_key(|rank| rank.communicator.rank());
    ranks
}

#[cfg(target_os = "linux")]
fn processes(size: usize) -> Vec<Rank> {
    in_processes(size, true).into_iter().map(|communicator| Rank { communicator, _whole: None }).collect()
}

#[cfg(target_os = "linux")]
fn processes_apart(size: usize) -> Vec<Rank> {
    in_processes(size, false).into_iter().map(|communicator| Rank { communicator, _whole: None }).collect()
}

#[cfg(target_os = "linux")]
fn processes_split(size: usize) -> Vec<Rank> {
    split(in_processes(size + 1, true))
}

/// The ranks of processes that threads play: each has its own connections and maps the shared memory for itself.
#[cfg(target_os = "linux")]
fn in_processes(size: usize, reads_directly: bool) -> Vec<Communicator> {
    /// Enough to have more than two, and some with several ranks.
    const PROCESSES: usize = 3;
    /// The least, so that data pass through it in several parts.
    const STAGING_BYTES: usize = 256 << 10;
    static GROUPS: AtomicU32 = AtomicU32::new(0);

    // Addresses that no other group of this host has at the same time.
    let [_, high, middle, low] = process::id().to_be_bytes();
    let group = GROUPS.fetch_add(1, Ordering::Relaxed);
    let count = size.min(PROCESSES);
    let address =
        |index: usize| format!("127.{high}.{middle}.{low}:{}", 1 + index + group as usize * PROCESSES % 60_000);
    let cluster = ClusterSpec::new().job("worker", (0..count).map(address)).expect("addresses of this host");
    let join = |index: usize| {
        let task = SimpleClusterResolver::new(cluster.clone()).with_task("worker", index)?;
        let replicas = (index + 1) * size / count - index * size / count;
        let group =
            ProcessGroup::builder(task).replicas(replicas).staging_bytes(STAGING_BYTES).reads_directly(reads_directly);
        group.on_wait(|_| {}).join().map(|mut group| group.communicators())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || join(index))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("no process panics"));
        joined.flat_map(|communicators| communicators.expect("the processes meet")).collect()
    })
}

fn mirrored(replicas: usize, options: CommunicationOptions) -> Option<Strategy> {
    let strategy = MirroredStrategy::builder((0..replicas).map(Device::Cpu)).options(options).build();
    Some(Strategy::clone(&strategy.expect("devices that exist")))
}

fn one_worker(replicas: usize, options: CommunicationOptions) -> Option<Strategy> {
    let resolver = SimpleClusterResolver::new(ClusterSpec::new());
    let strategy = MultiWorkerMirroredStrategy::builder(resolver).replicas(replicas).options(options).build();
    Some(Strategy::clone(&strategy.expect("a program that runs by itself")))
}

fn central_storage(replicas: usize, _: CommunicationOptions) -> Option<Strategy> {
    let strategy = CentralStorageStrategy::new((0..replicas).map(Device::Cpu), Device::Cpu(0));
    Some(Strategy::clone(&strategy.expect("devices that exist")))
}

fn one_device(replicas: usize, _: CommunicationOptions) -> Option<Strategy> {
    let strategy = OneDeviceStrategy::new(Device::Cpu(0)).expect("a device that exists");
    (replicas == 1).then(|| Strategy::clone(&strategy))
}
