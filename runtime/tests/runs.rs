//! Runs of one strategy, consecutive and concurrent: no run affects another.

use consonance::{CommunicationOptions, Error, MirroredStrategy, OneDeviceStrategy, ReduceOp, Result};
use std::{thread, time::Duration};

fn strategy(replicas: usize) -> MirroredStrategy {
    MirroredStrategy::new((0..replicas).map(|replica| format!("cpu:{replica}"))).unwrap()
}

/// Checks the sum over the replicas.
fn sums(strategy: &MirroredStrategy) {
    let replicas = strategy.num_replicas_in_sync();
    let sum = strategy.run(|replica| replica.all_reduce("sum", replica.replica_id_in_sync_group() as f32)).unwrap();
    assert_eq!(sum.values(), vec![(replicas * (replicas - 1) / 2) as f32; replicas]);
}

#[test]
fn a_replica_returning_early_takes_part_in_the_next_run() {
    let strategy = strategy(3);
    for _ in 0..100 {
        let left = strategy.run(|replica| match replica.replica_id_in_sync_group() {
            1 => Ok(None),
            _ => Ok(replica.all_reduce("sum", 1.0f32).err()),
        });
        let left = left.unwrap();
        for replica in [0, 2] {
            assert!(matches!(left[replica], Some(Error::Left { replica: 1, lost: false, .. })), "{left:?}");
        }
        sums(&strategy);
    }
}

#[test]
fn calls_of_an_earlier_run_are_not_reported() {
    let strategy = strategy(2);
    (0..5).for_each(|_| sums(&strategy));
    let left = strategy.run(|replica| match replica.replica_id_in_sync_group() {
        1 => Ok(None),
        _ => Ok(replica.all_reduce("sum", 1.0f32).err()),
    });
    let Ok([Some(Error::Left { last, .. }), None]) = left.as_ref().map(|left| left.values()) else {
        panic!("{left:?}")
    };
    assert_eq!(last, "it has made no call of this group");
}

#[test]
fn a_failed_run_leaves_nothing_behind() {
    let strategy = strategy(2);
    for way in 0..200 {
        let failed = strategy.run(|replica| match (replica.replica_id_in_sync_group(), way % 4) {
            (1, 0) => Err(Error::other("no data left")),
            (1, 1) => panic!("a replica"),
            (1, 2) => replica.broadcast(1.0f32, 0),
            (0, 3) => Err(Error::other("at the end")),
            _ => replica.all_reduce("sum", 1.0f32),
        });
        assert!(failed.is_err(), "way {way}");
        sums(&strategy);
    }
}

#[test]
fn a_caught_deadline_ends_only_its_own_run() {
    let strategy = strategy(2);
    let options = CommunicationOptions::new().timeout(Duration::from_millis(30)).unwrap();
    let results = strategy.run(|replica| {
        if replica.replica_id_in_sync_group() == 1 {
            thread::sleep(Duration::from_millis(100));
        }
        Ok(replica.all_reduce_with(ReduceOp::Sum, 1.0f32, options).is_err())
    });
    assert_eq!(results.unwrap().values(), [true, true]);
    sums(&strategy);
}

#[test]
fn threads_run_at_the_same_time() {
    let strategy = strategy(2);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| sums(&strategy)));
        }
    });
}

#[test]
fn more_runs_than_a_group_has_rounds() -> Result<()> {
    let alone = OneDeviceStrategy::new("cpu:0")?;
    for run in 0..(1 << 20) + 10 {
        let result = alone.run(|_| Ok(run))?;
        assert_eq!(result[0], run);
    }
    let sum = alone.run(|replica| replica.all_reduce("sum", 2.0f32))?;
    assert_eq!(sum[0], 2.0);
    Ok(())
}

#[test]
fn the_first_replica_is_on_the_callers_thread_unless_threads_are_pinned() -> Result<()> {
    let threads = |strategy: &MirroredStrategy| strategy.run(|_| Ok(thread::current().id()));
    let own = thread::current().id();
    let placed = threads(&strategy(2))?;
    assert!(placed[0] == own && placed[1] != own);
    let pinned = MirroredStrategy::builder(["cpu:0", "cpu:1"]).pin_threads(true).build()?;
    assert!(threads(&pinned)?.iter().all(|thread| *thread != own));
    Ok(())
}
