//! Variables in the memories of a strategy's devices, on the driver for tests.

use super::{
    calls::of,
    driver::{any_elements, digits, on_a_driver, on_cpus, sharing},
};
use consonance::{
    CentralStorageStrategy, DType, Error, IndexedSlices, MirroredStrategy, OneDeviceStrategy, PerReplica, ReduceOp,
    Result, Strategy, Tensor, Variable, VariableAggregation, VariableMut, VariableSynchronization, checkpoint,
    raw::Space,
};
use std::{env, fs, io::ErrorKind, process};

const GPU: Space = Space::Cuda(0);

fn mean(strategy: &Strategy, value: Tensor) -> Result<Variable> {
    strategy.scope(|| Variable::builder(|| value).aggregation(VariableAggregation::Mean).build())
}

/// Trains for a few steps, in which each replica reads the weights in the memory of its device.
fn train(strategy: &Strategy) -> Result<Vec<Tensor>> {
    let replicas = strategy.num_replicas_in_sync();
    let weights = mean(strategy, of(7, replicas))?;
    let table = mean(strategy, of(3, 4))?;
    let mut results = Vec::new();
    for step in 0..3 {
        let gradients = strategy.run(|replica| {
            let ([device], id) = (replica.devices(), replica.replica_id_in_sync_group());
            let read = weights.read()?;
            assert_eq!(read.space(), of(0, 0).to(device)?.space());
            let own = read.to_host()?.into_vec::<f32>()?.into_iter().map(|weight| weight * (0.1 + id as f32));
            let gradient = Tensor::new(read.shape(), &own.collect::<Vec<f32>>())?.to(device)?;
            let reduced = replica.all_reduce(ReduceOp::Sum, gradient.clone())?;
            replica.assign_sub(&weights, gradient)?;
            assert_ne!(weights.read()?, read);
            replica.assign_add(&weights, of(id + step, replicas))?;
            let rows = IndexedSlices::new(of(id, 2), Tensor::from([1i64, id as i64 % 4]), None)?;
            replica.scatter_sub(&table, &rows)?;
            assert_eq!(table.read_rows(1..3)?.space(), read.space());
            Ok(reduced)
        })?;
        strategy.update(&weights, |weights| {
            weights.assign_sub(gradients[0].clone())?;
            weights.as_mut_slice::<f32>()?.iter_mut().for_each(|weight| *weight *= 0.75);
            weights.assign_add(of(step, replicas))
        })?;
        table.scatter_add(&IndexedSlices::new(of(step, 1), Tensor::from([3i64]), None)?)?;
        weights.assign_add(of(step, replicas))?;
        results.extend([weights.read()?, table.read()?, table.read_rows(0..2)?]);
    }
    results.extend(strategy.local_results(&weights));
    Ok(results)
}

#[test]
fn a_training_on_one_gpu_has_the_bits_of_the_host() {
    on_a_driver("variables::a_training_on_one_gpu_has_the_bits_of_the_host", "", || {
        for replicas in [1, 2, 3] {
            let expected = train(&on_cpus(replicas)).unwrap();
            assert_eq!(digits(&train(&sharing(replicas)).unwrap()), digits(&expected), "{replicas} replicas");
        }
        let one: Strategy = OneDeviceStrategy::new("cuda:0").unwrap().into();
        assert_eq!(digits(&train(&one).unwrap()), digits(&train(&on_cpus(1)).unwrap()));
    });
}

#[test]
fn a_training_on_two_gpus_or_beside_parameters_elsewhere_has_the_bits_of_the_host() {
    let test = "variables::a_training_on_two_gpus_or_beside_parameters_elsewhere_has_the_bits_of_the_host";
    on_a_driver(test, "devices=2", || {
        let on_host = |devices: usize, parameters: &str| -> Strategy {
            CentralStorageStrategy::new((0..devices).map(|device| format!("cpu:{device}")), parameters.to_owned())
                .unwrap()
                .into()
        };
        let expected = digits(&train(&on_host(3, "cpu:0")).unwrap());
        let central = CentralStorageStrategy::new(["cuda:0", "cuda:1", "cuda:0.1"], "cpu:0").unwrap();
        assert_eq!(digits(&train(&central).unwrap()), expected);
        assert_eq!(digits(&train(&on_host(3, "cuda:1")).unwrap()), expected);
        let mirrored = MirroredStrategy::new(["cuda:0", "cuda:1", "cuda:1.1"]).unwrap();
        let expected = digits(&train(&on_cpus(3)).unwrap());
        assert_eq!(digits(&train(&mirrored).unwrap()), expected);
        for devices in [["cpu:0", "cuda:0", "cuda:1"], ["cuda:1", "cpu:0", "cpu:1"]] {
            let mixed = MirroredStrategy::new(devices).unwrap();
            assert_eq!(digits(&train(&mixed).unwrap()), expected, "{devices:?}");
        }
    });
}

fn mixed() -> Strategy {
    MirroredStrategy::new(["cpu:0", "cuda:0"]).unwrap().into()
}

#[test]
fn copies_on_the_host_and_on_a_gpu_stay_equal() {
    on_a_driver("variables::copies_on_the_host_and_on_a_gpu_stay_equal", "", || {
        let strategy = mixed();
        let weights = mean(&strategy, of(1, 3)).unwrap();
        let read = || {
            let all = strategy.run(|_| weights.read()).unwrap();
            assert_eq!([all[0].space(), all[1].space()], [Space::Host, GPU]);
            assert_eq!(digits(&[all[1].to_host().unwrap()]), digits(&all.values()[..1]));
            all.into_values().swap_remove(0)
        };
        assert_eq!(read(), of(1, 3));
        strategy.run(|replica| replica.assign(&weights, of(replica.replica_id_in_sync_group(), 3))).unwrap();
        let expected = strategy.reduce("mean", &PerReplica::new(vec![of(0, 3), of(1, 3)]), None).unwrap();
        assert_eq!(read(), expected);
        weights.assign(of(2, 3).to("cuda:0").unwrap()).unwrap();
        assert_eq!(read(), of(2, 3));
        let changed = strategy.update(&weights, |weights| {
            weights.assign_add(of(4, 3).to("cuda:0")?)?;
            Ok(weights.space())
        });
        assert_eq!(changed.unwrap(), [Space::Host]);
        let on_host = Variable::new(of(2, 3)).unwrap();
        on_host.assign_add(of(4, 3)).unwrap();
        assert_eq!(read(), on_host.read().unwrap());
        let error = strategy.update(&weights, |weights| -> Result<()> {
            weights.as_mut_slice::<f32>()?.fill(0.0);
            Err(Error::other("no"))
        });
        assert!(error.is_err() && read() == on_host.read().unwrap());
        assert_eq!(weights.to_string(), on_host.to_string());
    });
}

#[test]
fn sums_and_differences_of_every_type_have_the_bits_of_the_host() {
    on_a_driver("variables::sums_and_differences_of_every_type_have_the_bits_of_the_host", "", || {
        let strategy = sharing(2);
        for &dtype in DType::ALL {
            let elements = |seed| any_elements(dtype, 530, seed);
            let (host, device) = (Variable::new(elements(1)).unwrap(), strategy.variable(|| elements(1)).unwrap());
            let changes: [fn(&Variable, Tensor) -> Result<()>; 2] =
                [|variable, x| variable.assign_add(x), |variable, x| variable.assign_sub(x)];
            for (seed, change) in (2..).zip(changes) {
                match (change(&host, elements(seed)), change(&device, elements(seed).to("cuda:0").unwrap())) {
                    (Ok(()), Ok(())) => {}
                    (Err(Error::InvalidCall { argument: expected, .. }), Err(Error::InvalidCall { argument, .. })) => {
                        assert_eq!((argument, dtype), (expected, DType::Bool));
                    }
                    (host, device) => panic!("{dtype}: {host:?}, on the GPU {device:?}"),
                }
                assert_eq!(digits(&[device.read().unwrap()]), digits(&[host.read().unwrap()]), "{dtype}");
            }
        }
    });
}

/// The third copy to the GPU and the first one back would fail: only the first values of the two
/// variables are copied.
#[test]
fn a_step_of_reads_and_sums_on_a_gpu_copies_nothing() {
    let plan = "fail=cuMemcpyHtoDAsync_v2:3:999 fail=cuMemcpyDtoHAsync_v2:1:999";
    on_a_driver("variables::a_step_of_reads_and_sums_on_a_gpu_copies_nothing", plan, || {
        let strategy = sharing(2);
        let weights = strategy.variable(|| of(0, 300)).unwrap();
        for _ in 0..3 {
            let sums = strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, weights.read()?)).unwrap();
            strategy
                .update(&weights, |weights| {
                    weights.assign_add(sums[0].clone())?;
                    weights.assign_sub(sums[1].clone())
                })
                .unwrap();
        }
        let mixed = mixed();
        let beside = mixed.variable(|| of(1, 3)).unwrap();
        let spaces = mixed.run(|_| Ok(beside.read()?.space())).unwrap();
        assert_eq!((spaces.values(), beside.read().unwrap()), (&[Space::Host, GPU][..], of(1, 3)));
        let failed = |result: Result<Tensor>| matches!(result, Err(Error::System { .. }));
        assert!(failed(weights.read()) && failed(of(0, 1).to("cuda:0")), "each would be the first copy");
        assert_eq!(weights.read().unwrap().shape(), [300, 2]);
    });
}

#[test]
fn components_lie_in_the_memory_of_their_replica() {
    on_a_driver("variables::components_lie_in_the_memory_of_their_replica", "", || {
        let strategy = mixed();
        let seen = strategy.scope(|| {
            let builder = Variable::builder(|| Tensor::from(0i64)).aggregation(VariableAggregation::Sum);
            builder.synchronization(VariableSynchronization::OnRead).build()
        });
        let seen = seen.unwrap();
        let own = strategy.run(|replica| {
            let id = replica.replica_id_in_sync_group() as i64;
            replica.assign_add(&seen, 10 + id)?;
            replica.assign_add(&seen, Tensor::from(100i64).to("cuda:0")?)?;
            seen.read()
        });
        let own = own.unwrap();
        assert_eq!([own[0].space(), own[1].space()], [Space::Host, GPU]);
        assert_eq!([own[0].item::<i64>().unwrap(), own[1].to_host().unwrap().item().unwrap()], [110, 111]);
        assert_eq!(seen.read().unwrap(), Tensor::from(221i64));
        seen.assign(7i64).unwrap();
        let changed = strategy.update(&seen, |own| {
            own.assign_add(1i64)?;
            own.as_mut_slice::<i64>()?[0] *= 10;
            own.assign_sub(2i64)
        });
        changed.unwrap();
        let places = strategy.run(|_| Ok(seen.read()?.space())).unwrap();
        assert_eq!(places.values(), [Space::Host, GPU]);
        // Of both shares of 7, each one more, times ten, less two.
        assert_eq!(seen.read().unwrap(), Tensor::from(86i64));
    });
}

#[test]
fn components_of_many_elements_have_the_bits_of_the_host() {
    on_a_driver("variables::components_of_many_elements_have_the_bits_of_the_host", "devices=2", || {
        let train = |strategy: &Strategy| -> Result<Vec<Tensor>> {
            let [sums, first] = [VariableAggregation::Mean, VariableAggregation::OnlyFirstReplica].map(|aggregation| {
                let builder = Variable::builder(|| of(3, 5)).aggregation(aggregation);
                strategy.scope(|| builder.synchronization(VariableSynchronization::OnRead).build())
            });
            let (sums, first) = (sums?, first?);
            let own = strategy.run(|replica| {
                let ([device], id) = (replica.devices(), replica.replica_id_in_sync_group());
                for variable in [&sums, &first] {
                    replica.assign_add(variable, of(id, 5).to(device)?)?;
                    replica
                        .scatter_sub(variable, &IndexedSlices::new(of(id + 1, 2), Tensor::from([4i64, 1]), None)?)?;
                    assert_eq!(variable.read()?.space(), of(0, 0).to(device)?.space());
                }
                sums.read_rows(1..3)?.to_host()
            })?;
            sums.assign_sub(of(9, 5))?;
            let mut results = own.into_values();
            results.extend([sums.read()?, sums.read_rows(4..5)?, first.read()?]);
            let path = env::temp_dir().join(format!("consonance-components-{}", process::id()));
            checkpoint::save(&path, [("sums", &sums)])?;
            sums.assign(of(8, 5))?;
            checkpoint::restore(&path, [("sums", &sums)])?;
            fs::remove_file(&path).expect("the file");
            results.push(sums.read()?);
            Ok(results)
        };
        let expected = digits(&train(&on_cpus(3)).unwrap());
        for devices in
            [["cuda:0", "cuda:0.1", "cuda:0.2"], ["cuda:1", "cuda:0", "cpu:0"], ["cpu:0", "cuda:1", "cuda:0"]]
        {
            let strategy: Strategy = MirroredStrategy::new(devices).unwrap().into();
            assert_eq!(digits(&train(&strategy).unwrap()), expected, "{devices:?}");
        }
    });
}

#[test]
fn a_gpu_without_memory_for_a_copy_is_an_error_and_no_value_changes() {
    let test = "variables::a_gpu_without_memory_for_a_copy_is_an_error_and_no_value_changes";
    on_a_driver(test, "memory=1000000", || {
        let strategy = sharing(2);
        let bytes = |count: usize, byte: u8| Tensor::from(vec![byte; count]);
        let full = |result: Result<()>, expected: &str| {
            let Err(Error::System { what, source }) = result else { panic!("{result:?}") };
            assert_eq!((&what[..], source.kind()), (expected, ErrorKind::OutOfMemory));
            assert!(source.to_string().starts_with("cuda:0 has no memory for "), "{source}");
        };
        full(strategy.variable(|| bytes(1_000_001, 1)).map(drop), "copy u8[1000001] to cuda:0");
        let large = strategy.variable(|| bytes(600_000, 1)).unwrap();
        full(large.assign_add(bytes(600_000, 2)), "copy u8[600000] to cuda:0");
        full(large.assign(bytes(600_000, 2)), "copy u8[600000] to cuda:0");
        assert!(large.read().unwrap() == bytes(600_000, 1));
        drop(large);
        // Of both variables there is room for one new copy.
        let path = env::temp_dir().join(format!("consonance-copies-{}", process::id()));
        let [first, second] = [1, 2].map(|byte| strategy.variable(|| bytes(300_000, byte)).unwrap());
        checkpoint::save(&path, [("first", &second), ("second", &first)]).unwrap();
        let restored = checkpoint::restore(&path, [("first", &first), ("second", &second)]);
        full(restored, "copy u8[300000] to cuda:0");
        assert!(first.read().unwrap() == bytes(300_000, 1) && second.read().unwrap() == bytes(300_000, 2));
        checkpoint::restore(&path, [("first", &first)]).unwrap();
        assert!(first.read().unwrap() == bytes(300_000, 2));
        fs::remove_file(&path).unwrap();
    });
}

/// Makes calls until they end without an error. The error of a device comes once, and the value is
/// the old one then.
fn repeated<R>(weights: &Variable, expected: &Tensor, call: impl Fn() -> Result<R>) -> R {
    let errors = (0..2).map(|_| call());
    for result in errors {
        match result {
            Ok(result) => return result,
            Err(error) => {
                assert!(matches!(error.root(), Error::System { .. }), "{error:?}");
                assert_eq!(weights.read().unwrap(), *expected, "after {error}");
            }
        }
    }
    panic!("the second call fails, too")
}

fn changes_after_failed_calls() {
    let strategy = sharing(2);
    let create = || mean(&strategy, of(0, 3));
    let weights = create().or_else(|error| {
        assert!(matches!(error, Error::System { .. }), "{error:?}");
        create()
    });
    let weights = weights.unwrap();
    let (host, mut old) = (Variable::new(of(0, 3)).unwrap(), of(0, 3));
    let mut step = |change: &dyn Fn(&Variable) -> Result<()>| {
        repeated(&weights, &old, || change(&weights));
        change(&host).unwrap();
        old = repeated(&weights, &host.read().unwrap(), || weights.read());
        assert_eq!(old, host.read().unwrap());
    };
    step(&|weights| weights.assign_add(of(1, 3)));
    step(&|weights| weights.assign_sub(of(2, 3)));
    step(&|weights| {
        let halve = |weights: &mut VariableMut<'_>| {
            weights.as_mut_slice::<f32>()?.iter_mut().for_each(|weight| *weight *= 0.5);
            Ok(())
        };
        weights.strategy().update(weights, halve).map(drop)
    });
    step(&|weights| weights.scatter_add(&IndexedSlices::new(of(1, 1), Tensor::from([1i64]), None)?));
    // By replicas: the others have errors, too, and the next run works.
    let assign = || strategy.run(|replica| replica.assign(&weights, of(5, 3).to("cuda:0")?)).map(drop);
    if assign().is_err() {
        assign().unwrap();
    }
    assert_eq!(weights.read().unwrap(), of(5, 3));
}

#[test]
fn a_failed_call_of_the_driver_is_an_error_and_changes_no_copy() {
    let test = "variables::a_failed_call_of_the_driver_is_an_error_and_changes_no_copy";
    for (symbol, calls) in [
        ("cuMemAlloc_v2", 1..=6),
        ("cuMemsetD8Async", 1..=6),
        ("cuMemcpyHtoDAsync_v2", 1..=6),
        ("cuMemcpyDtoHAsync_v2", 1..=6),
        ("cuLaunchKernel", 1..=5),
        ("cuModuleLoadDataEx", 1..=2),
    ] {
        for call in calls {
            on_a_driver(test, &format!("fail={symbol}:{call}:999"), changes_after_failed_calls);
        }
    }
}
