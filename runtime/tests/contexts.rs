//! The contexts of a thread: the default strategy's scope, and the arguments of replicas for a
//! merge function.

mod fields;

use consonance::{
    Error, IndexedSlices, MirroredStrategy, PerReplica, ReduceOp, ReplicaHandle, Result, Strategy, Tensor,
    current_replica, current_strategy, has_strategy, in_cross_replica_context, in_replica_context,
};
use std::{cell::RefCell, collections::BTreeMap, thread};

#[test]
fn the_scope_of_the_default_strategy_keeps_the_context() {
    let default = Strategy::default_strategy();
    let here = || (current_strategy() == default, has_strategy(), in_cross_replica_context(), in_replica_context());
    let outside = here();
    assert_eq!(outside, (true, false, false, true));
    assert_eq!(default.scope(|| Ok(here())).unwrap(), outside);
    assert_eq!(default.scope(|| default.scope(|| Ok(here()))).unwrap(), outside);
    // The scope of the default strategy changes nothing: calls of the cross-replica context are
    // allowed in it, as outside.
    let values = default.scope(|| default.distribute_values_from_function(|value| value.num_replicas_in_sync));
    assert_eq!(values.unwrap().values(), [1]);
    // A merge function of the default strategy is in the cross-replica context; so is the scope in
    // it.
    let merged = default
        .run(|replica| replica.merge_call((), |strategy, _| Ok(strategy.mirror(strategy.scope(|| Ok(here()))?))));
    assert_eq!(merged.unwrap().values(), [(true, false, true, false)]);
    let other = MirroredStrategy::new(["cpu:0"]).unwrap();
    let error = other.scope(|| default.scope(|| Ok(here()))).unwrap_err();
    assert!(matches!(error, Error::WrongContext { call: "Strategy::scope", .. }), "{error}");
}

/// Returns the error of a merge call with arguments that differ between replicas.
fn merged<A: consonance::Nest + Send + 'static>(arguments: [A; 2]) -> consonance::Result<Vec<A>> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let run =
        strategy.run_with(arguments.into_iter().collect(), |replica, own| replica.merge_call(own, |_, all| Ok(all)));
    run.map(PerReplica::into_values)
}

fn mismatch<A: consonance::Nest + Send + 'static>(arguments: [A; 2]) -> (String, String, String) {
    match merged(arguments).map(|_| ()).unwrap_err().root() {
        Error::Mismatch { argument, expected, found, .. } => (argument.clone(), expected.clone(), found.clone()),
        other => panic!("{other}"),
    }
}

#[test]
fn a_merge_call_compares_the_structure_of_its_arguments() {
    let keys = |keys: [&str; 2]| BTreeMap::from(keys.map(|key| (key.to_owned(), Tensor::from(1.0f32))));
    let (path, expected, found) = mismatch([keys(["a", "b"]), keys(["a", "c"])]);
    assert_eq!((&path[..], &expected[..], &found[..]), ("value/b", "a tensor", "nothing"));
    let (path, ..) = mismatch([(0i32, vec![Tensor::from(1)]), (0, vec![Tensor::from(1), Tensor::from(2)])]);
    assert_eq!(path, "value/1/1");
    assert_eq!(mismatch([None, Some(1.0f32)]).0, "value/0");
}

#[test]
fn a_merge_call_takes_leaves_of_any_dtype_and_shape() {
    let tensors = [Tensor::from([1.0f32, 2.0]), Tensor::from(3i64)];
    assert_eq!(merged(tensors.clone()).unwrap(), tensors);
    let rows = |count: usize| {
        let indices = Tensor::from(vec![0i64; count]);
        IndexedSlices::new(Tensor::from(vec![1.0f32; count]), indices, None).unwrap()
    };
    let rows = merged([rows(1), rows(2)]).unwrap();
    assert_eq!([rows[0].indices().count(), rows[1].indices().count()], [1, 2]);
}

thread_local! {
    static KEPT: RefCell<Option<ReplicaHandle>> = const { RefCell::new(None) };
}

fn sum(replica: &ReplicaHandle, value: u64) -> Result<u64> {
    replica.with(|context| context.all_reduce(ReduceOp::Sum, value))
}

fn keep() -> Result<()> {
    KEPT.set(current_replica());
    Ok(())
}

fn strategies() -> [Strategy; 2] {
    [Strategy::default_strategy(), MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap().into()]
}

/// Checks that the function of a replica has ended.
fn check_ended(replica: &ReplicaHandle) {
    match replica.with(|_| -> Result<()> { panic!("the function has ended") }) {
        Err(Error::WrongContext { call: "ReplicaHandle::with", problem }) => {
            assert_eq!(problem, format!("the function of replica {} has ended", replica.replica_id()));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_handle_gives_the_context_of_the_thread_s_replica() {
    for strategy in strategies() {
        let replicas = strategy.num_replicas_in_sync();
        assert!(current_replica().is_none());
        let sums = strategy.run(|context| {
            let (id, replica) = (context.replica_id_in_sync_group(), current_replica().unwrap());
            assert_eq!((replica.replica_id(), replica.num_replicas()), (id, replicas));
            assert_eq!(format!("{replica:?}"), format!("ReplicaHandle(replica {id} of {replicas})"));
            // In its own context, and a clone.
            let nested = replica.with(|outer| {
                assert_eq!(outer.strategy(), context.strategy());
                sum(&current_replica().unwrap().clone(), 1)
            })?;
            let own = replica.with(|_| -> Result<()> { Err(Error::other("of the function")) }).unwrap_err();
            assert_eq!(fields::other(&own), "of the function");
            thread::scope(|scope| scope.spawn(|| assert!(current_replica().is_none())).join().unwrap());
            Ok(nested + sum(&replica, id as u64)?)
        });
        assert_eq!(sums.unwrap().values(), vec![[1, 3][replicas - 1]; replicas]);
        assert!(current_replica().is_none());
        assert!(strategy.scope(|| Ok(current_replica().is_none())).unwrap());
    }
}

#[test]
fn a_handle_ends_with_the_function() {
    for strategy in strategies() {
        let replicas = strategy.num_replicas_in_sync();
        strategy.run(|_| keep()).unwrap();
        check_ended(&KEPT.take().unwrap());
        // Also while the same replica runs another function on the same thread.
        strategy.run(|_| keep()).unwrap();
        let sums = strategy.run(|_| {
            if let Some(before) = KEPT.take() {
                check_ended(&before);
            }
            sum(&current_replica().unwrap(), 1)
        });
        assert_eq!(sums.unwrap().values(), vec![replicas as u64; replicas]);
        for is_in_with in [false, true] {
            let failed = strategy.run(|_| {
                keep()?;
                match is_in_with {
                    false => panic!("expected: a test of panics"),
                    true => current_replica().unwrap().with(|_| -> Result<()> { panic!("expected: a test of panics") }),
                }
            });
            assert!(matches!(failed, Err(Error::Panic { .. })), "{failed:?}");
            assert!(current_replica().is_none());
            check_ended(&KEPT.take().unwrap());
        }
    }
}

#[test]
fn a_merge_function_has_no_current_replica() {
    for strategy in strategies() {
        let checked = strategy.run(|context| {
            let replica = current_replica().unwrap();
            context.merge_call((), |_, _| {
                assert!(current_replica().is_none());
                let error = replica.with(|context| context.barrier()).unwrap_err();
                assert!(matches!(error, Error::WrongContext { call: "ReplicaContext::barrier", .. }), "{error}");
                // A run in a run.
                let default = Strategy::default_strategy();
                if *context.strategy() == default {
                    let sums = default.run(|_| sum(&current_replica().unwrap(), 5))?;
                    assert_eq!(sums.values(), [5]);
                    assert!(current_replica().is_none());
                }
                Ok(())
            })?;
            assert_eq!(current_replica().unwrap().replica_id(), replica.replica_id());
            sum(&current_replica().unwrap(), 1)
        });
        let replicas = strategy.num_replicas_in_sync();
        assert_eq!(checked.unwrap().values(), vec![replicas as u64; replicas]);
    }
}
