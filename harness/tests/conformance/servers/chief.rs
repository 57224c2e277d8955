//! The programs of cases: the chief's steps, with workers that go on while the chief waits.

use super::{
    body::{Body, Names},
    partition::{self, Partitions},
    store::{Kind, Store},
};
use crate::{datasets, value::Value};
use consonance::{DType, Tensor};
use consonance_spec::{
    OnError, Order, RoundRobin, Shards,
    parameter_server::{Attempt, Came, Closure, Coordinator, Failures, Seen, State, Step, Stepped, shards_of},
};
use serde_json::{Map, Value as Json, json};
use std::rc::Rc;

/// The elements that are taken of a data set without an end, at most.
const ELEMENTS: usize = 100;

pub(crate) struct Chief<'a> {
    args: &'a Json,
    playing: Coordinator<Store, Body>,
    /// The attempt of each worker.
    attempts: Vec<Option<Attempt<Store, Body>>>,
    names: Rc<Names>,
    places: Vec<VariablePlace>,
    round: RoundRobin,
    partitioner: Option<Box<dyn Partitions + Send + Sync>>,
    datasets: Vec<(String, Rc<Vec<Value>>)>,
}

/// The place of a variable.
struct VariablePlace {
    shards: Shards,
    /// The server of each shard; `None` for the chief.
    servers: Vec<Option<usize>>,
}

/// An answer to a step: a value, or the kind of an error.
type Answer = Result<Value, Kind>;

impl Chief<'_> {
    /// Returns the results of the steps.
    ///
    /// # Errors
    /// If the partitioner or a variable is refused.
    pub(crate) fn play(args: &Json) -> Result<Vec<Value>, Kind> {
        let count = |name: &str| args[name].as_u64().expect("a number") as usize;
        let workers = count("workers");
        let mut chief = Chief {
            args,
            playing: Coordinator::new(Order::Arrival, OnError::Cancel, workers, Store(Vec::new()), 0),
            attempts: vec![None; workers],
            names: Rc::default(),
            places: Vec::new(),
            round: RoundRobin::new(count("servers")),
            partitioner: partition::partitioner(&args["partitioner"])?,
            datasets: Vec::new(),
        };
        let mut store = Store(Vec::new());
        for variable in args["variables"].as_array().expect("variables") {
            chief.declare(variable, &mut store)?;
        }
        chief.playing = Coordinator::new(Order::Arrival, OnError::Cancel, workers, store, 0);
        let steps = args["steps"].as_array().expect("steps");
        let result = |step: &Json| {
            let answer = chief.step(step);
            answer.unwrap_or_else(|Kind(kind)| Value::Other(json!({ "error": kind })))
        };
        Ok(steps.iter().map(result).collect())
    }

    /// Adds a variable to those in `store`.
    fn declare(&mut self, variable: &Json, store: &mut Store) -> Result<(), Kind> {
        let initial = partition::initial(variable);
        let rows = initial.shape().first().copied().unwrap_or(1);
        let (shards, servers) = if variable["where"] == "outside" {
            (1, vec![None])
        } else if let Some(other) = variable["colocate_with"].as_str() {
            (1, self.places[self.variable(other)].servers[..1].to_vec())
        } else {
            let shards = match &self.partitioner {
                Some(partitioner) if initial.rank() > 0 => {
                    let partitions = partitioner.partitions(initial.shape(), initial.dtype(), 0)?;
                    shards_of(initial.shape(), &partitions)?
                }
                _ => 1,
            };
            (shards, self.round.place(shards).into_iter().map(Some).collect())
        };
        self.places.push(VariablePlace { shards: Shards::new(rows, shards), servers });
        Rc::make_mut(&mut self.names).variables.push(variable["name"].as_str().expect("a name").to_owned());
        store.0.push(initial);
        Ok(())
    }

    fn variable(&self, name: &str) -> usize {
        self.names.variables.iter().position(|known| known == name).expect("a variable")
    }

    fn step(&mut self, step: &Json) -> Answer {
        let list = step.as_array().expect("a step");
        let text = |place: usize| list[place].as_str().expect("text");
        let number = |place: usize| list[place].as_u64().expect("a number") as usize;
        match text(0) {
            "schedule" => {
                let named = list.get(3).and_then(Json::as_object).cloned().unwrap_or_default();
                self.schedule(text(1), &list[2], named)
            }
            "schedule_each" => {
                for arguments in list[2].as_array().expect("arguments") {
                    self.schedule(text(1), arguments, Map::new())?;
                }
                Ok(Value::none())
            }
            "join" => {
                self.drain();
                self.playing.join().expect("all have ended").map_or_else(first, |()| Ok(Value::none()))
            }
            "done" => self.playing.done().map_or_else(first, |done| Ok(Value::plain(done))),
            "done_at_last" => {
                self.drain();
                self.playing.done().map_or_else(first, |done| Ok(Value::plain(done)))
            }
            "settle" => {
                self.drain();
                Ok(Value::none())
            }
            "fetch" | "fetch_value" | "get" => {
                self.drain();
                self.fetched(&list[1])
            }
            "fetch_per_worker" => Ok(Value::List(self.names.per_worker[text(1)].clone())),
            "fetch_sorted" => {
                let mut results = self.results(number(1), number(2));
                results.sort_unstable();
                Ok(Value::List(results.into_iter().map(|result| Value::Tensor(Tensor::from(result))).collect()))
            }
            "fetch_members" => {
                let set: Vec<i64> =
                    list[3].as_array().expect("a set").iter().map(|of| integer(&Value::parse(of))).collect();
                let results = self.results(number(1), number(2));
                Ok(Value::plain(results.iter().all(|result| set.contains(result))))
            }
            "fetch_prefixes" => {
                let list: Vec<i64> = serde_json::from_value(list[3].clone()).expect("numbers");
                let results = self.results(number(1), number(2));
                Ok(Value::plain(self.are_prefixes(&results, &list)))
            }
            "states" => {
                let states: Vec<&str> = (0..self.playing.scheduled()).map(|number| self.state(number)).collect();
                Ok(Value::Other(json!({ "json": states })))
            }
            "per_ready" => {
                let ready =
                    (0..self.playing.scheduled()).filter(|&number| self.state(number) == "ready").count() as i64;
                let value = integer(&Value::Tensor(self.playing.committed().0[self.variable(text(1))].clone()));
                Ok(Value::plain(value == integer(&Value::parse(&list[2])) * ready))
            }
            "place" => Ok(self.place(self.variable(text(1)))),
            "shard_values" => {
                let variable = self.variable(text(1));
                let (table, shards) = (&self.playing.committed().0[variable], self.places[variable].shards);
                let part = |shard| match table.rank() {
                    0 => Value::Tensor(table.clone()),
                    _ => Value::Tensor(table.rows(shards.rows_of(shard)).expect("rows of the table")),
                };
                Ok(Value::List((0..shards.count()).map(part).collect()))
            }
            "length" => Ok(Value::plain(self.places[self.variable(text(1))].shards.count())),
            "spec" => {
                let variable = self.variable(text(1));
                let table = &self.playing.committed().0[variable];
                assert!(self.places[variable].shards.count() > 1, "one that is not divided can be trained, or not");
                let spec = json!({ "dtype": table.dtype().name(), "shape": table.shape(), "trainable": null });
                Ok(Value::Other(json!({ "json": spec })))
            }
            "declare" => {
                assert_eq!(self.playing.scheduled(), 0, "a variable after the first closure");
                let mut store = self.playing.committed().clone();
                self.declare(&list[1], &mut store)?;
                let workers = self.attempts.len();
                self.playing = Coordinator::new(Order::Arrival, OnError::Cancel, workers, store, 0);
                Ok(Value::none())
            }
            "dataset" => {
                self.datasets.push((text(1).to_owned(), Rc::new(datasets::elements(&list[2], ELEMENTS))));
                Ok(Value::none())
            }
            "iterator" => {
                let (_, elements) = self.datasets.iter().find(|(name, _)| name == text(2)).expect("a data set");
                let iterator = (self.playing.add_dataset(), elements.clone());
                Rc::make_mut(&mut self.names).iterators.insert(text(1).to_owned(), iterator);
                Ok(Value::none())
            }
            "per_worker" => {
                let values = list[2].as_array().expect("values").iter().map(Value::parse).collect();
                Rc::make_mut(&mut self.names).per_worker.insert(text(1).to_owned(), values);
                Ok(Value::none())
            }
            _ => self.own(step),
        }
    }

    fn schedule(&mut self, function: &str, arguments: &Json, named: Map<String, Json>) -> Answer {
        let function = &self.args["functions"][function];
        let statements = function.get("body").unwrap_or(function).as_array().expect("statements").clone();
        let arguments = arguments.as_array().expect("arguments").clone();
        let body = Body { statements, arguments, named, names: self.names.clone() };
        self.playing.schedule(body).map_or_else(first, |_| Ok(Value::none()))
    }

    /// Evaluates an expression or an update at the chief.
    fn own(&mut self, step: &Json) -> Answer {
        let statements = vec![json!(["return", step])];
        let body = Body { statements, arguments: Vec::new(), named: Map::new(), names: self.names.clone() };
        let mut seen = Seen { worker: 0, arguments: Vec::new(), steps: Vec::new() };
        loop {
            let came = match body.step(&seen) {
                Step::Read(read) => Came::Value(self.playing.chief_reads(&read).expect("it does not wait")?),
                Step::Update(effect) => {
                    self.playing.chief_updates(&effect).expect("it does not wait")?;
                    Came::Updated
                }
                Step::Next(_) => panic!("the chief has no data set"),
                Step::Return(value) => return Ok(value),
                Step::Fail(kind) => return Err(kind),
            };
            seen.steps.push(came);
        }
    }

    /// Lets the workers go on, one step of each after the other, until none can.
    fn drain(&mut self) {
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for worker in 0..self.attempts.len() {
                if self.attempts[worker].is_none() {
                    self.attempts[worker] = self.playing.starts(worker);
                }
                let Some(attempt) = &mut self.attempts[worker] else { continue };
                goes_on = true;
                match self.playing.steps(attempt) {
                    Stepped::GoesOn => {}
                    Stepped::HasEnded => self.attempts[worker] = None,
                    Stepped::IsLate => panic!("nobody is lost"),
                }
            }
        }
    }

    fn state(&self, number: usize) -> &'static str {
        match self.playing.state(number) {
            State::Ready(_) => "ready",
            State::Failed(_) => "failed",
            State::Cancelled => "cancelled",
            State::Refused => "refused",
            State::Waiting | State::Running => panic!("closure {number} has not ended"),
        }
    }

    /// Returns a nest with results in the place of their numbers.
    fn fetched(&self, json: &Json) -> Answer {
        let all = |list: &[Json]| list.iter().map(|json| self.fetched(json)).collect::<Result<Vec<_>, Kind>>();
        match json {
            Json::String(text) => {
                let number = text.strip_prefix('#').and_then(|number| number.parse().ok()).expect("a number");
                match self.playing.state(number) {
                    State::Ready(value) => Ok(value.clone()),
                    State::Failed(failure) => Err(failure.error),
                    State::Cancelled => Err(Kind("cancelled")),
                    State::Refused => Err(Kind("refused")),
                    State::Waiting | State::Running => panic!("closure {number} has not ended"),
                }
            }
            Json::Array(list) if list.first() == Some(&json!("list")) => all(&list[1..]).map(Value::List),
            Json::Object(object) => match object.iter().next().map(|(key, value)| (key.as_str(), value)) {
                Some(("tuple", Json::Array(list))) => all(list).map(Value::Tuple),
                Some(("dict", Json::Object(dict))) => {
                    let entry = |(key, value): (&String, &Json)| Ok((key.clone(), self.fetched(value)?));
                    dict.iter().map(entry).collect::<Result<_, _>>().map(Value::Dict)
                }
                _ => Ok(Value::parse(json)),
            },
            _ => Ok(Value::parse(json)),
        }
    }

    /// Returns the results of the closures `from..to`, which are integers.
    fn results(&mut self, from: usize, to: usize) -> Vec<i64> {
        self.drain();
        let result = |number: usize| match self.playing.state(number) {
            State::Ready(value) => integer(value),
            other => panic!("closure {number} has no result: {other:?}"),
        };
        (from..to).map(result).collect()
    }

    /// Whether results are what workers get who each take a prefix of the list.
    fn are_prefixes(&self, results: &[i64], list: &[i64]) -> bool {
        let times = |element: &i64| results.iter().filter(|result| *result == element).count();
        let counts: Vec<usize> = list.iter().map(times).collect();
        let all_are_there = counts.iter().sum::<usize>() == results.len();
        all_are_there && counts[0] <= self.attempts.len() && counts.is_sorted_by(|one, next| one >= next)
    }

    fn place(&self, variable: usize) -> Value {
        let VariablePlace { shards, servers } = &self.places[variable];
        let shape = self.playing.committed().0[variable].shape();
        let shard = |(shard, server): (usize, &Option<usize>)| {
            let rows = shape.first().map(|_| shards.rows_of(shard).len());
            let shape: Vec<usize> = rows.into_iter().chain(shape.iter().skip(1).copied()).collect();
            json!({ "server": server, "shape": shape })
        };
        let all: Vec<Json> = servers.iter().enumerate().map(shard).collect();
        Value::Other(json!({ "json": { "sharded": shards.count() > 1, "shape": shape, "shards": all } }))
    }
}

/// Returns the kind of the first failure, as TensorFlow raises it.
fn first<T>(failures: Failures<Kind>) -> Result<T, Kind> {
    Err(failures[0].error)
}

fn integer(value: &Value) -> i64 {
    let tensor = value.clone().into_tensor().expect("a tensor");
    assert_eq!(tensor.dtype(), DType::I64);
    tensor.item::<i64>().expect("a scalar")
}
