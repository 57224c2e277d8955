//! The calls that are measured.

use super::{Call, Timer};
use consonance::{
    DType, Dataset, Destinations, Device, IndexedSlices, MirroredStrategy, PerReplica, Result, Strategy, Tensor,
    Variable, VariableAggregation, checkpoint, dataset,
};
use std::{
    env, fs,
    hint::black_box,
    process,
    time::{Duration, Instant},
};

/// Bytes of the variables that are saved and restored, all together.
const CHECKPOINT_BYTES: usize = 256 << 20;

/// The time that a replica computes between two batches.
const WORK: Duration = Duration::from_micros(200);

const fn threads(name: &'static str, replicas: usize, measure: fn(&Strategy, &Timer) -> Result<()>) -> Call {
    Call { name, replicas, by_processes: false, measure }
}

const fn both(name: &'static str, measure: fn(&Strategy, &Timer) -> Result<()>) -> Call {
    Call { name, replicas: 2, by_processes: true, measure }
}

/// Every call that is measured.
pub const CALLS: &[Call] = &[
    threads("run, 1 replica", 1, run),
    both("run", run),
    threads("run, 8 replicas", 8, run),
    threads("run, 32 replicas", 32, run),
    both("run with all_reduce of a scalar", |strategy, timer| {
        timer.time(1000, || {
            strategy.run(|replica| replica.all_reduce("sum", replica.replica_id_in_sync_group() as f32)).map(drop)
        })
    }),
    threads("run_with", 2, |strategy, timer| {
        timer.time(1000, || strategy.run_with(PerReplica::new(vec![1, 2]), |_, value: i32| Ok(value)).map(drop))
    }),
    threads("run with merge_call", 2, |strategy, timer| {
        let merge = |_: &Strategy, values: PerReplica<f32>| Ok(values);
        timer.time(300, || strategy.run(|replica| replica.merge_call(1f32, merge)).map(drop))
    }),
    both("reduce of scalars", |strategy, timer| reduce(strategy, timer, 1, 1000)),
    both("reduce of 1 MiB", |strategy, timer| reduce(strategy, timer, 1 << 18, 30)),
    both("reduce of 64 MiB", |strategy, timer| reduce(strategy, timer, 1 << 24, 1)),
    threads("reduce of sparse rows, 1,000 of 256 B", 2, |strategy, timer| {
        let slices = values(strategy, |_| {
            let rows: Vec<i64> = (0..1000).collect();
            IndexedSlices::new(Tensor::zeros(DType::F32, [1000, 64]), rows.into(), Some(vec![100_000, 64]))
        })?;
        timer.time(30, || strategy.reduce("sum", &slices, None).map(drop))
    }),
    threads("batch_reduce_to, 4 of 4 KiB", 2, |strategy, timer| {
        let pair = || Ok((values(strategy, |_| Ok(tensor(1024)))?, Destinations::Device(Device::Cpu(0))));
        let pairs = (0..4).map(|_| pair()).collect::<Result<Vec<_>>>()?;
        timer.time(300, || strategy.batch_reduce_to("sum", &pairs).map(drop))
    }),
    both("gather of 64 x 10", |strategy, timer| {
        let rows = values(strategy, |_| Ok(Tensor::zeros(DType::F32, [64, 10])))?;
        timer.time(300, || strategy.gather(&rows, 0).map(drop))
    }),
    both("all_reduce of a nest, 6 tensors, 69 KB", |strategy, timer| {
        let counts = [13_824, 32, 2_048, 10, 1_280, 64];
        let nest = || counts.map(tensor).to_vec();
        timer.time_in_run(strategy, 100, nest, |replica, nest| {
            replica.all_reduce("mean", nest.clone()).map(|sums| drop(black_box(sums)))
        })
    }),
    both("all_reduce of 1 MiB that is kept", |strategy, timer| all_reduce(strategy, timer, 1 << 18, 30)),
    both("all_reduce of 4 MiB that is kept", |strategy, timer| all_reduce(strategy, timer, 1 << 20, 10)),
    both("all_gather of 1 MiB", |strategy, timer| all_gather(strategy, timer, 1 << 18, 30)),
    both("all_gather of 4 MiB", |strategy, timer| all_gather(strategy, timer, 1 << 20, 10)),
    threads("overlap, 100 tensors of 1 KiB", 2, |strategy, timer| {
        timer.time_in_run(
            strategy,
            10,
            || (),
            |replica, ()| {
                replica.overlap(|buckets| {
                    let sums = (0..100).map(|_| buckets.all_reduce("sum", tensor(256))).collect::<Result<Vec<_>>>()?;
                    sums.into_iter().try_for_each(|sum| sum.wait().map(drop))
                })
            },
        )
    }),
    threads("next batch, 64 rows of 40 B", 2, |strategy, timer| {
        batches(strategy, timer, (100_000, 10, 64), Duration::ZERO)
    }),
    threads("next batch, 1,024 rows of 256 B", 2, |strategy, timer| {
        batches(strategy, timer, (200_000, 64, 1024), Duration::ZERO)
    }),
    threads("next batch, 1,024 rows, beside 200 us", 2, |strategy, timer| {
        batches(strategy, timer, (200_000, 64, 1024), WORK)
    }),
    threads("Variable::assign_add of 32 KiB", 2, |strategy, timer| {
        let (variable, one) = (strategy.variable(|| tensor(8192))?, tensor(8192));
        timer.time(300, || variable.assign_add(one.clone()))
    }),
    threads("Variable::read of 32 KiB", 2, |strategy, timer| {
        let variable = strategy.variable(|| tensor(8192))?;
        timer.time(3000, || variable.read().map(|value| drop(black_box(value))))
    }),
    both("assign_add of 32 KiB in a run", |strategy, timer| {
        let builder = Variable::builder(|| tensor(8192)).aggregation(VariableAggregation::Mean);
        let variable = strategy.scope(|| builder.build())?;
        timer.time_in_run(strategy, 100, || tensor(8192), |replica, one| replica.assign_add(&variable, one.clone()))
    }),
    threads("Strategy::update of 32 KiB", 2, |strategy, timer| {
        let variable = strategy.variable(|| tensor(8192))?;
        timer.time(300, || strategy.update(&variable, |copy| copy.assign_add(tensor(8192))).map(drop))
    }),
    threads("distribute_values_from_function", 2, |strategy, timer| {
        timer.time(3000, || {
            strategy.distribute_values_from_function(|context| context.replica_id_in_sync_group).map(drop)
        })
    }),
    threads("local_results", 2, |strategy, timer| {
        let scalars = values(strategy, |_| Ok(Tensor::from(1f32)))?;
        timer.time(3000, || {
            black_box(strategy.local_results(&scalars));
            Ok(())
        })
    }),
    threads("scope", 2, |strategy, timer| timer.time(3000, || strategy.scope(|| Ok(_ = black_box(0))))),
    threads("a strategy's creation, first run and end", 2, |_, timer| {
        timer.time(30, || MirroredStrategy::new(["cpu:0", "cpu:1"])?.run(|_| Ok(())).map(drop))
    }),
    threads("checkpoint::save of 256 MiB", 2, |strategy, timer| saved(strategy, timer, false)),
    threads("checkpoint::restore of 256 MiB", 2, |strategy, timer| saved(strategy, timer, true)),
];

fn tensor(count: usize) -> Tensor {
    Tensor::from(vec![1f32; count])
}

/// A value for each replica of this process.
fn values<T>(strategy: &Strategy, value: impl Fn(usize) -> Result<T>) -> Result<PerReplica<T>> {
    Ok(PerReplica::new(strategy.local_replicas().map(value).collect::<Result<_>>()?))
}

fn run(strategy: &Strategy, timer: &Timer) -> Result<()> {
    timer.time(1000, || strategy.run(|_| Ok(())).map(drop))
}

fn reduce(strategy: &Strategy, timer: &Timer, count: usize, calls: usize) -> Result<()> {
    let tensors = values(strategy, |_| Ok(tensor(count)))?;
    timer.time(calls, || strategy.reduce("sum", &tensors, None).map(|sum| drop(black_box(sum))))
}

fn all_reduce(strategy: &Strategy, timer: &Timer, count: usize, calls: usize) -> Result<()> {
    timer.time_in_run(
        strategy,
        calls,
        || tensor(count),
        |replica, kept| replica.all_reduce("sum", kept.clone()).map(|sum| drop(black_box(sum))),
    )
}

fn all_gather(strategy: &Strategy, timer: &Timer, count: usize, calls: usize) -> Result<()> {
    timer.time_in_run(
        strategy,
        calls,
        || tensor(count),
        |replica, own| replica.all_gather(own.clone(), 0).map(|all| drop(black_box(all))),
    )
}

/// Times the steps of a shuffled table of `rows` rows of `columns` numbers, in batches, with `work`
/// between them.
fn batches(
    strategy: &Strategy,
    timer: &Timer,
    (rows, columns, batch): (usize, usize, usize),
    work: Duration,
) -> Result<()> {
    let table = dataset::from_tensor_slices((tensor(rows * columns).reshape([rows, columns])?, tensor(rows)))?;
    let batches = strategy.distribute_dataset(table.shuffle(7).batch(batch))?;
    let mut steps = batches.iter();
    let calls = rows / batch / (timer.rounds + 1);
    for round in 0..=timer.rounds {
        let mut waited = Duration::ZERO;
        for _ in 0..calls {
            let begin = Instant::now();
            black_box(steps.next().expect("as many batches as calls")?);
            waited += begin.elapsed();
            let begin = Instant::now();
            while begin.elapsed() < work {
                std::hint::spin_loop();
            }
        }
        if round > 0 {
            timer.keep(waited / calls as u32);
        }
    }
    Ok(())
}

/// Times a checkpoint of 16 variables: its restoring if `restores`, else its saving.
fn saved(strategy: &Strategy, timer: &Timer, restores: bool) -> Result<()> {
    const VARIABLES: usize = 16;
    let count = CHECKPOINT_BYTES / VARIABLES / size_of::<f32>();
    let variables = (0..VARIABLES).map(|_| strategy.variable(|| tensor(count))).collect::<Result<Vec<_>>>()?;
    let named = || variables.iter().enumerate().map(|(number, variable)| (number.to_string(), variable));
    let path = env::temp_dir().join(format!("consonance-bench-{}.safetensors", process::id()));
    checkpoint::save(&path, named())?;
    let result = timer.time(1, || match restores {
        true => checkpoint::restore(&path, named()).map(drop),
        false => checkpoint::save(&path, named()),
    });
    // The system removes what is left with its other temporary files.
    let _ = fs::remove_file(&path);
    result
}
