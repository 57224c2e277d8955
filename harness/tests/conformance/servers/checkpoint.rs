//! Cases of checkpoints: programs one after the other, each with servers of its own, by the
//! runtime.

use super::partition::{self, Partitions};
use crate::{
    case::{Answer, Case, Stop},
    value::Value,
};
use consonance::{
    ClusterCoordinator, DType, Error, IndexedSlices, OneDeviceStrategy, ParameterServerStrategy, Result,
    ShardedVariable, Tensor, Variable,
    checkpoint::{self, Saveable},
    parameter_server::{Function, WorkerContext},
};
use consonance_spec::parameter_server::RefusedPartition;
use serde_json::{Value as Json, json};
use std::{
    env, fs,
    ops::Range,
    path::PathBuf,
    process,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(60);

/// A partitioner of a case, for the runtime.
struct OfCase(Box<dyn Partitions + Send + Sync>);

/// The checkpoint that the programs of a case share.
struct Shared(PathBuf);

/// The variables of a program, by name.
enum Variables {
    OnServers(ParameterServerStrategy, Vec<(String, ShardedVariable)>),
    /// A program without a strategy.
    Plain(Vec<(String, Variable)>),
}

/// A function of a program.
type Declared<'a> = (&'a str, Function<Vec<Tensor>, ()>);

pub(crate) fn checkpoint(case: &Case) -> Answer {
    let shared = Shared::new();
    let programs = case.args["programs"].as_array().expect("programs");
    programs.iter().map(|program| play(program, &shared)).collect::<Result<_, Stop>>().map(Value::List)
}

fn play(program: &Json, shared: &Shared) -> Answer {
    let variables = Variables::of(program)?;
    let coordinator = match &variables {
        Variables::OnServers(strategy, _) => Some(ClusterCoordinator::new(strategy)),
        Variables::Plain(_) => None,
    };
    let mut functions = Vec::new();
    for (name, statements) in program["functions"].as_object().into_iter().flatten() {
        functions.push(declare(coordinator.as_ref().expect("servers"), name, statements, &variables)?);
    }
    let steps = program["steps"].as_array().expect("steps").iter();
    let results = steps.map(|step| match answer(step, &variables, coordinator.as_ref(), &functions, shared) {
        Ok(answer) => answer,
        Err(error) => Value::Other(json!({ "error": kind(&error) })),
    });
    Ok(Value::dict([("steps", Value::List(results.collect()))]))
}

/// Declares a function whose statements are updates by constants and arguments.
fn declare<'a>(
    coordinator: &ClusterCoordinator,
    name: &'a str,
    statements: &Json,
    variables: &Variables,
) -> Result<Declared<'a>> {
    let Variables::OnServers(_, variables) = variables else { panic!("closures need servers") };
    let (statements, variables) = (statements.as_array().expect("statements").clone(), variables.clone());
    let run = move |worker: &WorkerContext<'_>, arguments: Vec<Tensor>| {
        let operand = |json: &Json| match json.as_str().and_then(|text| text.strip_prefix('$')) {
            Some(place) => arguments[place.parse::<usize>().expect("a number")].clone(),
            None => Value::parse(json).into_tensor().expect("a tensor"),
        };
        for statement in &statements {
            let variable = named(&variables, &statement[1]);
            let value = operand(&statement[2]);
            match statement[0].as_str().expect("a statement") {
                "assign_add" => worker.assign_add(variable, &value)?,
                "scatter_add" => {
                    worker.scatter_add(variable, &IndexedSlices::new(value, operand(&statement[3]), None)?)?;
                }
                other => panic!("no statement {other}"),
            }
        }
        Ok(())
    };
    Ok((name, coordinator.function(name, run)?))
}

fn answer(
    step: &Json,
    variables: &Variables,
    coordinator: Option<&ClusterCoordinator>,
    functions: &[Declared<'_>],
    shared: &Shared,
) -> Result<Value> {
    let coordinator = || coordinator.expect("servers");
    match step[0].as_str().expect("a step") {
        "schedule_each" => {
            let (_, function) = functions.iter().find(|(name, _)| step[1] == *name).expect("a function");
            for arguments in step[2].as_array().expect("arguments") {
                let tensor = |json: &Json| Value::parse(json).into_tensor().expect("a tensor");
                let arguments: Vec<Tensor> = arguments.as_array().expect("a list").iter().map(tensor).collect();
                coordinator().schedule(function, arguments)?;
            }
        }
        "join" => drop(coordinator().join(LIMIT)?),
        "save" => checkpoint::save(&shared.0, variables.saved(&step[1]))?,
        "restore" | "restore_all" => checkpoint::restore(&shared.0, variables.saved(&step[1]))?,
        "saved" => return Ok(shared.list()),
        "read" => return variables.read(&step[1]).map(Value::Tensor),
        "shard_values" => {
            let (table, shards) = (variables.read(&step[1])?, variables.shards(&step[1]));
            let rows = shards.into_iter().map(|(rows, _)| table.rows(rows).map(Value::Tensor));
            return rows.collect::<Result<_>>().map(Value::List);
        }
        "place" => return Ok(variables.place(&step[1])),
        other => panic!("no step {other}"),
    }
    Ok(Value::none())
}

fn named<'v, V>(variables: &'v [(String, V)], name: &Json) -> &'v V {
    &variables.iter().find(|(known, _)| name == known).expect("a variable").1
}

/// Returns the kind of an error of a checkpoint.
fn kind(error: &Error) -> String {
    let Error::InvalidCall { expected, found, .. } = error else { panic!("{error}") };
    if expected.starts_with("a tensor") {
        return "not_in_checkpoint".to_owned();
    }
    let dtype = |text: &str| text.split_once('[').expect("a shape").0.rsplit(' ').next().map(str::to_owned);
    let kind = if dtype(expected) == dtype(found) { "shape_mismatch" } else { "dtype_mismatch" };
    kind.to_owned()
}

/// Returns the answers where a variable that the checkpoint lacks is refused.
pub(crate) fn refused_restore(case: &Case) -> Value {
    let [saves, restores] = [0, 1].map(|place| &case.args["programs"][place]);
    assert_eq!(saves["steps"].as_array().expect("steps").len(), 1);
    let initial = |place: usize| Value::parse(&restores["variables"][place]["initial"]);
    let (table, number) = (initial(0), initial(1));
    let tensor = table.clone().into_tensor().expect("a tensor");
    let rows = tensor.shape()[0] / 2;
    let halves = [0..rows, rows..2 * rows].map(|rows| Value::Tensor(tensor.rows(rows).expect("rows")));
    let shard = |server: usize| json!({ "server": server, "shape": [rows, tensor.shape()[1]] });
    let place = json!({ "json": { "sharded": true, "shape": tensor.shape(), "shards": [shard(0), shard(1)] } });
    let refused = Value::Other(json!({ "error": "not_in_checkpoint" }));
    let steps = |steps: Vec<Value>| Value::dict([("steps", Value::List(steps))]);
    let answers = vec![refused, table, number, Value::List(halves.into()), Value::Other(place)];
    Value::List(vec![steps(vec![Value::none()]), steps(answers)])
}

impl Variables {
    fn of(program: &Json) -> Result<Variables, Stop> {
        let values = program["variables"]
            .as_array()
            .expect("variables")
            .iter()
            .map(|variable| (variable["name"].as_str().expect("a name").to_owned(), partition::initial(variable)));
        if program["strategy"] == "none" {
            let strategy = OneDeviceStrategy::new("cpu:0")?;
            let made = values.map(|(name, value)| Ok((name, strategy.variable(|| value)?)));
            return Ok(Variables::Plain(made.collect::<Result<_>>()?));
        }
        let count = |name: &str| program[name].as_u64().expect("a number") as usize;
        let builder = ParameterServerStrategy::builder_of_threads(count("workers"), count("servers"));
        let builder = match partition::partitioner(&program["partitioner"])? {
            Some(partitioner) => builder.partitioner(OfCase(partitioner)),
            None => builder,
        };
        let strategy = builder.build()?;
        let made = values.map(|(name, value)| Ok((name, strategy.variable(|| value)?)));
        let made = made.collect::<Result<_>>()?;
        Ok(Variables::OnServers(strategy, made))
    }

    /// Returns the variables with these names, for a checkpoint.
    fn saved<'v>(&'v self, names: &'v Json) -> Vec<(&'v str, Saveable<'v>)> {
        let names = names.as_array().expect("names").iter();
        let saveable = |name: &'v Json| match self {
            Variables::OnServers(_, variables) => Saveable::from(named(variables, name)),
            Variables::Plain(variables) => Saveable::from(named(variables, name)),
        };
        names.map(|name| (name.as_str().expect("a name"), saveable(name))).collect()
    }

    fn read(&self, name: &Json) -> Result<Tensor> {
        match self {
            Variables::OnServers(_, variables) => named(variables, name).read(),
            Variables::Plain(variables) => named(variables, name).read(),
        }
    }

    /// Returns the rows of each shard, and its server.
    fn shards(&self, name: &Json) -> Vec<(Range<usize>, Option<usize>)> {
        match self {
            Variables::OnServers(_, variables) => {
                named(variables, name).shards().into_iter().map(|(rows, server)| (rows, Some(server))).collect()
            }
            Variables::Plain(variables) => vec![(0..named(variables, name).shape()[0], None)],
        }
    }

    fn place(&self, name: &Json) -> Value {
        let shape = match self {
            Variables::OnServers(_, variables) => named(variables, name).shape(),
            Variables::Plain(variables) => named(variables, name).shape(),
        };
        let shards = self.shards(name);
        let is_sharded = shards.len() > 1;
        let shard = |(rows, server): (Range<usize>, Option<usize>)| {
            let shape = [&[rows.len()], &shape[1..]].concat();
            json!({ "server": server, "shape": shape })
        };
        let shards: Vec<Json> = shards.into_iter().map(shard).collect();
        Value::Other(json!({ "json": { "sharded": is_sharded, "shape": shape, "shards": shards } }))
    }
}

impl Shared {
    fn new() -> Shared {
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        Shared(env::temp_dir().join(format!("consonance-servers-{}-{number}", process::id())))
    }

    /// Returns the names and shapes in the file, which other programs read, too.
    fn list(&self) -> Value {
        let bytes = fs::read(&self.0).expect("a checkpoint");
        let (length, rest) = bytes.split_first_chunk().expect("a length");
        let header: Json = serde_json::from_slice(&rest[..u64::from_le_bytes(*length) as usize]).expect("a header");
        let tensors = header.as_object().expect("tensors").iter().filter(|(name, _)| *name != "__metadata__");
        let mut tensors: Vec<Json> = tensors.map(|(name, of)| json!([name, of["shape"]])).collect();
        tensors.sort_by_key(|tensor| tensor[0].as_str().map(str::to_owned));
        Value::Other(json!({ "json": tensors }))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A panic in a panic would hide the message of the first.
        let _ = fs::remove_file(&self.0);
    }
}

impl Partitions for OfCase {
    fn partitions(&self, shape: &[usize], dtype: DType, axis: usize) -> Result<Vec<usize>, RefusedPartition> {
        self.0.partitions(shape, dtype, axis)
    }
}
