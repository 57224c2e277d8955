//! Programs with optimizers, played by a strategy of the runtime: optimizers are update functions.

use crate::{case::Case, value::Value};
use consonance::{
    ClusterCoordinator, DType, IndexedSlices, ParameterServerStrategy, RemoteValue, Result, ShardedVariable, Tensor,
    parameter_server::{FixedShardsPartitioner, WorkerContext},
};
use serde_json::{Value as Json, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const LIMIT: Duration = Duration::from_secs(60);

/// A gradient of a variable.
enum Gradient {
    Dense(Tensor),
    Rows(IndexedSlices),
}

/// The application of a gradient.
type Apply = dyn Fn(&WorkerContext<'_>, &Gradient) -> Result<()> + Send + Sync;

/// An optimizer's side of a variable.
struct Trained {
    slots: Vec<(&'static str, ShardedVariable)>,
    apply: Box<Apply>,
}

/// The variables and optimizers of a program, for its closures.
struct Known {
    variables: BTreeMap<String, ShardedVariable>,
    /// The variables of each optimizer, and the number of its steps.
    optimizers: BTreeMap<String, (BTreeMap<String, Trained>, ShardedVariable)>,
}

/// A run of a closure.
struct Run<'a> {
    worker: &'a WorkerContext<'a>,
    known: &'a Known,
    arguments: &'a [Tensor],
}

/// Plays a program, and returns the answers to its steps.
pub(super) fn play(case: &Case) -> Result<Vec<Value>> {
    let args = &case.args;
    let count = |name: &str| args[name].as_u64().expect("a number") as usize;
    let builder = ParameterServerStrategy::builder_of_threads(count("workers"), count("servers"));
    let builder = match &args["partitioner"] {
        Json::Null => builder,
        fixed => builder
            .partitioner(FixedShardsPartitioner::new(fixed[1].as_u64().expect("a fixed number of shards") as usize)?),
    };
    let strategy = builder.build()?;
    let mut variables = BTreeMap::new();
    for variable in list(&args["variables"]) {
        let initial = Value::parse(&variable["initial"]).into_tensor().expect("a tensor");
        variables.insert(text(&variable["name"]).to_owned(), strategy.variable(|| initial)?);
    }
    let mut optimizers = BTreeMap::new();
    for (name, optimizer) in args["optimizers"].as_object().expect("optimizers") {
        let mut trained = BTreeMap::new();
        for of in list(&optimizer[2]) {
            let own = trains(&strategy, &format!("{name} of {}", text(of)), optimizer, &variables[text(of)])?;
            trained.insert(text(of).to_owned(), own);
        }
        optimizers.insert(name.clone(), (trained, strategy.variable(|| Tensor::from(0i64))?));
    }
    let known = Arc::new(Known { variables, optimizers });
    let coordinator = ClusterCoordinator::new(&strategy);
    let mut functions = BTreeMap::new();
    for (name, statements) in args["functions"].as_object().expect("functions") {
        let (known, statement) = (known.clone(), statements[0][1].clone());
        let function = coordinator.function(name, move |worker, arguments: Vec<Tensor>| {
            Run { worker, known: &known, arguments: &arguments }.train(&statement)
        })?;
        functions.insert(name.clone(), function);
    }
    let mut results: Vec<RemoteValue<Tensor>> = Vec::new();
    let mut step = |step: &Json| {
        let slot = || {
            let (trained, _) = &known.optimizers[text(&step[1])];
            let (_, slot) =
                trained[text(&step[2])].slots.iter().find(|(name, _)| step[3] == *name).expect("it has this slot");
            (&known.variables[text(&step[2])], slot)
        };
        Ok(match text(&step[0]) {
            name @ ("schedule" | "schedule_each") => {
                let calls = if name == "schedule" { std::slice::from_ref(&step[2]) } else { list(&step[2]) };
                for call in calls {
                    let arguments = list(call).iter().map(|of| Value::parse(of).into_tensor().expect("a tensor"));
                    results.push(coordinator.schedule(&functions[text(&step[1])], arguments.collect::<Vec<_>>())?);
                }
                Value::none()
            }
            "join" => coordinator.join(LIMIT).map(|_| Value::none())?,
            "fetch" => {
                let number = |of: &Json| text(of)[1..].parse::<usize>().expect("a number");
                let all = list(&step[1])[1..].iter().map(|of| results[number(of)].fetch(LIMIT).map(Value::Tensor));
                Value::List(all.collect::<Result<_>>()?)
            }
            "read" => Value::Tensor(known.variables[text(&step[1])].read()?),
            "iterations" => Value::Tensor(known.optimizers[text(&step[1])].1.read()?),
            "slot" => {
                let (_, slot) = slot();
                let value = slot.read()?;
                let shards = slot.shards().into_iter().map(|(rows, _)| value.rows(rows).map(Value::Tensor));
                Value::List(shards.collect::<Result<_>>()?)
            }
            "slot_place" => {
                let (variable, slot) = slot();
                let places = variable.shards().into_iter().zip(slot.shards());
                let place = |(of, own): ((std::ops::Range<usize>, usize), (std::ops::Range<usize>, usize))| {
                    let shape = [&[own.0.len()], &slot.shape()[1..]].concat();
                    json!({ "beside": of == own, "shape": shape })
                };
                Value::Other(json!({ "json": places.map(place).collect::<Vec<_>>() }))
            }
            other => panic!("no step {other}"),
        })
    };
    list(&args["steps"]).iter().map(&mut step).collect()
}

/// Declares what an optimizer needs for a variable. The formulas are those of Keras.
fn trains(strategy: &ParameterServerStrategy, name: &str, optimizer: &Json, of: &ShardedVariable) -> Result<Trained> {
    let number = |name: &str| optimizer[1][name].as_f64().unwrap_or_default() as f32;
    let rate = number("learning_rate");
    let filled = |value: f32| {
        let count = of.shape().iter().product();
        Tensor::new(of.shape(), &vec![value; count]).expect("as many elements")
    };
    let variable = of.clone();
    Ok(match text(&optimizer[0]) {
        "sgd" if number("momentum") == 0.0 => {
            let step = strategy.update_function(name, move |values, [], gradients| {
                let gradients = gradients.as_slice::<f32>()?;
                values.as_mut_slice::<f32>()?.iter_mut().zip(gradients).for_each(|(value, g)| *value -= rate * g);
                Ok(())
            })?;
            let apply = move |worker: &WorkerContext<'_>, gradient: &Gradient| match gradient {
                Gradient::Dense(gradient) => worker.update(&step, &variable, [], gradient),
                Gradient::Rows(gradient) => worker.update_rows(&step, &variable, [], gradient),
            };
            Trained { slots: Vec::new(), apply: Box::new(apply) }
        }
        "sgd" => {
            let momentum = number("momentum");
            let step = strategy.update_function(name, move |values, [velocity], gradients| {
                let (values, velocity) = (values.as_mut_slice::<f32>()?, velocity.as_mut_slice::<f32>()?);
                for ((value, velocity), g) in values.iter_mut().zip(velocity).zip(gradients.as_slice::<f32>()?) {
                    *velocity = momentum * *velocity - rate * g;
                    *value += *velocity;
                }
                Ok(())
            })?;
            let velocity = strategy.slot(of, || filled(0.0))?;
            let slots = vec![("momentum", velocity.clone())];
            let apply = move |worker: &WorkerContext<'_>, gradient: &Gradient| match gradient {
                Gradient::Dense(gradient) => worker.update(&step, &variable, [&velocity], gradient),
                Gradient::Rows(gradient) => worker.update_rows(&step, &variable, [&velocity], gradient),
            };
            Trained { slots, apply: Box::new(apply) }
        }
        "adagrad" => {
            let epsilon = number("epsilon");
            let step = strategy.update_function(name, move |values, [sums], gradients| {
                let (values, sums) = (values.as_mut_slice::<f32>()?, sums.as_mut_slice::<f32>()?);
                for ((value, sum), g) in values.iter_mut().zip(sums).zip(gradients.as_slice::<f32>()?) {
                    *sum += g * g;
                    *value -= rate * g / (*sum + epsilon).sqrt();
                }
                Ok(())
            })?;
            let sums = strategy.slot(of, || filled(number("initial_accumulator_value")))?;
            let slots = vec![("accumulator", sums.clone())];
            let apply = move |worker: &WorkerContext<'_>, gradient: &Gradient| match gradient {
                Gradient::Dense(gradient) => worker.update(&step, &variable, [&sums], gradient),
                Gradient::Rows(gradient) => worker.update_rows(&step, &variable, [&sums], gradient),
            };
            Trained { slots, apply: Box::new(apply) }
        }
        "adam" => {
            let [first_decay, second_decay, epsilon] = ["beta_1", "beta_2", "epsilon"].map(number);
            let step = strategy.update_function(name, move |values, [m, v, steps], gradients| {
                let (values, gradients) = (values.as_mut_slice::<f32>()?, gradients.as_slice::<f32>()?);
                let (m, v) = (m.as_mut_slice::<f32>()?, v.as_mut_slice::<f32>()?);
                let steps = steps.as_mut_slice::<i32>()?;
                let width = values.len() / steps.len();
                for (place, value) in values.iter_mut().enumerate() {
                    let (row, g) = (place / width, gradients[place]);
                    steps[row] += i32::from(place.is_multiple_of(width));
                    m[place] += (g - m[place]) * (1.0 - first_decay);
                    v[place] += (g * g - v[place]) * (1.0 - second_decay);
                    let corrected = (1.0 - second_decay.powi(steps[row])).sqrt() / (1.0 - first_decay.powi(steps[row]));
                    *value -= rate * corrected * m[place] / (v[place].sqrt() + epsilon);
                }
                Ok(())
            })?;
            let (m, v) = (strategy.slot(of, || filled(0.0))?, strategy.slot(of, || filled(0.0))?);
            let steps = strategy.slot(of, || Tensor::zeros(DType::I32, [of.shape()[0]]))?;
            let slots = vec![("m", m.clone()), ("v", v.clone())];
            // All rows decay, so the gradient is dense.
            let apply = move |worker: &WorkerContext<'_>, gradient: &Gradient| {
                let update = |gradient: &Tensor| worker.update(&step, &variable, [&m, &v, &steps], gradient);
                match gradient {
                    Gradient::Dense(gradient) => update(gradient),
                    Gradient::Rows(gradient) => update(&gradient.to_dense()?),
                }
            };
            Trained { slots, apply: Box::new(apply) }
        }
        other => panic!("no optimizer {other}"),
    })
}

impl Run<'_> {
    /// Makes a step of an optimizer, and returns the loss.
    fn train(&self, statement: &Json) -> Result<Tensor> {
        assert_eq!(statement[0], "train");
        let loss = self.value(&statement[1])?;
        let mut gradients = BTreeMap::new();
        self.differentiate(&statement[1], Tensor::from(1.0f32), &mut gradients)?;
        let (trained, steps) = &self.known.optimizers[text(&statement[3])];
        for name in list(&statement[2]) {
            (trained[text(name)].apply)(self.worker, &gradients[text(name)])?;
        }
        self.worker.assign_add(steps, &Tensor::from(1i64))?;
        Ok(loss)
    }

    fn value(&self, of: &Json) -> Result<Tensor> {
        if let Json::String(argument) = of {
            return Ok(self.arguments[argument[1..].parse::<usize>().expect("a place")].clone());
        }
        let operand = |place: usize| self.value(&of[place]);
        Ok(match text(&of[0]) {
            "read" => self.worker.read(&self.known.variables[text(&of[1])])?,
            "lookup" => self.worker.lookup(&self.known.variables[text(&of[1])], &operand(2)?)?,
            "sum" => Tensor::from(operand(1)?.as_slice::<f32>()?.iter().sum::<f32>()),
            "square" => each(&operand(1)?, &operand(1)?, |a, b| a * b)?,
            "mul" => each(&operand(1)?, &operand(2)?, |a, b| a * b)?,
            "sub" => each(&operand(1)?, &operand(2)?, |a, b| a - b)?,
            other => panic!("no operator {other}"),
        })
    }

    /// Adds the gradients of the variables in an expression, whose own gradient is `outer`.
    fn differentiate(&self, of: &Json, outer: Tensor, to: &mut BTreeMap<String, Gradient>) -> Result<()> {
        if of.is_string() {
            return Ok(());
        }
        let name = || text(&of[1]).to_owned();
        match text(&of[0]) {
            "read" => drop(to.insert(name(), Gradient::Dense(outer))),
            "lookup" => {
                let shape = self.known.variables[text(&of[1])].shape().to_vec();
                let rows = IndexedSlices::new(outer, self.value(&of[2])?, Some(shape))?;
                to.insert(name(), Gradient::Rows(rows));
            }
            "sum" => {
                let value = self.value(&of[1])?;
                self.differentiate(&of[1], each(&outer, &value, |outer, _| outer)?, to)?;
            }
            "square" => {
                let inner = each(&outer, &self.value(&of[1])?, |outer, value| outer * (2.0 * value))?;
                self.differentiate(&of[1], inner, to)?;
            }
            "mul" => {
                for (own, other) in [(1, 2), (2, 1)] {
                    let inner = each(&outer, &self.value(&of[other])?, |outer, value| outer * value)?;
                    self.differentiate(&of[own], inner, to)?;
                }
            }
            "sub" => {
                self.differentiate(&of[2], each(&outer, &outer, |outer, _| -outer)?, to)?;
                self.differentiate(&of[1], outer, to)?;
            }
            other => panic!("no operator {other}"),
        }
        Ok(())
    }
}

/// Computes element by element. A scalar goes to each element of the other one.
fn each(a: &Tensor, b: &Tensor, f: impl Fn(f32, f32) -> f32) -> Result<Tensor> {
    let shape = if a.rank() < b.rank() { b.shape() } else { a.shape() };
    let (a, b) = (a.as_slice::<f32>()?, b.as_slice::<f32>()?);
    let count = shape.iter().product();
    let of = |all: &[f32], place: usize| all[if all.len() == count { place } else { 0 }];
    Tensor::new(shape, &(0..count).map(|place| f(of(a, place), of(b, place))).collect::<Vec<_>>())
}

fn text(json: &Json) -> &str {
    json.as_str().expect("text")
}

fn list(json: &Json) -> &[Json] {
    json.as_array().expect("a list")
}
