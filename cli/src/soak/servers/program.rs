//! The program of a job: closures whose effects can be counted.

use super::job::Job;
use consonance::{
    ClusterCoordinator, DType, Error, IndexedSlices, ParameterServerStrategy, Result, ShardedVariable, Tensor,
    checkpoint, dataset,
    parameter_server::{
        Argument, FixedShardsPartitioner, Function, Order, ParameterServerBuilder, PerWorkerDataset, WorkerContext,
    },
};
use consonance_kernels::digest::mix;
use std::{
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

/// The time in which processes meet, servers answer, and all closures of a phase end.
const LIMIT: Duration = Duration::from_secs(40);

/// The time of a recovery; for half of it the chief waits for servers.
const RECOVERS: Duration = Duration::from_secs(2);

const ROWS: usize = 32;

/// More than the elements that closures of a job take at one worker.
const ELEMENTS: usize = 2048;

/// The declarations of all processes.
pub(super) struct Program {
    strategy: ParameterServerStrategy,
    coordinator: ClusterCoordinator,
    step: Function<(u64, ()), ()>,
    numbers: PerWorkerDataset<i64>,
    variables: Variables,
    takes: bool,
}

/// The variables.
#[derive(Clone)]
struct Variables {
    /// The sum of all numbers of closures.
    total: ShardedVariable,
    /// Sums of rows. Both are the same in each order of effects.
    table: ShardedVariable,
    /// Numbers that depend on the order, if it is fixed.
    floats: ShardedVariable,
    /// The number of times that each element of each worker was taken.
    counts: ShardedVariable,
}

/// All values of the variables, those of `floats` as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    total: i64,
    table: Vec<i64>,
    floats: Vec<u32>,
    counts: Vec<i64>,
}

impl Program {
    /// Declares the program of a job.
    pub(super) fn declare(job: &Job, builder: ParameterServerBuilder) -> Result<Program> {
        let order = job.window.map_or(Order::Arrival, |window| Order::Scheduled { window });
        let strategy = builder.partitioner(FixedShardsPartitioner::new(job.shards)?).order(order).build()?;
        let zeros = |dtype, shape: &[usize]| strategy.variable(|| Tensor::zeros(dtype, shape));
        let variables = Variables {
            total: zeros(DType::I64, &[])?,
            table: zeros(DType::I64, &[ROWS, 2])?,
            floats: zeros(DType::F32, &[ROWS])?,
            counts: zeros(DType::I64, &[job.workers * ELEMENTS])?,
        };
        let coordinator = ClusterCoordinator::new(&strategy);
        let numbers = coordinator.create_per_worker_dataset("numbers", |context| {
            let first = context.input_pipeline_id * ELEMENTS;
            Ok(dataset::from_fn(move || first as i64..(first + ELEMENTS) as i64))
        })?;
        let (is_ordered, takes) = (job.window.is_some(), job.takes);
        let step = coordinator.function("step", {
            let (variables, numbers) = (variables.clone(), numbers.clone());
            move |worker, (number, ()): (u64, ())| {
                let elements = if takes { elements(number) } else { 0 };
                let mut sum = number as i64;
                for _ in 0..elements {
                    let element = worker.next(&numbers)?.ok_or_else(|| Error::other("there are no more elements"))?;
                    sum += element;
                    add(worker, &variables.counts, &[element], Tensor::from([1i64]))?;
                }
                worker.assign_add(&variables.total, &Tensor::from(number as i64))?;
                add(worker, &variables.table, &rows(number), Tensor::from(values(number)))?;
                if is_ordered {
                    let row = Tensor::from([number as i64 % ROWS as i64]);
                    let value: Vec<f32> = worker.lookup(&variables.floats, &row)?.into_vec()?;
                    let value = Tensor::from([0.75 * value[0] + sum as f32 / 7.0]);
                    worker.scatter_update(&variables.floats, &IndexedSlices::new(value, row, None)?)?;
                }
                Ok(())
            }
        })?;
        Ok(Program { strategy, coordinator, step, numbers, variables, takes })
    }

    /// Serves as a worker or a server.
    pub(super) fn serve(&self) -> Result<()> {
        self.strategy.serve()
    }

    /// Runs the closures of these numbers, and waits for all.
    pub(super) fn run(&self, numbers: Range<u64>) -> Result<()> {
        for number in numbers {
            let number = Argument::from(number);
            let argument = if self.takes { number.and(&self.numbers) } else { number.and(()) };
            self.coordinator.schedule(&self.step, argument)?;
        }
        self.coordinator.join(LIMIT).map(drop)
    }

    /// Does what needs all servers, again after each recovery from the checkpoint. Counts the
    /// recoveries.
    pub(super) fn until_done<R>(
        &self,
        checkpoint: &Path,
        recoveries: &mut u64,
        what: impl Fn() -> Result<R>,
    ) -> Result<R> {
        let begin = Instant::now();
        let mut done = what();
        while let Err(error) = &done
            && error.is_loss()
            && begin.elapsed() < LIMIT
        {
            // A server may be lost meanwhile, or the last one not have come yet.
            done = match self.strategy.recover(checkpoint, self.named(), RECOVERS) {
                Ok(()) => {
                    *recoveries += 1;
                    what()
                }
                Err(Error::Meeting { missing, .. }) if !missing.is_empty() => continue,
                Err(error) => Err(error),
            };
        }
        done
    }

    pub(super) fn save(&self, checkpoint: &Path) -> Result<()> {
        checkpoint::save(checkpoint, self.named())
    }

    pub(super) fn restore(&self, checkpoint: &Path) -> Result<()> {
        checkpoint::restore(checkpoint, self.named())
    }

    pub(super) fn state(&self) -> Result<State> {
        let Variables { total, table, floats, counts } = &self.variables;
        let floats: Vec<f32> = floats.read()?.into_vec()?;
        Ok(State {
            total: total.read()?.item()?,
            table: table.read()?.into_vec()?,
            floats: floats.into_iter().map(f32::to_bits).collect(),
            counts: counts.read()?.into_vec()?,
        })
    }

    fn named(&self) -> [(&'static str, &ShardedVariable); 4] {
        let Variables { total, table, floats, counts } = &self.variables;
        [("total", total), ("table", table), ("floats", floats), ("counts", counts)]
    }
}

impl State {
    /// Checks that each effect of so many closures has happened once. A worker has taken a row of
    /// elements, from the first one on, after each of so many recoveries and before them.
    ///
    /// # Errors
    /// In words, which has not.
    pub(super) fn check(&self, job: &Job, closures: u64, recoveries: u64) -> std::result::Result<(), String> {
        let (mut total, mut table) = (0, vec![0i64; 2 * ROWS]);
        for number in 0..closures {
            total += number as i64;
            for (row, values) in rows(number).into_iter().zip(values(number)) {
                table[2 * row as usize] += values[0];
                table[2 * row as usize + 1] += values[1];
            }
        }
        if self.total != total {
            return Err(format!("the numbers of {closures} closures sum to {}, not to {total}", self.total));
        }
        if let Some(place) = (0..table.len()).find(|&place| self.table[place] != table[place]) {
            return Err(format!("element {place} of the table is {}, not {}", self.table[place], table[place]));
        }
        let taken = if job.takes { (0..closures).map(elements).sum() } else { 0 };
        let counted: i64 = self.counts.iter().sum();
        if counted != taken as i64 {
            return Err(format!("{counted} elements are counted, and {taken} were taken"));
        }
        for (worker, counts) in self.counts.chunks(ELEMENTS).enumerate() {
            if !counts.is_sorted_by(|before, after| before >= after) || counts[0] > 1 + recoveries as i64 {
                return Err(format!("worker {worker} has not taken elements once each, from the first one on"));
            }
        }
        Ok(())
    }
}

/// Returns the builder of a strategy for processes or threads, with the time limits of a job.
pub(super) fn limited(builder: ParameterServerBuilder) -> ParameterServerBuilder {
    builder.timeout(LIMIT).closure_timeout(super::job::CLOSURE)
}

/// Returns the number of elements that a closure takes.
fn elements(number: u64) -> u64 {
    number % 3
}

/// Returns the rows that a closure changes, one of them twice.
fn rows(number: u64) -> [i64; 3] {
    let row = |salt: u64| (mix(salt, number) % ROWS as u64) as i64;
    [row(1), row(2), row(1)]
}

fn values(number: u64) -> [[i64; 2]; 3] {
    let number = number as i64;
    [[number, 1], [1, number], [2, 3]]
}

fn add(worker: &WorkerContext<'_>, variable: &ShardedVariable, rows: &[i64], values: Tensor) -> Result<()> {
    worker.scatter_add(variable, &IndexedSlices::new(values, Tensor::from(rows), None)?)
}
