//! The training helpers: the spec's bits in every way that gradients travel, and errors that name
//! the replica.

mod fields;

use consonance::{
    CommunicationOptions, DType, Element, Error, IndexedSlices, MirroredStrategy, Nest, PerReplica, ReduceOp, Result,
    Tensor, bf16, f16,
    training::{self, Accuracy, Gradients, Mean, Sum},
};
use consonance_spec::{
    collective,
    training::{self as meaning, Real},
};
use fields::{found, mismatch, own, refusal};

fn strategy(replicas: usize) -> MirroredStrategy {
    with_options(replicas, CommunicationOptions::new())
}

fn with_options(replicas: usize, options: CommunicationOptions) -> MirroredStrategy {
    let devices = (0..replicas).map(|replica| format!("cpu:{replica}"));
    MirroredStrategy::builder(devices).options(options).build().expect("a strategy")
}

/// Numbers of any magnitude, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = consonance_kernels::digest::mix(self.0, 1);
        self.0
    }

    fn numbers<T: Real>(&mut self, count: usize) -> Vec<T> {
        let product = T::reduction(ReduceOp::Product).unwrap();
        let one = (product.finish)(product.identity.unwrap(), 1);
        let number = |bits: u64| one.scaled((bits as i16 as f64 / 7.0) * f64::from(1u32 << (bits >> 60)));
        (0..count).map(|_| number(self.next())).collect()
    }
}

/// Returns the exact bits of a tensor.
fn bits<T: Real>(tensor: &Tensor) -> Vec<u64> {
    of(tensor.as_slice::<T>().expect("the dtype"))
}

fn of<T: Real>(elements: &[T]) -> Vec<u64> {
    elements.iter().map(|x| if x.exact().is_nan() { u64::MAX } else { x.exact().to_bits() }).collect()
}

const COUNTS: [usize; 4] = [3, 0, 700, 1];

/// Reduces `passes` passes of `COUNTS` elements on each replica, and compares with the spec.
fn passes_are_reduced<T: Real>(replicas: usize, passes: usize, options: CommunicationOptions, op: ReduceOp) {
    let mut random = Random((replicas * 10 + passes) as u64);
    let mut numbers = || COUNTS.map(|count| random.numbers::<T>(count));
    // Of each replica, each pass, each push.
    let all: Vec<Vec<[Vec<T>; 4]>> = (0..replicas).map(|_| (0..passes).map(|_| numbers()).collect()).collect();
    let run = with_options(replicas, options).run(|replica| {
        let own = &all[replica.replica_id_in_sync_group()];
        let gradients = if op == ReduceOp::Sum { Gradients::sum() } else { Gradients::mean() };
        let mut gradients = gradients.with_passes(passes)?;
        let (last, before) = own.split_last().expect("a pass");
        for pass in before {
            gradients.accumulate(replica, |to| pass.iter().try_for_each(|push| to.push(Tensor::from(&push[..]))))?;
        }
        assert_eq!(gradients.passes(), passes - 1);
        let reduced =
            gradients.all_reduce(replica, |to| last.iter().try_for_each(|push| to.push(Tensor::from(&push[..]))))?;
        assert_eq!(gradients.passes(), 0);
        Ok(reduced.gradients)
    });
    for (replica, reduced) in run.expect("no error").into_iter().enumerate() {
        assert_eq!(reduced.len(), COUNTS.len());
        for (push, tensor) in reduced.iter().enumerate() {
            // Each pass is a contribution of its own.
            let passes: Vec<Vec<T>> = all.iter().flatten().map(|pass| pass[push].clone()).collect();
            let expected = collective::reduce(op, &passes).expect("defined");
            assert_eq!(
                bits::<T>(tensor),
                of(&expected),
                "{op} of {}, {} passes, replica {replica}",
                T::DTYPE,
                passes.len()
            );
        }
    }
}

#[test]
fn gradients_have_the_bits_of_the_spec() {
    let options = CommunicationOptions::new();
    let ways = [
        options,
        options.bytes_per_pack(1),
        options.bytes_per_pack(0).background_threads(true),
        options.background_threads(false),
    ];
    for (way, options) in ways.into_iter().enumerate() {
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            passes_are_reduced::<f32>(2, 1 + way, options, op);
            passes_are_reduced::<f16>(3, 3, options, op);
            passes_are_reduced::<bf16>(1, 2, options, op);
            passes_are_reduced::<f64>(5, 2, options, op);
        }
    }
}

#[test]
fn replicas_with_other_numbers_of_passes_are_named() {
    let error = strategy(3).run(|replica| {
        let before = 1 + usize::from(replica.replica_id_in_sync_group() == 1);
        let mut gradients = Gradients::mean().with_passes(before + 1)?;
        for _ in 0..before {
            gradients.accumulate(replica, |pass| pass.push([1.0f32]))?;
        }
        gradients.all_reduce(replica, |pass| pass.push([1.0f32])).map(drop)
    });
    let error = error.expect_err("replica 1 has a pass more");
    let Error::Mismatch { replica: 1, argument, expected, found, .. } = &error else { panic!("{error}") };
    assert_eq!((&argument[..], &expected[..], &found[..]), ("leaves", "of 6", "of 9"));
}

#[test]
fn one_pass_against_two_is_a_mismatch_on_all_replicas() {
    let errors = strategy(3).run(|replica| {
        let push = |pass: &mut training::Pass<'_, Tensor>| {
            (0..2).try_for_each(|_| pass.push(Tensor::from(vec![1.0f32; 100_000])))
        };
        let mut gradients = Gradients::mean();
        if replica.replica_id_in_sync_group() == 1 {
            gradients = gradients.with_passes(2)?;
            gradients.accumulate(replica, push)?;
        }
        Ok(gradients.all_reduce(replica, push).map(drop).expect_err("replica 1 makes two passes"))
    });
    for error in errors.expect("errors are values") {
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }
}

#[test]
fn a_pass_without_a_number_of_passes_names_how_to_set_it() {
    let errors = strategy(1).run(|replica| {
        let pass = Gradients::sum().accumulate(replica, |pass| pass.push(1.0f32));
        Ok(pass.expect_err("one pass is the default"))
    });
    let error = &errors.expect("errors are values")[0];
    assert_eq!((refusal(error).1, found(error)), ("passes", "1 passes"));
    let Error::InvalidCall { expected, .. } = error else { unreachable!("a refusal") };
    assert!(expected.contains("Gradients::with_passes"), "{expected}");
}

#[test]
fn a_pass_unlike_the_one_before_is_refused_and_changes_nothing() {
    let run = strategy(1).run(|replica| {
        let mut gradients = Gradients::sum().with_passes(2)?;
        let push = |gradients: &mut Gradients, pushes: usize, size: usize| {
            gradients.accumulate(replica, |pass| {
                (0..pushes).try_for_each(|_| pass.push((Tensor::from(vec![1.0f32; size]), Tensor::from([1i32]))))
            })
        };
        let refused = |result: Result<()>, call: &str, argument: &str, value: &str| {
            let error = result.expect_err("another pass");
            assert_eq!((refusal(&error).0, refusal(&error).1, found(&error)), (call, argument, value));
        };
        push(&mut gradients, 2, 3)?;
        refused(push(&mut gradients, 2, 3), "Gradients::accumulate", "passes", "2 passes");
        gradients.reset();
        gradients = Gradients::sum().with_passes(3)?;
        push(&mut gradients, 2, 3)?;
        refused(push(&mut gradients, 2, 4), "Pass::push", "value/0/0", "f32[4]");
        refused(push(&mut gradients, 1, 3), "Pass::push", "the pass", "1 pushes");
        refused(push(&mut gradients, 3, 3), "Pass::push", "value/2/0", "f32[3]");
        let other = gradients.accumulate(replica, |pass: &mut training::Pass<'_, f32>| {
            pass.push(1.0)?;
            Err::<(), _>(Error::other("no more data"))
        });
        assert!(other.is_err());
        let bool = Gradients::sum().with_passes(2)?.accumulate(replica, |pass| pass.push(true));
        refused(bool, "Pass::push", "op", "sum");
        assert_eq!(gradients.passes(), 1);
        push(&mut gradients, 2, 3)?;
        gradients.all_reduce(replica, |pass| {
            (0..2).try_for_each(|_| pass.push((Tensor::from(vec![2.0f32; 3]), Tensor::from([5i32]))))
        })
    });
    let expected = (Tensor::from([4.0f32; 3]), Tensor::from([7i32]));
    assert_eq!(run.expect("the sum of three passes")[0].gradients, [expected.clone(), expected]);
    assert!(Gradients::sum().with_passes(0).is_err());
}

#[test]
fn a_missing_pass_is_an_error_of_all_replicas() {
    let errors = strategy(2).run(|replica| {
        let mut gradients = Gradients::sum().with_passes(2)?;
        if replica.replica_id_in_sync_group() == 0 {
            gradients.accumulate(replica, |pass| pass.push(1.0f32))?;
        }
        Ok(gradients.all_reduce(replica, |pass| pass.push(1.0f32)).map(drop).expect_err("a pass is missing"))
    });
    let errors = errors.expect("errors are values").into_values();
    assert_eq!(refusal(&errors[1]), ("Gradients::all_reduce", "passes", Some(1)));
    assert_eq!(found(&errors[1]), "0 passes");
    assert!(matches!(errors[0], Error::Mismatch { replica: 1, .. }), "{}", errors[0]);
}

#[test]
fn a_failure_of_a_replica_ends_the_reduction_of_all_and_the_next_begins_anew() {
    let strategy = strategy(2);
    let two = || Gradients::sum().with_passes(2).expect("a number");
    let mut all = [two(), two()];
    let error = strategy.run_with(PerReplica::new(all.iter_mut().collect()), |replica, gradients| {
        gradients.accumulate(replica, |pass| pass.push(1.0f32))?;
        gradients.all_reduce(replica, |pass| match replica.replica_id_in_sync_group() {
            0 => pass.push(1.0f32),
            _ => Err(Error::other("a bad sample")),
        })
    });
    assert_eq!(own(&error.map(drop).expect_err("replica 1 fails")), (1, "a bad sample".to_owned()));
    let sums = strategy.run_with(PerReplica::new(all.iter_mut().collect()), |replica, gradients| {
        assert_eq!(gradients.passes(), 0);
        gradients.accumulate(replica, |pass| pass.push(3.0f32))?;
        gradients.all_reduce(replica, |pass| pass.push(2.0f32)).map(|reduced| reduced.gradients[0])
    });
    assert_eq!(sums.expect("a run of its own").values(), [10.0, 10.0]);
}

#[test]
fn rows_of_passes_are_put_together() {
    let rows = |row: i64, value: f32| {
        IndexedSlices::new(Tensor::from([[value, value]]), Tensor::from([row]), Some(vec![3, 2])).expect("a row")
    };
    let dense = strategy(2).run(|replica| {
        let id = replica.replica_id_in_sync_group();
        let mut gradients = Gradients::mean().with_passes(2)?;
        gradients.accumulate(replica, |pass| pass.push(rows(id as i64, 4.0)))?;
        let reduced = gradients.all_reduce(replica, |pass| pass.push(rows(2, 8.0)))?;
        reduced.gradients[0].to_dense()
    });
    let expected = Tensor::from([[1.0f32, 1.0], [1.0, 1.0], [4.0, 4.0]]);
    assert_eq!(dense.expect("rows").values(), [expected.clone(), expected]);
}

fn clips<T: Real>(counts: &[usize], most: f64, change: impl Fn(&mut Vec<Vec<T>>)) {
    let mut random = Random(counts.iter().sum::<usize>() as u64 + 5);
    let mut leaves: Vec<Vec<T>> = counts.iter().map(|&count| random.numbers(count)).collect();
    change(&mut leaves);
    let mut tensors: Vec<Tensor> = leaves.iter().map(|leaf| Tensor::from(&leaf[..])).collect();
    let exact: Vec<Vec<f64>> = leaves.iter().map(|leaf| leaf.iter().map(|x| x.exact()).collect()).collect();
    let norm = meaning::global_norm(&exact);
    let key = |norm: f64| if norm.is_nan() { u64::MAX } else { norm.to_bits() };
    assert_eq!(key(training::global_norm(&tensors).expect("floats")), key(norm), "{} {counts:?}", T::DTYPE);
    assert_eq!(key(training::clip_by_global_norm(&mut tensors, most).expect("floats")), key(norm));
    for (leaf, tensor) in leaves.iter().zip(&tensors) {
        assert_eq!(bits::<T>(tensor), of(&meaning::clip(leaf, norm, most)), "{} {counts:?}", T::DTYPE);
    }
}

#[test]
fn norms_and_clipped_gradients_have_the_bits_of_the_spec() {
    let all: [&[usize]; 7] =
        [&[], &[0], &[1], &[31, 32, 33], &[4095, 4096, 4097], &[1, 2, 3, 4, 5], &[3 * 4096 + 65, 0, 7]];
    for counts in all {
        for most in [0.0, 1.0, 1e3, 1e30] {
            clips::<f16>(counts, most, |_| ());
            clips::<bf16>(counts, most, |_| ());
            clips::<f32>(counts, most, |_| ());
            clips::<f64>(counts, most, |_| ());
        }
    }
    for odd in [f32::NAN, f32::INFINITY] {
        clips::<f32>(&[40, 2], 1.0, |leaves| leaves[0][33] = odd);
    }
}

#[test]
fn a_norm_of_other_values_is_refused_and_they_stay() {
    let mut gradients = (Tensor::from([3.0f32]), vec![Tensor::from([4i32])]);
    let error = training::clip_by_global_norm(&mut gradients, 1.0).expect_err("an integer");
    assert_eq!(refusal(&error), ("training::clip_by_global_norm", "value/1/0", None));
    assert_eq!(found(&error), "i32[1]");
    let error = training::clip_by_global_norm(&mut gradients, f64::NAN).expect_err("not a norm");
    assert_eq!(refusal(&error), ("training::clip_by_global_norm", "most", None));
    assert_eq!(found(&error), "NaN");
    assert!(training::clip_by_global_norm(&mut gradients, -1.0).is_err());
    assert_eq!(gradients, (Tensor::from([3.0f32]), vec![Tensor::from([4i32])]));
}

#[derive(Clone, Nest)]
struct Layer {
    weights: Tensor,
    bias: Tensor,
}

/// Compares what `change` makes of equal layers, and returns the error of every replica.
fn compared(replicas: usize, change: impl Fn(usize, &mut Vec<Layer>) + Sync) -> Vec<Option<Error>> {
    let run = strategy(replicas).run(|replica| {
        let layer = |size| Layer { weights: Tensor::zeros(DType::F32, [size, 2]), bias: Tensor::from([1u8, 2, 3]) };
        let mut layers = vec![layer(1), layer(5)];
        change(replica.replica_id_in_sync_group(), &mut layers);
        Ok(training::compare_parameters(replica, &layers).err())
    });
    run.expect("errors are values").into_iter().collect()
}

#[test]
fn different_parameters_are_named_on_every_replica() {
    assert!(compared(3, |_, _| ()).iter().all(Option::is_none));
    fn set<T: Element>(tensor: &mut Tensor, index: usize, value: T) {
        tensor.as_mut_slice().expect("the dtype")[index] = value;
    }
    let nan = |_, layers: &mut Vec<Layer>| set(&mut layers[0].weights, 1, f32::NAN);
    assert!(compared(2, nan).iter().all(Option::is_none), "the same bits");
    let named = |errors: Vec<Option<Error>>, replica: usize, path: &str| {
        let values = errors.into_iter().map(|error| {
            let error = error.expect("an error on every replica");
            let (call, argument, odd, expected, found) = mismatch(&error);
            assert_eq!((call, argument, odd), ("training::compare_parameters", path, replica));
            (expected.to_owned(), found.to_owned())
        });
        values.last().expect("replicas")
    };
    let zero = |id, layers: &mut Vec<Layer>| set(&mut layers[1].weights, 9, if id == 2 { -0.0f32 } else { 0.0 });
    let texts = |(expected, found): &(String, String), texts: [&str; 2]| assert_eq!([expected, found], texts);
    texts(&named(compared(3, zero), 2, "value/1/weights"), ["f32[5, 2] with 0 at [4, 1]", "-0"]);
    let last_byte = |id, layers: &mut Vec<Layer>| set(&mut layers[0].bias, 2, if id == 0 { 9u8 } else { 3 });
    texts(&named(compared(4, last_byte), 0, "value/0/bias"), ["u8[3] with 3 at [2]", "9"]);
    let large = |id, layers: &mut Vec<Layer>| {
        layers[1].bias = Tensor::zeros(DType::F64, [300, 7, 1000]);
        set(&mut layers[1].bias, 1_234_567, if id == 1 { 0.25 } else { -2.5f64 });
        set(&mut layers[1].bias, 2_099_999, id as f64);
    };
    // All differ in the last element: the first replica is right.
    let found = named(compared(3, large), 1, "value/1/bias");
    texts(&found, ["f64[300, 7, 1000] with -2.5 at [176, 2, 567]", "0.25"]);
    let other_nan = |id, layers: &mut Vec<Layer>| {
        set(&mut layers[0].weights, 0, f32::from_bits(if id == 1 { 0x7fc0_0001 } else { 0x7fc0_0000 }));
    };
    let found = named(compared(2, other_nan), 1, "value/0/weights");
    texts(&found, ["f32[1, 2] with NaN of bits 7fc00000 at [0, 0]", "NaN of bits 7fc00001"]);
    let shape = |id, layers: &mut Vec<Layer>| {
        if id == 1 {
            layers[1].weights = Tensor::zeros(DType::F32, [2, 5]);
        }
    };
    let (expected, found) = named(compared(3, shape), 1, "value/1/weights");
    assert!(expected.starts_with("f32[5, 2] ") && found.starts_with("f32[2, 5] "), "{expected}, {found}");
    let fewer = |id, layers: &mut Vec<Layer>| layers.truncate(2 - usize::from(id == 1));
    assert_eq!(named(compared(3, fewer), 1, "value/1/weights").1, "nothing");
}

#[test]
fn the_replica_and_the_leaf_are_those_of_the_spec() {
    let mut random = Random(3);
    for _ in 0..40 {
        let replicas = 2 + random.next() as usize % 4;
        let all: Vec<[u8; 3]> =
            (0..replicas).map(|_| std::array::from_fn(|_| u8::from(random.next().is_multiple_of(5)))).collect();
        let run = strategy(replicas).run(|replica| {
            let own = all[replica.replica_id_in_sync_group()].map(Tensor::from);
            Ok(training::compare_parameters(replica, &own).err())
        });
        let leaves: Vec<Vec<u8>> = all.iter().map(|own| own.to_vec()).collect();
        let expected = meaning::difference(&leaves).map(|(replica, leaf)| (replica, format!("value/{leaf}")));
        for error in run.expect("errors are values") {
            let found = error.map(|error| match error {
                Error::Mismatch { replica, argument, .. } => (replica, argument),
                error => panic!("{error}"),
            });
            assert_eq!(found, expected, "{all:?}");
        }
    }
}

#[test]
fn metrics_count_every_sample_once() {
    let results = strategy(3).run(|replica| {
        let id = replica.replica_id_in_sync_group();
        let (mut mean, mut sum, mut right) = (Mean::new(), Sum::new(), Accuracy::new());
        let none = (mean.result(replica)?, sum.result(replica)?, right.result(replica)?);
        assert_eq!(none, (None, 0.0, None));
        for epoch in 0..2 {
            for sample in 0..=id {
                mean.add((epoch + sample) as f64);
                sum.add(1.0);
                right.add(sample == 0);
            }
            mean.add_sum(0.0, 0);
            right.add_count(0, 0);
            assert_eq!((mean.count(), right.count(), sum.value()), (id as u64 + 1, id as u64 + 1, (id + 1) as f64));
            // The six samples are 0, 0, 1, 0, 1, 2 and the epoch.
            let result = (mean.result(replica)?, sum.result(replica)?, right.result(replica)?);
            assert_eq!(result, (Some((4.0 + 6.0 * epoch as f64) / 6.0), 6.0, Some(0.5)));
            mean.reset();
            sum.reset();
            right.reset();
        }
        Ok((mean.value(), sum.value(), right.value()))
    });
    assert_eq!(results.expect("metrics").values(), [(None, 0.0, None); 3]);
}
