//! Who is tested: a line for each way to make a group of communicators, and for each strategy.

use consonance::{
    CentralStorageStrategy, ClusterSpec, CommunicationOptions, Communicator, Device, MirroredStrategy,
    MultiWorkerMirroredStrategy, OneDeviceStrategy, SimpleClusterResolver, Strategy,
};
use std::{fmt, thread};

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

/// Split, in the opposite order, from a group with a rank more, which takes no part.
fn threads_split(size: usize) -> Vec<Rank> {
    let split = |mut whole: Communicator| {
        let color = (whole.rank() > 0).then_some(7);
        let part = whole.split(color, -(whole.rank() as i32)).expect("every rank splits");
        part.map(|communicator| Rank { communicator, _whole: Some(whole) })
    };
    let mut ranks: Vec<Rank> = thread::scope(|scope| {
        let threads: Vec<_> =
            Communicator::threads(size + 1).into_iter().map(|whole| scope.spawn(move || split(whole))).collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("no rank panics")).collect()
    });
    ranks.sort_by_key(|rank| rank.communicator.rank());
    ranks
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
