//! Random programs of closures on threads, beside the coordinator of the spec.

use consonance::{
    ClusterCoordinator, Error, IndexedSlices, ParameterServerStrategy, RemoteValue, Result, ShardedVariable, Tensor,
    dataset,
    parameter_server::{
        Argument, FixedShardsPartitioner, Function, OnError, Order, PerWorker, PerWorkerDataset, UpdateFunction,
        WorkerContext,
    },
};
use consonance_spec::{
    array::Array,
    parameter_server::{
        Attempt, Came, Change, Closure, Coordinator, Effect, FunctionUpdate, Refused, Rows, Seen, State, Step, Stepped,
        Tables, Variables,
    },
    variable::Update,
};
use quickcheck::{Arbitrary, Gen, QuickCheck};
use std::{num::NonZeroUsize, time::Duration};

const ROWS: usize = 5;
/// The elements of each worker's data sets.
const ELEMENTS: [usize; 2] = [3, 40];
const LIMIT: Duration = Duration::from_secs(60);

/// A closure of random steps. Its result is all that it has seen.
#[derive(Clone, Debug)]
struct Steps {
    needs: Option<usize>,
    /// Whether its argument has a value for each worker: the worker's number.
    is_per_worker: bool,
    acts: Vec<Act>,
}

/// A step, on one of three variables. Numbers in updates depend on the last number that was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Read(usize),
    Lookup(usize, i64),
    All(usize, Update, i64),
    Scatter(usize, Update, i64, i64),
    /// The update of the matrix and its slot by a function, of all rows without a row.
    Function(Option<i64>, i64),
    /// Takes an element of one of two data sets.
    Next(usize),
    FailIfOdd,
}

/// A call of the chief.
#[derive(Clone, Debug)]
enum Call {
    Schedule(Steps),
    Join,
    Read(usize),
    /// Changes all rows of a variable, or those of a scatter at this row.
    Update(usize, Update, Option<i64>, i64),
}

/// A program of the chief.
#[derive(Clone, Debug)]
struct Program {
    calls: Vec<Call>,
    workers: usize,
    servers: usize,
    shards: usize,
    window: usize,
    continues: bool,
}

const UPDATES: [Update; 3] = [Update::Assign, Update::AssignAdd, Update::AssignSub];

impl Arbitrary for Act {
    fn arbitrary(g: &mut Gen) -> Act {
        let (variable, number) = (usize::arbitrary(g) % 3, i64::from(i8::arbitrary(g)));
        let update = *g.choose(&UPDATES).unwrap();
        // Now and then out of range.
        let row =
            if u8::arbitrary(g).is_multiple_of(16) { ROWS as i64 } else { i64::from(u8::arbitrary(g)) % ROWS as i64 };
        match u8::arbitrary(g) % 12 {
            0 | 1 => Act::Read(variable),
            2 | 3 => Act::Lookup(variable, row),
            4 | 5 => Act::Scatter(variable, update, row, number),
            6 => Act::All(variable, update, number),
            7 | 8 => Act::Function(bool::arbitrary(g).then_some(row), number),
            9 | 10 => Act::Next(usize::arbitrary(g) % 2),
            _ => Act::FailIfOdd,
        }
    }
}

impl Arbitrary for Program {
    fn arbitrary(g: &mut Gen) -> Program {
        let mut number = 0;
        let calls = (0..usize::arbitrary(g) % 24).map(|_| match u8::arbitrary(g) % 10 {
            0 => Call::Join,
            1 => Call::Read(usize::arbitrary(g) % 3),
            2 => {
                let row = bool::arbitrary(g).then(|| i64::from(u8::arbitrary(g)) % ROWS as i64);
                Call::Update(usize::arbitrary(g) % 3, *g.choose(&UPDATES).unwrap(), row, i8::arbitrary(g).into())
            }
            _ => {
                let needs = (number > 0 && u8::arbitrary(g).is_multiple_of(4)).then(|| usize::arbitrary(g) % number);
                number += 1;
                let mut acts: Vec<Act> = (0..usize::arbitrary(g) % 6).map(|_| Act::arbitrary(g)).collect();
                let is_per_worker = u8::arbitrary(g).is_multiple_of(3);
                // In windows only a closure of a certain worker takes elements.
                acts.retain(|act| is_per_worker || !matches!(act, Act::Next(_)));
                Call::Schedule(Steps { needs, is_per_worker, acts })
            }
        });
        let calls = calls.collect();
        let mut below = |end: usize| 1 + usize::arbitrary(g) % end;
        let (workers, servers, shards, window) = (below(4), below(3), below(4), below(5));
        Program { calls, workers, servers, shards, window, continues: bool::arbitrary(g) }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Program>> {
        // A closure needs an earlier one by its number, so only the end can go.
        let program = self.clone();
        Box::new((0..self.calls.len()).map(move |count| {
            let calls = program.calls[..count].to_vec();
            Program { calls, ..program.clone() }
        }))
    }
}

/// All that the chief sees of a program.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// The numbers of the closures that failed and the reasons, one list a `join`.
    joins: Vec<Vec<(usize, Why)>>,
    reads: Vec<Vec<i64>>,
    results: Vec<Ended>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Why {
    Odd,
    Refused,
}

impl From<Refused> for Why {
    fn from(_: Refused) -> Why {
        Why::Refused
    }
}

#[derive(Debug, PartialEq)]
enum Ended {
    Ready(Vec<i64>),
    Failed(Why),
    Cancelled,
}

/// Returns the first values of the variables: a vector, a matrix, and the slot of the matrix.
fn initial() -> [Array<i64>; 3] {
    let numbers = |count: usize| (1..=count as i64).collect();
    [Array::new(&[ROWS], numbers(ROWS)), Array::new(&[ROWS, 2], numbers(2 * ROWS)), Array::new(&[ROWS], vec![0; ROWS])]
}

/// Adds gradients to rows of the matrix, each times a number that the slot has, and counts there.
fn weigh(matrix: &mut [i64], slot: &mut [i64], gradients: &[i64]) {
    for ((row, weight), gradient) in matrix.chunks_mut(2).zip(slot).zip(gradients.chunks(2)) {
        *weight += 1;
        row.iter_mut()
            .zip(gradient)
            .for_each(|(row, gradient)| *row = row.wrapping_add(weight.wrapping_mul(*gradient)));
    }
}

/// The same for the spec.
fn weigh_arrays(rows: &mut [Array<i64>], gradients: &Array<i64>) {
    let [matrix, slot] = rows else { unreachable!("one slot") };
    weigh(&mut matrix.data, &mut slot.data, &gradients.data);
}

/// Returns so many elements that depend on a number.
fn elements(number: i64, count: usize) -> Vec<i64> {
    (0..count as i64).map(|place| number.wrapping_mul(3).wrapping_add(place)).collect()
}

/// Returns the rows of a scatter, and their values: the same row twice, and its neighbour.
fn scattered(variable: usize, row: i64, number: i64) -> (Vec<i64>, Array<i64>) {
    let shape: &[usize] = if variable == 1 { &[3, 2] } else { &[3] };
    let values = Array::new(shape, elements(number, shape.iter().product()));
    (vec![row, (row + 1).min(ROWS as i64 - 1), row], values)
}

fn whole(variable: usize, number: i64) -> Array<i64> {
    let shape = initial()[variable].shape.clone();
    Array::new(&shape, elements(number, shape.iter().product()))
}

/// Returns an element of a worker's data set, or -1 behind the last.
fn element(dataset: usize, worker: i64, place: usize) -> i64 {
    if place < ELEMENTS[dataset] { 1000 * worker + 100 * dataset as i64 + place as i64 } else { -1 }
}

fn number(seen: &[i64], own: i64) -> i64 {
    seen.last().copied().unwrap_or_default().wrapping_add(own)
}

impl Closure<Tables<i64>> for Steps {
    type Result = Vec<i64>;
    type Error = Why;

    fn needs(&self) -> Vec<usize> {
        self.needs.into_iter().collect()
    }

    fn is_per_worker(&self) -> bool {
        self.is_per_worker
    }

    fn step(&self, seen: &Seen<Array<i64>, Vec<i64>>) -> Step<Rows, Change<i64>, Vec<i64>, Why> {
        let mut numbers = seen.arguments.concat();
        numbers.extend(self.is_per_worker.then_some(seen.worker as i64));
        let mut came = seen.steps.iter();
        for &act in &self.acts {
            if act == Act::FailIfOdd {
                if number(&numbers, 0) % 2 != 0 {
                    return Step::Fail(Why::Odd);
                }
                continue;
            }
            match (came.next(), act) {
                (Some(Came::Value(value)), _) => numbers.extend(&value.data),
                (Some(&Came::Position(place)), Act::Next(dataset)) => {
                    numbers.push(element(dataset, seen.worker as i64, place));
                }
                (Some(Came::Position(_) | Came::Updated), _) | (None, Act::FailIfOdd) => {}
                (None, Act::Next(dataset)) => return Step::Next(dataset),
                (None, Act::Read(variable)) => return Step::Read(Rows { variable, indices: None }),
                (None, Act::Lookup(variable, row)) => {
                    return Step::Read(Rows { variable, indices: Some(vec![row, 0, row]) });
                }
                (None, Act::All(variable, update, own)) => {
                    return Step::Update(Change::Effect(
                        variable,
                        Effect::Assign(update, whole(variable, number(&numbers, own))),
                    ));
                }
                (None, Act::Scatter(variable, update, row, own)) => {
                    let (rows, values) = scattered(variable, row, number(&numbers, own));
                    return Step::Update(Change::Effect(variable, Effect::Scatter(update, rows, values)));
                }
                (None, Act::Function(row, own)) => {
                    let (indices, gradient) = match row {
                        None => (None, whole(1, number(&numbers, own))),
                        Some(row) => {
                            let (rows, values) = scattered(1, row, number(&numbers, own));
                            (Some(rows), values)
                        }
                    };
                    let (variables, function) = (vec![1, 2], weigh_arrays);
                    return Step::Update(Change::Function(FunctionUpdate { variables, indices, gradient, function }));
                }
            }
        }
        Step::Return(numbers)
    }
}

fn tensor(array: &Array<i64>) -> Result<Tensor> {
    Tensor::new(array.shape.clone(), &array.data)
}

/// The declarations that closures use.
struct Declared {
    weigh: UpdateFunction<1>,
    datasets: [PerWorkerDataset<i64>; 2],
}

/// Runs the steps on a worker.
fn run(
    worker: &WorkerContext<'_>,
    variables: &[ShardedVariable],
    Declared { weigh, datasets }: &Declared,
    acts: &[Act],
    numbers: Vec<i64>,
) -> Result<Vec<i64>> {
    let mut numbers = numbers;
    for &act in acts {
        match act {
            Act::FailIfOdd if number(&numbers, 0) % 2 != 0 => return Err(Error::other("odd")),
            Act::FailIfOdd => {}
            Act::Next(dataset) => numbers.push(worker.next(&datasets[dataset])?.unwrap_or(-1)),
            Act::Read(variable) => numbers.extend(worker.read(&variables[variable])?.as_slice::<i64>()?),
            Act::Lookup(variable, row) => {
                let rows = worker.lookup(&variables[variable], &Tensor::from([row, 0, row]))?;
                numbers.extend(rows.as_slice::<i64>()?);
            }
            Act::All(variable, update, own) => {
                let value = tensor(&whole(variable, number(&numbers, own)))?;
                match update {
                    Update::Assign => worker.assign(&variables[variable], &value)?,
                    Update::AssignAdd => worker.assign_add(&variables[variable], &value)?,
                    Update::AssignSub => worker.assign_sub(&variables[variable], &value)?,
                }
            }
            Act::Scatter(variable, update, row, own) => {
                let (rows, values) = scattered(variable, row, number(&numbers, own));
                let rows = IndexedSlices::new(tensor(&values)?, Tensor::from(rows), None)?;
                match update {
                    Update::Assign => worker.scatter_update(&variables[variable], &rows)?,
                    Update::AssignAdd => worker.scatter_add(&variables[variable], &rows)?,
                    Update::AssignSub => worker.scatter_sub(&variables[variable], &rows)?,
                }
            }
            Act::Function(row, own) => {
                let [_, matrix, slot] = variables else { unreachable!("three variables") };
                match row {
                    None => worker.update(weigh, matrix, [slot], &tensor(&whole(1, number(&numbers, own)))?)?,
                    Some(row) => {
                        let (rows, values) = scattered(1, row, number(&numbers, own));
                        let gradients = IndexedSlices::new(tensor(&values)?, Tensor::from(rows), None)?;
                        worker.update_rows(weigh, matrix, [slot], &gradients)?;
                    }
                }
            }
        }
    }
    Ok(numbers)
}

/// The reason of a failure.
fn why(error: &Error) -> Why {
    match error {
        Error::InvalidCall { .. } => Why::Refused,
        Error::Other(_) => Why::Odd,
        error => panic!("{error}"),
    }
}

fn failures(error: Error) -> Vec<(usize, Why)> {
    let Error::Closures { failures, .. } = error else { panic!("{error}") };
    failures.iter().map(|failure| (failure.number as usize, why(&failure.error))).collect()
}

/// The argument of a closure: its number, the variables, the results that it needs, and the value
/// for its worker.
type Given = (((u64, Vec<ShardedVariable>), Vec<i64>), Vec<i64>);

/// The function of the program.
type Run = Function<Given, Vec<i64>>;

/// Plays a program on threads.
fn play(program: &Program, order: Order) -> Result<Outcome> {
    let builder = ParameterServerStrategy::builder_of_threads(program.workers, program.servers);
    let builder = builder.partitioner(FixedShardsPartitioner::new(program.shards)?).order(order);
    let strategy = builder.on_error(on_error(program)).build()?;
    let [vector, matrix, slot] = initial().map(|value| tensor(&value));
    let (vector, matrix, slot) = (vector?, matrix?, slot?);
    let (vector, matrix) = (strategy.variable(|| vector)?, strategy.variable(|| matrix)?);
    let slot = strategy.slot(&matrix, || slot)?;
    let variables = [vector, matrix, slot];
    let weigh = strategy.update_function("weigh", |matrix, [slot], gradients| {
        weigh(matrix.as_mut_slice()?, slot.as_mut_slice()?, gradients.as_slice()?);
        Ok(())
    })?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let all: Vec<Steps> = program
        .calls
        .iter()
        .filter_map(|call| if let Call::Schedule(steps) = call { Some(steps.clone()) } else { None })
        .collect();
    let [first, second] = ["first", "second"].map(|name| {
        let number = usize::from(name == "second");
        coordinator.create_per_worker_dataset(name, move |context| {
            let worker = context.input_pipeline_id as i64;
            Ok(dataset::from_fn(move || (0..ELEMENTS[number]).map(move |place| element(number, worker, place))))
        })
    });
    let datasets = [first?, second?];
    let function: Run = coordinator.function("run", {
        let declared = Declared { weigh, datasets };
        move |worker, (((closure, variables), needed), own): Given| {
            run(worker, &variables, &declared, &all[closure as usize].acts, [needed, own].concat())
        }
    })?;
    let mut results: Vec<RemoteValue<Vec<i64>>> = Vec::new();
    let mut outcome = Outcome { joins: Vec::new(), reads: Vec::new(), results: Vec::new() };
    for call in program.calls.iter().chain([&Call::Join, &Call::Read(0), &Call::Read(1), &Call::Read(2)]) {
        match call {
            Call::Schedule(steps) => {
                let number = Argument::from((results.len() as u64, variables.to_vec()));
                let argument = match steps.needs {
                    None => number.and(Vec::new()),
                    Some(needed) => number.and(&results[needed]),
                };
                let own = (0..program.workers as i64).map(|worker| vec![worker]).collect();
                let argument = match steps.is_per_worker {
                    false => argument.and(Vec::new()),
                    true => argument.and(PerWorker(own)),
                };
                results.push(coordinator.schedule(&function, argument)?);
            }
            Call::Join => outcome.joins.push(coordinator.join(LIMIT).err().map_or_else(Vec::new, failures)),
            Call::Read(variable) => outcome.reads.push(variables[*variable].read()?.into_vec()?),
            &Call::Update(variable, update, Some(row), number) => {
                let (rows, values) = scattered(variable, row, number);
                let rows = IndexedSlices::new(tensor(&values)?, Tensor::from(rows), None)?;
                match update {
                    Update::Assign => variables[variable].scatter_update(&rows)?,
                    Update::AssignAdd => variables[variable].scatter_add(&rows)?,
                    Update::AssignSub => variables[variable].scatter_sub(&rows)?,
                }
            }
            &Call::Update(variable, update, None, number) => {
                let (value, variable) = (tensor(&whole(variable, number))?, &variables[variable]);
                match update {
                    Update::Assign => variable.assign(&value)?,
                    Update::AssignAdd => variable.assign_add(&value)?,
                    Update::AssignSub => variable.assign_sub(&value)?,
                }
            }
        }
    }
    for result in results {
        outcome.results.push(match result.fetch(LIMIT) {
            Ok(numbers) => Ended::Ready(numbers),
            Err(Error::Closures { failures, .. }) => Ended::Failed(why(&failures[0].error)),
            Err(Error::WrongContext { .. }) => Ended::Cancelled,
            Err(error) => return Err(error),
        });
    }
    Ok(outcome)
}

type Playing = Coordinator<Tables<i64>, Steps>;

/// Lets all workers run until nobody can go on.
fn go_on(playing: &mut Playing, workers: usize) {
    loop {
        let mut has_run = false;
        for worker in 0..workers {
            let Some(mut attempt): Option<Attempt<Tables<i64>, Steps>> = playing.starts(worker) else { continue };
            has_run = true;
            while playing.steps(&mut attempt) == Stepped::GoesOn {}
        }
        if !has_run {
            return;
        }
    }
}

/// Calls until there is an answer, and lets workers run.
fn wait<R>(playing: &mut Playing, workers: usize, mut call: impl FnMut(&mut Playing) -> Option<R>) -> R {
    loop {
        if let Some(answer) = call(playing) {
            return answer;
        }
        go_on(playing, workers);
    }
}

/// Plays a program on the spec.
fn expected(program: &Program, order: Order) -> Outcome {
    let workers = program.workers;
    let mut playing: Playing =
        Coordinator::new(order, on_error(program), workers, Tables(initial().to_vec()), ELEMENTS.len());
    let mut outcome = Outcome { joins: Vec::new(), reads: Vec::new(), results: Vec::new() };
    for call in program.calls.iter().chain([&Call::Join, &Call::Read(0), &Call::Read(1), &Call::Read(2)]) {
        match call {
            Call::Schedule(steps) => {
                playing.schedule(steps.clone()).expect("only join returns failures");
            }
            Call::Join => {
                let answer = wait(&mut playing, workers, Playing::join);
                let failures = answer.err().unwrap_or_default();
                outcome.joins.push(failures.iter().map(|failure| (failure.number, failure.error)).collect());
            }
            &Call::Read(variable) => {
                let read = Rows { variable, indices: None };
                let value = wait(&mut playing, workers, |playing| playing.chief_reads(&read));
                outcome.reads.push(value.expect("a variable").data);
            }
            &Call::Update(variable, update, row, number) => {
                let effect = match row.map(|row| scattered(variable, row, number)) {
                    Some((rows, values)) => Effect::Scatter(update, rows, values),
                    None => Effect::Assign(update, whole(variable, number)),
                };
                let effect = Change::Effect(variable, effect);
                wait(&mut playing, workers, |playing| playing.chief_updates(&effect)).expect("it fits");
            }
        }
    }
    let ended = |number| match playing.state(number) {
        State::Ready(numbers) => Ended::Ready(numbers.clone()),
        State::Failed(failure) => Ended::Failed(failure.error),
        State::Cancelled => Ended::Cancelled,
        open @ (State::Waiting | State::Running | State::Refused) => panic!("closure {number} is {open:?} after join"),
    };
    outcome.results = (0..playing.scheduled()).map(ended).collect();
    outcome
}

fn on_error(program: &Program) -> OnError {
    if program.continues { OnError::Continue } else { OnError::Cancel }
}

/// All that a program of windows gives is as in the spec, bit for bit.
#[test]
fn windows_give_the_results_of_the_spec() {
    fn holds(program: Program) -> bool {
        let order = Order::Scheduled { window: NonZeroUsize::new(program.window).unwrap() };
        let found = play(&program, order).unwrap();
        let expected = expected(&program, order);
        assert_eq!(found, expected);
        true
    }
    QuickCheck::new().tests(150).quickcheck(holds as fn(Program) -> bool);
}

/// Sums are exact in any order, so the variables are as in the spec where closures only add.
#[test]
fn sums_are_those_of_the_spec_in_any_order() {
    fn holds(program: Program) -> bool {
        let mut program = Program { continues: true, ..program };
        let adds = |act: &Act| match act {
            Act::All(_, update, _) | Act::Scatter(_, update, ..) => *update != Update::Assign,
            Act::Read(_) | Act::Lookup(..) | Act::Function(..) | Act::Next(_) | Act::FailIfOdd => false,
        };
        program.calls.retain_mut(|call| match call {
            Call::Schedule(steps) => {
                (steps.needs, steps.is_per_worker) = (None, false);
                steps.acts.retain(adds);
                true
            }
            Call::Update(_, update, ..) => *update != Update::Assign,
            Call::Join => true,
            Call::Read(_) => false,
        });
        let (found, expected) = (play(&program, Order::Arrival).unwrap(), expected(&program, Order::Arrival));
        assert_eq!(found.reads, expected.reads);
        assert_eq!(found.results, expected.results);
        let sorted = |mut joins: Vec<Vec<(usize, Why)>>| {
            joins.iter_mut().for_each(|join| join.sort_unstable_by_key(|&(number, _)| number));
            joins
        };
        assert_eq!(sorted(found.joins), sorted(expected.joins));
        true
    }
    QuickCheck::new().tests(100).quickcheck(holds as fn(Program) -> bool);
}

/// Workers take elements in any order, and closures fail between. Those that have ended took the
/// first elements of their workers, each once, and their effects are those of what they took.
#[test]
fn closures_take_the_elements_of_their_workers_once_in_any_order() {
    fn holds(program: Program) -> bool {
        let mut program = Program { continues: true, ..program };
        program.calls.retain_mut(|call| match call {
            Call::Schedule(steps) => {
                steps.needs = None;
                // Reads, assignments and functions depend on timing.
                steps.acts.iter_mut().for_each(|act| match *act {
                    Act::Read(variable)
                    | Act::Lookup(variable, _)
                    | Act::All(variable, Update::Assign, _)
                    | Act::Scatter(variable, Update::Assign, ..) => *act = Act::Next(variable % 2),
                    Act::Function(_, number) => *act = Act::Next(number.rem_euclid(2) as usize),
                    Act::All(..) | Act::Scatter(..) | Act::Next(_) | Act::FailIfOdd => {}
                });
                true
            }
            Call::Join => true,
            Call::Read(_) | Call::Update(..) => false,
        });
        let found = play(&program, Order::Arrival).unwrap();
        let mut taken = vec![[Vec::new(), Vec::new()]; program.workers];
        let mut variables = Tables(initial().to_vec());
        let schedules = program.calls.iter().filter_map(|call| match call {
            Call::Schedule(steps) => Some(steps),
            Call::Join | Call::Read(_) | Call::Update(..) => None,
        });
        for (steps, ended) in schedules.zip(&found.results) {
            let Ended::Ready(numbers) = ended else { continue };
            let mut seen = usize::from(steps.is_per_worker);
            for &act in &steps.acts {
                match act {
                    Act::Next(dataset) => {
                        let element = numbers[seen];
                        if element >= 0 {
                            taken[element as usize / 1000][dataset].push(element);
                            assert!(!steps.is_per_worker || element / 1000 == numbers[0]);
                        }
                        seen += 1;
                    }
                    Act::All(variable, update, own) => {
                        let value = whole(variable, number(&numbers[..seen], own));
                        assert!(variables.update(&Change::Effect(variable, Effect::Assign(update, value))).is_ok());
                    }
                    Act::Scatter(variable, update, row, own) => {
                        let (rows, values) = scattered(variable, row, number(&numbers[..seen], own));
                        assert!(
                            variables.update(&Change::Effect(variable, Effect::Scatter(update, rows, values))).is_ok()
                        );
                    }
                    Act::FailIfOdd => assert_eq!(number(&numbers[..seen], 0) % 2, 0),
                    Act::Read(_) | Act::Lookup(..) | Act::Function(..) => unreachable!("they were replaced"),
                }
            }
        }
        for (worker, taken) in taken.iter_mut().enumerate() {
            for (dataset, taken) in taken.iter_mut().enumerate() {
                taken.sort_unstable();
                let first = (0..taken.len()).map(|place| element(dataset, worker as i64, place));
                assert!(taken.iter().copied().eq(first), "worker {worker}, data set {dataset}: {taken:?}");
            }
        }
        assert_eq!(found.reads, variables.0.into_iter().map(|variable| variable.data).collect::<Vec<_>>());
        true
    }
    QuickCheck::new().tests(150).quickcheck(holds as fn(Program) -> bool);
}
