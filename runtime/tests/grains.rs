//! Contributions finer than replicas: g grains on n replicas have the bits of g replicas with one
//! grain each.

mod fields;

use consonance::{
    CommunicationOptions, Communicator, DType, Dataset, Device, Error, Grains, IndexedSlices, MirroredStrategy,
    MultiWorkerMirroredStrategy, Nest, PerReplica, ReduceOp, ReplicaContext, Result, SimpleClusterResolver, Strategy,
    Tensor, TfConfigClusterResolver, World, bf16,
    dataset::{self, AutoShardPolicy, Deal, InputOptions},
    f16,
    raw::{Carrier, Inbox, Letter},
    training::{Gradients, Mean},
};
use consonance_kernels::digest::mix;
use consonance_spec::partition;
use fields::{found, mismatch, own, refusal};
use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

fn devices(replicas: usize) -> impl Iterator<Item = Device> {
    (0..replicas).map(Device::Cpu)
}

/// The strategy in which each grain is a replica.
fn oracle(grains: usize) -> Strategy {
    MirroredStrategy::new(devices(grains)).expect("a strategy").into()
}

fn options(seed: u64) -> CommunicationOptions {
    let options = CommunicationOptions::new();
    match seed % 3 {
        0 => options,
        1 => options.bytes_per_pack(1),
        _ => options.bytes_per_pack(3000).background_threads(true),
    }
}

fn cluster(group: u16, workers: usize, worker: usize) -> SimpleClusterResolver {
    let [_, high, middle, low] = process::id().to_be_bytes();
    let addresses = (0..workers).map(|worker| format!("127.{high}.{middle}.{low}:{}", 10 * group as usize + worker));
    let cluster = consonance::ClusterSpec::new().job("worker", addresses).expect("addresses");
    SimpleClusterResolver::new(cluster).with_task("worker", worker).expect("a task")
}

/// A place of replicas.
#[derive(Clone, Copy, Debug)]
enum Way {
    Threads,
    /// Workers on communicators of threads.
    Workers,
    /// Workers over a shared segment, as processes use it.
    #[cfg(target_os = "linux")]
    Segment,
}

/// Calls `work` with strategies of so many grains, one for each worker, whose replicas are `sizes`.
/// Returns the results of all workers in order.
fn on_workers<R: Send>(
    way: Way,
    sizes: &[usize],
    grains: usize,
    options: CommunicationOptions,
    work: impl Fn(&Strategy) -> R + Sync,
) -> Vec<R> {
    let replicas = sizes.iter().sum();
    if let Way::Threads = way {
        let builder = MirroredStrategy::builder(devices(replicas)).grains(grains).options(options);
        return vec![work(&builder.build().expect("a strategy"))];
    }
    static GROUPS: AtomicU16 = AtomicU16::new(1);
    let (group, work) = (GROUPS.fetch_add(1, Ordering::Relaxed), &work);
    let mut communicators = Communicator::threads(replicas).into_iter();
    thread::scope(|scope| {
        let workers: Vec<_> = (sizes.iter().enumerate())
            .map(|(worker, &count)| {
                let own: Vec<Communicator> = communicators.by_ref().take(count).collect();
                scope.spawn(move || {
                    let builder = MultiWorkerMirroredStrategy::builder(cluster(group, sizes.len(), worker));
                    let builder = builder.options(options).grains(grains);
                    let strategy = match way {
                        #[cfg(target_os = "linux")]
                        Way::Segment => builder.replicas(count).build(),
                        _ => builder.build_on(own),
                    };
                    work(&strategy.expect("a strategy"))
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
    })
}

/// Runs `work` on strategies of so many grains, one for each worker, whose replicas are `sizes`.
/// Returns the results of all replicas in order.
fn on<R: Send>(
    way: Way,
    sizes: &[usize],
    grains: usize,
    options: CommunicationOptions,
    work: impl Fn(&ReplicaContext<'_>) -> Result<R> + Sync,
) -> Vec<R> {
    let runs = on_workers(way, sizes, grains, options, |strategy| strategy.run(&work).expect("results").into_values());
    runs.into_iter().flatten().collect()
}

const WAYS: &[Way] = &[
    Way::Threads,
    Way::Workers,
    #[cfg(target_os = "linux")]
    Way::Segment,
];

/// Returns grains and the replicas of each worker.
fn shapes() -> impl Iterator<Item = (u64, usize, Vec<usize>)> {
    let drawn = (0..10u64).map(|seed| {
        let grains = 1 + mix(seed, 1) as usize % 9;
        let replicas = 1 + mix(seed, 2) as usize % grains.min(5);
        let first = 1 + mix(seed, 3) as usize % replicas;
        let sizes = if first < replicas { vec![first, replicas - first] } else { vec![first] };
        (seed, grains, sizes)
    });
    [(20, 8, vec![1, 2]), (21, 8, vec![1]), (22, 7, vec![5]), (23, 8, vec![8])].into_iter().chain(drawn)
}

/// Floats whose sum depends on the order of additions, as elements of the dtype.
fn numbers(grain: usize, count: usize, seed: u64) -> Vec<f32> {
    let word = |i: usize| mix(mix(seed, grain as u64), i as u64);
    (0..count).map(|i| (word(i) as i16 as f32 / 7.0) * (1u32 << (word(i) >> 59)) as f32).collect()
}

#[derive(Clone, Debug, Nest)]
struct Layers {
    large: Tensor,
    small: Vec<Tensor>,
    empty: Tensor,
}

fn layers(dtype: DType, grain: usize, seed: u64) -> Layers {
    let tensor = |count: usize, salt: u64| {
        let numbers = numbers(grain, count, seed + salt);
        if dtype == DType::F16 {
            Tensor::from(numbers.iter().map(|&x| f16::from_f32(x / 1e6)).collect::<Vec<_>>())
        } else if dtype == DType::Bf16 {
            Tensor::from(numbers.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>())
        } else if dtype == DType::F64 {
            Tensor::from(numbers.iter().map(|&x| f64::from(x) / 3.0).collect::<Vec<_>>())
        } else if dtype == DType::I32 {
            Tensor::from(numbers.iter().map(|&x| x as i32).collect::<Vec<_>>())
        } else {
            Tensor::from(numbers)
        }
    };
    let small = (0..4).map(|index| tensor(index * 37 + 1, index as u64)).collect();
    Layers { large: tensor(9000, 9), small, empty: tensor(0, 5) }
}

/// The bits of a nest's tensors.
fn bits(layers: &Layers) -> Vec<Vec<u64>> {
    let tensors = [&layers.large, &layers.empty].into_iter().chain(&layers.small);
    let of = |tensor: &Tensor| {
        let float = tensor.as_slice::<f32>().map(|all| all.iter().map(|x| x.to_bits().into()).collect());
        let half = || tensor.as_slice::<f16>().map(|all| all.iter().map(|x| x.to_bits().into()).collect());
        let brain = || tensor.as_slice::<bf16>().map(|all| all.iter().map(|x| x.to_bits().into()).collect());
        let double = || tensor.as_slice::<f64>().map(|all| all.iter().map(|x| x.to_bits()).collect());
        let integer = || tensor.as_slice::<i32>().map(|all| all.iter().map(|&x| x as u64).collect());
        let other = |_: Error| half().or_else(|_| brain()).or_else(|_| double()).or_else(|_| integer());
        float.or_else(other).expect("one of these types")
    };
    tensors.map(of).collect()
}

/// Reduces a nest of each grain of the replica.
fn reduced<N: Nest>(replica: &ReplicaContext<'_>, op: ReduceOp, value: impl Fn(usize) -> N) -> Result<N> {
    let mut sum = replica.accumulator(op)?;
    let mut grains = replica.grains();
    let last = grains.next_back().expect("each replica has a grain");
    grains.try_for_each(|grain| sum.add(value(grain)))?;
    assert_eq!(sum.added() + 1, replica.grains().len());
    let first = sum.all_reduce(value(last))?;
    // The accumulator is used again.
    for grain in replica.grains().start..last {
        sum.add(value(grain))?;
    }
    sum.all_reduce(value(last))?;
    Ok(first)
}

#[test]
fn grains_on_any_number_of_replicas_have_the_bits_of_a_replica_each() {
    use ReduceOp::{Max, Mean, Product, Sum};
    let kinds = [(Sum, DType::F32), (Mean, DType::Bf16), (Sum, DType::F16), (Mean, DType::F64), (Mean, DType::I32)];
    let kinds = kinds.into_iter().chain([(Max, DType::F32), (Product, DType::I32), (Mean, DType::F32)]);
    for ((seed, grains, sizes), (op, dtype)) in shapes().zip(kinds.cycle()) {
        let value = |grain| layers(dtype, grain, seed);
        let expected =
            oracle(grains).run(|replica| replica.all_reduce(op, value(replica.replica_id_in_sync_group()))).unwrap();
        for &way in WAYS {
            let results = on(way, &sizes, grains, options(seed), |replica| reduced(replica, op, value));
            for result in results {
                let context = format!("{op} of {dtype}, {grains} grains on {sizes:?}, {way:?}");
                assert!(bits(&result) == bits(&expected[0]), "{context}");
            }
        }
    }
}

/// The comparison of bits finds grains that are dealt as cards are.
#[test]
fn grains_numbered_by_replica_have_other_bits() {
    let value = |grain| layers(DType::F32, grain, 1);
    let expected =
        oracle(8).run(|replica| replica.all_reduce("sum", value(replica.replica_id_in_sync_group()))).unwrap();
    let results = on(Way::Threads, &[4], 8, options(1), |replica| {
        let (start, id) = (replica.grains().start, replica.replica_id_in_sync_group());
        reduced(replica, ReduceOp::Sum, |grain| value((grain - start) * 4 + id))
    });
    assert!(results.iter().all(|result| bits(result) != bits(&expected[0])));
}

#[test]
fn gradients_of_grains_have_the_bits_of_a_replica_each() {
    for (seed, grains, sizes) in shapes() {
        let mean = seed.is_multiple_of(2);
        let new = || if mean { Gradients::mean() } else { Gradients::sum() };
        let value = |grain| layers(DType::F32, grain, seed);
        let expected = oracle(grains).run(|replica| {
            let grain = replica.replica_id_in_sync_group();
            new().all_reduce(replica, |pass| (0..2).try_for_each(|push| pass.push(value(2 * grain + push))))
        });
        let expected: Vec<_> = expected.expect("gradients")[0].gradients.iter().map(bits).collect();
        for &way in WAYS {
            let results = on(way, &sizes, grains, options(seed), |replica| {
                let mut gradients = new();
                let run = replica.grains();
                for step in 0..2 {
                    for grain in run.start..run.end - 1 {
                        let push = |push| value(2 * grain + push);
                        gradients.accumulate(replica, |pass| (0..2).try_for_each(|at| pass.push(push(at))))?;
                    }
                    let push = |push| value(2 * (run.end - 1) + push);
                    let reduced =
                        gradients.all_reduce(replica, |pass| (0..2).try_for_each(|at| pass.push(push(at))))?;
                    if step == 1 {
                        return Ok(reduced.gradients);
                    }
                }
                unreachable!("two steps")
            });
            for result in results {
                let result: Vec<_> = result.iter().map(bits).collect();
                assert!(result == expected, "{grains} grains on {sizes:?}, {way:?}, mean: {mean}");
            }
        }
    }
}

/// Carries letters between threads, and counts their bytes.
struct Counting(Vec<Arc<Inbox>>, AtomicUsize);

impl Carrier for Counting {
    fn carry(&self, from: usize, to: usize, letter: Letter) {
        self.1.fetch_add(letter.body().len(), Ordering::Relaxed);
        self.0[to].put(from, letter);
    }
}

#[test]
fn gradients_of_the_last_of_several_passes_travel_while_it_goes_on() {
    const COUNT: usize = 40_000;
    let inboxes: Vec<Arc<Inbox>> = (0..2).map(|rank| Arc::new(Inbox::new(rank, 2))).collect();
    let carrier = Arc::new(Counting(inboxes.clone(), AtomicUsize::new(0)));
    let engine = |(rank, inbox): (usize, Arc<Inbox>)| {
        Communicator::from_engine(inbox.engine(World::new(rank, 2).expect("one of two"), carrier.clone()))
    };
    let communicators = inboxes.into_iter().enumerate().map(engine).collect();
    let options = CommunicationOptions::new().background_threads(true).bytes_per_pack(1);
    let builder = MultiWorkerMirroredStrategy::builder(cluster(0, 1, 0)).options(options).grains(5);
    let strategy = builder.build_on(communicators).expect("a strategy");
    let sums = strategy.run(|replica| {
        let mut gradients = Gradients::sum();
        let layer = || Tensor::from(vec![1.0f32; COUNT]);
        for _ in 1..replica.grains().len() {
            gradients.accumulate(replica, |pass| (0..2).try_for_each(|_| pass.push(layer())))?;
        }
        let before = carrier.1.load(Ordering::Relaxed);
        let reduced = gradients.all_reduce(replica, |pass| {
            // A layer of this size has a bucket of its own.
            pass.push(Tensor::from(vec![1.0f32; COUNT]))?;
            let start = Instant::now();
            while carrier.1.load(Ordering::Relaxed) < before + size_of::<f32>() * COUNT / 2 {
                assert!(start.elapsed() < Duration::from_secs(60), "nobody carries the first layer");
                thread::yield_now();
            }
            pass.push(layer())
        })?;
        Ok(reduced.gradients)
    });
    let sums = sums.expect("sums");
    assert!(sums.iter().flatten().all(|sum| *sum == Tensor::from(vec![5.0f32; COUNT])));
}

#[test]
fn rows_of_grains_are_those_of_a_replica_each() {
    let rows = |grain: usize| {
        let count = grain % 3;
        let values = Tensor::new([count, 2], &numbers(grain, 2 * count, 1)).expect("rows");
        let indices = Tensor::from((0..count).map(|row| ((row + grain) % 4) as i64).collect::<Vec<_>>());
        (Tensor::from([grain as f32 + 0.1]), IndexedSlices::new(values, indices, Some(vec![4, 2])).expect("rows"))
    };
    for (seed, grains, sizes) in shapes() {
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            let expected =
                oracle(grains).run(|replica| replica.all_reduce(op, rows(replica.replica_id_in_sync_group()))).unwrap();
            let results = on(Way::Workers, &sizes, grains, options(seed), |replica| reduced(replica, op, rows));
            for (number, slices) in results {
                assert_eq!(number, expected[0].0);
                assert_eq!((slices.indices(), slices.values()), (expected[0].1.indices(), expected[0].1.values()));
            }
        }
    }
}

/// Values of each grain: floats along axes of sizes that may differ, some of them 0, and others.
type Values = (Tensor, (Tensor, Tensor));

fn values(dtype: DType, grain: usize, seed: u64) -> Values {
    let rows = mix(seed, grain as u64) as usize % 4;
    let shaped = |shape: &[usize], salt: u64| {
        let numbers = numbers(grain, shape.iter().product(), seed + salt);
        if dtype == DType::I32 {
            Tensor::new(shape, &numbers.iter().map(|&x| x as i32).collect::<Vec<_>>())
        } else if dtype == DType::Bf16 {
            Tensor::new(shape, &numbers.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>())
        } else {
            Tensor::new(shape, &numbers)
        }
    };
    let all = [shaped(&[rows, 3, 700], 1), shaped(&[rows + 9000, 1], 2), shaped(&[2 + rows, 3], 3)];
    let [first, second, third] = all.map(|tensor| tensor.expect("a shape"));
    (first, (second, third))
}

/// Returns the value of each of the strategy's grains.
fn of_grains<N>(strategy: &Strategy, value: impl Fn(usize) -> N) -> PerReplica<Grains<N>> {
    let run = |replica| partition::block(strategy.grains(), strategy.num_replicas_in_sync(), replica);
    let of = |run: std::ops::Range<usize>| Grains::new(run.start, run.map(&value).collect());
    PerReplica::new(strategy.local_replicas().map(|replica| of(run(replica))).collect())
}

#[test]
fn reductions_of_grains_have_the_bits_of_a_replica_each() {
    use ReduceOp::{Max, Mean, Sum};
    let kinds = [(Sum, DType::F32), (Mean, DType::Bf16), (Mean, DType::F32), (Mean, DType::I32), (Max, DType::F32)];
    for ((seed, grains, sizes), (op, dtype)) in shapes().zip(kinds.into_iter().cycle()) {
        let (ragged, even) = (|grain| values(dtype, grain, seed), |grain| layers(dtype, grain, seed));
        let oracle = oracle(grains);
        let along = oracle.reduce(op, &PerReplica::new((0..grains).map(ragged).collect()), 0).expect("a reduction");
        let kept = oracle.reduce(op, &PerReplica::new((0..grains).map(even).collect()), None).expect("a reduction");
        for &way in WAYS {
            let results = on_workers(way, &sizes, grains, options(seed), |strategy| -> Result<_> {
                let ragged = strategy.reduce_grains(op, &of_grains(strategy, ragged), 0)?;
                Ok((ragged, strategy.reduce_grains(op, &of_grains(strategy, even), None)?))
            });
            for result in results {
                let context = format!("{op} of {dtype}, {grains} grains on {sizes:?}, {way:?}");
                let (ragged, even): (Values, Layers) = result.expect(&context);
                // Formatting tells zeros and NaNs apart, and has as many digits as floats need.
                assert!(format!("{ragged:?}") == format!("{along:?}"), "{context}, axis 0");
                assert!(bits(&even) == bits(&kept), "{context}");
            }
        }
    }
}

#[test]
fn rows_of_grains_are_reduced_as_those_of_a_replica_each() {
    for (seed, grains, sizes) in shapes() {
        let rows = |grain: usize| {
            let count = (grain + seed as usize) % 3;
            let values = Tensor::new([count, 2], &numbers(grain, 2 * count, seed)).expect("rows");
            let indices = Tensor::from((0..count).map(|row| ((row + grain) % 4) as i64).collect::<Vec<_>>());
            IndexedSlices::new(values, indices, Some(vec![4, 2])).expect("rows")
        };
        let all = PerReplica::new((0..grains).map(rows).collect());
        let expected = oracle(grains).reduce("mean", &all, None).expect("rows");
        for &way in WAYS {
            let results = on_workers(way, &sizes, grains, options(seed), |strategy| {
                strategy.reduce_grains("mean", &of_grains(strategy, rows), None).expect("rows")
            });
            for slices in results {
                assert_eq!((slices.indices(), slices.values()), (expected.indices(), expected.values()), "{way:?}");
            }
        }
    }
}

#[test]
fn values_of_other_grains_and_values_with_other_shapes_are_refused() {
    const CALL: &str = "Strategy::reduce_grains";
    for &way in WAYS {
        on_workers(way, &[1, 2], 7, CommunicationOptions::new(), |strategy| {
            let first = strategy.is_chief();
            // The grains of replica 1 are 3 and 4.
            let shifted = of_grains(strategy, |_| 1.0f32).into_values().into_iter();
            let shifted = shifted.map(|own| match own.numbers().start {
                3 => Grains::new(4, own.into_values()),
                _ => own,
            });
            let error = strategy.reduce_grains("sum", &PerReplica::new(shifted.collect()), None).expect_err("others'");
            match &error {
                Error::InvalidCall { .. } => {
                    assert_eq!((refusal(&error), found(&error)), ((CALL, "value", Some(1)), "grains 4..6"));
                }
                error => assert!(first && matches!(error, Error::Mismatch { replica: 1, .. }), "{way:?}: {error}"),
            }
            let shape = |grain, other| if grain == other { [3, 2] } else { [2, 3] };
            let within = of_grains(strategy, |grain| vec![Tensor::zeros(DType::F32, shape(grain, 4))]);
            let error = strategy.reduce_grains("sum", &within, None).expect_err("another shape in a replica");
            match &error {
                Error::InvalidCall { .. } => {
                    let refused = (refusal(&error), found(&error));
                    assert_eq!(refused, ((CALL, "value/0 of grain 4", Some(1)), "f32[3, 2]"));
                }
                error => assert!(first && matches!(error, Error::Mismatch { replica: 1, .. }), "{way:?}: {error}"),
            }
            // Grain 6 is not alone in replica 2, so this replica differs from the others.
            let across = of_grains(strategy, |grain| Tensor::zeros(DType::F32, shape(usize::from(grain > 4), 1)));
            let error = strategy.reduce_grains("sum", &across, None).expect_err("another shape of a replica");
            assert_eq!(mismatch(&error), (CALL, "value", 2, "f32[2, 3]", "f32[3, 2]"), "{way:?}");
            assert_eq!(strategy.reduce_grains("sum", &of_grains(strategy, |_| 1.0f32), None).expect("7 grains"), 7.0);
        });
    }
}

#[test]
fn metrics_of_grains_have_the_bits_of_a_replica_each() {
    let metric = |grain: usize| {
        let mut loss = Mean::new();
        numbers(grain, 3 + grain, 5).into_iter().for_each(|value| loss.add(value.into()));
        loss
    };
    for (seed, grains, sizes) in shapes() {
        let expected = oracle(grains).run(|replica| metric(replica.replica_id_in_sync_group()).result(replica));
        let expected = expected.expect("a mean")[0].expect("values").to_bits();
        let results = on(Way::Workers, &sizes, grains, options(seed), |replica| {
            let own = Grains::new(replica.grains().start, replica.grains().map(metric).collect());
            let other = Grains::new(replica.grains().end, own.values().to_vec());
            let error = replica.all_reduce_grains("sum", other).expect_err("grains of another replica");
            assert_eq!(refusal(&error).1, "grains");
            Ok(replica.all_reduce_grains("sum", own)?.value())
        });
        assert!(results.into_iter().all(|mean| mean.map(f64::to_bits) == Some(expected)), "{grains} on {sizes:?}");
    }
}

#[test]
fn a_grain_too_many_a_missing_one_and_another_nest_are_refused() {
    let run = MirroredStrategy::builder(devices(2)).grains(5).build().unwrap().run(|replica| {
        let (id, mut sum) = (replica.replica_id_in_sync_group(), replica.accumulator("sum")?);
        let refused = |result: Result<()>, argument: &str, value: &str| {
            let error = result.expect_err("an invalid grain");
            assert_eq!((refusal(&error), found(&error)), (("NestAccumulator::add", argument, Some(id)), value));
        };
        sum.add(vec![Tensor::from([1.0f32, 2.0])])?;
        if id == 0 {
            refused(sum.add(vec![Tensor::from([1.0f32])]), "value/0", "f32[1]");
            refused(sum.add(vec![Tensor::from([1.0f64, 2.0])]), "value/0", "f64[2]");
            refused(sum.add(vec![]), "value/0", "nothing");
            sum.add(vec![Tensor::from([1.0f32, 2.0])])?;
        }
        let added = if id == 0 { "3 grains" } else { "2 grains" };
        refused(sum.add(vec![Tensor::from([1.0f32, 2.0])]), "grains", added);
        let total = sum.all_reduce(vec![Tensor::from([3.0f32, 4.0])])?;
        assert_eq!(total, [Tensor::from([9.0f32, 14.0])]);
        // Replica 1 has not added its first grain.
        if id == 0 {
            sum.add(total.clone())?;
            sum.add(total.clone())?;
        }
        Ok(sum.all_reduce(total).expect_err("a grain is missing"))
    });
    let errors = run.expect("errors are values").into_values();
    assert_eq!(refusal(&errors[1]), ("NestAccumulator::all_reduce", "grains", Some(1)));
    assert_eq!(found(&errors[1]), "0 grains");
    assert!(matches!(errors[0], Error::Mismatch { replica: 1, .. }), "{}", errors[0]);
}

#[test]
fn different_nests_of_replicas_are_named_by_their_path() {
    let run = MirroredStrategy::builder(devices(3)).grains(5).build().unwrap().run(|replica| {
        let shape = if replica.replica_id_in_sync_group() == 1 { [3, 2] } else { [2, 3] };
        let value = |_| vec![Tensor::zeros(DType::F32, shape), Tensor::zeros(DType::F32, [1])];
        Ok(reduced(replica, ReduceOp::Sum, value).expect_err("other shapes"))
    });
    for error in run.expect("errors are values") {
        assert_eq!(mismatch(&error), ("all_reduce", "value/0", 1, "f32[2, 3]", "f32[3, 2]"));
    }
}

#[test]
fn a_nan_of_an_earlier_grain_is_refused_on_request() {
    let verifying = CommunicationOptions::new().verify(true);
    let errors = on(Way::Threads, &[3], 7, verifying, |replica| {
        let value = |grain| [1.0, if grain == 3 { f32::NAN } else { 2.0 }];
        Ok(reduced(replica, ReduceOp::Sum, value).expect_err("a NaN"))
    });
    for error in errors {
        assert_eq!((refusal(&error).2, found(&error)), (Some(1), "NaN"));
    }
}

#[test]
fn fewer_grains_than_replicas_are_refused() {
    for (grains, replicas) in [(0, 1), (0, 3), (2, 3)] {
        let error = MirroredStrategy::builder(devices(replicas)).grains(grains).build().expect_err("too few grains");
        assert_eq!((refusal(&error).1, found(&error)), ("grains", &*grains.to_string()));
    }
}

/// Makes the strategies of two workers with one replica each, and returns their errors.
fn met(
    set: impl Fn(usize, consonance::MultiWorkerBuilder) -> consonance::MultiWorkerBuilder + Sync,
) -> Vec<Option<Error>> {
    thread::scope(|scope| {
        let workers = Communicator::threads(2).into_iter().map(|communicator| {
            let (worker, set) = (communicator.rank(), &set);
            let builder = move || set(worker, MultiWorkerMirroredStrategy::builder(cluster(0, 2, worker)));
            scope.spawn(move || builder().build_on(vec![communicator]).err())
        });
        workers.collect::<Vec<_>>().into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
    })
}

#[test]
fn workers_with_other_grains_or_seeds_are_a_mismatch_where_they_meet() {
    let grains = met(|worker, builder| builder.grains(4 + worker));
    let none = met(|worker, builder| if worker == 1 { builder.grains(4) } else { builder });
    let zero = met(|worker, builder| if worker == 0 { builder.grains(0) } else { builder });
    let seeds = met(|worker, builder| builder.seed(worker as u64));
    for (errors, argument, expected, other) in [
        (grains, "grains", "4", "5"),
        (none, "grains", "none", "4"),
        (zero, "grains", "0", "none"),
        (seeds, "seed", "0", "1"),
    ] {
        for error in errors {
            let error = error.expect("an error on both");
            let (_, named, replica, wanted, found) = mismatch(&error);
            assert_eq!((named, replica, wanted, found), (argument, 1, expected, other));
        }
    }
    for error in met(|_, builder| builder.grains(1)) {
        assert_eq!(refusal(&error.expect("an error on both")).1, "grains");
    }
    assert!(met(|_, builder| builder.grains(3).seed(8)).iter().all(Option::is_none));
}

#[test]
fn seeds_are_of_the_grain_and_the_step() {
    let seeds = |sizes: &[usize], step: u64| {
        on(Way::Threads, sizes, 6, CommunicationOptions::new(), |replica| {
            Ok(replica.grains().map(|grain| replica.seed(step, grain)).collect::<Vec<u64>>())
        })
        .concat()
    };
    let mut all = [seeds(&[1], 0), seeds(&[1], 1)].concat();
    assert_eq!(all, [seeds(&[4], 0), seeds(&[5], 1)].concat());
    // The outputs of the authors' generator, chained: this never changes.
    assert_eq!(all[0], 0x2382_75bc_38fc_be91);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 12);
}

#[test]
fn seeds_follow_the_seed_of_either_builder() {
    let seeds = |seed: u64| {
        let mirrored: Strategy =
            MirroredStrategy::builder(devices(2)).grains(4).seed(seed).build().expect("a strategy").into();
        let alone = TfConfigClusterResolver::from_text("{}").expect("no cluster");
        let workers = MultiWorkerMirroredStrategy::builder(alone).grains(4).seed(seed).build().expect("a strategy");
        let of = |strategy: &Strategy| strategy.run(|replica| Ok(replica.seed(3, 2))).expect("seeds").values()[0];
        assert_eq!(of(&mirrored), of(&workers));
        of(&mirrored)
    };
    // The outputs of the authors' generator, chained: this never changes.
    assert_eq!(seeds(7), 0x8490_c52f_93c7_df65);
    assert_ne!(seeds(0), seeds(7));
}

#[test]
fn gradients_kept_for_another_strategy_have_its_packs() {
    let value = |grain| layers(DType::F32, grain, 4);
    let expected = oracle(5).run(|replica| replica.all_reduce("sum", value(replica.replica_id_in_sync_group())));
    let expected = bits(&expected.expect("a sum")[0]);
    let mut kept = Gradients::sum();
    for bytes in [1, 1 << 20, 3000] {
        let options = CommunicationOptions::new().bytes_per_pack(bytes);
        let strategy = MirroredStrategy::builder(devices(2)).grains(5).options(options).build().expect("a strategy");
        let mut new = Gradients::sum();
        let results = strategy.run_with(PerReplica::new(vec![&mut kept, &mut new]), |replica, gradients| {
            let (last, run) = (replica.grains().end - 1, replica.grains());
            for grain in run.start..last {
                gradients.accumulate(replica, |pass| pass.push(value(grain)))?;
            }
            gradients.all_reduce(replica, |pass| pass.push(value(last))).map(|reduced| reduced.gradients)
        });
        for result in results.expect("sums") {
            assert!(bits(&result[0]) == expected, "{bytes} bytes");
        }
    }
}

#[test]
fn passes_before_another_strategy_are_refused_until_a_reset() {
    let grained = |grains| MirroredStrategy::builder(devices(1)).grains(grains).build().expect("a strategy");
    let mut gradients = Gradients::sum();
    let pass = |strategy: &Strategy, gradients: &mut Gradients| {
        let error = strategy.run_with(PerReplica::new(vec![gradients]), |replica, gradients| {
            Ok(gradients.accumulate(replica, |pass| pass.push(1.0f32)).err())
        });
        error.expect("errors are values").into_values().swap_remove(0)
    };
    let (first, second) = (grained(3), grained(3));
    assert!(pass(&first, &mut gradients).is_none());
    let error = pass(&second, &mut gradients).expect("a pass of the other strategy");
    assert_eq!(refusal(&error).1, "grains");
    gradients.reset();
    assert!(pass(&second, &mut gradients).is_none());
    assert_eq!(gradients.passes(), 1);
}

#[test]
fn dropped_grains_are_in_no_sum() {
    let results = on(Way::Threads, &[2], 5, CommunicationOptions::new(), |replica| {
        let (mut sum, run) = (replica.accumulator("sum")?, replica.grains());
        sum.add([100.0f32])?;
        sum.clear();
        assert_eq!(sum.added(), 0);
        for grain in run.start..run.end - 1 {
            sum.add([grain as f32])?;
        }
        sum.all_reduce([(run.end - 1) as f32])
    });
    assert_eq!(results, [[10.0], [10.0]]);
}

#[test]
fn a_step_is_done_again_after_a_replica_failed_between_its_grains() {
    let value = |grain| layers(DType::F32, grain, 6);
    let expected = oracle(7).run(|replica| replica.all_reduce("sum", value(replica.replica_id_in_sync_group())));
    let expected = bits(&expected.expect("a sum")[0]);
    let strategy = MirroredStrategy::builder(devices(3)).grains(7).build().expect("a strategy");
    for fails in [true, false] {
        let results = strategy.run(|replica| {
            let (mut sum, run) = (replica.accumulator("sum")?, replica.grains());
            for grain in run.start..run.end - 1 {
                sum.add(value(grain))?;
                if fails && replica.replica_id_in_sync_group() == 1 {
                    return Err(Error::other("a bad sample"));
                }
            }
            sum.all_reduce(value(run.end - 1))
        });
        match results {
            Err(error) => assert!(fails && own(&error) == (1, "a bad sample".to_owned()), "{error}"),
            Ok(results) => assert!(!fails && results.iter().all(|result| bits(result) == expected)),
        }
    }
}

#[test]
fn a_number_of_passes_beside_grains_is_refused() {
    let errors = on(Way::Threads, &[2], 4, CommunicationOptions::new(), |replica| {
        let mut gradients = Gradients::sum().with_passes(2)?;
        Ok(gradients.accumulate(replica, |pass| pass.push(1.0f32)).expect_err("passes beside grains"))
    });
    errors.iter().for_each(|error| assert_eq!((refusal(error).1, found(error)), ("passes", "2")));
}

#[test]
fn batches_are_dealt_to_grains_as_to_a_replica_each() {
    for (seed, grains, sizes) in shapes() {
        // Ragged batches: the last one, and those of a data set whose batches differ.
        for (rows, batch) in [(23, 10), (5, 20), (40, 8)] {
            for deal in [Deal::Packed, Deal::Chunked, Deal::Balanced] {
                let options = InputOptions::new().deal(deal).prefetch(seed as usize % 3);
                let numbers = || dataset::range(0, rows, 1).unwrap().shuffle(seed).batch(batch);
                let steps = oracle(grains).distribute_dataset_with(numbers(), options).unwrap();
                let expected: Vec<Vec<Tensor>> = steps.epoch(1).map(|step| step.unwrap().into_values()).collect();
                let strategy = MirroredStrategy::builder(devices(sizes.iter().sum())).grains(grains).build().unwrap();
                let dealt = strategy.distribute_grains_with(numbers(), options).unwrap();
                assert_eq!(dealt.cardinality(), steps.cardinality());
                assert_eq!(dealt.element_spec().unwrap(), steps.element_spec().unwrap());
                for (step, expected) in dealt.epoch(1).zip(&expected) {
                    let step = step.unwrap();
                    let numbered: Vec<(usize, Tensor)> = step.into_values().into_iter().flatten().collect();
                    assert_eq!(numbered, expected.iter().cloned().enumerate().collect::<Vec<_>>(), "{deal:?}");
                }
                assert_eq!(dealt.epoch(1).count(), expected.len());
            }
        }
    }
}

#[test]
fn workers_get_the_parts_of_the_grains_of_their_replicas() {
    let numbers = || dataset::range(0, 23, 1).unwrap().batch(10);
    let of = |strategy: &Strategy| -> Vec<(usize, Tensor)> {
        let steps = strategy.distribute_grains(numbers()).unwrap();
        steps.iter().flat_map(|step| step.unwrap().into_values().into_iter().flatten()).collect()
    };
    let all = of(&MirroredStrategy::builder(devices(1)).grains(7).build().unwrap());
    let parts = thread::scope(|scope| {
        let workers = Communicator::threads(2).into_iter().map(|communicator| {
            scope.spawn(move || {
                let builder = MultiWorkerMirroredStrategy::builder(cluster(0, 2, communicator.rank()));
                of(&builder.grains(7).build_on(vec![communicator]).unwrap())
            })
        });
        workers.collect::<Vec<_>>().into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    let mut both: Vec<(usize, Tensor)> = Vec::new();
    for step in 0..3 {
        both.extend_from_slice(&parts[0][4 * step..4 * step + 4]);
        both.extend_from_slice(&parts[1][3 * step..3 * step + 3]);
    }
    assert_eq!(both, all);
}

#[test]
fn data_without_parts_for_grains_are_refused() {
    let strategy = MirroredStrategy::builder(devices(1)).grains(2).build().unwrap();
    let refused = |dataset, options| {
        let error = strategy.distribute_grains_with(dataset, options).map(drop).expect_err("no batches for all");
        assert_eq!(refusal(&error).0, "Strategy::distribute_grains");
        refusal(&error).1.to_owned()
    };
    let rows = || dataset::range(0, 8, 1).unwrap();
    let off = InputOptions::new().auto_shard_policy(AutoShardPolicy::Off);
    assert_eq!(refused(rows().batch(1).take(1), off), "auto_shard_policy");
    let file = InputOptions::new().auto_shard_policy(AutoShardPolicy::File);
    assert_eq!(refused(rows().batch(1).take(1), file), "dataset");
    let error = strategy.distribute_grains(rows()).map(drop).expect_err("single rows");
    assert_eq!(refusal(&error).0, "Strategy::distribute_grains");
}
