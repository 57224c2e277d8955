//! Workers whose replicas are on GPUs: threads that play them meet as processes do.

use super::{
    calls::of,
    driver::{digits, on_a_driver, on_cpus, there},
};
use consonance::{
    ClusterSpec, Error, MirroredStrategy, MultiWorkerMirroredStrategy, ReduceOp, Result, SimpleClusterResolver,
    Strategy, Tensor, Variable, VariableAggregation, raw::Wire, training::Gradients,
};
use consonance_kernels::{cuda::Uuid, shm::Segment};
use std::{process, thread, time::Duration};

const GRAINS: usize = 5;

/// Longer than any step here takes.
const LONG: Duration = Duration::from_secs(20);

/// Makes the strategy of a worker with these devices, whose workers are on one host, or send their
/// data over UCX. Each test has its own ports.
fn worker(port: usize, workers: usize, index: usize, devices: &[&str], over_wire: bool) -> MultiWorkerMirroredStrategy {
    let cluster = ClusterSpec::new().job("worker", (port..port + workers).map(|port| format!("localhost:{port}")));
    let resolver = SimpleClusterResolver::new(cluster.unwrap()).with_task("worker", index).unwrap();
    let builder = MultiWorkerMirroredStrategy::builder(resolver).devices(devices.iter().copied()).grains(GRAINS);
    builder.meeting(move |group| group.over_wire(over_wire).timeout(LONG)).build().unwrap()
}

/// Trains for a few steps on values in the memory of each replica's device. Returns what all
/// workers have.
fn train(strategy: &Strategy) -> Result<Vec<Tensor>> {
    let weights = strategy.scope(|| Variable::builder(|| of(7, 6)).aggregation(VariableAggregation::Mean).build())?;
    let mut results = Vec::new();
    for step in 0..3 {
        let sums = strategy.run(|replica| {
            let ([device], id, mut own) = (replica.devices(), replica.replica_id_in_sync_group(), replica.grains());
            let read = weights.read()?;
            assert_eq!(read.space(), there(&of(0, 0), device).space());
            let small = [of(id, 1), there(&of(id + step, 1), device), of(step, 2)];
            let [first, second, third] = replica.all_reduce(ReduceOp::Sum, small)?;
            assert_eq!(second.space(), read.space());
            replica.assign_sub(&weights, there(&of(id, 6), device))?;

            let last = own.next_back().expect("a grain");
            let mut gradients = Gradients::sum();
            for grain in own {
                gradients.accumulate(replica, |pass| pass.push(there(&of(grain, 6), device)))?;
            }
            let reduced = gradients.all_reduce(replica, |pass| pass.push(there(&of(last, 6), device)))?;
            let gathered = replica.all_gather(there(&of(id, id), device), 0)?;
            let sent = replica.broadcast(there(&of(id, 2), device), replica.num_replicas_in_sync() - 1)?;
            let results = [first, second, third, reduced.gradients[0].clone(), gathered, sent];
            results.iter().map(Tensor::to_host).collect::<Result<Vec<_>>>()
        })?;
        let values = strategy.run(|replica| {
            let [device] = replica.devices();
            Ok(there(&of(replica.replica_id_in_sync_group(), 4), device))
        })?;
        results.extend(sums.into_values().swap_remove(0));
        results.push(strategy.reduce(ReduceOp::Sum, &values, None)?.to_host()?);
        results.push(strategy.reduce(ReduceOp::Mean, &values, 1)?.to_host()?);
        results.push(strategy.gather(&values, 1)?.to_host()?);
        weights.assign_add(of(step, 6))?;
        results.push(weights.read()?);
    }
    Ok(results)
}

/// Compares the training of workers with these devices with that of one process on the host.
fn check(workers: &[&[&str]], port: usize, over_wire: bool) {
    let replicas = workers.iter().map(|devices| devices.len()).sum();
    let host = (0..replicas).map(|replica| format!("cpu:{replica}"));
    let host = MirroredStrategy::builder(host).grains(GRAINS).build().unwrap();
    let expected = digits(&train(&host).unwrap());
    thread::scope(|scope| {
        for (index, devices) in workers.iter().enumerate() {
            let expected = &expected;
            scope.spawn(move || {
                let strategy = worker(port, workers.len(), index, devices, over_wire);
                assert_eq!(digits(&train(&strategy).unwrap()), *expected, "{devices:?} of {workers:?}");
            });
        }
    });
}

#[test]
fn workers_on_gpus_and_processors_have_the_bits_of_one_process() {
    let test = "workers::workers_on_gpus_and_processors_have_the_bits_of_one_process";
    on_a_driver(test, "devices=2", || {
        check(&[&["cuda:0"], &["cuda:1"]], 9000, false);
        check(&[&["cuda:0", "cuda:0.1"], &["cuda:0.2"]], 9010, false);
        check(&[&["cpu:0"], &["cuda:0"]], 9020, false);
        check(&[&["cuda:1", "cpu:0"], &["cpu:1"], &["cuda:0"]], 9030, false);
    });
}

#[test]
fn workers_on_gpus_of_several_hosts_have_the_bits_of_one_process() {
    if let Err(absent) = Wire::open(None) {
        return println!("skipped: {absent}");
    }
    let test = "workers::workers_on_gpus_of_several_hosts_have_the_bits_of_one_process";
    on_a_driver(test, "devices=2", || {
        check(&[&["cuda:0"], &["cuda:1"]], 9040, true);
        check(&[&["cuda:1", "cpu:0"], &["cpu:1"]], 9050, true);
    });
}

#[test]
fn workers_on_gpus_go_on_after_a_loss() {
    on_a_driver("workers::workers_on_gpus_go_on_after_a_loss", "", || {
        let sum = |strategy: &Strategy| {
            strategy.run(|replica| {
                let [device] = replica.devices();
                let own = there(&of(replica.replica_id_in_sync_group(), 3), device);
                replica
                    .all_reduce(ReduceOp::Sum, vec![own, of(1, 1)])?
                    .iter()
                    .map(Tensor::to_host)
                    .collect::<Result<Vec<_>>>()
            })
        };
        let [three, two] = [3, 2].map(|replicas| digits(&sum(&on_cpus(replicas)).unwrap()[0]));
        thread::scope(|scope| {
            for (index, devices) in [["cuda:0"], ["cpu:0"], ["cuda:0.1"]].into_iter().enumerate() {
                let (sum, three, two) = (&sum, &three, &two);
                scope.spawn(move || {
                    let strategy = worker(9100, 3, index, &devices, false);
                    assert_eq!(digits(&sum(&strategy).unwrap()[0]), *three);
                    if index == 1 {
                        return;
                    }
                    let error = sum(&strategy).unwrap_err();
                    assert!(error.is_loss(), "{error}");
                    strategy.reform(Duration::ZERO).unwrap();
                    // Both ranks left are on the GPU.
                    assert_eq!(digits(&sum(&strategy).unwrap()[0]), *two);
                });
            }
        });
    });
}

/// Returns the GPU of each rank in the group of this many, as `consonance trace` sees it: its
/// number in this process, and on its machine.
fn traced(ranks: usize) -> Vec<Option<(usize, u8)>> {
    let groups = Segment::inspect(process::id()).expect("the groups of this process");
    let mut groups = groups.into_iter().filter(|group| group.ranks.len() == ranks);
    let group = groups.next().expect("a group of this size");
    assert!(groups.next().is_none(), "two groups of {ranks} ranks");
    let named = group.ranks.into_iter().map(|rank| rank.gpu);
    named.map(|gpu| gpu.map(|(ordinal, Uuid(bytes))| (ordinal, bytes[15]))).collect()
}

#[test]
fn a_trace_names_the_gpus_of_all_ranks_after_a_loss() {
    let test = "workers::a_trace_names_the_gpus_of_all_ranks_after_a_loss";
    on_a_driver(test, "devices=2 first=4", || {
        let sum = |strategy: &Strategy, is_refused: bool| {
            strategy.run(|replica| {
                if is_refused {
                    return Err(Error::WrongContext { call: "a test", problem: "none".to_owned() });
                }
                replica.all_reduce(ReduceOp::Sum, of(1, 1)).map(drop)
            })
        };
        thread::scope(|scope| {
            for (index, device) in ["cuda:1", "cpu:0", "cuda:0"].into_iter().enumerate() {
                scope.spawn(move || {
                    let strategy = worker(9120, 3, index, &[device], false);
                    let all = [Some((1, 5)), None, Some((0, 4))];
                    sum(&strategy, false).unwrap();
                    assert_eq!(traced(3), all);
                    // The group is renewed.
                    assert!(sum(&strategy, index == 2).is_err());
                    sum(&strategy, false).unwrap();
                    assert_eq!(traced(3), all);
                    sum(&strategy, false).unwrap();
                    if index == 1 {
                        return;
                    }
                    assert!(sum(&strategy, false).unwrap_err().is_loss());
                    strategy.reform(Duration::ZERO).unwrap();
                    assert_eq!(traced(2), [Some((1, 5)), Some((0, 4))]);
                    // The other one looks, too, before this one leaves.
                    sum(&strategy, false).unwrap();
                });
            }
        });
    });
}
