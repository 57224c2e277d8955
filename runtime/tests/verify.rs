//! Checks on request: NaN in a reduction, and workers that assign different values.

mod fields;

use consonance::{
    ClusterSpec, CommunicationOptions, Communicator, Error, IndexedSlices, MirroredStrategy,
    MultiWorkerMirroredStrategy, ReduceOp, Result, SimpleClusterResolver, Strategy, Tensor, VariableSynchronization,
    f16,
};
use fields::{found, mismatch, refusal};
use std::thread;

fn verifying() -> CommunicationOptions {
    CommunicationOptions::new().verify(true)
}

fn mirrored(options: CommunicationOptions) -> MirroredStrategy {
    MirroredStrategy::builder(["cpu:0", "cpu:1", "cpu:2"]).options(options).build().unwrap()
}

/// Runs `work` on two workers with one replica each.
fn workers<R: Send>(options: CommunicationOptions, work: impl Fn(usize, &Strategy) -> R + Sync) -> Vec<R> {
    let work = &work;
    thread::scope(|scope| {
        let workers = Communicator::threads(2).into_iter().enumerate().map(|(worker, communicator)| {
            scope.spawn(move || {
                let cluster = ClusterSpec::new().job("worker", ["127.9.8.7:1", "127.9.8.7:2"]).unwrap();
                let resolver = SimpleClusterResolver::new(cluster).with_task("worker", worker).unwrap();
                let builder = MultiWorkerMirroredStrategy::builder(resolver).options(options);
                work(worker, &builder.build_on(vec![communicator]).unwrap())
            })
        });
        workers.collect::<Vec<_>>().into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

#[test]
fn the_replica_contributing_a_nan_is_named_on_all() {
    let strategy = mirrored(verifying());
    let told = strategy.run(|replica| {
        let x = if replica.replica_id_in_sync_group() == 1 { f32::NAN } else { 1.0 };
        let half = Tensor::from([f16::from_f32(1.0), f16::from_f32(x)]);
        let rows = IndexedSlices::new(Tensor::from([[x]]), Tensor::from([0i64]), None)?;
        let mut slice = [1.0, x];
        let told = [
            replica.all_reduce("sum", (1u8, half)).map(drop),
            replica.all_reduce("max", (vec![Tensor::from(1), Tensor::from(x)], 0.5)).map(drop),
            replica.all_reduce("mean", rows).map(drop),
            replica.reduce_scatter("sum", Tensor::from([1.0, 1.0, x])).map(drop),
            replica.all_reduce_slice("sum", &mut slice),
            replica.reduce_scatter_slice("sum", &[x, 1.0, 1.0], &mut [0.0f32]),
        ];
        // The group works as before.
        assert_eq!(replica.all_reduce("sum", 1.0f32)?, 3.0);
        Ok(told.map(|told| told.unwrap_err()))
    });
    let calls =
        ["all_reduce", "all_reduce", "all_reduce", "reduce_scatter", "all_reduce_slice", "reduce_scatter_slice"];
    let paths = ["value/1", "value/0/1", "value", "value", "value", "value"];
    for errors in told.unwrap().values() {
        for ((call, path), error) in calls.into_iter().zip(paths).zip(errors) {
            let call = format!("ReplicaContext::{call}");
            assert_eq!((refusal(error), found(error)), ((&call[..], path, Some(1)), "NaN"));
        }
    }
}

#[test]
fn a_nan_in_a_bucket_of_an_overlap_is_named_on_all() {
    for options in [verifying(), verifying().background_threads(true), verifying().bytes_per_pack(0)] {
        let strategy = mirrored(options);
        let told = strategy.run(|replica| {
            let x = if replica.replica_id_in_sync_group() == 2 { f64::NAN } else { 1.0 };
            let error = replica.overlap(|buckets| {
                let first = buckets.all_reduce("sum", [1.0, 2.0])?;
                let second = buckets.all_reduce("max", (1.0, [3.0, x]))?;
                assert_eq!(first.wait()?, [3.0, 6.0]);
                second.wait().map(drop)
            });
            // A value that is not waited for is checked, too.
            let late = replica.overlap(|buckets| buckets.all_reduce("mean", vec![x]).map(drop));
            // The group works as before.
            assert_eq!(replica.all_reduce("sum", 1.0f32)?, 3.0);
            Ok([error, late].map(|told| told.unwrap_err()))
        });
        for [error, late] in told.unwrap().values() {
            assert_eq!((refusal(error), found(error)), (("Buckets::all_reduce", "value/1/1", Some(2)), "NaN"));
            assert_eq!((refusal(late), found(late)), (("Buckets::all_reduce", "value/0", Some(2)), "NaN"));
        }
    }
}

#[test]
fn a_nan_is_a_number_unless_checks_are_requested() {
    let strategy = mirrored(CommunicationOptions::new());
    let sums = strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, f32::NAN)).unwrap();
    assert!(sums[0].is_nan());
    // One call may ask for them, if it does on all replicas.
    let error = strategy.run(|replica| replica.all_reduce_with("sum", f32::NAN, verifying())).unwrap_err();
    assert_eq!((refusal(&error).2, found(&error)), (Some(0), "NaN"));
    let error = strategy.run(|replica| {
        let some = replica.replica_id_in_sync_group() == 2;
        replica.all_reduce_with("sum", 1.0f32, CommunicationOptions::new().verify(some))
    });
    assert!(matches!(error, Err(Error::Mismatch { replica: 2, .. })), "{error:?}");
}

#[test]
fn different_assigned_values_of_workers_are_a_mismatch() {
    let told = workers(verifying(), |worker, strategy| -> Result<_> {
        let variable = strategy.variable(|| Tensor::from([[1.0f32], [2.0]]))?;
        let own = Tensor::from([[worker as f32], [0.0]]);
        let rows = IndexedSlices::new(Tensor::from([[1.0f32]]), Tensor::from([worker as i64]), None)?;
        let told = [
            variable.assign(own.clone()),
            variable.assign_add(own.clone()),
            variable.assign_sub(own.clone()),
            variable.scatter_add(&rows),
            // One worker's operand does not fit.
            variable.assign(if worker == 0 { own } else { Tensor::from(1.0f32) }),
        ];
        assert_eq!(variable.read()?, Tensor::from([[1.0f32], [2.0]]), "nothing was assigned");
        variable.assign([[5.0f32], [6.0]])?;
        variable.scatter_sub(&IndexedSlices::new(Tensor::from([[1.0f32]]), Tensor::from([1i64]), None)?)?;
        Ok((told.map(|told| told.unwrap_err()), variable.read()?))
    });
    for (worker, found) in told.into_iter().enumerate() {
        let (told, value) = found.unwrap();
        assert_eq!(value, Tensor::from([[5.0f32], [5.0]]));
        for error in &told[..4] {
            assert!(matches!(error, Error::Mismatch { replica: 1, .. }), "{error}");
        }
        assert!(mismatch(&told[0]).4.starts_with("f32[2, 1] [[1], [0]] "), "{}", told[0]);
        assert_eq!(matches!(told[4], Error::InvalidCall { .. }), worker == 1, "{}", told[4]);
    }
}

#[test]
fn components_of_workers_may_differ() {
    let found = workers(verifying(), |worker, strategy| -> Result<_> {
        let builder = consonance::Variable::builder(|| Tensor::from(0i64))
            .synchronization(VariableSynchronization::OnRead)
            .aggregation(consonance::VariableAggregation::Sum);
        let seen = strategy.scope(|| builder.build())?;
        seen.assign_add(2 * worker as i64)?;
        seen.read()
    });
    assert!(found.iter().all(Result::is_ok), "{found:?}");
    // Without checks, workers keep what each has assigned.
    let found = workers(CommunicationOptions::new(), |worker, strategy| -> Result<_> {
        let variable = strategy.variable(|| Tensor::from(0.0f32))?;
        variable.assign(worker as f32)?;
        variable.read()
    });
    assert_eq!(found.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [Tensor::from(0.0f32), Tensor::from(1.0f32)]);
}
