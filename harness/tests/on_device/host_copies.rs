//! Calls on values in the memories of devices that are computed on the host: grains, passes,
//! reductions along axes, exact sums. They have the bits of the host, and their results lie where
//! the values lay.

use super::{
    calls::{Placed, here, of},
    driver::{on_a_driver, there},
};
use consonance::{
    Axes, Error, Grains, IndexedSlices, MirroredStrategy, PerReplica, Result, Strategy, Tensor, training::Gradients,
};

const GRAINS: usize = 7;

fn strategy(devices: &[&str]) -> Strategy {
    MirroredStrategy::builder(devices.iter().copied()).grains(GRAINS).build().expect("devices that exist").into()
}

/// Returns the results of each such call. Those of a replica lie in the memory of its values.
fn results(strategy: &Strategy, place: Placed) -> Result<Vec<Tensor>> {
    let on = |value: &Tensor, replica: usize| place(value, strategy.worker_devices()[replica]);
    let in_run = strategy.run(|replica| {
        let (id, mut own) = (replica.replica_id_in_sync_group(), replica.grains());
        let space = on(&of(0, 1), id).space();
        let grain = |grain: usize| (on(&of(grain, 3), id), of(grain, 1));
        let last = own.next_back().expect("a grain");
        let mut sum = replica.accumulator("mean")?;
        own.clone().try_for_each(|number| sum.add(grain(number)))?;
        let (mean, small) = sum.all_reduce(grain(last))?;
        let mut results = vec![mean, small];

        let mut gradients = Gradients::sum();
        for number in own {
            gradients.accumulate(replica, |pass| pass.push(grain(number)))?;
        }
        let reduced = gradients.all_reduce(replica, |pass| {
            pass.push(grain(last))?;
            Ok(())
        })?;
        let [(total, small)] = reduced.gradients.try_into().expect("one push");
        results.extend([total, small]);

        let exact = replica.all_reduce_exact("sum", on(&of(id, 5), id), 0)?;
        results.push(exact);
        assert!([0, 2, 4].into_iter().all(|place| results[place].space() == space), "replica {id}");

        let rows = IndexedSlices::new(on(&of(id, 2), id), Tensor::from([1i64, id as i64]), Some(vec![9, 2]))?;
        let mut sum = replica.accumulator("sum")?;
        (1..replica.grains().len()).try_for_each(|_| sum.add(rows.clone()))?;
        let rows = sum.all_reduce(rows)?;
        assert_eq!(rows.values().space(), space);
        results
            .push(IndexedSlices::new(rows.values().to_host()?, rows.indices().clone(), Some(vec![9, 2]))?.to_dense()?);
        Ok(results)
    })?;
    let mut results = in_run.into_values().concat();
    let replicas = strategy.num_replicas_in_sync();
    let values: PerReplica<(Tensor, Tensor)> = (0..replicas).map(|id| (on(&of(id, 4), id), of(id, 2))).collect();
    for axes in [Axes::from(0), Axes::from(1), Axes::from([0, 1])] {
        let (sum, small) = strategy.reduce("mean", &values, axes.clone())?;
        let (exact, _) = strategy.reduce_exact("sum", &values, axes)?;
        assert_eq!([sum.space(), exact.space()], [on(&of(0, 1), 0).space(); 2]);
        results.extend([sum, small, exact]);
    }
    let grains: PerReplica<Grains<Tensor>> = (0..replicas)
        .map(|id| {
            let own = consonance_spec::partition::block(GRAINS, replicas, id);
            Grains::new(own.start, own.map(|number| on(&of(number, 3), id)).collect())
        })
        .collect();
    results.push(strategy.reduce_grains("sum", &grains, None)?);
    results.push(strategy.reduce_grains("max", &grains, 0)?);
    Ok(results)
}

#[test]
fn calls_computed_on_the_host_have_its_bits() {
    on_a_driver("host_copies::calls_computed_on_the_host_have_its_bits", "devices=2", || {
        for devices in [
            &["cuda:0"][..],
            &["cuda:0.0", "cuda:0.1"],
            &["cuda:0", "cuda:1", "cuda:0.1"],
            &["cpu:0", "cuda:0"],
            &["cuda:1", "cpu:3", "cuda:0"],
        ] {
            let processors: Vec<String> = (0..devices.len()).map(|id| format!("cpu:{id}")).collect();
            let processors: Vec<&str> = processors.iter().map(String::as_str).collect();
            let expected = results(&strategy(&processors), here).unwrap();
            for (place, of) in [(there as Placed, "there"), (here, "here")] {
                let found = results(&strategy(devices), place).unwrap();
                let copies: Vec<Tensor> = found.iter().map(|tensor| tensor.to_host().unwrap()).collect();
                assert_eq!(copies, expected, "{devices:?} {of}");
            }
        }
    });
}

/// The second copy to the host is that of replica 1's last grain, or of another one: whichever
/// fails, both replicas get an error, and the next call works.
#[test]
fn an_unreadable_grain_is_an_error_on_every_replica() {
    let test = "host_copies::an_unreadable_grain_is_an_error_on_every_replica";
    on_a_driver(test, "fail=cuMemcpyDtoHAsync_v2:2:999", || {
        let strategy = strategy(&["cuda:0.0", "cpu:0"]);
        let sum = || {
            strategy.run(|replica| {
                let ([device], id) = (replica.devices(), replica.replica_id_in_sync_group());
                let values = replica.grains().map(|number| there(&of(number, 2), device)).collect();
                let own = Grains::new(replica.grains().start, values);
                assert_eq!(own.values().len(), 4 - id);
                replica.all_reduce_grains("sum", own)?.to_host()
            })
        };
        let error = sum().unwrap_err();
        assert!(matches!(error.root(), Error::System { .. }), "{error}");
        assert_eq!(sum().unwrap().into_values().len(), 2);
    });
}
