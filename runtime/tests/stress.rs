//! Many iterations with more replicas than cores: mixed collectives, and failures at random points.

use consonance::{CommunicationOptions, Communicator, Device, Error, MirroredStrategy, ReplicaContext, Result, Tensor};
use std::{
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

/// Longer than the whole test: a wait without end fails the test with the name of the missing
/// replica.
const LONG: Duration = Duration::from_secs(120);

/// A small pseudorandom generator; its output depends on the seed alone.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        // The constants of Knuth's MMIX generator. Use the high bits: they are more random.
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

/// Makes one collective whose result depends on the number of ranks alone.
fn step(rank: &mut Communicator, kind: u64, count: usize) -> Result<()> {
    let (size, own) = (rank.size() as u64, rank.rank() as u64);
    let sum = size * (size + 1) / 2;
    match kind {
        0 => {
            let mut data = vec![own + 1; count];
            rank.all_reduce("sum", &mut data)?;
            assert!(data.iter().all(|&x| x == sum));
        }
        1 => {
            let root = count % size as usize;
            let mut data = vec![if own as usize == root { 7u8 } else { 0 }; count];
            rank.broadcast(&mut data, root)?;
            assert!(data.iter().all(|&x| x == 7));
        }
        2 => {
            let mut all = vec![0u32; count * size as usize];
            rank.all_gather_into(&vec![own as u32; count], &mut all)?;
            assert!(all.iter().enumerate().all(|(place, &x)| x as usize == place / count.max(1)));
        }
        3 => {
            let mut data = vec![own; count * size as usize];
            rank.all_to_all(&mut data)?;
            assert!(data.iter().enumerate().all(|(place, &x)| x as usize == place / count.max(1)));
        }
        4 => {
            let mut block = vec![0u64; count];
            rank.reduce_scatter_into("max", &vec![own; count * size as usize], &mut block)?;
            assert!(block.iter().all(|&x| x == size - 1));
        }
        5 => {
            let mut pair = rank.split(Some((own / 2) as u32), 0)?.expect("every rank gave a color");
            let mut data = [own];
            pair.all_reduce("min", &mut data)?;
            assert_eq!(data[0], own / 2 * 2);
        }
        _ => rank.barrier()?,
    }
    Ok(())
}

#[test]
fn eight_threads_make_thousands_of_mixed_calls() {
    let ranks = Communicator::threads(8);
    thread::scope(|scope| {
        for mut rank in ranks {
            scope.spawn(move || {
                rank.set_timeout(LONG).unwrap();
                let mut random = Random(1);
                for _ in 0..3000 {
                    let (kind, size) = (random.below(7), random.below(100));
                    // Mostly inline in the call descriptor, sometimes blocks of several chunks.
                    let count = if size < 97 { size } else { size * 100 };
                    step(&mut rank, kind, count as usize).unwrap();
                }
            });
        }
    });
}

/// Makes one collective of a replica whose result depends on the number of replicas alone.
fn replica_step(replica: &ReplicaContext<'_>, kind: u64, count: usize) -> Result<()> {
    let (size, own) = (replica.num_replicas_in_sync(), replica.replica_id_in_sync_group());
    match kind {
        0 => {
            let sum = replica.all_reduce("sum", Tensor::from(vec![1.0f32; count]))?;
            assert_eq!(sum.as_slice::<f32>()?[count - 1], size as f32);
        }
        1 => {
            // Ragged: replica 0 passes no rows.
            let all = replica.all_gather(Tensor::from(vec![own as u16; count * own]), 0)?;
            assert_eq!(all.count(), count * (0..size).sum::<usize>());
            assert_eq!(all.as_slice::<u16>()?[all.count() - 1] as usize, size - 1);
        }
        2 => assert_eq!(replica.broadcast(vec![own as u64; 3], count % size)?, [(count % size) as u64; 3]),
        3 => {
            let block = replica.reduce_scatter("max", Tensor::from(vec![own as i32; count * size]))?;
            assert_eq!(block.as_slice::<i32>()?, vec![size as i32 - 1; count]);
        }
        4 => {
            let total = replica.merge_call(own as u64, |strategy, all| Ok(strategy.mirror(all.iter().sum::<u64>())))?;
            assert_eq!(total, (0..size as u64).sum::<u64>());
        }
        5 => {
            let sums =
                replica.overlap_with(CommunicationOptions::new().background_threads(count % 3 == 1), |buckets| {
                    let pending = [count, 1, 20_000]
                        .map(|count| buckets.all_reduce("sum", Tensor::from(vec![own as u32; count])));
                    pending.into_iter().map(|sum| sum?.wait()).collect::<Result<Vec<_>>>()
                })?;
            assert_eq!(sums[2].as_slice::<u32>()?[19_999] as usize, (0..size).sum::<usize>());
        }
        _ => replica.barrier()?,
    }
    Ok(())
}

/// The failures of a replica in the middle of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    Panic,
    Fail,
    Return,
    CallAnother,
}

#[test]
fn random_failures_never_hang_and_never_harm_the_next_run() {
    let options = CommunicationOptions::new().timeout(LONG).unwrap();
    let strategy = MirroredStrategy::builder((0..8).map(Device::Cpu)).options(options).build().unwrap();
    // The panics below are intended; their messages would hide others.
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("trouble") {
            others(panic);
        }
    }));
    let mut random = Random(2);
    for round in 0..300 {
        let culprit = random.below(8) as usize;
        let at = random.below(20);
        let trouble = [Trouble::Panic, Trouble::Fail, Trouble::Return, Trouble::CallAnother][random.below(4) as usize];
        let replica_fn = |replica: &ReplicaContext<'_>| -> Result<()> {
            let mut random = Random(round);
            for step in 0..20 {
                if replica.replica_id_in_sync_group() == culprit && step == at {
                    match trouble {
                        Trouble::Panic => panic!("trouble"),
                        Trouble::Fail => return Err(Error::other("trouble")),
                        Trouble::Return => return Ok(()),
                        Trouble::CallAnother => drop(replica.all_reduce("product", [1.0f64; 9])?),
                    }
                }
                replica_step(replica, random.below(7), [1, 10, 5000][random.below(3) as usize])?;
            }
            Ok(())
        };
        let error = strategy.run(replica_fn).unwrap_err();
        let named = match (&error, trouble) {
            (Error::Panic { replica, .. }, Trouble::Panic) => *replica,
            (Error::Replica { replica, .. }, Trouble::Fail) => *replica,
            (Error::Left { replica, .. }, Trouble::Return) => *replica,
            (Error::Mismatch { replica, .. }, Trouble::CallAnother) => *replica,
            _ => panic!("round {round}: {trouble:?} of replica {culprit} gave {error}"),
        };
        assert_eq!(named, culprit, "round {round}: {trouble:?} gave {error}");
        let sums = strategy.run(|replica| replica.all_reduce("sum", 1u32)).unwrap();
        assert_eq!(sums.values(), [8; 8]);
    }
}

#[test]
fn a_late_replica_is_named_in_any_wait_of_the_others() {
    let options = CommunicationOptions::new().timeout(Duration::from_secs(3)).unwrap();
    let strategy = MirroredStrategy::builder((0..8).map(Device::Cpu)).options(options).build().unwrap();
    let mut random = Random(3);
    for round in 0..7 {
        let (late, kind) = (random.below(8) as usize, round);
        let (gave_up, waits) = mpsc::channel();
        let waits = Mutex::new(waits);
        let error = strategy.run(|replica| {
            replica_step(replica, kind, 10)?;
            if replica.replica_id_in_sync_group() == late {
                // Arrives when all others have left.
                let waits = waits.lock().unwrap();
                (0..7).for_each(|_| waits.recv().unwrap());
            }
            let result = replica_step(replica, kind, 5000);
            let _ = gave_up.send(());
            result
        });
        match error.unwrap_err() {
            Error::Timeout { missing, .. } => {
                assert_eq!(missing.iter().map(|(replica, _)| *replica).collect::<Vec<_>>(), [late], "round {round}");
            }
            error => panic!("round {round}: replica {late} came late, which gave {error}"),
        }
    }
}
