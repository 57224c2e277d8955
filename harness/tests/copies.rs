//! No call of the runtime copies data by the C library's `memcpy`, but for a few hundred bytes: on
//! any engine, and on a strategy's replicas.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use consonance::{
    Communicator, MirroredStrategy, PerReplica, ReduceOp, Result, Tensor, World,
    raw::{AbortHandle, Agreement, Call, Configuration, Engine, Failure, Kind, Service, Signature},
};
use consonance_harness::counted_calls::{choose_pipelines, pair_of_processes};
use consonance_memcpy::{found, unwatched, watched};
use std::{collections::BTreeMap, thread, time::Instant};

/// Elements of a rank's data: a few KiB, and more than a core's caches hold.
const COUNTS: [usize; 3] = [600, 6000, 600_000];

/// An engine of messages, which copies them as it likes: here the calls above it are watched.
struct Messages(Box<dyn Engine>);

impl Engine for Messages {
    fn world(&self) -> World {
        self.0.world()
    }

    fn service(&self) -> Service {
        self.0.service()
    }

    fn begin_call(&mut self) {
        self.0.begin_call();
    }

    fn probe(&mut self, from: &[usize], until: Instant) -> Option<usize> {
        self.0.probe(from, until)
    }

    fn receive(&mut self, from: usize, name: Kind) -> Result<Vec<u8>, Failure> {
        unwatched(|| self.0.receive(from, name))
    }

    fn execute(&mut self, call: Call<'_>, signature: &Signature, name: Kind) -> Result<(), Failure> {
        unwatched(|| self.0.execute(call, signature, name))
    }

    fn configure(&mut self, configuration: &Configuration) {
        self.0.configure(configuration);
    }

    fn abort_handle(&self) -> AbortHandle {
        self.0.abort_handle()
    }
}

/// Makes every call that copies data of this rank, of `count` elements for each of two ranks.
fn calls(rank: &mut Communicator, count: usize) -> Result<()> {
    let is_root = rank.rank() == 0;
    let (own, mut part, mut all) = (vec![1f32; count], vec![9f32; count], vec![9f32; 2 * count]);
    watched("all_reduce", || rank.all_reduce(ReduceOp::Sum, &mut part))?;
    assert!(part.iter().all(|&number| number == 18.0));
    watched("reduce", || rank.reduce_into(ReduceOp::Sum, &own, is_root.then_some(&mut part[..]), 0))?;
    watched("reduce_scatter", || rank.reduce_scatter_into(ReduceOp::Sum, &own, &mut part[..count / 2]))?;
    assert!(part[..count / 2].iter().all(|&number| number == 2.0));
    watched("reduce_scatter in place", || rank.reduce_scatter(ReduceOp::Sum, &mut part))?;
    watched("gather", || rank.gather(&own, is_root.then_some(&mut all[..]), 0))?;
    watched("all_gather", || rank.all_gather_into(&own, &mut all))?;
    assert!(all.iter().all(|&number| number == 1.0));
    watched("all_gather in place", || rank.all_gather(&mut all))?;
    watched("scatter", || rank.scatter(is_root.then_some(&all[..]), Some(&mut part), 0))?;
    watched("all_to_all", || rank.all_to_all_into(&own, &mut part))?;
    watched("all_to_all in place", || rank.all_to_all(&mut part))?;
    assert_eq!(part, own);
    let (mut joined, mut counts) = (None, Vec::new());
    let concat = Call::Concat { send: own.as_slice().into(), rows: 2, recv: &mut joined, counts: &mut counts };
    watched("concat", || rank.execute(concat, &Agreement::NONE))?;
    assert_eq!(counts, [count; 2]);
    let bytes = watched("all_gather_bytes", || rank.all_gather_bytes(&vec![1u8; count]))?;
    assert_eq!(bytes, vec![vec![1u8; count]; 2]);
    Ok(())
}

/// Makes the calls of two replicas, and of their strategy, that copy tensors.
fn strategy(count: usize) -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let ones = |rows: usize| Tensor::new([rows, count / rows], &vec![1f32; count]);
    strategy.run(|replica| {
        let pair = [ones(2)?, ones(2)?];
        let sums = watched("all_reduce of a pack", || replica.all_reduce(ReduceOp::Sum, pair))?;
        assert_eq!(sums[1].as_slice::<f32>()?, vec![2f32; count]);
        let shared = ones(2)?;
        let sum = watched("all_reduce of a shared tensor", || replica.all_reduce(ReduceOp::Sum, shared.clone()))?;
        assert_eq!(sum, sums[0]);
        let tensor = ones(2)?;
        let joined = watched("all_gather of rows", || replica.all_gather(tensor, 1))?;
        assert_eq!(joined.shape(), [2, count]);
        let vector = watched("into_vec", || joined.into_vec::<f32>())?;
        assert_eq!(vector, vec![1f32; 2 * count]);
        Ok(())
    })?;
    let values = PerReplica::new(vec![ones(2)?, ones(2)?]);
    for axis in [None, Some(0), Some(1)] {
        watched("Strategy::reduce", || strategy.reduce(ReduceOp::Sum, &values, axis))?;
    }
    for axis in [0, 1] {
        let joined = watched("Strategy::gather", || strategy.gather(&values, axis))?;
        assert_eq!(joined.into_vec::<f32>()?, vec![1f32; 2 * count]);
    }
    Ok(())
}

#[test]
fn the_c_library_copies_little() -> Result<()> {
    // Else the first large calls would measure, in all ways.
    choose_pipelines()?;
    let messages = consonance_messages::threads(2).into_iter();
    let messages = messages.map(|rank| Communicator::from_engine(Box::new(Messages(rank)))).collect();
    for ranks in [messages, Communicator::threads(2), pair_of_processes().into()] {
        thread::scope(|scope| {
            for mut rank in ranks {
                scope.spawn(move || COUNTS.into_iter().try_for_each(|count| calls(&mut rank, count)).expect("a pair"));
            }
        });
    }
    COUNTS.into_iter().try_for_each(strategy)?;
    assert_eq!(found(), BTreeMap::new(), "bytes of the largest memcpy");
    Ok(())
}
