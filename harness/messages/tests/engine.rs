//! Properties of an engine of messages that the differential suites do not test.

use consonance::{
    ClusterSpec, Communicator, DType, Device, Error, MirroredStrategy, MultiWorkerMirroredStrategy, PerReplica, Queue,
    ReduceOp, Request, Result, SimpleClusterResolver, Strategy, World,
    raw::{Agreement, BufMut, Call, Carrier, Engine, Inbox, Letter, Reason, Role, Space},
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Runs the work on each rank and returns the results.
fn on_ranks<R: Send>(size: usize, work: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    on_each(consonance_messages::threads(size).into_iter().map(Communicator::from_engine), work)
}

fn on_each<R: Send>(ranks: impl Iterator<Item = Communicator>, work: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || work(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Found by reading: a group that was split off waited for the engine's own default.
#[test]
fn a_split_off_group_keeps_the_timeout() {
    let begin = Instant::now();
    let errors = on_ranks(2, |mut rank| {
        rank.set_timeout(Duration::from_secs(2)).expect("a timeout that ends");
        let mut part = rank.split(Some(0), 0).expect("all split").expect("a color was given");
        let result = (rank.rank() == 0).then(|| part.barrier());
        // No rank leaves before the deadline.
        let ended = part.abort_handle();
        while !ended.is_aborted() && begin.elapsed() < Duration::from_secs(30) {
            thread::sleep(Duration::from_millis(1));
        }
        result
    });
    assert!(matches!(&errors[0], Some(Err(Error::Timeout { missing, .. })) if missing[0].0 == 1), "{errors:?}");
    assert!(begin.elapsed() < Duration::from_secs(30));
}

/// Found by reading: the words that explain one call were taken for the other call's descriptor.
#[test]
fn a_send_beside_a_call_of_all_is_an_error_on_both() {
    let errors = on_ranks(2, |mut rank| match rank.rank() {
        0 => rank.all_reduce(ReduceOp::Sum, &mut [1.0f32]),
        _ => rank.send(&[1.0f32], 0),
    });
    for (rank, error) in errors.iter().enumerate() {
        let (other, named) = (1 - rank, matches!(error, Err(Error::Mismatch { replica, .. }) if *replica == 1 - rank));
        assert!(named || matches!(error, Err(Error::Aborted { .. })), "{rank} beside {other}: {error:?}");
    }
}

/// Found by reading: along the tree, a descriptor with the first data of a send was no descriptor.
#[test]
fn a_send_beside_a_call_of_nine_ranks_is_named() {
    let errors = on_ranks(9, |mut rank| match rank.rank() {
        1 => rank.send(&[1.0f32], 0),
        _ => rank.all_reduce(ReduceOp::Sum, &mut [1.0f32]),
    });
    // The first of both ranks to compare the calls aborts the group, perhaps before the other one
    // does.
    let names = |rank: usize| matches!(errors[rank], Err(Error::Mismatch { replica, .. }) if replica == 1 - rank);
    assert!(names(0) || names(1), "{errors:?}");
    assert!(errors.iter().all(Result::is_err), "{errors:?}");
}

/// Found by reading: along the tree, the note that data had gone with a descriptor outlived its
/// call.
#[test]
fn an_empty_send_leaves_nothing_to_the_next_call_of_nine_ranks() {
    let sums = on_ranks(9, |mut rank| -> Result<u32> {
        match rank.rank() {
            0 => rank.send::<u32>(&[], 1)?,
            1 => rank.recv::<u32>(&mut [], 0)?,
            _ => {}
        }
        let mut word = [if rank.rank() == 0 { 5u32 } else { 0 }];
        rank.broadcast(&mut word, 0).map(|()| word[0])
    });
    assert!(sums.iter().all(|sum| matches!(sum, Ok(5))), "{sums:?}");
}

#[test]
fn a_reduce_in_place_on_all_ranks_changes_the_root_alone() {
    for (size, count) in [(2, 4), (3, 4), (3, 10_000), (9, 40)] {
        let values = on_ranks(size, |mut rank| -> Result<(f32, f32)> {
            let mut data = vec![rank.rank() as f32 + 1.0; count];
            let recv = Some(data.as_mut_slice().into());
            rank.execute(Call::Reduce { op: ReduceOp::Sum, send: None, recv, root: 1 }, &Agreement::NONE)?;
            Ok((data[0], data[count - 1]))
        });
        for (rank, value) in values.into_iter().enumerate() {
            let expected = if rank == 1 { (size * (size + 1) / 2) as f32 } else { rank as f32 + 1.0 };
            assert_eq!(value.expect("a reduce"), (expected, expected), "rank {rank} of {size}, {count} elements");
        }
    }
}

/// Carries letters between threads.
struct Threads(Vec<Arc<Inbox>>);

impl Carrier for Threads {
    fn carry(&self, from: usize, to: usize, letter: Letter) {
        self.0[to].put(from, letter);
    }
}

/// The thread of a mailbox that lingered after the last request was the last to let go of the
/// carrier. A process that ended meanwhile did not wait until its letters were sent.
#[test]
fn a_carrier_is_dropped_with_its_last_rank_after_requests() {
    for _ in 0..50 {
        let inboxes: Vec<Arc<Inbox>> = (0..2).map(|rank| Arc::new(Inbox::new(rank, 2))).collect();
        let carrier: Arc<dyn Carrier> = Arc::new(Threads(inboxes.clone()));
        let carried = Arc::downgrade(&carrier);
        let engine = |(rank, inbox): (usize, Arc<Inbox>)| {
            let world = World::new(rank, 2).expect("one of two");
            Queue::new(Communicator::from_engine(inbox.engine(world, carrier.clone())))
        };
        let ranks: Vec<Queue> = inboxes.into_iter().enumerate().map(engine).collect();
        drop(carrier);
        let [sends, receives] = [0, 1].map(|rank| ranks[rank].mailbox().expect("a mailbox"));
        let request = receives.start_recv(BufMut::from(vec![0u8].leak()), Some(0), 1, None);
        sends.send(&[1u8][..], 1, 1, None).expect("sent");
        request.wait(None).expect("received");
        drop((request, sends, receives));
        let barriers: Vec<Request> = ranks.iter().map(|rank| rank.start(vec![Call::Barrier], None)).collect();
        barriers.iter().for_each(|barrier| _ = barrier.wait(None).expect("a barrier"));
        drop((barriers, ranks));
        assert!(carried.upgrade().is_none(), "a thread has the carrier");
    }
}

/// Found by reading: the numbers of groups overflowed.
#[test]
fn groups_are_split_off_from_one_another_many_times() {
    let sums = on_ranks(3, |mut rank| {
        let mut groups = Vec::new();
        for _ in 0..8 {
            let part = rank.split(Some(7), -(rank.rank() as i32)).expect("all split").expect("a color was given");
            groups.push(std::mem::replace(&mut rank, part));
        }
        let mut sum = [rank.rank() as u32 + 1];
        rank.all_reduce(ReduceOp::Sum, &mut sum).map(|()| sum[0])
    });
    assert!(sums.iter().all(|sum| matches!(sum, Ok(6))), "{sums:?}");
}

#[test]
fn an_unreachable_buffer_is_an_error_on_all_ranks() {
    let reduce = |mut rank: Communicator| {
        let mut host = [1.5f32; 4];
        let recv = match rank.rank() {
            1 => BufMut::empty(Space::Cuda(0), DType::F32),
            _ => host.as_mut_slice().into(),
        };
        let error = rank.execute(Call::AllReduce { op: ReduceOp::Sum, send: None, recv }, &Agreement::NONE);
        (error.unwrap_err(), rank.all_reduce(ReduceOp::Sum, &mut host).map(|()| host[3]))
    };
    for results in [on_ranks(3, reduce), on_each(Communicator::threads(3).into_iter(), reduce)] {
        for (rank, (error, next)) in results.into_iter().enumerate() {
            match error {
                Error::InvalidCall { argument, found, replica, .. } => {
                    assert_eq!((&argument[..], &found[..], replica), ("recv", "memory of cuda:0", Some(1)));
                    assert_eq!(rank, 1);
                }
                Error::Mismatch { replica: 1, .. } => assert_ne!(rank, 1),
                error => panic!("rank {rank}: {error:?}"),
            }
            assert_eq!(next.ok(), Some(4.5), "the next call of rank {rank}");
        }
    }
}

#[test]
fn a_strategy_takes_an_engine_a_replica_and_works_after_a_failed_one() {
    let build = |engines: fn(usize) -> usize| {
        let builder = MirroredStrategy::builder(["cpu:0", "cpu:1"]);
        builder.engines(move |devices, _| Ok(consonance_messages::threads(engines(devices.len())))).build()
    };
    for engines in [|_| 0, |_| 1, |replicas| replicas + 1] as [fn(usize) -> usize; 3] {
        let error = build(engines).expect("asked for at the first run").run(|_| Ok(())).expect_err("not two");
        assert!(matches!(&error, Error::InvalidCall { argument, .. } if argument == "engines"), "{error}");
    }
    let strategy = build(|replicas| replicas).expect("devices that exist");
    let failed = strategy.run(|replica| match replica.replica_id_in_sync_group() {
        0 => Err(Error::other("a fault of its own")),
        _ => replica.barrier(),
    });
    assert!(matches!(failed, Err(Error::Replica { replica: 0, .. })), "{failed:?}");
    let sums = strategy.run(|replica| replica.all_reduce("sum", 1.5f32)).expect("a new group");
    assert_eq!(sums.values(), [3.0, 3.0]);
}

#[test]
fn a_strategy_of_several_workers_takes_an_engine_for_each_replica_of_a_worker() {
    type Engines = Vec<Box<dyn Engine>>;
    let work = |worker: usize, engines: Engines, replicas: usize| -> Result<(Vec<f32>, Vec<f32>)> {
        let cluster = ClusterSpec::new().job("worker", ["one.example:1", "other.example:1"])?;
        let resolver = SimpleClusterResolver::new(cluster).with_task("worker", worker)?;
        let engines = Mutex::new(Some(engines));
        let make = move |devices: &[Device], role: &Role| {
            assert_eq!(devices.len(), replicas);
            let addresses: Vec<&str> = role.workers().iter().map(|(_, address)| &address[..]).collect();
            assert_eq!((role.worker(), &addresses[..]), (worker, &["one.example:1", "other.example:1"][..]));
            Ok(engines.lock().unwrap().take().expect("the engines of this worker are asked for once"))
        };
        let strategy = MultiWorkerMirroredStrategy::builder(resolver).replicas(replicas).engines(make).build()?;
        assert_eq!((strategy.num_replicas_in_sync(), strategy.local_replicas().len()), (3, replicas));
        let ids = strategy.run(|replica| Ok(replica.replica_id_in_sync_group() as f32))?;
        let sums = strategy.run(|replica| replica.all_reduce("sum", replica.replica_id_in_sync_group() as f32))?;
        Ok((ids.values().to_vec(), sums.values().to_vec()))
    };
    let mut engines = consonance_messages::threads(3);
    let others = engines.split_off(2);
    let [first, second] = thread::scope(|scope| {
        [(0, engines, 2), (1, others, 1)]
            .map(|(worker, engines, replicas)| scope.spawn(move || work(worker, engines, replicas)))
            .map(|worker| worker.join().expect("no worker panics").expect("the workers meet"))
    });
    assert_eq!(first, (vec![0.0, 1.0], vec![3.0, 3.0]));
    assert_eq!(second, (vec![2.0], vec![3.0]));
}

#[test]
fn a_wrong_number_of_engines_is_refused() {
    for made in [0, 1, 3] {
        let cluster = ClusterSpec::new().job("worker", ["one.example:1", "other.example:1"]).expect("a cluster");
        let resolver = SimpleClusterResolver::new(cluster).with_task("worker", 0).expect("a task");
        let builder = MultiWorkerMirroredStrategy::builder(resolver).replicas(2);
        let error = builder.engines(move |_, _| Ok(consonance_messages::threads(made))).build().expect_err("not two");
        let Error::InvalidCall { argument, found, .. } = &error else { panic!("{error}") };
        assert_eq!((&argument[..], found), ("engines", &format!("{made}")));
    }
}

/// One worker on engines of its own, both ways: it does not go back to shared memory.
#[test]
fn a_single_worker_keeps_its_engines() {
    let builder = || MultiWorkerMirroredStrategy::builder(SimpleClusterResolver::new(ClusterSpec::new()));
    let made = Arc::new(AtomicUsize::new(0));
    let count = made.clone();
    let make = move |devices: &[Device], role: &Role| {
        assert!(role.workers().is_empty());
        count.fetch_add(1, Ordering::Relaxed);
        Ok(consonance_messages::threads(devices.len()))
    };
    let on_engines = builder().replicas(2).engines(make).build().expect("one worker");
    let on_communicators = || {
        let ranks: Vec<_> = consonance_messages::threads(2).into_iter().map(Communicator::from_engine).collect();
        (ranks[0].abort_handle(), builder().build_on(ranks).expect("one worker"))
    };
    for strategy in [&on_engines, &on_communicators().1] {
        let sums = strategy.run(|replica| {
            let sum = replica.all_reduce("sum", 1.5f32)?;
            Ok((sum, replica.replica_id_in_sync_group()))
        });
        assert_eq!(sums.expect("two replicas").values(), [(3.0, 0), (3.0, 1)]);
    }
    assert_eq!(made.load(Ordering::Relaxed), 1);
    let calls: [fn(&Strategy) -> Result<()>; 2] = [
        |strategy| strategy.run(|replica| replica.barrier()).map(drop),
        |strategy| strategy.reduce("sum", &PerReplica::new(vec![1.5f32; 2]), None).map(drop),
    ];
    for call in calls {
        let (handle, strategy) = on_communicators();
        call(&strategy).expect("two replicas");
        handle.abort(Reason::Failure);
        assert!(call(&strategy).is_err(), "the call is on these communicators");
    }
}
