//! Cluster resolvers: made from the case's environment, with the same queries as TensorFlow's.

use crate::{
    case::{Answer, Case, Stop, kind},
    value::Value,
};
use consonance::{
    ClusterResolver, ClusterSpec, Result, SimpleClusterResolver, SlurmClusterResolver, TfConfigClusterResolver,
    UnionResolver,
    cluster::{expand_hostlist, expand_tasks_per_node},
};
use serde_json::{Value as Json, json};

pub(crate) fn cluster_resolver(case: &Case) -> Answer {
    let Resolver { resolver, visible_devices } = Resolver::made(case, &case.args["resolver"])?;
    let asked = |arguments: &Json| {
        let text = |name: &str| arguments.get(name).and_then(Json::as_str);
        answered(resolver.master(text("task_type"), arguments.get("task_id").map(index), text("rpc_layer")))
    };
    let mut answers = vec![
        ("cluster_spec".to_owned(), specified(resolver.cluster_spec())),
        ("task_type".to_owned(), plain(resolver.task_type())),
        ("task_id".to_owned(), plain(resolver.task_id())),
        ("rpc_layer".to_owned(), plain(resolver.rpc_layer())),
        ("master".to_owned(), asked(&json!({}))),
    ];
    let kind = case.args["resolver"]["kind"].as_str();
    if kind != Some("tfconfig") {
        answers.push(("num_accelerators".to_owned(), plain(json!(resolver.num_accelerators()))));
    }
    if let Some(devices) = visible_devices {
        answers.push(("cuda_visible_devices".to_owned(), plain(devices)));
        answers.push(("get_task_info".to_owned(), plain(json!([resolver.task_type(), resolver.task_id()]))));
    }
    for (call, arguments) in case.args.get("master_calls").and_then(Json::as_array).into_iter().flatten().enumerate() {
        answers.push((format!("master_{call}"), asked(arguments)));
    }
    Ok(Value::Dict(answers.into_iter().collect()))
}

struct Resolver {
    resolver: Box<dyn ClusterResolver>,
    /// The visible devices that TensorFlow's Slurm resolver sets and ours returns.
    visible_devices: Option<String>,
}

impl Resolver {
    fn made(case: &Case, told: &Json) -> std::result::Result<Resolver, Stop> {
        let environment = |name: &str| case.args.get("env")?.get(name)?.as_str().map(str::to_owned);
        let argument = |name: &str| told.get("kwargs").and_then(|arguments| arguments.get(name));
        let text = |name: &str| argument(name).and_then(Json::as_str);
        let task = text("task_type").zip(argument("task_id").map(index));
        let mut visible_devices = None;
        let resolver: Box<dyn ClusterResolver> = match told["kind"].as_str() {
            Some("tfconfig") => {
                let mut resolver = TfConfigClusterResolver::from_environment(environment)?;
                // The type and the id may each be passed alone. The other then comes from
                // TF_CONFIG.
                if argument("task_type").or(argument("task_id")).is_some() {
                    let task_type = text("task_type").or(resolver.task_type()).map(str::to_owned);
                    let task_id = argument("task_id").map(index).or(resolver.task_id());
                    if let Some((task_type, task_id)) = task_type.zip(task_id) {
                        resolver = resolver.with_task(&task_type, task_id)?;
                    }
                }
                if let Some(rpc_layer) = text("rpc_layer") {
                    resolver = resolver.with_rpc_layer(rpc_layer);
                }
                Box::new(resolver)
            }
            Some("simple") => {
                if told["cluster"].is_null() || argument("master").is_some_and(|master| !master.is_string()) {
                    return Err(Stop::NotExpressible);
                }
                let mut resolver = SimpleClusterResolver::new(told["cluster"].to_string().parse()?);
                if let Some((task_type, task_id)) = task {
                    resolver = resolver.with_task(task_type, task_id)?;
                }
                resolver = resolver.with_master(text("master").unwrap_or_default());
                if let Some(rpc_layer) = text("rpc_layer") {
                    resolver = resolver.with_rpc_layer(rpc_layer);
                }
                for (accelerator, count) in entries(argument("num_accelerators")) {
                    resolver = resolver.with_num_accelerators(&accelerator, count);
                }
                Box::new(resolver)
            }
            Some("union") => {
                if !has_known_names(told) {
                    return Err(Stop::NotExpressible);
                }
                let members = told["of"].as_array().expect("a list of resolvers").iter();
                let members = members.map(|member| Ok(Resolver::made(case, member)?.resolver));
                let mut resolver = UnionResolver::new(members.collect::<std::result::Result<Vec<_>, Stop>>()?)?;
                if let Some((task_type, task_id)) = task {
                    resolver = resolver.with_task(task_type, task_id)?;
                }
                if let Some(rpc_layer) = text("rpc_layer") {
                    resolver = resolver.with_rpc_layer(rpc_layer);
                }
                Box::new(resolver)
            }
            Some("slurm") => {
                let resolver = slurm(argument, environment)?;
                visible_devices = if argument("auto_set_gpu") == Some(&Json::Bool(false)) {
                    environment("CUDA_VISIBLE_DEVICES")
                } else {
                    Some(resolver.gpus().map(|gpu| gpu.to_string()).collect::<Vec<_>>().join(","))
                };
                Box::new(resolver)
            }
            // Not a resolver.
            Some("junk") => return Err(Stop::NotExpressible),
            kind => panic!("no resolver {kind:?}"),
        };
        Ok(Resolver { resolver, visible_devices })
    }
}

fn slurm<'a>(
    argument: impl Fn(&str) -> Option<&'a Json>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<SlurmClusterResolver> {
    let number = |name: &str| argument(name).map(index);
    let mut builder = SlurmClusterResolver::builder();
    if argument("jobs").is_some() {
        builder = builder.jobs(entries(argument("jobs")));
    }
    if argument("tasks_per_node").is_some() {
        builder = builder.tasks_per_node(entries(argument("tasks_per_node")));
    }
    if let Some(port) = number("port_base") {
        builder = builder.port_base(port.try_into().expect("a port"));
    }
    if let Some(gpus) = number("gpus_per_node") {
        builder = builder.gpus_per_node(gpus);
    }
    if let Some(gpus) = number("gpus_per_task") {
        builder = builder.gpus_per_task(gpus);
    }
    if let Some(rpc_layer) = argument("rpc_layer") {
        builder = builder.rpc_layer(rpc_layer.as_str());
    }
    builder.build_from(environment)
}

pub(crate) fn cluster_spec(case: &Case) -> Answer {
    let spec: ClusterSpec = case.args["cluster"].to_string().parse()?;
    let mut answers = vec![("spec".to_owned(), specified(&spec))];
    for (place, call) in case.args["calls"].as_array().expect("a list of calls").iter().enumerate() {
        let job = call[1].as_str().expect("a job");
        let answer = match call[0].as_str() {
            Some("num_tasks") => answered(spec.num_tasks(job)),
            Some("task_indices") => answered(spec.task_indices(job)),
            Some("task_address") => answered(spec.task_address(job, index(&call[2]))),
            Some("job_tasks") => answered(spec.job_tasks(job)),
            method => panic!("no method {method:?}"),
        };
        answers.push((format!("call_{place}"), answer));
    }
    Ok(Value::Dict(answers.into_iter().collect()))
}

pub(crate) fn slurm_expand(case: &Case) -> Answer {
    Ok(match case.text("function") {
        "expand_hostlist" => plain(expand_hostlist(case.text("text"))?),
        "expand_tasks_per_node" => plain(expand_tasks_per_node(case.text("text"))?),
        function => panic!("no function {function}"),
    })
}

fn specified(spec: &ClusterSpec) -> Value {
    let dict: Json = serde_json::from_str(&spec.to_string()).expect("JSON");
    // For a job without tasks TensorFlow does not distinguish a list from a dict.
    let dict = dict.as_object().expect("an object").iter().map(|(job, tasks)| {
        let is_empty = tasks.as_array().is_some_and(Vec::is_empty);
        (job.clone(), if is_empty { json!({}) } else { tasks.clone() })
    });
    plain(json!({ "jobs": spec.jobs(), "as_dict": dict.collect::<serde_json::Map<_, _>>() }))
}

/// Returns whether TensorFlow has each argument of a union.
pub(crate) fn has_known_names(union: &Json) -> bool {
    let mut names = union["kwargs"].as_object().into_iter().flat_map(|arguments| arguments.keys());
    names.all(|name| ["task_type", "task_id", "environment", "rpc_layer"].contains(&&name[..]))
}

pub(crate) fn plain(value: impl Into<Json>) -> Value {
    Value::Other(json!({ "json": value.into() }))
}

fn answered(result: Result<impl Into<Json>>) -> Value {
    match result {
        Ok(value) => plain(value),
        Err(error) => Value::Other(json!({ "error": kind(&error) })),
    }
}

/// Returns a number, which may be written as text.
fn index(json: &Json) -> usize {
    match json {
        Json::String(text) => text.parse().expect("a number"),
        number => number.as_u64().expect("a number") as usize,
    }
}

fn entries(json: Option<&Json>) -> Vec<(String, usize)> {
    let object = json.and_then(Json::as_object).into_iter().flatten();
    object.map(|(name, number)| (name.clone(), index(number))).collect()
}
