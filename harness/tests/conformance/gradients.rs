//! Gradients of a replica's collectives.

use crate::{
    arithmetic,
    case::{Answer, Case},
    programs::combine_elements,
    value::{Value, bits, from_bits},
};
use consonance::{PerReplica, ReduceOp, ReplicaContext, Result, Tensor, gradient};
use serde_json::Value as Json;

pub(crate) fn gradient(case: &Case) -> Answer {
    let pairs = PerReplica::new(case.nests()?.into_values().into_iter().zip(upstreams(case)).collect());
    let results = case.strategy()?.run_with(pairs, |replica, (x, upstream)| {
        let (y, grad) = through(case, replica, x, upstream)?;
        Ok(Value::dict([("y", y), ("grad", grad)]))
    })?;
    Ok(Value::Local(results.into_values()))
}

/// Returns the upstream gradient of each replica's result, if the case passes it.
fn upstreams(case: &Case) -> Vec<Option<Value>> {
    let given = case.args.get("upstream").and_then(Json::as_array);
    given.map_or_else(|| vec![None; case.replicas], |all| all.iter().map(|one| Some(Value::parse(one))).collect())
}

/// Returns the result of the case's function of `x`, and its gradient.
fn through(case: &Case, replica: &ReplicaContext<'_>, x: Value, upstream: Option<Value>) -> Result<(Value, Value)> {
    let op = || case.op().expect("an operation");
    let sum = |x: &Value| replica.all_reduce(op(), x.clone());
    let back = |upstream: Value| gradient::all_reduce(replica, op(), upstream);
    let times = |x: &Value, y: &Value| combine_elements(x, y, |x, y| x * y);
    let twice = |x: &Value| combine_elements(x, x, |x, same| x + same);
    let given = |y: &Value| upstream.clone().unwrap_or_else(|| ones(y));
    Ok(match case.text("through") {
        "all_reduce" => {
            let y = sum(&x)?;
            let grad = back(given(&y))?;
            (y, grad)
        }
        "all_reduce_twice" => {
            let y = sum(&sum(&x)?)?;
            let grad = back(back(given(&y))?)?;
            (y, grad)
        }
        "square_then_all_reduce" => {
            let y = sum(&times(&x, &x))?;
            let grad = times(&twice(&x), &back(given(&y))?);
            (y, grad)
        }
        "all_reduce_then_square" => {
            let total = sum(&x)?;
            let y = times(&total, &total);
            let grad = back(times(&twice(&total), &given(&y)))?;
            (y, grad)
        }
        "all_gather" => {
            let mut sizes = Vec::new();
            each_tensor(&x, &mut |tensor| sizes.push(tensor.shape()[case.axis() as usize]));
            let y = replica.all_gather(x, case.axis())?;
            let grad = gradient::all_gather(replica, given(&y), case.axis(), &sizes)?;
            (y, grad)
        }
        name => panic!("no way through {name}"),
    })
}

/// Returns dense tensors of ones, of the same shapes.
fn ones(y: &Value) -> Value {
    match y.clone().densify().expect("rows of a known shape") {
        Value::List(list) => Value::List(list.iter().map(ones).collect()),
        Value::Tensor(tensor) if tensor.as_slice::<f64>().is_ok() => {
            Value::Tensor(Tensor::new(tensor.shape(), &vec![1f64; tensor.count()]).expect("the same shape"))
        }
        Value::Tensor(tensor) => {
            Value::Tensor(Tensor::new(tensor.shape(), &vec![1f32; tensor.count()]).expect("the same shape"))
        }
        other => panic!("not a nest of a case: {other:?}"),
    }
}

fn each_tensor(nest: &Value, visit: &mut dyn FnMut(&Tensor)) {
    match nest {
        Value::Tensor(tensor) => visit(tensor),
        Value::List(list) => list.iter().for_each(|nest| each_tensor(nest, visit)),
        other => panic!("not a nest of a case: {other:?}"),
    }
}

/// Returns the answer by definition for one sum, or for one gather along axis 0.
pub(crate) fn by_definition(case: &Case) -> Value {
    let inputs = case.inputs();
    let gathers = case.text("through") == "all_gather";
    let y = if gathers { arithmetic::gather(&inputs) } else { arithmetic::reduce(ReduceOp::Sum, &[], &inputs) };
    let upstreams: Vec<Value> = upstreams(case).into_iter().map(|own| own.unwrap_or_else(|| ones(&y))).collect();
    let total = arithmetic::reduce(ReduceOp::Sum, &[], &upstreams);
    let result = |replica: usize| {
        let grad = if gathers { own_rows(&total, &inputs, replica) } else { total.clone() };
        Value::dict([("y", y.clone()), ("grad", grad)])
    };
    Value::Local((0..case.replicas).map(result).collect())
}

/// Returns the part of `all` at the position of the replica's input in the concatenated inputs.
fn own_rows(all: &Value, inputs: &[Value], replica: usize) -> Value {
    match all {
        Value::List(list) => {
            let entry = |input: &Value, place: usize| match input {
                Value::List(list) => list[place].clone(),
                other => panic!("not a list: {other:?}"),
            };
            let own = list.iter().enumerate().map(|(place, all)| {
                own_rows(all, &inputs.iter().map(|input| entry(input, place)).collect::<Vec<_>>(), replica)
            });
            Value::List(own.collect())
        }
        _ => {
            let tensor = |value: &Value| value.clone().into_tensor().expect("a tensor");
            let (all, own) = (tensor(all), tensor(&inputs[replica]));
            let start: usize = inputs[..replica].iter().map(|input| tensor(input).count()).sum();
            Value::Tensor(from_bits(all.dtype(), own.shape().to_vec(), &bits(&all)[start..start + own.count()]))
        }
    }
}
