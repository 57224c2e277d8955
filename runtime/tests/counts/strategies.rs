//! The costs of each call of a strategy, a variable and a data set.

use super::ALLOCATOR;
use consonance::{
    DType, Dataset, MirroredStrategy, PerReplica, Result, Tensor, Variable, VariableAggregation, dataset,
};
use stats_alloc::Region;

/// The counts of a call when this was written, on average over many calls and on all threads
/// together. With two threads, the system calls are those of threads that all fall asleep in each
/// call; a thread that finds the others there makes fewer.
#[derive(Clone, Copy)]
pub(super) struct Baseline {
    pub(super) allocations: usize,
    pub(super) system_calls: usize,
    /// The system calls that wake a thread.
    pub(super) wakes: usize,
}

/// A call with its name and what it costs.
pub(super) type Row<'a> = (&'static str, Baseline, &'a mut dyn FnMut() -> Result<()>);

/// Gives each row to `visit`.
pub(super) fn each(mut visit: impl FnMut(Row<'_>)) -> Result<()> {
    let mut row = |name, allocations, system_calls, wakes, call: &mut dyn FnMut() -> Result<()>| {
        visit((name, Baseline { allocations, system_calls, wakes }, call));
    };
    let strategy = |replicas: usize| MirroredStrategy::new((0..replicas).map(|replica| format!("cpu:{replica}")));
    let (one, two) = (strategy(1)?, strategy(2)?);
    let zeros = |shape: &[usize]| Tensor::zeros(DType::F32, shape);
    row("run, 1 replica", 5, 0, 0, &mut || one.run(|_| Ok(())).map(drop));
    row("run", 5, 6, 2, &mut || two.run(|_| Ok(())).map(drop));
    row("run with all_reduce", 16, 6, 2, &mut || two.run(|replica| replica.all_reduce("sum", 1f32)).map(drop));
    let [scalars, rows] = [&[][..], &[64, 10]].map(|shape| PerReplica::new(vec![zeros(shape), zeros(shape)]));
    row("reduce", 11, 0, 0, &mut || two.reduce("sum", &scalars, None).map(drop));
    row("gather", 15, 0, 0, &mut || two.gather(&rows, 0).map(drop));
    let builder = Variable::builder(|| zeros(&[8192])).aggregation(VariableAggregation::Mean);
    let (variable, operand) = (two.scope(|| builder.build())?, zeros(&[8192]));
    row("Variable::read", 2, 0, 0, &mut || variable.read().map(drop));
    row("Variable::assign_add", 6, 0, 0, &mut || variable.assign_add(operand.clone()));
    row("assign_add in a run", 13, 6, 2, &mut || {
        two.run(|replica| replica.assign_add(&variable, operand.clone())).map(drop)
    });
    let table = dataset::from_tensor_slices((zeros(&[200_000, 10]), zeros(&[200_000])))?;
    let batches = two.distribute_dataset(table.shuffle(7).batch(64))?;
    let mut steps = batches.iter();
    row("next batch", 44, 0, 0, &mut || steps.next().expect("more batches than calls").map(drop));
    Ok(())
}

/// Makes the calls that make threads, groups and scratch memory, and then `calls` calls between
/// `begin` and `end`.
pub(super) fn repeat(call: &mut dyn FnMut() -> Result<()>, calls: usize, begin: impl FnOnce(), end: impl FnOnce()) {
    for _ in 0..100 {
        call().unwrap();
    }
    begin();
    for _ in 0..calls {
        call().unwrap();
    }
    end();
}

pub(super) fn allocate_no_more_than_they_did() {
    const CALLS: usize = 1000;
    each(|(name, baseline, call)| {
        let mut region = Region::new(ALLOCATOR);
        repeat(call, CALLS, || region.reset(), || ());
        let stats = region.change();
        let found = (stats.allocations + stats.reallocations) as f64 / CALLS as f64;
        compare(name, "allocations", found, baseline.allocations);
    })
    .unwrap();
}

/// Prints a count, and fails if it has grown.
pub(super) fn compare(name: &str, what: &str, found: f64, baseline: usize) {
    println!("{name}: {found} {what}, {baseline} before");
    assert!(is_within(found, baseline), "{name}: {found} {what}, {baseline} before");
}

/// Whether a count has not grown. Less than one in two calls may come from elsewhere, such as a
/// thread that starts.
pub(super) fn is_within(found: f64, baseline: usize) -> bool {
    found < baseline as f64 + 0.5
}
