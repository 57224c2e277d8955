//! Calls of a replica: all_reduce, all_gather, merge_call.

use crate::{
    case::{Answer, Case, Stop},
    programs::{combine_elements, stack},
    value::Value,
};
use consonance::{Axes, Destinations, Error, Merged, Mirrored, PerReplica, ReplicaContext, Result, Strategy, Tensor};
use consonance::{ReduceOp, in_cross_replica_context};
use serde_json::Value as Json;
use std::collections::BTreeMap;

pub(crate) fn all_reduce(case: &Case) -> Answer {
    let (op, options) = (case.op()?, case.options()?);
    let densify = case.args.get("densify").is_some();
    let sums = case.strategy()?.run_with(case.nests()?, |replica, value| {
        let sum = replica.all_reduce_with(op.clone(), value, options)?;
        if densify { sum.densify() } else { Ok(sum) }
    })?;
    Ok(Value::Local(sums.into_values()))
}

pub(crate) fn all_gather(case: &Case) -> Answer {
    let options = case.options()?;
    let gather = |replica: &ReplicaContext<'_>, value| replica.all_gather_with(value, case.axis(), options);
    Ok(Value::Local(case.strategy()?.run_with(case.nests()?, gather)?.into_values()))
}

pub(crate) fn merge_call(case: &Case) -> Answer {
    // There is no replica context outside a replica, and a merge function always gets a
    // `PerReplica`.
    if case.text("context") == "cross" || [case.text("merge_fn"), case.text("nested")].contains(&"kinds") {
        return Err(Stop::NotExpressible);
    }
    let mut arguments: Vec<Vec<Value>> =
        case.raw_inputs().iter().map(|input| listed(input, "args", "kwargs")).collect();
    arguments.resize(case.replicas, Vec::new());
    for arguments in &mut arguments {
        arguments.extend(listed(&case.args, "shared_args", "shared_kwargs"));
    }
    let results = case.strategy()?.run_with(PerReplica::new(arguments), |replica, arguments| {
        let merged = merge(replica, case.text("merge_fn"), arguments)?;
        match case.text("nested") {
            "" => Ok(merged),
            nested => merge(replica, nested, vec![merged]),
        }
    })?;
    Ok(Value::Local(results.into_values()))
}

/// Returns the positional arguments, then the named arguments in the order of their names.
fn listed(json: &Json, places: &str, names: &str) -> Vec<Value> {
    let places = json.get(places).and_then(Json::as_array).into_iter().flatten();
    let names: BTreeMap<_, _> = json.get(names).and_then(Json::as_object).into_iter().flatten().collect();
    places.chain(names.into_values()).map(Value::parse).collect()
}

/// Makes a merge call. The arguments are an array, whose type depends on their number.
fn merge(replica: &ReplicaContext<'_>, name: &str, arguments: Vec<Value>) -> Result<Value> {
    fn call<const COUNT: usize>(replica: &ReplicaContext<'_>, name: &str, arguments: Vec<Value>) -> Result<Value> {
        let arguments: [Value; COUNT] = arguments.try_into().expect("so many arguments");
        replica.merge_call(arguments, |strategy, all| merge_fn(strategy, name, all.map(Vec::from)))
    }
    match arguments.len() {
        0 => call::<0>(replica, name, arguments),
        1 => call::<1>(replica, name, arguments),
        2 => call::<2>(replica, name, arguments),
        3 => call::<3>(replica, name, arguments),
        count => panic!("{count} arguments"),
    }
}

/// The result of a merge function: one value per replica, or the same value for all replicas.
enum Given {
    Each(PerReplica<Value>),
    Same(Mirrored<Value>),
}

impl Merged for Given {
    type Value = Value;

    fn split(self, replicas: usize) -> Vec<Value> {
        match self {
            Given::Each(values) => values.split(replicas),
            Given::Same(value) => value.split(replicas),
        }
    }
}

fn merge_fn(strategy: &Strategy, name: &str, arguments: PerReplica<Vec<Value>>) -> Result<Given> {
    let argument = |place: usize| PerReplica::new(arguments.iter().map(|own| own[place].clone()).collect());
    let only = Axes::from(None);
    let reduce = |op, place, axes: &Axes| strategy.reduce(op, &argument(place), axes.clone());
    let same = |value| Ok(Given::Same(strategy.mirror(value)));
    match name {
        "identity" => Ok(Given::Each(argument(0))),
        "args_tuple" | "kw_pair" => Ok(Given::Each(arguments.clone().map(Value::Tuple))),
        "reduce_sum" => same(reduce(ReduceOp::Sum, 0, &only)?),
        "reduce_mean" => same(reduce(ReduceOp::Mean, 0, &only)?),
        "reduce_sum_axis0" => same(reduce(ReduceOp::Sum, 0, &Axes::from(0))?),
        "reduce_to_value" => {
            Ok(Given::Same(strategy.reduce_to(ReduceOp::Sum, &argument(0), Destinations::Replicas)?))
        }
        "gather0" => same(strategy.gather(&argument(0), 0)?),
        "local_results_stack" => same(stack(strategy.local_results(&argument(0)))?),
        "local_results_tuple" => same(Value::Tuple(strategy.local_results(&argument(0)))),
        "num_replicas" => same(Value::Tensor(Tensor::from(strategy.num_replicas_in_sync() as i32))),
        "none" => same(Value::none()),
        "py_const" => same(Value::plain(7)),
        "in_cross_replica" => same(Value::Tensor(Tensor::from(in_cross_replica_context()))),
        "dict" => {
            let sum = reduce(ReduceOp::Sum, 0, &only)?;
            Ok(Given::Each(argument(0).map(|own| Value::dict([("sum", sum.clone()), ("orig", own)]))))
        }
        "list" => {
            let mean = reduce(ReduceOp::Mean, 0, &only)?;
            Ok(Given::Each(argument(0).map(|own| Value::List(vec![own, mean.clone()]))))
        }
        "kw_sum_plus" => {
            same(combine_elements(&reduce(ReduceOp::Sum, 0, &only)?, &arguments[0][1], |x, bias| x + bias))
        }
        "kw_reduce_both" => {
            same(Value::dict([("x", reduce(ReduceOp::Sum, 0, &only)?), ("y", reduce(ReduceOp::Mean, 1, &only)?)]))
        }
        "run_inside" => {
            let doubled = strategy.run_with(argument(0), |_, x| Ok(combine_elements(&x, &x, |x, same| x + same)))?;
            Ok(Given::Each(doubled))
        }
        "raise" => Err(Error::other("raised by the merge function")),
        name => panic!("no merge function {name}"),
    }
}
