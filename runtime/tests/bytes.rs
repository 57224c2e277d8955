//! Slices, bytes and objects that replicas exchange.

mod fields;

use consonance::{Communicator, Error, MirroredStrategy, ReduceOp, Result};
use fields::{mismatch, unknown_op};
use std::thread;

fn mirrored(replicas: usize) -> MirroredStrategy {
    MirroredStrategy::new((0..replicas).map(|replica| format!("cpu:{replica}"))).unwrap()
}

/// Runs `body` on each of `size` ranks.
fn ranks<R: Send>(size: usize, body: impl Fn(&mut Communicator) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let body = &body;
        let ranks = Communicator::threads(size).into_iter().map(|mut rank| scope.spawn(move || body(&mut rank)));
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn slices_have_the_results_of_tensors() {
    let data: Vec<f32> = (0..1000).map(|place| 1.0 / (place + 3) as f32).collect();
    let strategy = mirrored(3);
    let results = strategy.run(|replica| {
        let own: Vec<f32> = data.iter().map(|x| x * (replica.replica_id_in_sync_group() + 1) as f32).collect();
        for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max] {
            let mut slice = own.clone();
            replica.all_reduce_slice(op, &mut slice)?;
            assert_eq!(replica.all_reduce(op, consonance::Tensor::from(own.clone()))?.into_vec::<f32>()?, slice);
            let mut block = vec![0.0; 333];
            replica.reduce_scatter_slice(op, &own[..999], &mut block)?;
            let start = 333 * replica.replica_id_in_sync_group();
            assert_eq!(block, slice[start..start + 333]);
        }
        let mut all = vec![0.0; 6];
        replica.all_gather_slice(&own[..2], &mut all)?;
        let mut first = own[..2].to_vec();
        replica.broadcast_slice(&mut first, 0)?;
        assert_eq!(first, all[..2]);
        Ok(all)
    });
    let results = results.unwrap();
    assert_eq!(results[0], results[2]);
}

#[test]
fn different_counts_and_unknown_ops_of_slices_are_reported() {
    let error = mirrored(2).run(|replica| {
        let mut data = vec![1.0f32; 2 + replica.replica_id_in_sync_group()];
        replica.all_reduce_slice("sum", &mut data)
    });
    assert_eq!(mismatch(&error.unwrap_err()), ("all_reduce", "count", 1, "2", "3"));
    let error = mirrored(2).run(|replica| replica.all_reduce_slice("avg", &mut [1.0f32])).unwrap_err();
    assert_eq!(unknown_op(&error), (Some("ReplicaContext::all_reduce_slice"), Some(0), "avg"));
}

#[test]
fn bytes_of_any_length_arrive() {
    for size in [1, 2, 5] {
        for length in [0usize, 1, 100, 100_000] {
            let content = |rank: usize| (0..length * rank).map(|place| (place + rank) as u8).collect::<Vec<_>>();
            let found = ranks(size, |rank| -> Result<_> {
                let mut bytes = content(rank.rank() + 1);
                let all = rank.all_gather_bytes(&bytes)?;
                rank.broadcast_bytes(&mut bytes, size - 1)?;
                Ok((all, bytes))
            });
            let all: Vec<_> = (1..=size).map(content).collect();
            found.into_iter().for_each(|found| assert_eq!(found.unwrap(), (all.clone(), content(size))));
        }
    }
}

#[test]
fn bytes_are_no_other_call() {
    let errors = ranks(2, |rank| match rank.rank() {
        0 => rank.broadcast(&mut [1u64], 0),
        _ => rank.broadcast_bytes(&mut vec![], 0),
    });
    for error in errors {
        let Err(Error::Mismatch { replica: 1, found, .. }) = &error else { panic!("{error:?}") };
        assert_eq!(found, "bytes of any length");
    }
}

#[cfg(feature = "serde")]
mod objects {
    use super::*;
    use serde::{Deserialize, Serialize};
    use std::collections::HashMap;

    #[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
    enum Schedule {
        Constant(f32),
        Steps { every: u64, by: Option<f64> },
    }

    #[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
    struct Settings {
        schedule: Schedule,
        names: HashMap<String, (u8, i64)>,
        #[serde(flatten)]
        rest: HashMap<String, f32>,
    }

    fn settings() -> Settings {
        let names = HashMap::from([("a".to_owned(), (1, -2))]);
        let rest = HashMap::from([("momentum".to_owned(), f32::INFINITY)]);
        Settings { schedule: Schedule::Steps { every: u64::MAX, by: Some(0.1) }, names, rest }
    }

    #[test]
    fn objects_of_any_shape_arrive() {
        let found = mirrored(3).run(|replica| {
            let own = (replica.replica_id_in_sync_group() == 2).then(settings);
            let schedule = Schedule::Constant(replica.replica_id_in_sync_group() as f32);
            Ok((replica.broadcast_object(own.as_ref(), 2)?, replica.all_gather_object(&schedule)?))
        });
        for (received, schedules) in found.unwrap().into_values() {
            assert_eq!(received, settings());
            assert_eq!(schedules, [0.0, 1.0, 2.0].map(Schedule::Constant));
        }
    }

    #[test]
    fn an_absent_object_and_different_types_are_reported() {
        let error = mirrored(2).run(|replica| replica.broadcast_object(None::<&u8>, 1)).unwrap_err();
        assert_eq!(fields::refusal(&error), ("broadcast_object", "object", Some(1)));
        assert_eq!(fields::found(&error), "none");
        let errors = ranks(2, |rank| match rank.rank() {
            0 => rank.all_gather_object(&1u8).map(drop),
            _ => rank.all_gather_object(&1u16).map(drop),
        });
        for error in errors {
            let Err(Error::Mismatch { replica: 1, expected, found, .. }) = &error else { panic!("{error:?}") };
            assert_eq!((expected.as_str(), found.as_str()), ("an object of type u8", "an object of type u16"));
        }
    }
}
