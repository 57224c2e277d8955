//! A server of much memory that is killed: all calls at the chief end.

use crate::driver::{self, Job, LONG, Signal};
use consonance::{
    ClusterCoordinator, DType, Error, IndexedSlices, ParameterServerStrategy, Result, ShardedVariable, Tensor,
    TfConfigClusterResolver,
};
use std::{thread, time::Duration};

/// The rows of a table, of 256 bytes each: 512 MiB.
const ROWS: usize = 2 << 20;
const ROW: usize = 64;

/// Plays the role of the process. The chief makes the calls that the words name, each on a thread,
/// until it fails. It says of each: when the last call began and failed, and whether its error is a
/// loss.
pub(crate) fn loses_much(words: &[&str]) -> Result<()> {
    let strategy = ParameterServerStrategy::builder(TfConfigClusterResolver::new()?)?.timeout(LONG / 2).build()?;
    let table = strategy.variable(|| Tensor::zeros(DType::F32, [ROWS, ROW]))?;
    let total = strategy.variable(|| Tensor::from(0i64))?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let hold = coordinator.function("hold", |_, milliseconds: u64| {
        thread::sleep(Duration::from_millis(milliseconds));
        Ok(())
    })?;
    let count = coordinator
        .function("count", |worker, total: ShardedVariable| worker.assign_add(&total, &Tensor::from(1i64)))?;
    if !strategy.is_chief() {
        driver::say("serves");
        return strategy.serve();
    }
    let held = coordinator.schedule(&hold, 30_000)?;
    let rows = Tensor::from((0..1000).map(|row| row * 2000).collect::<Vec<i64>>());
    let add = || table.scatter_add(&IndexedSlices::new(Tensor::from([[0.5f32; ROW]]), Tensor::from([7i64]), None)?);
    let whole = table.read()?;
    add()?;
    let calls: [(&str, &(dyn Fn() -> Result<()> + Sync)); 9] = [
        ("fetch", &|| held.fetch(LONG)),
        ("join", &|| coordinator.join(LONG).map(drop)),
        ("done", &|| coordinator.done().map(drop)),
        ("closure", &|| coordinator.schedule(&count, total.clone())?.fetch(LONG)),
        ("lookup", &|| table.lookup(&rows).map(drop)),
        ("scatter_add", &add),
        ("assign_add", &|| total.assign_add(&Tensor::from(1i64))),
        ("read", &|| table.read().map(drop)),
        ("assign", &|| table.assign(&whole)),
    ];
    drop(table.read()?);
    driver::say("calls");
    thread::scope(|scope| {
        for (name, call) in calls.into_iter().filter(|(name, _)| words.contains(name)) {
            scope.spawn(move || {
                let (error, begun) = loop {
                    let begun = driver::now().as_micros();
                    if let Err(error) = call() {
                        break (error, begun);
                    }
                };
                let ended = driver::now().as_micros();
                let is_loss = matches!(error, Error::Aborted { .. }) && error.is_loss();
                driver::say(&format!("ended {name} {begun} {ended} {is_loss}"));
            });
        }
    });
    Ok(())
}

/// Prints the times. A read of all rows that has begun reads on, and the next one fails. An
/// assignment of all rows makes its request first.
#[test]
fn the_loss_of_512_mib_ends_all_calls() {
    for calls in ["fetch join done closure lookup scatter_add assign_add", "fetch read assign closure"] {
        let mut job = Job::with_servers(2, 2);
        (0..5).for_each(|task| job.launch(task, &format!("loses_much {calls}")));
        job.others(0).for_each(|process| drop(process.expect("serves")));
        job.of(0).expect("calls");
        // Most calls have begun.
        thread::sleep(Duration::from_millis(500));
        let killed = driver::now().as_micros() as i64;
        job.of(3).signal(Signal::SIGKILL);
        for _ in calls.split(' ') {
            let ended = job.of(0).expect("ended");
            let [name, begun, at, is_loss] = ended.split(' ').collect::<Vec<_>>()[..] else { panic!("{ended}") };
            assert_eq!(is_loss, "true", "{name}");
            let [begun, at] = [begun, at].map(|time| driver::number(time) as i64 - killed);
            println!("{name} began {begun} µs after the kill, and failed {at} µs after it");
        }
        job.of(0).end();
    }
}
