//! The implementations under test: a line for each way to make a group of communicators, and for
//! each strategy.

use crate::addresses::addresses;
#[cfg(target_os = "linux")]
use crate::fake_wire::FakeNetwork;
use consonance::{
    Builder, CentralStorageStrategy, ClusterSpec, CommunicationOptions, Communicator, Device, MirroredStrategy,
    MultiWorkerBuilder, MultiWorkerMirroredStrategy, OneDeviceStrategy, Result, SimpleClusterResolver, Strategy,
};
#[cfg(target_os = "linux")]
use consonance::{ProcessGroup, ProcessGroupBuilder, raw::Wire};
use consonance_messages::{Plain, Wrapped};
use consonance_spec::variable::Placement;
use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    panic,
    sync::LazyLock,
    thread,
    time::Duration,
};

/// One rank of a group under test.
pub struct Rank {
    /// Its communicator.
    pub communicator: Communicator,
    /// The communicator from which it was split, if any. Dropping that one would end the group.
    _whole: Option<Communicator>,
}

impl Rank {
    pub(crate) fn new(communicator: Communicator) -> Rank {
        Rank { communicator, _whole: None }
    }
}

/// A way to make a group of communicators.
#[derive(Clone, Copy)]
pub struct Group {
    /// Its name.
    pub name: &'static str,
    /// Makes a new group of the given number of ranks, in rank order.
    pub make: fn(usize) -> Vec<Rank>,
}

/// Every way to make a group. Processes over UCX are among them where this host has it.
pub static GROUPS: LazyLock<Vec<Group>> = LazyLock::new(|| {
    #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "processes need Linux"))]
    let mut groups = vec![
        Group { name: "threads", make: threads },
        Group { name: "threads, split", make: threads_split },
        #[cfg(target_os = "linux")]
        Group { name: "processes", make: processes },
        #[cfg(target_os = "linux")]
        Group { name: "processes that do not read each other's memory", make: processes_apart },
        #[cfg(target_os = "linux")]
        Group { name: "processes, split", make: processes_split },
        Group { name: "messages between threads", make: messages },
        Group { name: "letters between threads, split", make: letters_split },
        Group { name: "letters between processes", make: letters_of_processes },
        #[cfg(target_os = "linux")]
        Group { name: "processes over a fake network", make: processes_over_fake_network },
        #[cfg(target_os = "linux")]
        Group { name: "processes of two hosts over a fake network", make: processes_of_two_fake_hosts },
    ];
    #[cfg(target_os = "linux")]
    match Wire::open(None) {
        Ok(_) => groups.extend([
            Group { name: "processes over a network", make: processes_over_network },
            Group { name: "processes of two hosts", make: processes_of_two_hosts },
        ]),
        Err(absent) => eprintln!("skipped: processes over a network: {absent}"),
    }
    groups
});

/// A kind of strategy.
#[derive(Clone, Copy)]
pub struct Replicas {
    /// Its name.
    pub name: &'static str,
    /// The place where the strategy keeps a variable.
    pub placement: Placement,
    /// Divides the given number of replicas among the workers. `None` if the strategy cannot have
    /// that number.
    pub workers: fn(usize) -> Option<Vec<usize>>,
    /// Makes the strategy, as one value per worker. Not every strategy takes the options.
    pub(crate) make: fn(&[usize], Settings) -> Vec<Strategy>,
}

/// The settings of a strategy.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Settings {
    pub(crate) options: CommunicationOptions,
    /// The number of grains, if the replicas have any.
    pub(crate) grains: Option<usize>,
}

impl Settings {
    /// Gives a builder the number of grains by its method `set`.
    fn of_grains<B>(self, builder: B, set: impl FnOnce(B, usize) -> B) -> B {
        match self.grains {
            Some(grains) => set(builder, grains),
            None => builder,
        }
    }
}

/// Every kind of strategy.
pub const STRATEGIES: &[Replicas] = &[
    Replicas { name: "MirroredStrategy", placement: Placement::EachReplica, workers: one, make: mirrored },
    Replicas {
        name: "MultiWorkerMirroredStrategy, one worker",
        placement: Placement::EachReplica,
        workers: one,
        make: one_worker,
    },
    Replicas {
        name: "MirroredStrategy on messages",
        placement: Placement::EachReplica,
        workers: one,
        make: mirrored_on_messages,
    },
    Replicas { name: "CentralStorageStrategy", placement: Placement::One, workers: one, make: central_storage },
    Replicas { name: "OneDeviceStrategy", placement: Placement::One, workers: one_replica, make: one_device },
    Replicas {
        name: "MultiWorkerMirroredStrategy, three workers that are threads",
        placement: Placement::EachReplica,
        workers: three,
        make: workers_on_threads,
    },
    #[cfg(target_os = "linux")]
    Replicas {
        name: "MultiWorkerMirroredStrategy, two workers that are processes",
        placement: Placement::EachReplica,
        workers: two,
        make: workers_on_processes,
    },
];

impl Replicas {
    /// Runs `work` as each worker of a new strategy with `replicas` replicas. Several workers run
    /// on a thread each. Returns the workers' results; `None` if there is no such strategy.
    ///
    /// # Panics
    /// If `work` panics.
    pub fn on_workers<R: Send>(
        &self,
        replicas: usize,
        options: CommunicationOptions,
        work: impl Fn(&Strategy) -> R + Sync,
    ) -> Option<Vec<R>> {
        let strategies = (self.make)(&(self.workers)(replicas)?, Settings { options, grains: None });
        if let [strategy] = &strategies[..] {
            return Some(vec![work(strategy)]);
        }
        // No worker drops its strategy before the last one has finished.
        Some(thread::scope(|scope| {
            let threads: Vec<_> = strategies.iter().map(|strategy| scope.spawn(|| work(strategy))).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, R>| {
                thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        }))
    }
}

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
    Communicator::threads(size).into_iter().map(Rank::new).collect()
}

fn threads_split(size: usize) -> Vec<Rank> {
    split(Communicator::threads(size + 1))
}

fn messages(size: usize) -> Vec<Rank> {
    let plain = |engine| Box::new(Wrapped { engine, deviation: Plain });
    let engines = consonance_messages::threads(size).into_iter();
    engines.map(|engine| Rank::new(Communicator::from_engine(plain(engine)))).collect()
}

fn letters(size: usize) -> Vec<Rank> {
    consonance_messages::threads(size).into_iter().map(|engine| Rank::new(Communicator::from_engine(engine))).collect()
}

fn letters_split(size: usize) -> Vec<Rank> {
    split(letters(size + 1).into_iter().map(|rank| rank.communicator).collect())
}

/// Returns the ranks of processes that threads simulate. Sockets connect them.
fn letters_of_processes(size: usize) -> Vec<Rank> {
    let listeners: Vec<TcpListener> =
        (0..size).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
    let addresses: Vec<SocketAddr> =
        listeners.iter().map(|listener| listener.local_addr().expect("it is bound")).collect();
    let join = |rank, listener| consonance_messages::processes(rank, listener, &addresses, MEETING);
    thread::scope(|scope| {
        let join = |(rank, listener)| scope.spawn(move || join(rank, listener).expect("the processes meet"));
        let threads: Vec<_> = listeners.into_iter().enumerate().map(join).collect();
        let engines = threads.into_iter().map(|thread| thread.join().expect("no process panics"));
        engines.map(|engine| Rank::new(Communicator::from_engine(engine))).collect()
    })
}

/// The time that processes connected by sockets wait for each other.
const MEETING: Duration = Duration::from_secs(60);

/// Splits off a group of all ranks but rank 0, in the opposite order.
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
    in_processes(size, true, [LARGE, SMALL][size % 2]).into_iter().map(Rank::new).collect()
}

#[cfg(target_os = "linux")]
fn processes_apart(size: usize) -> Vec<Rank> {
    in_processes(size, false, [SMALL, LARGE][size % 2]).into_iter().map(Rank::new).collect()
}

#[cfg(target_os = "linux")]
fn processes_over_network(size: usize) -> Vec<Rank> {
    join_processes(size, |group, _| group.over_wire(true)).into_iter().map(Rank::new).collect()
}

/// Returns the ranks of processes on two hosts, in turn. Those of one host share memory.
#[cfg(target_os = "linux")]
fn processes_of_two_hosts(size: usize) -> Vec<Rank> {
    join_processes(size, |group, process| group.plays_host(process % 2)).into_iter().map(Rank::new).collect()
}

#[cfg(target_os = "linux")]
fn processes_over_fake_network(size: usize) -> Vec<Rank> {
    let network = FakeNetwork::new(size as u64);
    processes_on_wires(size, move |_| network.open().into()).into_iter().map(Rank::new).collect()
}

#[cfg(target_os = "linux")]
fn processes_of_two_fake_hosts(size: usize) -> Vec<Rank> {
    let network = FakeNetwork::new(size as u64);
    let set = |group: ProcessGroupBuilder, process| {
        let network = network.clone();
        group.options(bounded()).plays_host(process % 2).wires(move || network.open().into())
    };
    join_processes(size, set).into_iter().map(Rank::new).collect()
}

/// Returns options with a limit on calls: as long as the processes have to meet.
#[cfg(target_os = "linux")]
fn bounded() -> CommunicationOptions {
    CommunicationOptions::new().timeout(Duration::from_secs(60)).expect("a timeout that ends")
}

/// Returns the ranks of at most three processes that send all data over a wire, which `open` opens
/// for each.
#[cfg(target_os = "linux")]
fn processes_on_wires(size: usize, open: impl Fn(usize) -> Wire + Send + Sync + 'static) -> Vec<Communicator> {
    let groups = groups_on_wires(size.min(PROCESSES), size, open);
    groups.into_iter().flat_map(|mut group| group.communicators()).collect()
}

/// Returns the groups of `count` processes with `size` ranks in all, which send all data over a
/// wire. `open` opens it for each.
#[cfg(target_os = "linux")]
pub fn groups_on_wires(
    count: usize,
    size: usize,
    open: impl Fn(usize) -> Wire + Send + Sync + 'static,
) -> Vec<ProcessGroup> {
    let open = std::sync::Arc::new(open);
    join_groups(count, size, |group, process| {
        let open = open.clone();
        group.options(bounded()).over_wire(true).wires(move || open(process))
    })
}

#[cfg(target_os = "linux")]
fn processes_split(size: usize) -> Vec<Rank> {
    split(in_processes(size + 1, true, SMALL))
}

/// Returns the ranks of processes that threads simulate. Each process has its own connections and
/// its own mapping of the shared memory.
#[cfg(target_os = "linux")]
pub(crate) fn in_processes(size: usize, reads_directly: bool, staging_bytes: usize) -> Vec<Communicator> {
    join_processes(size, |group, _| group.staging_bytes(staging_bytes).reads_directly(reads_directly))
}

/// Returns the ranks of processes that threads simulate, in a group with these settings of each
/// process.
#[cfg(target_os = "linux")]
fn join_processes(
    size: usize,
    set: impl Fn(ProcessGroupBuilder, usize) -> ProcessGroupBuilder + Sync,
) -> Vec<Communicator> {
    let groups = join_groups(size.min(PROCESSES), size, set);
    groups.into_iter().flat_map(|mut group| group.communicators()).collect()
}

/// More than two processes, some of which have several ranks.
#[cfg(target_os = "linux")]
const PROCESSES: usize = 3;

#[cfg(target_os = "linux")]
fn join_groups(
    count: usize,
    size: usize,
    set: impl Fn(ProcessGroupBuilder, usize) -> ProcessGroupBuilder + Sync,
) -> Vec<ProcessGroup> {
    let cluster = &cluster(count);
    let (cluster, set) = (cluster, &set);
    let join = |index: usize| {
        let replicas = (index + 1) * size / count - index * size / count;
        let group = set(ProcessGroup::builder(task(cluster, index)).replicas(replicas), index);
        // Less than a case may take: its error says more than that the case hangs.
        let group = group.on_wait(|_| {}).timeout(Duration::from_secs(60)).expect("a timeout that ends");
        group.join()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || join(index))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("no process panics"));
        joined.map(|group| group.expect("the processes meet")).collect()
    })
}

/// The bytes of staging with which the sizes at which protocols change are the usual ones.
#[cfg(target_os = "linux")]
const LARGE: usize = 256 << 10;

/// The fewest bytes of staging: the few elements of a random call pass through it in several
/// windows.
#[cfg(target_os = "linux")]
pub(crate) const SMALL: usize = 2 << 10;

/// Returns a cluster of `workers` workers at addresses that no other group of this host uses at the
/// same time.
fn cluster(workers: usize) -> ClusterSpec {
    ClusterSpec::new().job("worker", addresses(workers)).expect("addresses of this host")
}

fn task(cluster: &ClusterSpec, index: usize) -> SimpleClusterResolver {
    SimpleClusterResolver::new(cluster.clone()).with_task("worker", index).expect("a task of the cluster")
}

fn one(replicas: usize) -> Option<Vec<usize>> {
    Some(vec![replicas])
}

fn one_replica(replicas: usize) -> Option<Vec<usize>> {
    (replicas == 1).then(|| vec![replicas])
}

#[cfg(target_os = "linux")]
fn two(replicas: usize) -> Option<Vec<usize>> {
    (replicas >= 2).then(|| vec![replicas / 2, replicas.div_ceil(2)])
}

fn three(replicas: usize) -> Option<Vec<usize>> {
    (replicas >= 3).then(|| vec![replicas - 2, 1, 1])
}

fn mirrored(workers: &[usize], settings: Settings) -> Vec<Strategy> {
    let builder = MirroredStrategy::builder((0..workers[0]).map(Device::Cpu)).options(settings.options);
    let strategy = settings.of_grains(builder, Builder::grains).build();
    vec![Strategy::clone(&strategy.expect("devices that exist"))]
}

fn mirrored_on_messages(workers: &[usize], settings: Settings) -> Vec<Strategy> {
    let builder = MirroredStrategy::builder((0..workers[0]).map(Device::Cpu)).options(settings.options);
    let builder = builder.engines(|devices, _| Ok(consonance_messages::threads(devices.len())));
    let strategy = settings.of_grains(builder, Builder::grains).build();
    vec![Strategy::clone(&strategy.expect("devices that exist"))]
}

fn one_worker(workers: &[usize], settings: Settings) -> Vec<Strategy> {
    let resolver = SimpleClusterResolver::new(ClusterSpec::new());
    let builder = MultiWorkerMirroredStrategy::builder(resolver).replicas(workers[0]).options(settings.options);
    let strategy = settings.of_grains(builder, MultiWorkerBuilder::grains).build();
    vec![Strategy::clone(&strategy.expect("a program that runs by itself"))]
}

fn central_storage(workers: &[usize], settings: Settings) -> Vec<Strategy> {
    let builder = CentralStorageStrategy::builder((0..workers[0]).map(Device::Cpu), Device::Cpu(0));
    let strategy = settings.of_grains(builder, Builder::grains).build();
    vec![Strategy::clone(&strategy.expect("devices that exist"))]
}

fn one_device(_: &[usize], settings: Settings) -> Vec<Strategy> {
    let builder = OneDeviceStrategy::builder(Device::Cpu(0));
    let strategy = settings.of_grains(builder, Builder::grains).build();
    vec![Strategy::clone(&strategy.expect("a device that exists"))]
}

fn workers_on_threads(workers: &[usize], settings: Settings) -> Vec<Strategy> {
    let mut ranks = Communicator::threads(workers.iter().sum()).into_iter();
    let parts: Vec<Vec<Communicator>> = workers.iter().map(|&count| ranks.by_ref().take(count).collect()).collect();
    meet(parts, settings, |builder, communicators| builder.build_on(communicators))
}

#[cfg(target_os = "linux")]
fn workers_on_processes(workers: &[usize], settings: Settings) -> Vec<Strategy> {
    meet(workers.to_vec(), settings, |builder, replicas| {
        let meeting = |group: ProcessGroupBuilder| Ok(group.staging_bytes(SMALL).on_wait(|_| {}));
        builder.replicas(replicas).meeting(meeting).build()
    })
}

/// Returns the strategies of the workers. Each is made on its own thread from one of `parts`.
fn meet<P: Send>(
    parts: Vec<P>,
    settings: Settings,
    build: impl Fn(MultiWorkerBuilder, P) -> Result<MultiWorkerMirroredStrategy> + Sync,
) -> Vec<Strategy> {
    let (cluster, build) = (&cluster(parts.len()), &build);
    thread::scope(|scope| {
        let worker = |(index, part)| {
            scope.spawn(move || {
                let builder = MultiWorkerMirroredStrategy::builder(task(cluster, index)).options(settings.options);
                build(settings.of_grains(builder, MultiWorkerBuilder::grains), part)
            })
        };
        let threads: Vec<_> = parts.into_iter().enumerate().map(worker).collect();
        let built = threads.into_iter().map(|thread| thread.join().expect("no worker panics"));
        built.map(|strategy| Strategy::clone(&strategy.expect("the workers meet"))).collect()
    })
}
