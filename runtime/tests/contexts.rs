//! The contexts of a thread: the default strategy's scope, and the arguments of replicas for a
//! merge function.

use consonance::{
    Error, IndexedSlices, MirroredStrategy, PerReplica, Strategy, Tensor, current_strategy, has_strategy,
    in_cross_replica_context, in_replica_context,
};
use std::collections::BTreeMap;

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
