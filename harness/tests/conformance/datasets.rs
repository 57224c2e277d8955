//! Data sets: the inputs of replicas, step by step.

use crate::{
    case::{Answer, Case, Stop},
    value::Value,
};
use consonance::{
    Dataset, DistributedDataset, ReduceOp, Result, Strategy, Tensor,
    dataset::{self, Column, Columns, InputContext, TensorSpec},
};
use serde_json::{Value as Json, json};

type Values = Box<dyn Dataset<Element = Value>>;

pub(crate) fn distribute_dataset(case: &Case) -> Answer {
    let strategy = case.strategy()?;
    let dataset = strategy.distribute_dataset(pipeline(&case.args["dataset"])?)?;
    iterate(case, &strategy, &dataset)
}

pub(crate) fn from_function(case: &Case) -> Answer {
    let strategy = case.strategy()?;
    let mut contexts = Vec::new();
    let dataset = strategy.distribute_datasets_from_function(|context| {
        contexts.push(Value::Other(json!({ "json": {
            "num_input_pipelines": context.num_input_pipelines,
            "input_pipeline_id": context.input_pipeline_id,
            "num_replicas_in_sync": context.num_replicas_in_sync,
        } })));
        let mut dataset = pipeline(&case.args["dataset"])?;
        if case.args["shard"] == true {
            dataset = Box::new(dataset.shard(context.num_input_pipelines, context.input_pipeline_id));
        }
        if let Some(global_batch) = case.args["global_batch"].as_u64() {
            let batches = dataset.batch(context.get_per_replica_batch_size(global_batch as usize)?);
            let drop = case.args["drop_remainder"] == true;
            dataset = if drop { Box::new(batches.drop_remainder()) } else { Box::new(batches) };
        }
        Ok(dataset)
    })?;
    match iterate(case, &strategy, &dataset)? {
        Value::Dict(mut parts) => {
            parts.insert("contexts".to_owned(), Value::List(contexts));
            Ok(Value::Dict(parts))
        }
        answer => Ok(answer),
    }
}

pub(crate) fn input_context(case: &Case) -> Answer {
    let number = |name: &str| case.args[name].as_u64().map(|number| number as usize).ok_or(Stop::NotExpressible);
    let [pipelines, id, replicas] = ["num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync"].map(number);
    let context = InputContext::new(pipelines?, id?, replicas?);
    let batch = context.get_per_replica_batch_size(number("global_batch")?)?;
    let numbers = range(&json!([number("shard_range")?]));
    let shard = numbers.shard(context.num_input_pipelines, context.input_pipeline_id).iterate(0)?;
    let shard: Vec<i64> = shard.map(|value| Ok(integers(&value?)[0])).collect::<Result<_>>()?;
    Ok(Value::dict([
        ("per_replica_batch", Value::plain(batch)),
        ("shard", Value::Other(json!({ "json": shard }))),
        // TensorFlow prints the module, too.
        ("str", Value::plain(format!("tf.distribute.{context}"))),
    ]))
}

/// Returns the batches for single replicas that the function of a case makes from a range.
pub(crate) fn batches(case: &Case) -> Vec<Vec<i64>> {
    let number = |json: &Json| json.as_u64().expect("a number") as usize;
    let size = number(&case.args["global_batch"]) / case.replicas;
    let numbers: Vec<i64> = (0..number(&case.args["dataset"]["range"][0]) as i64).collect();
    let full = |batch: &&[i64]| batch.len() == size || case.args["drop_remainder"] != true;
    numbers.chunks(size).filter(full).map(<[i64]>::to_vec).collect()
}

/// Returns the steps. Each batch goes to one replica; in the last step the remaining replicas get
/// an empty batch.
pub(crate) fn all_batches(case: &Case) -> Value {
    let steps = batches(case);
    let steps = steps.chunks(case.replicas).map(|step| {
        let mut step = step.to_vec();
        step.resize(case.replicas, Vec::new());
        Value::List(step.into_iter().map(|batch| Value::Tensor(Tensor::from(batch))).collect())
    });
    Value::List(steps.collect())
}

/// Returns the elements of a data set, as many as `limit` at most.
pub(crate) fn elements(description: &Json, limit: usize) -> Vec<Value> {
    let dataset = pipeline(description).expect("a data set");
    let elements = dataset.iterate(0).expect("elements").take(limit);
    elements.collect::<Result<_>>().expect("elements")
}

/// Returns the data set that a case describes.
fn pipeline(json: &Json) -> Result<Values> {
    let mut dataset = match json.get("range") {
        Some(bounds) => range(bounds),
        None => slices(Value::parse(&json["tensor_slices"]).into_tensor().expect("a tensor")),
    };
    for step in json["then"].as_array().into_iter().flatten() {
        let (name, argument) = step.as_object().and_then(|step| step.iter().next()).expect("one step");
        let count = || argument.as_u64().expect("a number") as usize;
        dataset = match name.as_str() {
            "batch" => Box::new(dataset.batch(count())),
            "batch_drop" => Box::new(dataset.batch(count()).drop_remainder()),
            "repeat" => Box::new(dataset.repeat(argument.as_u64())),
            "take" => Box::new(dataset.take(count())),
            "skip" => Box::new(dataset.skip(count())),
            "shard" => {
                let [count, index] = [0, 1].map(|place| argument[place].as_u64().expect("a number") as usize);
                Box::new(dataset.shard(count, index))
            }
            // Our data sets read ahead when they are distributed.
            "prefetch" => dataset,
            "map_square" => Box::new(dataset.map(|x| Ok(each(&x, |x| x * x)))),
            "map_pair" => Box::new(dataset.map(|x| {
                let halves: Vec<f32> = integers(&x).iter().map(|&x| x as f32 / 2.0).collect();
                let halves = Tensor::from(halves).reshape(shape(&x))?;
                Ok(Value::Tuple(vec![x, Value::Tensor(halves)]))
            })),
            "map_dict" => Box::new(dataset.map(|x| {
                let negative = each(&x, |x| -x);
                Ok(Value::dict([("x", x), ("y", negative)]))
            })),
            "filter_even" => Box::new(dataset.filter(|x| Ok(integers(x)[0] % 2 == 0))),
            name => panic!("no step {name}"),
        };
    }
    Ok(dataset)
}

fn range(bounds: &Json) -> Values {
    let bounds: Vec<i64> = serde_json::from_value(bounds.clone()).expect("numbers");
    let numbers: Vec<i64> = match bounds[..] {
        [end] => (0..end).collect(),
        [start, end] => (start..end).collect(),
        ref bounds => panic!("no range {bounds:?}"),
    };
    slices(Tensor::from(numbers))
}

fn slices(rows: Tensor) -> Values {
    Box::new(dataset::from_tensor_slices(Slices(rows)).expect("a column"))
}

/// A tensor with a value for each row.
struct Slices(Tensor);

impl Columns for Slices {
    type Element = Value;

    fn into_columns(self, columns: &mut Vec<Column>) -> Result<Value> {
        self.0.into_columns(columns).map(Value::Tensor)
    }
}

fn iterate(case: &Case, strategy: &Strategy, dataset: &DistributedDataset<Value>) -> Answer {
    let limit = case.args["limit"].as_u64().map_or(usize::MAX, |limit| limit as usize);
    let per_step: fn(&Case, &Strategy, consonance::PerReplica<Value>) -> Result<Value> = match case.text("iterate") {
        "element_spec" => return Ok(specs(dataset.element_spec()?, case.replicas)),
        "sum_in_function" => {
            let steps = case.args["steps"].as_u64().expect("a number") as usize;
            let sums = dataset
                .iter()
                .take(steps)
                .map(|step| strategy.reduce(ReduceOp::Sum, &step?, 0).map(|sum| integers(&sum)[0]));
            let total: i64 = sums.sum::<Result<i64>>()?;
            return Ok(Value::dict([("total", Value::Tensor(Tensor::from(total)))]));
        }
        "run_per_replica" => |case, strategy, step| {
            assert_eq!(case.text("fn"), "add_one");
            let results = strategy.run_with(step, |_, x| Ok(each(&x, |x| x + 1)))?;
            Ok(Value::List(results.into_values()))
        },
        "reduce_axis0" => |case, strategy, step| strategy.reduce(case.text("op"), &step, 0),
        _ => |_, _, step| Ok(Value::List(step.into_values())),
    };
    let times = if case.text("iterate") == "twice" { 2 } else { 1 };
    let mut steps = Vec::new();
    let mut end = String::new();
    for _ in 0..times {
        let mut iterator = dataset.iter();
        while steps.len() < limit
            && let Some(step) = iterator.next_or_none()?
        {
            steps.push(per_step(case, strategy, step)?);
        }
        // Our only end, `None`, stands for each kind of end in TensorFlow, and is reported again at
        // each request.
        let more_asks = case.args["after_end"].as_u64().unwrap_or(0) as usize;
        end = match case.text("iterate") {
            _ if steps.len() == limit => "limit".to_owned(),
            "next" => "StopIteration".to_owned(),
            "get_next" => "OutOfRangeError".to_owned(),
            "optional_get_value_after_end" => "InvalidArgumentError".to_owned(),
            "optional" => vec!["has_value=false"; 1 + more_asks].join(","),
            _ => "end_of_loop".to_owned(),
        };
        for _ in 0..more_asks {
            assert!(iterator.next_or_none()?.is_none(), "a step after the end");
        }
    }
    Ok(Value::dict([("steps", Value::List(steps)), ("end", Value::plain(end))]))
}

/// Returns the specs of one tensor, or of the entries of a map, on each replica.
fn specs(specs: Vec<TensorSpec>, replicas: usize) -> Value {
    let on_each = |spec: &TensorSpec| {
        let json = json!({ "json": { "dtype": spec.dtype.name(), "shape": spec.shape } });
        Value::Local(vec![Value::Other(json); replicas])
    };
    let key = |spec: &TensorSpec| spec.path.to_string().strip_prefix("value/").map(str::to_owned);
    match &specs[..] {
        [only] if key(only).is_none() => on_each(only),
        entries => Value::Dict(entries.iter().map(|spec| (key(spec).expect("an entry"), on_each(spec))).collect()),
    }
}

fn each(value: &Value, f: fn(i64) -> i64) -> Value {
    let results = Tensor::from(integers(value).into_iter().map(f).collect::<Vec<_>>());
    Value::Tensor(results.reshape(shape(value)).expect("as many elements"))
}

fn tensor(value: &Value) -> &Tensor {
    match value {
        Value::Tensor(tensor) => tensor,
        other => panic!("not a tensor: {other:?}"),
    }
}

fn integers(value: &Value) -> Vec<i64> {
    tensor(value).as_slice().expect("i64").to_vec()
}

fn shape(value: &Value) -> Vec<usize> {
    tensor(value).shape().to_vec()
}
