//! Calls of the cross-replica context: reduce, gather, reduce_to, batch_reduce_to.

use crate::{
    case::{Answer, Case, Op, Stop},
    value::Value,
};
use consonance::{Axes, Destinations, Error, Mirrored, PerReplica, Strategy};
use serde_json::Value as Json;

pub(crate) fn reduce(case: &Case) -> Answer {
    let (op, value, axes) = (case.op()?, case.nests()?, case.axes());
    let axes = axes.map_or(Axes::from(None), |axes| Axes::from(axes.as_slice()));
    in_context(case, |strategy| strategy.reduce(op.clone(), &value, axes.clone()))
}

pub(crate) fn gather(case: &Case) -> Answer {
    let value = case.nests()?;
    in_context(case, |strategy| strategy.gather(&value, case.axis()))
}

pub(crate) fn reduce_to(case: &Case) -> Answer {
    let (op, value) = (case.op()?, case.nests()?);
    in_context(case, |strategy| {
        let reduced = match case.text("destinations") {
            "value" => strategy.reduce_to(op.clone(), &value, Destinations::Replicas)?,
            device => strategy.reduce_to(op.clone(), &value, device)?,
        };
        Ok(placed(strategy, reduced, case.text("destinations")))
    })
}

pub(crate) fn batch_reduce_to(case: &Case) -> Answer {
    let op: Op = case.op()?;
    let lists = case.nests()?.map(|list| match list {
        Value::List(list) => list,
        other => panic!("not a list: {other:?}"),
    });
    let destinations: Vec<&str> =
        case.args["destinations"].as_array().expect("a list").iter().filter_map(Json::as_str).collect();
    let pairs = destinations.iter().enumerate().map(|(place, &destination)| {
        let value = PerReplica::new(lists.iter().map(|list| list[place].clone()).collect());
        let destination = match destination {
            "value" => Destinations::Replicas,
            device => device.try_into()?,
        };
        Ok((value, destination))
    });
    let pairs: Vec<(PerReplica<Value>, Destinations)> = pairs.collect::<Result<_, Error>>()?;
    in_context(case, |strategy| {
        let reduced = strategy.batch_reduce_to(op.clone(), &pairs)?;
        let reduced = reduced.into_iter().zip(&destinations).map(|(value, to)| placed(strategy, value, to));
        Ok(Value::List(reduced.collect()))
    })
}

/// Returns a value on one device as it is, and a value on all replicas' devices as local results.
fn placed(strategy: &Strategy, value: Mirrored<Value>, destination: &str) -> Value {
    match destination {
        "value" => Value::Local(strategy.local_results(&value)),
        _ => value.into_value(),
    }
}

/// Makes the call outside all scopes or, if the case says so, in a replica.
fn in_context(case: &Case, call: impl Fn(&Strategy) -> Result<Value, Error> + Sync) -> Answer {
    let strategy = case.strategy()?;
    match case.text("context") {
        "replica" => Ok(Value::Local(strategy.run(|replica| call(replica.strategy()))?.into_values())),
        _ => call(&strategy).map_err(Stop::from),
    }
}
