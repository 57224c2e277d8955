//! Lists of elements in nests: a vector or an array gives the bits of the tensor made of it.

use consonance::{
    Error, MirroredStrategy, Nest, PerReplica,
    ReduceOp::{And, Max, Mean, Sum},
    ReplicaContext, Result, Tensor,
};
use consonance_harness::{
    sample::{Sample, keys, sample},
    subjects::STRATEGIES,
};
use consonance_kernels::digest::mix;
use consonance_spec::for_each_dtype;
use std::collections::BTreeMap;

/// Runs `work` with each replica's value on a strategy that the seed chooses. Returns the results.
fn run<A: Send + Clone + Sync, R: Send>(
    seed: u64,
    values: &[A],
    work: impl Fn(&ReplicaContext<'_>, A) -> Result<R> + Sync,
) -> Vec<R> {
    let subjects: Vec<_> = STRATEGIES.iter().filter(|subject| (subject.workers)(values.len()).is_some()).collect();
    let subject = subjects[(seed % subjects.len() as u64) as usize];
    let results = subject.on_workers(values.len(), Default::default(), |strategy| {
        let values = PerReplica::new(values[strategy.local_replicas()].to_vec());
        strategy.run_with(values, &work).expect("a result").into_values()
    });
    results.expect("a strategy of so many").into_iter().flatten().collect()
}

/// Returns the keys of a tensor's elements.
fn tensor_keys<T: Sample>(tensor: &Tensor) -> Vec<u64> {
    keys(tensor.as_slice::<T>().expect("the dtype of the list"))
}

/// Makes a call on lists and on the tensors made of them. Checks that results have the same bits.
fn check<T: Sample>(
    seed: u64,
    lists: &[Vec<T>],
    on_list: impl Fn(&ReplicaContext<'_>, Vec<T>) -> Result<Vec<T>> + Sync,
    on_tensor: impl Fn(&ReplicaContext<'_>, Tensor) -> Result<Tensor> + Sync,
) {
    let found = run(seed, lists, on_list);
    let expected = run(seed, lists, |replica, list| on_tensor(replica, Tensor::from(list)));
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(expected.shape(), [found.len()]);
        assert_eq!(keys(found), tensor_keys::<T>(expected));
    }
}

fn check_calls<T: Sample + Nest>(seed: u64) {
    let replicas = 1 + (seed % 3) as usize;
    let count = replicas * [0, 1, 5, 40, 3000][(seed / 3 % 5) as usize];
    let list = |replica: usize, count| sample::<T>(mix(seed, replica as u64), count);
    let even: Vec<Vec<T>> = (0..replicas).map(|replica| list(replica, count)).collect();
    for op in [Sum, Max, And].into_iter().filter(|op| op.result(T::DTYPE) == Some(T::DTYPE)) {
        check(seed, &even, |replica, own| replica.all_reduce(op, own), |replica, own| replica.all_reduce(op, own));
        let scatter = |replica: &ReplicaContext<'_>, own| replica.reduce_scatter(op, own);
        check(seed, &even, scatter, |replica, own| replica.reduce_scatter(op, own));
    }
    let root = (seed % replicas as u64) as usize;
    check(seed, &even, |replica, own| replica.broadcast(own, root), |replica, own| replica.broadcast(own, root));
    // Lengths of a gather may differ, and be zero.
    let ragged: Vec<Vec<T>> = (0..replicas).map(|replica| list(replica, (count + replica) % 7)).collect();
    check(seed, &ragged, |replica, own| replica.all_gather(own, 0), |replica, own| replica.all_gather(own, -1));
    let all: usize = ragged.iter().map(Vec::len).sum();
    assert!(run(seed, &ragged, |replica, own| replica.all_gather(own, 0)).iter().all(|list| list.len() == all));
}

macro_rules! check_types {
    ($({ type: $type:ty, $($more:tt)* })*) => {
        $((0..15).for_each(check_calls::<$type>);)*
    };
}

#[test]
fn a_vector_gives_the_bits_of_its_tensor() {
    for_each_dtype!(check_types);
}

#[test]
fn cross_replica_calls_take_vectors() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let values = PerReplica::new(vec![vec![1.0f32, 2.0], vec![3.0, 4.0]]);
    assert_eq!(strategy.reduce("sum", &values, None)?, [4.0, 6.0]);
    assert_eq!(strategy.gather(&values, 0)?, [1.0, 2.0, 3.0, 4.0]);
    let ragged = PerReplica::new(vec![vec![1u8], vec![2, 3]]);
    assert_eq!(strategy.gather(&ragged, 0)?, [1, 2, 3]);
    let Error::Mismatch { replica, argument, expected, found, .. } = strategy.reduce("sum", &ragged, None).unwrap_err()
    else {
        panic!("another error")
    };
    let found = found.split("; ").next();
    assert_eq!((replica, &argument[..], &expected[..], found), (1, "value", "u8[1]", Some("u8[2]")));
    Ok(())
}

/// Returns the paths of the leaves of a nest, and their specs.
fn leaves<N: Nest>(mut nest: N) -> Vec<String> {
    let mut leaves = Vec::new();
    nest.take_leaves(&Default::default(), &mut leaves);
    let spec = |value| match value {
        consonance::nest::Value::Dense(tensor) => format!("{}{:?}", tensor.dtype(), tensor.shape()),
        consonance::nest::Value::Sparse(_) => "IndexedSlices".to_owned(),
    };
    leaves.into_iter().map(|leaf| format!("{} {}", leaf.path, spec(leaf.value))).collect()
}

#[test]
fn lists_of_elements_are_leaves_and_lists_of_nests_are_not() {
    assert_eq!(leaves(vec![1.0f32; 3]), ["value f32[3]"]);
    assert_eq!(leaves(Vec::<i16>::new()), ["value i16[0]"]);
    assert_eq!(leaves([true; 2]), ["value bool[2]"]);
    assert_eq!(leaves([[1u8; 2]; 3]), ["value u8[3, 2]"]);
    assert_eq!(leaves(vec![[[1u8; 2]; 3]; 4]), ["value u8[4, 3, 2]"]);
    assert_eq!(leaves([[1u8; 0]; 3]), ["value u8[3, 0]"]);
    assert_eq!(leaves(vec![vec![1i32], vec![1, 2]]), ["value/0 i32[1]", "value/1 i32[2]"]);
    assert_eq!(leaves([vec![1i32], vec![]]), ["value/0 i32[1]", "value/1 i32[0]"]);
    assert_eq!(leaves(vec![(1.0f32, [2i64; 2])]), ["value/0/0 f32[]", "value/0/1 i64[2]"]);
    assert_eq!(leaves([Tensor::from([1]), Tensor::from(2)]), ["value/0 i32[1]", "value/1 i32[]"]);
    assert_eq!(leaves([[Tensor::from(1), Tensor::from(2)]]), ["value/0/0 i32[]", "value/0/1 i32[]"]);
    assert_eq!(leaves(vec![Some(1u8), None, Some(3)]), ["value/0/0 u8[]", "value/2/0 u8[]"]);
    assert_eq!(leaves(BTreeMap::from([("a", vec![0.5f64])])), ["value/a f64[1]"]);
    assert!(leaves(Vec::<Tensor>::new()).is_empty());
}

#[derive(Clone, Debug, PartialEq, Nest)]
struct Points {
    ids: Vec<u32>,
    places: Vec<[f64; 2]>,
    moments: [[i64; 2]; 2],
}

#[test]
fn arrays_in_structs_come_back_in_their_places() {
    let points = |replica: u32| Points {
        ids: vec![replica, 7],
        places: vec![[f64::from(replica), 0.5], [1.0, 2.0]],
        moments: [[i64::from(replica), 1], [2, 3]],
    };
    let sums = run(0, &[points(1), points(2)], |replica, own| replica.all_reduce(Sum, own));
    let expected = Points { ids: vec![3, 14], places: vec![[3.0, 1.0], [2.0, 4.0]], moments: [[3, 2], [4, 6]] };
    assert_eq!(sums, [expected.clone(), expected]);
    let all = run(0, &[vec![[1u8, 2]], vec![[3, 4], [5, 6]]], |replica, own| replica.all_gather(own, 0));
    assert_eq!(all, [[[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4], [5, 6]]]);
}

/// Returns what was expected and found of a result that does not fit its place.
fn refused<N: Nest + Clone + Send + Sync>(
    value: N,
    call: impl Fn(&ReplicaContext<'_>, N) -> Result<N> + Sync,
) -> (String, String) {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let error = strategy.run(|replica| call(replica, value.clone()).map(drop)).unwrap_err();
    match error.root() {
        Error::InvalidCall { expected, found, .. } => (expected.clone(), found.clone()),
        error => panic!("{error}"),
    }
}

#[test]
fn a_result_of_another_type_than_its_list_is_refused() {
    let gather = |name: &str, spec: &str| (format!("a tensor, since the result is {spec}"), name.to_owned());
    assert_eq!(refused([1.0f32; 2], |replica, own| replica.all_gather(own, 0)), gather("[f32; 2]", "f32[4]"));
    assert_eq!(refused([[1u8; 2]; 3], |replica, own| replica.all_gather(own, 0)), gather("[[u8; 2]; 3]", "u8[6, 2]"));
    let columns = |replica: &ReplicaContext<'_>, own| replica.all_gather(own, 1);
    assert_eq!(refused(vec![[1u8; 2]; 3], columns), gather("Vec<[u8; 2]>", "u8[3, 4]"));
    let mean = |replica: &ReplicaContext<'_>, own| replica.all_reduce(Mean, own);
    assert_eq!(refused(vec![1i32, 2], mean), gather("Vec<i32>", "f64[2]"));
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let error = strategy.reduce(Sum, &PerReplica::new(vec![vec![1.0f32; 2]; 2]), 0).unwrap_err();
    let Error::InvalidCall { expected, found, .. } = error else { panic!("{error}") };
    assert_eq!((expected, found), gather("Vec<f32>", "f32[]"));
}

#[test]
fn a_vector_keeps_its_memory() {
    let kept = run(0, &[(), ()], |replica, ()| {
        let vector = vec![0.5f32; 100_000];
        let start = vector.as_ptr();
        let sum = replica.all_reduce(Sum, vector)?;
        assert_eq!(sum, vec![1.0; 100_000]);
        Ok(sum.as_ptr() == start)
    });
    assert_eq!(kept, [true, true]);
}
