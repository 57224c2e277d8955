//! Strategies on GPUs. Each test runs in a process of its own on the driver for tests, whose device
//! is an interpreter of the kernels. On a GPU:
//! `CONSONANCE_CUDA_DRIVER=libcuda.so.1 cargo test -p consonance-harness --test on_device gpu::`.

use super::{
    calls::{Placed, here, of, results},
    driver::{ABSENT, any_elements, digits, on_a_driver, on_cpus, sharing, there},
};
use consonance::{
    CommunicationOptions, DType, Device, Error, MirroredStrategy, OneDeviceStrategy, PerReplica, ReduceOp, Result,
    Strategy, Tensor, raw::Space,
};
use fork::Fork;
use std::{
    io::ErrorKind,
    process,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// Returns the argument that is refused, what was expected, and what was found.
fn invalid(error: &Error) -> (&str, &str, &str) {
    let Error::InvalidCall { argument, expected, found, .. } = error else { panic!("{error}") };
    (argument, expected, found)
}

#[test]
fn replicas_on_one_gpu_have_the_bits_of_the_host() {
    on_a_driver("gpu::replicas_on_one_gpu_have_the_bits_of_the_host", "", || {
        for replicas in [1, 2, 3, 17] {
            let expected = results(&on_cpus(replicas), here).unwrap();
            let on_device = results(&sharing(replicas), there).unwrap();
            let spaces = on_device.iter().filter(|tensor| tensor.space() == Space::Cuda(0)).count();
            assert_eq!(spaces, replicas * 8 + 4);
            let copies: Vec<Tensor> = on_device.iter().map(|tensor| tensor.to_host().unwrap()).collect();
            assert_eq!(copies, expected, "{replicas} replicas");
            assert_eq!(results(&sharing(replicas), here).unwrap(), expected, "values in host memory");
        }
    });
}

#[test]
fn sums_of_every_type_have_the_bits_of_the_host() {
    on_a_driver("gpu::sums_of_every_type_have_the_bits_of_the_host", "", || {
        let (host, device) = (on_cpus(3), sharing(3));
        for &dtype in DType::ALL {
            for op in ReduceOp::ALL {
                let values: PerReplica<Tensor> = (0..3).map(|replica| any_elements(dtype, 37, replica)).collect();
                let reduce = |strategy: &Strategy, place: Placed| -> Result<Vec<Tensor>> {
                    let sums = strategy.run(|replica| {
                        let [device] = replica.devices();
                        let own = place(&values[replica.replica_id_in_sync_group()], device);
                        replica.all_reduce(op, own)?.to_host()
                    })?;
                    Ok(sums.into_values())
                };
                match (reduce(&host, here), reduce(&device, there)) {
                    (Ok(expected), Ok(found)) => assert_eq!(digits(&found), digits(&expected), "{op} of {dtype}"),
                    (Err(expected), Err(found)) => assert_eq!(found.to_string(), expected.to_string()),
                    (expected, found) => panic!("{op} of {dtype}: {expected:?}, on the GPU {found:?}"),
                }
            }
        }
    });
}

#[test]
fn replicas_on_two_gpus_have_the_bits_of_the_host() {
    on_a_driver("gpu::replicas_on_two_gpus_have_the_bits_of_the_host", "devices=2", || {
        let strategy: Strategy = MirroredStrategy::new(["cuda:0", "GPU:1"]).unwrap().into();
        let expected =
            strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, of(replica.replica_id_in_sync_group(), 3)));
        let found = strategy.run(|replica| {
            let [device] = replica.devices();
            let sum = replica.all_reduce(ReduceOp::Sum, of(replica.replica_id_in_sync_group(), 3).to(device)?)?;
            let Device::Cuda { gpu, .. } = device else { panic!("{device}") };
            assert_eq!(sum.space(), Space::Cuda(gpu as u32));
            sum.to("cpu:0")
        });
        assert_eq!(found.unwrap().into_values(), expected.unwrap().into_values());
    });
}

#[test]
fn processors_beside_gpus_have_the_bits_of_the_host() {
    on_a_driver("gpu::processors_beside_gpus_have_the_bits_of_the_host", "devices=2", || {
        for devices in
            [&["cpu:0", "cuda:0"][..], &["cuda:0", "cpu:0"], &["cuda:1", "cpu:0", "cpu:1", "cuda:0", "cuda:0.1"]]
        {
            let (mixed, host) = (MirroredStrategy::new(devices.iter().copied()).unwrap(), on_cpus(devices.len()));
            let expected = results(&host, here).unwrap();
            let found = results(&mixed, there).unwrap();
            let copies: Vec<Tensor> = found.iter().map(|tensor| tensor.to_host().unwrap()).collect();
            assert_eq!(copies, expected, "{devices:?}");
            let spaces = mixed.run(|replica| {
                let [device] = replica.devices();
                let sums = replica.all_reduce(ReduceOp::Sum, vec![there(&of(0, 1), device), of(1, 2)])?;
                assert_eq!(sums[0].space(), there(&of(0, 0), device).space());
                Ok(sums[1].space())
            });
            assert!(spaces.unwrap().iter().all(|space| *space == Space::Host));
            assert_eq!(results(&mixed, here).unwrap(), expected, "{devices:?}, values in host memory");
        }
    });
}

#[test]
fn a_value_in_memory_of_a_gpu_is_refused_on_a_processor_beside_it() {
    on_a_driver("gpu::a_value_in_memory_of_a_gpu_is_refused_on_a_processor_beside_it", "devices=1", || {
        let strategy = MirroredStrategy::new(["cpu:0", "cuda:0"]).unwrap();
        for _ in 0..20 {
            let run = strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, of(0, 1).to("cuda:0")?));
            let error = run.map(drop).unwrap_err();
            assert!(invalid(error.root()).2.contains("memory of cuda:0"), "{error}");
        }
        let error = strategy.run(|replica| {
            let [device] = replica.devices();
            replica.all_reduce(ReduceOp::Sum, there(&of(0, 1 + replica.replica_id_in_sync_group()), device))
        });
        let error = error.map(drop).unwrap_err();
        let Error::Mismatch { replica, expected, found, .. } = error.root() else { panic!("{error}") };
        assert_eq!((*replica, &expected[..], &found[..]), (1, "f32[1, 2]", "f32[2, 2]"));
    });
}

#[test]
fn a_tensor_of_one_device_moves_to_others_and_back() {
    on_a_driver("gpu::a_tensor_of_one_device_moves_to_others_and_back", "devices=2", || {
        let tensor = of(0, 1_100_000);
        for device in ["cuda:0", "gpu:1.3", "/job:localhost/replica:0/task:0/device:GPU:1"] {
            let moved = tensor.to(device).unwrap().to("cuda:0").unwrap();
            assert_eq!((moved.space(), moved.to_host().unwrap() == tensor), (Space::Cuda(0), true));
            let part = moved.rows(3..5).unwrap();
            assert_eq!(part.to("cuda:1").unwrap().to("cpu:5").unwrap(), tensor.rows(3..5).unwrap());
        }
        let empty = Tensor::zeros(DType::F64, [0, 7]);
        assert_eq!(empty.to("cuda:1").unwrap().to_host().unwrap(), empty);
    });
}

#[test]
fn all_devices_are_the_gpus() {
    on_a_driver("gpu::all_devices_are_the_gpus", "devices=2", || {
        let strategy = MirroredStrategy::on_all_devices().unwrap();
        let names: Vec<String> = strategy.worker_devices().iter().map(Device::to_string).collect();
        assert_eq!(names, ["cuda:0.0", "cuda:1.0"]);
    });
}

#[test]
fn all_devices_are_processors_without_a_driver() {
    on_a_driver("gpu::all_devices_are_processors_without_a_driver", ABSENT, || {
        assert_eq!(Device::all().first(), Some(&Device::Cpu(0)));
    });
}

#[test]
fn unknown_devices_are_refused() {
    on_a_driver("gpu::unknown_devices_are_refused", "devices=2", || {
        for name in ["cuda:2", "gpu:0.1024", "cuda:01", "cuda:0.", "cuda:", "cuda:-1"] {
            let error = MirroredStrategy::new([name]).unwrap_err();
            assert_eq!(invalid(&error), ("device", "cpu:0 to cpu:1023 or cuda:0 to cuda:1", &*format!("{name:?}")));
        }
        let twice = MirroredStrategy::new(["cuda:0", "gpu:0.0"]).unwrap_err();
        assert_eq!(invalid(&twice), ("devices", "each device once", "cuda:0.0 twice"));
        let strategy = OneDeviceStrategy::new("cuda:1").unwrap();
        let run = strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, of(0, 1).to("cuda:0")?));
        let error = run.map(drop).unwrap_err();
        assert!(invalid(error.root()).2.contains("memory of cuda:0"), "{error}");
    });
}

#[test]
fn values_in_host_memory_beside_others_on_the_gpu_are_a_mismatch() {
    on_a_driver("gpu::values_in_host_memory_beside_others_on_the_gpu_are_a_mismatch", "", || {
        let strategy = sharing(2);
        for _ in 0..20 {
            let error = strategy.run(|replica| {
                let own = of(replica.replica_id_in_sync_group(), 1);
                let own = if replica.replica_id_in_sync_group() == 1 { own.to("cuda:0")? } else { own };
                replica.all_reduce(ReduceOp::Sum, own)
            });
            let error = error.map(drop).unwrap_err();
            let Error::Mismatch { replica, expected, found, .. } = error.root() else { panic!("{error}") };
            assert_eq!((*replica, &expected[..]), (1, "f32[1, 2]"));
            assert!(found.starts_with("f32[1, 2] on a device"), "{found}");
        }
    });
}

#[test]
fn a_gpu_without_memory_is_an_error_and_works_on() {
    on_a_driver("gpu::a_gpu_without_memory_is_an_error_and_works_on", "memory=1000000", || {
        let elements = |count: usize| Tensor::zeros(DType::U8, [count]).to("cuda:0");
        for _ in 0..3 {
            let error = elements(1_000_001).unwrap_err();
            let Error::System { what, source } = &error else { panic!("{error}") };
            assert_eq!((&what[..], source.kind()), ("copy u8[1000001] to cuda:0", ErrorKind::OutOfMemory));
            let source = source.to_string();
            assert!(source.starts_with("cuda:0 has no memory for 1000001 bytes; "), "{source}");
            // Each needs the memory of the one before, which was dropped.
            elements(600_000).unwrap();
            elements(700_000).unwrap();
        }
        let sum = sharing(2).run(|replica| replica.all_reduce(ReduceOp::Sum, of(0, 3).to("cuda:0")?)?.to_host());
        assert_eq!(sum.unwrap().into_values().len(), 2);
    });
}

#[test]
fn a_failed_kernel_ends_the_run_on_every_replica() {
    on_a_driver("gpu::a_failed_kernel_ends_the_run_on_every_replica", "fail=cuLaunchKernel:1:719", || {
        let strategy = sharing(3);
        let errors = Mutex::new(Vec::new());
        let run = strategy.run(|replica| {
            let own = of(replica.replica_id_in_sync_group(), 2).to("cuda:0")?;
            let sum = replica.all_reduce(ReduceOp::Sum, own);
            errors.lock().unwrap().extend(sum.as_ref().err().cloned());
            sum?.to_host()
        });
        let error = run.map(drop).unwrap_err();
        let Error::System { what, source } = error.root() else { panic!("{error}") };
        let source = source.to_string();
        assert_eq!(what, "reduce on cuda:0");
        assert!(source.contains("cuLaunchKernel failed with code 719"), "{source}");
        assert_eq!(errors.lock().unwrap().len(), 3, "every replica has an error");
    });
}

#[test]
fn a_failed_copy_ends_the_run_of_processors_beside_the_gpu() {
    let test = "gpu::a_failed_copy_ends_the_run_of_processors_beside_the_gpu";
    on_a_driver(test, "fail=cuMemcpyDtoHAsync_v2:1:719", || {
        let strategy = MirroredStrategy::new(["cpu:0", "cuda:0", "cpu:1"]).unwrap();
        let errors = Mutex::new(Vec::new());
        let run = strategy.run(|replica| {
            let ([device], id) = (replica.devices(), replica.replica_id_in_sync_group());
            let sum = replica.all_reduce(ReduceOp::Sum, there(&of(id, 2), device));
            errors.lock().unwrap().push((id, sum.as_ref().err().cloned()));
            sum.map(drop)
        });
        let error = run.map(drop).unwrap_err();
        let Error::System { what, .. } = error.root() else { panic!("{error}") };
        assert_eq!(what, "read cuda:0");
        let mut errors = errors.into_inner().unwrap();
        errors.sort_by_key(|(id, _)| *id);
        assert_eq!(errors.len(), 3);
        for place in [0, 2] {
            assert!(matches!(errors[place].1, Some(Error::Aborted { replica: 1, .. })), "{errors:?}");
        }
    });
}

#[test]
fn a_missing_driver_is_named() {
    on_a_driver("gpu::a_missing_driver_is_named", ABSENT, || {
        for name in ["cuda:0", "GPU:3", "tpu:0"] {
            let error = MirroredStrategy::new([name]).unwrap_err();
            let (argument, expected, found) = invalid(&error);
            assert_eq!((argument, found), ("device", &*format!("{name:?}")));
            assert!(expected.starts_with("cpu:0 to cpu:1023 (there is no CUDA driver: "), "{expected}");
        }
        let error = of(0, 1).to(Device::Cuda { gpu: 0, logical: 0 }).unwrap_err();
        assert_eq!(invalid(&error).2, "cuda:0.0");
    });
}

/// Replica 0 is late before the launch. The other gives up, drops its value, and uses the memory of
/// that for another one.
#[test]
fn a_late_reduction_writes_to_no_dropped_memory() {
    on_a_driver("gpu::a_late_reduction_writes_to_no_dropped_memory", "pause=cuModuleLoadDataEx:1:300", || {
        let devices = (0..2).map(|logical| Device::Cuda { gpu: 0, logical });
        let options = CommunicationOptions::new().timeout(Duration::from_millis(100)).unwrap();
        let strategy = MirroredStrategy::builder(devices).options(options).build().unwrap();
        let checked = AtomicBool::new(false);
        let run = strategy.run(|replica| {
            let id = replica.replica_id_in_sync_group();
            let sum = replica.all_reduce(ReduceOp::Sum, of(id, 2).to("cuda:0")?);
            if id == 1 {
                let error = sum.as_ref().expect_err("replica 0 is late");
                assert!(matches!(error, Error::Timeout { missing, .. } if missing[0].0 == 0), "{error}");
                let other = of(5, 2).to("cuda:0")?;
                thread::sleep(Duration::from_millis(400));
                assert_eq!(other.to_host()?, of(5, 2));
                checked.store(true, Ordering::Relaxed);
            }
            sum.map(drop)
        });
        assert!(run.is_err() && checked.into_inner());
    });
}

#[test]
fn a_child_of_a_process_with_a_gpu_is_refused() {
    on_a_driver("gpu::a_child_of_a_process_with_a_gpu_is_refused", "devices=1", || {
        let (tensor, strategy) = (of(0, 3).to("cuda:0").unwrap(), sharing(1));
        match fork::fork().unwrap() {
            Fork::Child => {
                let is_refused = matches!(of(0, 1).to("cuda:0"), Err(Error::WrongContext { .. }));
                let is_told = matches!(tensor.to_host(), Err(Error::System { .. }));
                let runs = strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, tensor.clone())).is_ok();
                drop(tensor);
                process::exit(if is_refused && is_told && !runs { 17 } else { 1 });
            }
            Fork::Parent(child) => assert_eq!(fork::waitpid(child).unwrap() >> 8, 17),
        }
        assert_eq!(tensor.to_host().unwrap(), of(0, 3));
    });
}
