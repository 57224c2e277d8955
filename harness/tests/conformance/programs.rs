//! `run`, values for each replica, and queries of the contexts.

use crate::{
    case::{Answer, Case, Stop},
    value::{Value, bits, from_bits},
};
use consonance::{
    Element, Error, MirroredStrategy, PerReplica, ReplicaContext, Result, Strategy, Tensor, Variable,
    VariableAggregation, VariableSynchronization, current_strategy, has_strategy, in_cross_replica_context,
    in_replica_context,
};
use serde_json::{Value as Json, json};

pub(crate) fn run(case: &Case) -> Answer {
    let strategy = case.strategy()?;
    let list = |json: &Json| json.as_array().expect("a list").iter().map(Value::parse).collect::<Vec<_>>();
    let mut arguments: Vec<Vec<Value>> = case.raw_inputs().iter().map(list).collect();
    arguments.resize(case.replicas, Vec::new());
    for (replica, arguments) in arguments.iter_mut().enumerate() {
        arguments.extend(case.args.get("shared_args").iter().flat_map(|shared| list(shared)));
        let named = ["shared_kwargs", "per_replica_kwargs"].map(|named| &case.args[named]["scale"]);
        let scale = named.into_iter().find(|scale| !scale.is_null());
        arguments.extend(scale.map(|scale| Value::parse(scale.get(replica).unwrap_or(scale))));
    }
    let name = case.text("fn");
    if arguments[0].len() != arity(name) {
        return Err(Stop::NotExpressible);
    }
    let arguments = PerReplica::new(arguments);
    let results = match case.text("context") {
        "replica" => strategy.run(|replica| {
            let results = replica.strategy().run_with(arguments.clone(), |replica, x| replica_fn(replica, name, &x));
            results.map(|results| Value::Local(results.into_values()))
        })?,
        _ => strategy.run_with(arguments, |replica, x| replica_fn(replica, name, &x))?,
    };
    Ok(Value::dict([("local_results", Value::Local(strategy.local_results(&results)))]))
}

/// Returns the number of arguments of a replica's function.
fn arity(name: &str) -> usize {
    match name {
        "add" | "kw" => 2,
        "identity" | "add_one" | "times_id" | "list_nest" | "dict_nest" | "with_none" | "sum_square"
        | "type_of_arg" => 1,
        _ => 0,
    }
}

fn replica_fn(replica: &ReplicaContext<'_>, name: &str, x: &[Value]) -> Result<Value> {
    let scalar = |number: usize| Value::Tensor(Tensor::from(number as i32));
    let (id, replicas) = (replica.replica_id_in_sync_group(), replica.num_replicas_in_sync());
    let times = |factor: usize| combine_elements(&x[0], &Value::plain(factor), |x, factor| x * factor);
    let add_one = || combine_elements(&x[0], &Value::plain(1), |x, one| x + one);
    Ok(match name {
        "none" => Value::none(),
        "replica_id" | "replica_id_identity" => scalar(id),
        "num_replicas" => Value::plain(replicas),
        "num_replicas_tensor" => scalar(replicas),
        "py_const" => Value::plain(5),
        "py_str" => Value::plain("s"),
        "identity" => x[0].clone(),
        "add_one" => add_one(),
        "times_id" => times(id),
        "add" => combine_elements(&x[0], &x[1], |x, y| x + y),
        "tuple_id_n" => Value::Tuple(vec![scalar(id), scalar(replicas)]),
        "list_nest" => Value::List(vec![x[0].clone(), Value::List(vec![times(2), Value::dict([("k", times(3))])])]),
        "dict_nest" => Value::dict([("b", x[0].clone()), ("a", Value::Tuple(vec![add_one(), Value::none()]))]),
        "with_none" => Value::Tuple(vec![x[0].clone(), Value::none()]),
        "empty_tuple" => Value::Tuple(Vec::new()),
        "empty_list" => Value::List(Vec::new()),
        "empty_dict" => Value::dict([]),
        "kw" => combine_elements(&x[0], &x[1], |x, scale| x * scale),
        "sum_square" => {
            let squares = numbers(&x[0]).iter().map(|x| x * x).sum();
            with_numbers(&x[0], Vec::new(), &[squares])
        }
        "in_cross" => Value::Tensor(Tensor::from(in_cross_replica_context())),
        "type_of_arg" => match &x[0] {
            Value::Tensor(_) => Value::Other(json!({ "dtype": "string", "shape": [], "strings": ["tensor"] })),
            other => panic!("not a tensor: {other:?}"),
        },
        "raise" => return Err(Error::other("raised by the replica's function")),
        name => panic!("no function {name}"),
    })
}

pub(crate) fn num_replicas_in_sync(case: &Case) -> Answer {
    let strategy = case.strategy()?;
    let scalars = |name| {
        let results = strategy.run(|replica| replica_fn(replica, name, &[]));
        results.map(|results| Value::Local(results.into_values()))
    };
    Ok(Value::dict([
        ("num_replicas_in_sync", Value::plain(strategy.num_replicas_in_sync())),
        ("in_run", scalars("num_replicas_tensor")?),
        ("replica_ids", scalars("replica_id")?),
    ]))
}

pub(crate) fn values_from_function(case: &Case) -> Answer {
    let (strategy, inputs) = (case.strategy()?, case.inputs());
    let distribute = |strategy: &Strategy| {
        strategy.distribute_values_from_function(|context| {
            let (id, replicas) = (context.replica_id_in_sync_group, context.num_replicas_in_sync);
            match case.text("value_fn") {
                "value" => inputs[id].clone(),
                "replica_id" => Value::plain(id),
                "replica_id_tensor" => Value::Tensor(Tensor::from(id as i32)),
                "num_replicas" => Value::plain(replicas),
                "index_array" => Value::plain(numbers(&Value::parse(&case.args["array"]))[id]),
                "ids_dict" => {
                    Value::dict([("id", Value::Tensor(Tensor::from(id as i32))), ("n", Value::plain(replicas))])
                }
                "none" => Value::none(),
                "string" => Value::plain(format!("r{id}")),
                name => panic!("no value function {name}"),
            }
        })
    };
    let values = match case.text("context") {
        "replica" => strategy.run(|replica| Ok(Value::Local(distribute(replica.strategy())?.into_values())))?,
        _ => distribute(&strategy)?,
    };
    Ok(Value::dict([("local_results", Value::Local(strategy.local_results(&values)))]))
}

pub(crate) fn local_results(case: &Case) -> Answer {
    let (strategy, mut inputs) = (case.strategy()?, case.inputs());
    let results = match (case.text("what"), &inputs[0]) {
        ("distributed", _) => return Ok(Value::Tuple(strategy.local_results(&PerReplica::new(inputs)))),
        ("variable_on_read", Value::Tensor(initial)) => {
            let on_read = || {
                Variable::builder(|| initial.clone())
                    .synchronization(VariableSynchronization::OnRead)
                    .aggregation(VariableAggregation::Sum)
                    .build()
            };
            strategy.local_results(&strategy.scope(on_read)?)
        }
        ("variable", Value::Tensor(initial)) => {
            strategy.local_results(&strategy.scope(|| Variable::new(initial.clone()))?)
        }
        ("plain_variable", Value::Tensor(initial)) => strategy.local_results(&Variable::new(initial.clone())?),
        ("tensor", Value::Tensor(_)) => match inputs.remove(0) {
            Value::Tensor(tensor) => strategy.local_results(&tensor),
            _ => unreachable!("a tensor"),
        },
        // A value that is neither distributed, nor a variable, nor a tensor.
        _ => return Err(Stop::NotExpressible),
    };
    Ok(Value::Tuple(results.into_iter().map(Value::Tensor).collect()))
}

pub(crate) fn contexts(case: &Case) -> Answer {
    let strategy = case.strategy()?;
    let here = || {
        Value::dict([
            ("has_strategy", Value::plain(has_strategy())),
            ("in_cross_replica_context", Value::plain(in_cross_replica_context())),
            ("replica_context_is_none", Value::plain(!in_replica_context())),
            ("is_this_strategy", Value::plain(current_strategy() == strategy)),
            ("num_replicas_in_sync", Value::plain(current_strategy().num_replicas_in_sync())),
        ])
    };
    Ok(match case.text("where") {
        "outside" => here(),
        "scope" => strategy.scope(|| Ok(here()))?,
        "nested_same_scope" => strategy.scope(|| strategy.scope(|| Ok(here())))?,
        "after_scope" => {
            strategy.scope(|| Ok(()))?;
            here()
        }
        "run" => Value::Local(strategy.run(|_| Ok(here()))?.into_values()),
        "merge_call" => {
            let answers = strategy.run(|replica| replica.merge_call((), |strategy, _| Ok(strategy.mirror(here()))))?;
            answers[0].clone()
        }
        "scope_inside_run" => Value::Local(strategy.run(|_| strategy.scope(|| Ok(here())))?.into_values()),
        "nested_other_scope" => {
            let other = MirroredStrategy::new(["cpu:0"])?;
            strategy.scope(|| other.scope(|| Ok(here())))?
        }
        // The replica context outside all strategies is the default strategy's.
        "replica_context_outside" => {
            let answers = current_strategy().run(|replica| {
                Ok(Value::dict([
                    ("num_replicas_in_sync", Value::plain(replica.num_replicas_in_sync())),
                    ("replica_id_in_sync_group", Value::plain(replica.replica_id_in_sync_group())),
                ]))
            })?;
            answers[0].clone()
        }
        place => panic!("no place {place}"),
    })
}

/// Returns `f` of the elements of two tensors, computed in f64. The elements of `y` are repeated as
/// needed.
pub(crate) fn combine_elements(x: &Value, y: &Value, f: fn(f64, f64) -> f64) -> Value {
    let (left, right) = (numbers(x), numbers(y));
    let results: Vec<f64> = left.iter().enumerate().map(|(place, &x)| f(x, right[place % right.len()])).collect();
    with_numbers(x, tensor(x).shape().to_vec(), &results)
}

/// Stacks tensors of one shape along a new first axis.
pub(crate) fn stack(values: Vec<Value>) -> Result<Value> {
    let tensors: Vec<Tensor> = values.iter().map(tensor).collect();
    let shape = [&[tensors.len()], tensors[0].shape()].concat();
    let elements: Vec<u64> = tensors.iter().flat_map(bits).collect();
    Ok(Value::Tensor(from_bits(tensors[0].dtype(), shape, &elements)))
}

fn tensor(value: &Value) -> Tensor {
    value.clone().into_tensor().unwrap_or_else(|| panic!("not a tensor: {value:?}"))
}

/// Returns the elements of an i32, f32 or f64 tensor.
fn numbers(value: &Value) -> Vec<f64> {
    fn of<T: Element + Into<f64>>(tensor: &Tensor) -> Option<Vec<f64>> {
        tensor.as_slice::<T>().ok().map(|elements| elements.iter().map(|&element| element.into()).collect())
    }
    let tensor = tensor(value);
    let numbers = of::<f32>(&tensor).or_else(|| of::<i32>(&tensor)).or_else(|| of::<f64>(&tensor));
    numbers.unwrap_or_else(|| panic!("not numbers of a program: {tensor}"))
}

/// Returns a tensor of the dtype of `like`, i32 or f32.
fn with_numbers(like: &Value, shape: Vec<usize>, numbers: &[f64]) -> Value {
    let result = match tensor(like).as_slice::<i32>() {
        Ok(_) => Tensor::new(shape, &numbers.iter().map(|&number| number as i32).collect::<Vec<_>>()),
        Err(_) => Tensor::new(shape, &numbers.iter().map(|&number| number as f32).collect::<Vec<_>>()),
    };
    Value::Tensor(result.expect("as many elements as the shape says"))
}
