//! Cases of clusters and of declarations, which the runtime answers.

use crate::{
    case::{Answer, Case, Stop},
    value::Value,
};
use consonance::{
    ClusterCoordinator, ClusterSpec, Error, ParameterServerStrategy, Result, ShardedVariable, SimpleClusterResolver,
    Tensor, parameter_server::WorkerContext,
};
use serde_json::Value as Json;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Makes a strategy for a cluster, which is refused.
pub(crate) fn cluster(case: &Case) -> Answer {
    let (mut cluster, mut ports) = (ClusterSpec::new(), 1..);
    for (job, count) in case.args["cluster"].as_object().expect("jobs") {
        let count = count.as_u64().expect("a number of tasks");
        let addresses = ports.by_ref().take(count as usize).map(|port| format!("localhost:{port}"));
        cluster = cluster.job(job, addresses)?;
    }
    let mut resolver = SimpleClusterResolver::new(cluster);
    if let Some(task) = case.args["task"].as_array() {
        let (job, index) = (task[0].as_str().expect("a job"), task[1].as_u64().expect("an index"));
        resolver = match resolver.with_task(job, index as usize) {
            Err(Error::InvalidCall { argument, .. }) if argument == "task index" => {
                return Err(Stop::OfSpec("bad_task"));
            }
            resolver => resolver?,
        };
    }
    match ParameterServerStrategy::builder(resolver) {
        Ok(_) => panic!("a strategy for {}", case.args["cluster"]),
        Err(Error::InvalidCall { argument, found, .. }) if argument == "cluster" => Err(Stop::OfSpec(lack(&found))),
        Err(error) => Err(error.into()),
    }
}

/// Returns the kind of the error for the jobs that an error has found.
fn lack(found: &str) -> &'static str {
    let has = |job: &str| found.contains(&format!("{job} (")) && !found.contains(&format!("{job} (0)"));
    match found {
        "no jobs" => "empty_cluster",
        _ if !has("ps") => "no_servers",
        _ if !has("worker") => "no_workers",
        _ => "no_chief",
    }
}

/// The steps of a case with a variable `n` and a function that adds to it.
struct Counting {
    strategy: ParameterServerStrategy,
    number: ShardedVariable,
    coordinator: ClusterCoordinator,
}

impl Counting {
    fn new(case: &Case) -> Result<Counting> {
        let count = |name: &str| case.args[name].as_u64().expect("a number") as usize;
        let strategy = ParameterServerStrategy::threads(count("workers"), count("servers"))?;
        let initial = Value::parse(&case.args["variables"][0]["initial"]).into_tensor().expect("a tensor");
        let number = strategy.variable(|| initial)?;
        let coordinator = ClusterCoordinator::new(&strategy);
        Ok(Counting { strategy, number, coordinator })
    }

    fn add(&self) -> impl Fn(&WorkerContext<'_>, Tensor) -> Result<Tensor> + Send + Sync + 'static {
        let number = self.number.clone();
        move |worker, more| {
            worker.assign_add(&number, &more)?;
            worker.read(&number)
        }
    }
}

/// Returns the argument of the first closure of a case.
fn argument(case: &Case) -> Tensor {
    let steps = case.args["steps"].as_array().expect("steps");
    let schedule = steps.iter().find(|step| step[0] == "schedule").expect("a closure");
    Value::parse(&schedule[2][0]).into_tensor().expect("a tensor")
}

/// Declares a variable after a closure was scheduled.
pub(crate) fn late(case: &Case) -> Answer {
    let counting = Counting::new(case)?;
    let ok = counting.coordinator.function("ok", counting.add())?;
    counting.coordinator.schedule(&ok, argument(case))?;
    counting.coordinator.join(LIMIT)?;
    counting.strategy.variable(|| Tensor::from(40i64))?;
    panic!("a variable after the first closure")
}

/// Makes a second coordinator, before a closure and after it. It is the first one.
pub(crate) fn second_coordinator(case: &Case) -> Answer {
    let counting = Counting::new(case)?;
    let ok = counting.coordinator.function("ok", counting.add())?;
    let second = ClusterCoordinator::new(&counting.strategy);
    let has_its_function = second.function("ok", counting.add()).is_err();
    let value = counting.coordinator.schedule(&ok, argument(case))?;
    let third = ClusterCoordinator::new(&counting.strategy);
    third.join(LIMIT)?;
    let has_its_closures = value.is_ready();
    let results = vec![
        Value::plain(has_its_function),
        Value::none(),
        Value::plain(has_its_closures),
        Value::Tensor(value.fetch(LIMIT)?),
    ];
    Ok(Value::dict([("steps", Value::List(results))]))
}

/// Whether a step of a case has this name.
pub(crate) fn has_step(case: &Case, name: &str) -> bool {
    case.args["steps"].as_array().into_iter().flatten().any(|step: &Json| step[0] == name)
}
