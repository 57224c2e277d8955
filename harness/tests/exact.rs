//! Exact reductions have the bits of the spec on every strategy, for any number of replicas and any
//! division of the elements.

use consonance::{
    Axes, CommunicationOptions, Error, IndexedSlices, MirroredStrategy, PerReplica, ReduceOp, Result, StaticShapes,
    Strategy, Tensor,
};
use consonance_harness::{
    sample::{Sample, keys, sample},
    subjects::STRATEGIES,
};
use consonance_spec::exact::{self, Exact};

const REPLICAS: [usize; 4] = [1, 2, 3, 5];

/// Views `[outer, axis, inner]`: the outer and the inner size, and the sizes along the axis, which
/// the replicas have in turn.
const SHAPES: [(usize, usize, &[usize]); 7] = [
    (1, 1, &[3]),
    (2, 50, &[2]),
    (1, 1, &[400, 0, 7]),
    (3, 2, &[0, 90, 1]),
    (2, 20, &[1, 0, 4]),
    (1, 0, &[3]),
    (1, 3, &[0]),
];

/// The values of all replicas, each with its shape.
fn values<T: Sample>(seed: u64, replicas: usize, shape: (usize, usize, &[usize])) -> Vec<Tensor> {
    let (outer, inner, sizes) = shape;
    let value = |replica: usize| {
        let shape = [outer, sizes[replica % sizes.len()], inner];
        Tensor::new(shape, &sample::<T>(seed + 3 * replica as u64, shape.iter().product())).expect("a shape")
    };
    (0..replicas).map(value).collect()
}

fn of<T: Sample + Exact>(op: ReduceOp, elements: &[T]) -> T {
    if op == ReduceOp::Mean { exact::mean(elements) } else { exact::sum(elements) }
}

/// Returns the results along axis 1.
fn along<T: Sample + Exact>(op: ReduceOp, values: &[Tensor]) -> Vec<T> {
    let shape = values[0].shape();
    let results = (0..shape[0]).flat_map(|outer| (0..shape[2]).map(move |inner| (outer, inner)));
    let result = |(outer, inner)| {
        let each = values.iter().flat_map(|value| {
            let (elements, shape): (&[T], _) = (value.as_slice().expect("elements"), value.shape());
            (0..shape[1]).map(move |at| elements[(outer * shape[1] + at) * shape[2] + inner])
        });
        of(op, &each.collect::<Vec<T>>())
    };
    results.map(result).collect()
}

/// Returns the results over replicas alone.
fn apart<T: Sample + Exact>(op: ReduceOp, values: &[Tensor]) -> Vec<T> {
    let each: Vec<&[T]> = values.iter().map(|value| value.as_slice().expect("elements")).collect();
    (0..each[0].len()).map(|at| of(op, &each.iter().map(|elements| elements[at]).collect::<Vec<T>>())).collect()
}

/// Returns the one result of all elements.
fn whole<T: Sample + Exact>(op: ReduceOp, values: &[Tensor]) -> Vec<T> {
    let each: Vec<&[T]> = values.iter().map(|value| value.as_slice().expect("elements")).collect();
    vec![of(op, &each.concat())]
}

fn own(strategy: &Strategy, values: &[Tensor]) -> PerReplica<Tensor> {
    PerReplica::new(strategy.local_replicas().map(|replica| values[replica].clone()).collect())
}

/// Reduces outside and inside of a run.
fn check<T: Sample + Exact>(strategy: &Strategy, op: ReduceOp, values: &[Tensor], axes: &Axes, expected: &[T]) {
    let shapes: Vec<&[usize]> = values.iter().map(Tensor::shape).collect();
    let context = format!("{strategy}: {op} of {} {shapes:?} along {axes:?}", T::DTYPE);
    let right = |result: &Tensor| keys::<T>(result.as_slice().expect("elements")) == keys(expected);
    let values = own(strategy, values);
    let reduced = strategy.reduce_exact(op, &values, axes.clone()).expect(&context);
    assert!(right(&reduced), "{context}");
    let inside = strategy.run_with(values, |replica, value| replica.all_reduce_exact(op, value, axes.clone()));
    inside.expect(&context).iter().for_each(|result| assert!(right(result), "in a run: {context}"));
}

fn check_all<T: Sample + Exact>(strategy: &Strategy) {
    let replicas = strategy.num_replicas_in_sync();
    for (seed, &shape) in (0..).zip(&SHAPES) {
        let op = [ReduceOp::Sum, ReduceOp::Mean][seed as usize % 2];
        let values = values::<T>(seed, replicas, shape);
        check(strategy, op, &values, &Axes::from(1), &along::<T>(op, &values));
        check(strategy, op, &values, &Axes::from([2, -2, 0]), &whole::<T>(op, &values));
        if shape.2.len() == 1 {
            check(strategy, op, &values, &Axes::default(), &apart::<T>(op, &values));
        }
    }
}

#[test]
fn exact_results_have_the_bits_of_the_spec_on_every_strategy() {
    for subject in STRATEGIES {
        for replicas in REPLICAS {
            subject.on_workers(replicas, CommunicationOptions::new(), |strategy| {
                check_all::<f32>(strategy);
                check_all::<f64>(strategy);
            });
        }
    }
}

#[test]
fn any_division_into_replicas_and_batches_has_the_same_bits() {
    let elements: Vec<f32> = sample(3, 5000);
    let expected = keys(&[exact::mean(&elements)]);
    for subject in STRATEGIES {
        for replicas in REPLICAS {
            for batch in [1, 7, 100, 5000] {
                let value = |replica: usize| {
                    let own = elements.chunks(batch).skip(replica).step_by(replicas).flatten();
                    Tensor::from(own.copied().collect::<Vec<f32>>())
                };
                let values: Vec<Tensor> = (0..replicas).map(value).collect();
                subject.on_workers(replicas, CommunicationOptions::new(), |strategy| {
                    let mean = strategy.reduce_exact("mean", &own(strategy, &values), 0).expect("a mean");
                    assert_eq!(
                        keys(&[mean.item::<f32>().expect("a scalar")]),
                        expected,
                        "{strategy}, batches of {batch}"
                    );
                });
            }
        }
    }
}

/// Large results are computed in several rounds, and on several threads where memory is shared.
#[test]
fn large_results_are_exact() {
    let large = |replica: usize, count: usize| (0..count).map(|at| (at % 1000 + replica) as f32).collect::<Vec<f32>>();
    for subject in STRATEGIES {
        subject.on_workers(3, CommunicationOptions::new(), |strategy| {
            const COUNT: usize = 1_100_000;
            let values: Vec<Tensor> = (0..3).map(|replica| Tensor::from(large(replica, COUNT))).collect();
            let sum = strategy.reduce_exact("sum", &own(strategy, &values), None).expect("a sum");
            let expected: Vec<f32> = (0..COUNT).map(|at| (3 * (at % 1000) + 3) as f32).collect();
            assert!(sum.as_slice::<f32>().expect("elements") == expected, "{strategy}");
            let total = strategy.reduce_exact("sum", &own(strategy, &values), 0).expect("a sum");
            let expected = expected.iter().map(|&sum| f64::from(sum)).sum::<f64>() as f32;
            assert_eq!(total.item::<f32>().expect("a scalar"), expected, "{strategy}");
        });
        // So many words of results are exchanged in several rounds.
        subject.on_workers(2, CommunicationOptions::new(), |strategy| {
            const COLUMNS: usize = 40_000;
            let value = Tensor::new([31, COLUMNS], &large(0, 31 * COLUMNS)).expect("a shape");
            let sum = strategy.reduce_exact("sum", &own(strategy, &[value.clone(), value]), 0).expect("a sum");
            let expected: Vec<f32> = (0..COLUMNS)
                .map(|at| (0..31).map(|row| 2 * ((row * COLUMNS + at) % 1000)).sum::<usize>() as f32)
                .collect();
            assert!(sum.as_slice::<f32>().expect("elements") == expected, "{strategy}");
        });
    }
}

/// Returns the errors of the replicas of this worker, outside and inside of a run.
fn errors(strategy: &Strategy, values: &[Tensor], op: &str, axis: Axes) -> [Error; 2] {
    let outside = strategy.reduce_exact(op, &own(strategy, values), axis.clone()).expect_err("it is invalid");
    let inside = strategy.run(|replica| {
        let id = replica.replica_id_in_sync_group();
        replica.all_reduce_exact(op, values[id].clone(), axis.clone())
    });
    let works = strategy.run(|replica| replica.all_reduce("sum", 1.0f32)).expect("the strategy works");
    assert_eq!(works[0], strategy.num_replicas_in_sync() as f32);
    [outside, inside.expect_err("it is invalid")]
}

#[test]
fn invalid_arguments_are_refused() {
    let floats = vec![Tensor::from([1.0f32, 2.0]); 3];
    let integers = vec![Tensor::from([1, 2]); 3];
    let cases: [(&[Tensor], &'static str, Axes, &str); 3] = [
        (&floats, "max", Axes::default(), "op"),
        (&integers, "sum", Axes::default(), "value"),
        (&floats, "mean", Axes::from(1), "axis"),
    ];
    for subject in STRATEGIES {
        for (values, op, axes, wrong) in &cases {
            subject.on_workers(3, CommunicationOptions::new(), |strategy| {
                for error in errors(strategy, values, op, axes.clone()) {
                    let Error::InvalidCall { argument, .. } = &error else { panic!("{strategy}: {op}: {error}") };
                    assert_eq!(argument, wrong, "{strategy}: {error}");
                }
            });
        }
    }
}

#[test]
fn rows_are_refused() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let rows = IndexedSlices::new(Tensor::from([[1.0f32]]), Tensor::from([0i64]), Some(vec![4, 1]))?;
    let error = strategy.reduce_exact("sum", &PerReplica::new(vec![rows; 2]), None).unwrap_err();
    assert!(matches!(error, Error::InvalidCall { replica: Some(0), .. }), "{error}");
    Ok(())
}

#[test]
fn different_replicas_are_a_mismatch_on_all() {
    let equal = vec![Tensor::from([[1.0f32, 2.0]]); 3];
    let mut other_shape = equal.clone();
    other_shape[2] = Tensor::from([[1.0f32]]);
    let mut other_dtype = equal.clone();
    other_dtype[2] = Tensor::from([[1.0f64, 2.0]]);
    for subject in STRATEGIES {
        for values in [&other_shape, &other_dtype] {
            subject.on_workers(3, CommunicationOptions::new(), |strategy| {
                for error in errors(strategy, values, "sum", Axes::from(0)) {
                    assert!(matches!(error, Error::Mismatch { replica: 2, .. }), "{strategy}: {error}");
                }
            });
        }
        // Calls of a process outside of a run have one operation.
        subject.on_workers(3, CommunicationOptions::new(), |strategy| {
            let op = |id: usize| ["sum", "mean"][id / 2];
            let inside = strategy.run(|replica| {
                let id = replica.replica_id_in_sync_group();
                replica.all_reduce_exact(op(id), 1.0f32, None)
            });
            let error = inside.expect_err("the operations differ");
            assert!(matches!(error, Error::Mismatch { replica: 2, .. }), "{strategy}: {error}");
            let mixed = strategy.run(|replica| match replica.replica_id_in_sync_group() {
                2 => replica.all_reduce("sum", 1.0f32),
                _ => replica.all_reduce_exact("sum", 1.0f32, None),
            });
            let error = mixed.expect_err("the calls differ");
            assert!(matches!(error, Error::Mismatch { replica: 2, .. }), "{strategy}: {error}");
        });
    }
}

#[test]
fn static_shapes_refuse_different_sizes() -> Result<()> {
    let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).static_shapes(StaticShapes::new()).build()?;
    let values = PerReplica::new(vec![Tensor::from([1.0f32, 2.0]), Tensor::from([4.0f32])]);
    let error = strategy.reduce_exact("sum", &values, 0).unwrap_err();
    assert!(matches!(error, Error::Mismatch { replica: 1, .. }), "{error}");
    let error = strategy.run_with(values, |replica, value| replica.all_reduce_exact("sum", value, 0)).unwrap_err();
    assert!(matches!(error, Error::Mismatch { replica: 1, .. }), "{error}");
    Ok(())
}
