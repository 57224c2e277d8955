//! The cases in which our answers on clusters differ from TensorFlow's: conditions on a case, and
//! the answers, computed a second time in the plainest way.

use crate::{
    case::Case,
    resolvers::{has_known_names, plain},
    value::Value,
};
use consonance::cluster::{expand_hostlist, expand_tasks_per_node};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;

type Tasks = BTreeMap<usize, String>;
type Cluster = Vec<(String, Tasks)>;

/// Returns the `TF_CONFIG` that a resolver of the case reads.
fn text(case: &Case) -> Option<&str> {
    let reads = resolvers(case).iter().any(|told| told["kind"] == "tfconfig");
    reads.then(|| case.args["env"]["TF_CONFIG"].as_str()).flatten()
}

fn config(case: &Case) -> Option<Json> {
    serde_json::from_str(text(case)?).ok()
}

fn members(told: &Json) -> &[Json] {
    told["of"].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the resolver of the case, and all resolvers within it.
fn resolvers(case: &Case) -> Vec<&Json> {
    let mut all = vec![&case.args["resolver"]];
    let mut next = 0;
    while let Some(told) = all.get(next).copied() {
        all.extend(members(told));
        next += 1;
    }
    all
}

fn is_union(case: &Case) -> bool {
    case.args["resolver"]["kind"] == "union"
}

pub(crate) fn empty_text(case: &Case) -> bool {
    text(case) == Some("")
}

pub(crate) fn no_json(case: &Case) -> bool {
    text(case).is_some_and(|text| !text.is_empty()) && config(case).is_none()
}

/// Returns whether an object of `TF_CONFIG` has a key twice: then the text has more keys than the
/// parsed value.
pub(crate) fn key_twice(case: &Case) -> bool {
    fn read(json: &Json) -> usize {
        match json {
            Json::Array(list) => list.iter().map(read).sum(),
            Json::Object(object) => object.len() + object.values().map(read).sum::<usize>(),
            _ => 0,
        }
    }
    let Some((text, config)) = text(case).zip(config(case)) else { return false };
    // Every second part between quotes is inside a string. No case has a quote in a string.
    let written = text.split('"').skip(2).step_by(2).filter(|after| after.trim_start().starts_with(':')).count();
    written != read(&config)
}

/// Returns whether a part of `TF_CONFIG` has another JSON type than the format requires.
pub(crate) fn other_type(case: &Case) -> bool {
    let Some(config) = config(case) else { return false };
    let text = |json: &Json| json.is_string();
    let tasks = |tasks: &Json| match tasks {
        Json::Array(list) => list.iter().all(text),
        Json::Object(object) => object.values().all(text),
        _ => false,
    };
    let cluster = |cluster: &Json| cluster.as_object().is_some_and(|jobs| jobs.values().all(tasks));
    let optional = |name: &str| config.get(name).is_none_or(|json| json.is_null() || json.is_string());
    let right = config.is_object()
        && config.get("cluster").is_none_or(cluster)
        && config.get("task").is_none_or(|task| task["type"].is_string())
        && optional("rpc_layer")
        && optional("session_master");
    !right
}

/// Returns whether a task id or an index is not a number, or the task is not in its cluster.
pub(crate) fn wrong_task(case: &Case) -> bool {
    let of_config =
        || config(case).is_some_and(|config| config.get("task").is_some_and(|task| number(&task["index"]).is_none()));
    resolvers(case).into_iter().any(|told| match (cluster(case, told), told["kind"].as_str()) {
        (_, Some("tfconfig")) if of_config() => true,
        (None, kind) => matches!(kind, Some("tfconfig" | "simple")),
        (Some(cluster), _) => {
            // An evaluator need not be in the cluster. A cluster without jobs accepts any task.
            let is_absent = |(job, index): (String, usize)| match find(&cluster, &job) {
                Some(tasks) => !tasks.contains_key(&index),
                None => !cluster.is_empty() && job != "evaluator",
            };
            task(case, told).is_some_and(is_absent) || own_task(case, told).is_some_and(is_absent)
        }
    })
}

/// Returns whether two resolvers of a union have a task with the same job and index.
pub(crate) fn task_twice(case: &Case) -> bool {
    is_union(case) && merged(case, &case.args["resolver"]).is_none()
}

/// Returns whether two tasks of a union have the same address.
pub(crate) fn address_twice(case: &Case) -> bool {
    let addresses = |cluster: Cluster| {
        let mut all: Vec<String> = cluster.into_iter().flat_map(|(_, tasks)| tasks.into_values()).collect();
        all.sort();
        all.windows(2).any(|pair| pair[0] == pair[1])
    };
    is_union(case) && merged(case, &case.args["resolver"]).is_some_and(addresses)
}

/// Returns whether an argument has a type that our resolver does not take.
pub(crate) fn no_argument(case: &Case) -> bool {
    resolvers(case).into_iter().any(|told| {
        let master = &told["kwargs"]["master"];
        let is_master = master.is_null() || master.is_string();
        told["kind"] == "junk" || (told["kind"] == "simple" && (told["cluster"].is_null() || !is_master))
    })
}

/// Returns whether an argument has a name that TensorFlow does not know.
pub(crate) fn no_name(case: &Case) -> bool {
    resolvers(case).into_iter().any(|told| told["kind"] == "union" && !has_known_names(told))
}

/// Returns whether a union has the protocol of one of its resolvers, and the case asks for an
/// address by its task.
pub(crate) fn protocol_of_a_member(case: &Case) -> bool {
    let told = &case.args["resolver"];
    let asked = master_calls(case).any(|(_, call)| call.get("task_id").is_some() && call.get("rpc_layer").is_none());
    is_union(case)
        && told["kwargs"]["rpc_layer"].is_null()
        && protocol(told).is_some_and(|layer| !layer.is_empty())
        && asked
}

/// Returns whether the protocol of a union is empty where its first resolver has one, or that of a
/// resolver after the first.
pub(crate) fn protocol_not_of_the_first(case: &Case) -> bool {
    fn of_the_first(told: &Json) -> Option<&str> {
        let own = told["kwargs"]["rpc_layer"].as_str().filter(|layer| !layer.is_empty());
        own.or_else(|| of_the_first(members(told).first()?))
    }
    let told = &case.args["resolver"];
    is_union(case) && protocol(told).unwrap_or_default() != of_the_first(told).unwrap_or_default()
}

/// Returns whether the task of a union comes from a resolver after the first.
pub(crate) fn task_of_a_later_member(case: &Case) -> bool {
    fn of_the_first(case: &Case, told: &Json) -> Option<(String, usize)> {
        own_task(case, told).or_else(|| of_the_first(case, members(told).first()?))
    }
    let told = &case.args["resolver"];
    is_union(case) && of_the_first(case, told).is_none() && task(case, told).is_some()
}

/// Returns a union's task, its protocol, and the addresses for which the case asks by their tasks.
pub(crate) fn of_union(case: &Case) -> Value {
    let told = &case.args["resolver"];
    let task = task(case, told);
    let mut parts = BTreeMap::from([
        ("task_type".to_owned(), plain(task.as_ref().map(|(job, _)| job.clone()))),
        ("task_id".to_owned(), plain(task.map(|(_, index)| index))),
        ("rpc_layer".to_owned(), plain(protocol(told))),
    ]);
    let cluster = merged(case, told).expect("a union of different tasks");
    for (place, call) in master_calls(case) {
        let Some((job, index)) = call["task_type"].as_str().zip(number(&call["task_id"])) else { continue };
        let Some(address) = find(&cluster, job).and_then(|tasks| tasks.get(&index)) else { continue };
        let layer = call["rpc_layer"].as_str().or_else(|| protocol(told));
        parts.insert(format!("master_{place}"), plain(url(layer, address)));
    }
    Value::Dict(parts)
}

/// Returns the answer of an empty `TF_CONFIG`.
pub(crate) fn of_nothing(case: &Case) -> Value {
    let calls = master_calls(case).map(|(place, _)| format!("master_{place}"));
    let mut parts: BTreeMap<_, _> = calls.chain(["master".to_owned()]).map(|name| (name, plain(""))).collect();
    parts.insert("cluster_spec".to_owned(), specified(&Vec::new()));
    parts.extend(["task_type", "task_id", "rpc_layer"].map(|name| (name.to_owned(), plain(Json::Null))));
    Value::Dict(parts)
}

fn master_calls(case: &Case) -> impl Iterator<Item = (usize, &Json)> {
    case.args.get("master_calls").and_then(Json::as_array).into_iter().flatten().enumerate()
}

/// Returns the protocol of a resolver. For a union, that of the first resolver that has one.
fn protocol(told: &Json) -> Option<&str> {
    told["kwargs"]["rpc_layer"].as_str().or_else(|| members(told).iter().find_map(protocol))
}

fn url(layer: Option<&str>, address: &str) -> String {
    let layer = layer.filter(|layer| !layer.is_empty());
    layer.map_or_else(|| address.to_owned(), |layer| format!("{layer}://{address}"))
}

/// Returns the jobs of a resolver; `None` if an index is not a number.
fn cluster(case: &Case, told: &Json) -> Option<Cluster> {
    let jobs = match told["kind"].as_str()? {
        "simple" => told["cluster"].clone(),
        "tfconfig" if text(case).is_none_or(str::is_empty) => json!({}),
        "tfconfig" => config(case)?.get("cluster").cloned().unwrap_or_else(|| json!({})),
        "union" => return merged(case, told),
        _ => return None,
    };
    let tasks = |tasks: &Json| -> Option<Tasks> {
        let text = |json: &Json| json.as_str().map(str::to_owned);
        match tasks {
            Json::Array(list) => list.iter().map(text).enumerate().map(|(index, task)| Some((index, task?))).collect(),
            Json::Object(tasks) => {
                tasks.iter().map(|(key, task)| Some((number(&Json::String(key.clone()))?, text(task)?))).collect()
            }
            _ => None,
        }
    };
    jobs.as_object()?.iter().map(|(job, list)| Some((job.clone(), tasks(list)?))).collect()
}

/// Returns the jobs of all resolvers of a union. If the indices of a job have no gaps, its tasks
/// follow one another; otherwise tasks keep their indices. `None` if a task occurs twice.
fn merged(case: &Case, told: &Json) -> Option<Cluster> {
    let all: Vec<Cluster> = members(told).iter().map(|member| cluster(case, member)).collect::<Option<_>>()?;
    let mut cluster = Cluster::new();
    for (job, _) in all.iter().flatten() {
        if find(&cluster, job).is_some() {
            continue;
        }
        let mut tasks = Tasks::new();
        for (owner, part) in all.iter().enumerate() {
            for (index, address) in find(part, job).into_iter().flatten() {
                if tasks.insert(index + shift(&all, owner, job), address.clone()).is_some() {
                    return None;
                }
            }
        }
        cluster.push((job.clone(), tasks));
    }
    Some(cluster)
}

fn shift(all: &[Cluster], owner: usize, job: &str) -> usize {
    let has_no_gaps =
        |cluster: &Cluster| find(cluster, job).is_none_or(|tasks| tasks.keys().copied().eq(0..tasks.len()));
    match all.iter().all(has_no_gaps) {
        true => all[..owner].iter().filter_map(|cluster| find(cluster, job)).map(Tasks::len).sum(),
        false => 0,
    }
}

fn find<'a>(cluster: &'a Cluster, job: &str) -> Option<&'a Tasks> {
    cluster.iter().find(|(name, _)| name == job).map(|(_, tasks)| tasks)
}

/// Returns the task that is passed to a resolver.
fn own_task(case: &Case, told: &Json) -> Option<(String, usize)> {
    let of_config = || Some(config(case)?.get("task")?.clone()).filter(|_| told["kind"] == "tfconfig");
    let task = of_config().unwrap_or(Json::Null);
    let job = told["kwargs"]["task_type"].as_str().or(task["type"].as_str())?;
    Some((job.to_owned(), number(&told["kwargs"]["task_id"]).or(number(&task["index"]))?))
}

/// Returns the task of a resolver. For a union, the task of the first resolver that has a task.
fn task(case: &Case, told: &Json) -> Option<(String, usize)> {
    own_task(case, told).or_else(|| {
        let all: Vec<Cluster> = members(told).iter().map(|member| cluster(case, member)).collect::<Option<_>>()?;
        let (owner, (job, index)) =
            members(told).iter().enumerate().find_map(|(owner, member)| Some((owner, task(case, member)?)))?;
        let index = index + shift(&all, owner, &job);
        Some((job, index))
    })
}

/// Returns a number from 0, which may be written as text.
fn number(json: &Json) -> Option<usize> {
    match json {
        Json::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        json => json.as_u64().map(|number| number as usize),
    }
}

fn specified(cluster: &Cluster) -> Value {
    let tasks = |tasks: &Tasks| match tasks.keys().copied().eq(0..tasks.len()) && !tasks.is_empty() {
        true => json!(tasks.values().collect::<Vec<_>>()),
        false => json!(tasks.iter().map(|(index, address)| (index.to_string(), address)).collect::<BTreeMap<_, _>>()),
    };
    let jobs: Vec<&String> = cluster.iter().map(|(job, _)| job).collect();
    let dict: Map<String, Json> = cluster.iter().map(|(job, list)| (job.clone(), tasks(list))).collect();
    plain(json!({ "jobs": jobs, "as_dict": dict }))
}

/// Returns the nodes of a Slurm case with their numbers of tasks; `None` if the two lists do not
/// match.
fn nodes(case: &Case) -> Option<Vec<(String, usize)>> {
    let told = &case.args["resolver"];
    let first = |names: [&str; 2]| names.into_iter().find_map(|name| case.args["env"][name].as_str());
    if told["kind"] != "slurm" {
        return None;
    }
    if let Some(given) = told["kwargs"]["tasks_per_node"].as_object() {
        return given.iter().map(|(host, tasks)| Some((host.clone(), number(tasks)?))).collect();
    }
    let hosts = expand_hostlist(first(["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"])?).ok()?;
    let tasks = expand_tasks_per_node(first(["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"])?).ok()?;
    (hosts.len() == tasks.len()).then(|| hosts.into_iter().zip(tasks).collect())
}

pub(crate) fn nodes_without_tasks(case: &Case) -> bool {
    let told = &case.args["resolver"];
    told["kind"] == "slurm" && case.is_answered() && nodes(case).is_none()
}

pub(crate) fn no_gpus(case: &Case) -> bool {
    nodes(case).is_some() && case.args["resolver"]["kwargs"]["gpus_per_node"] == 0
}

pub(crate) fn unsaid_number_of_tasks(case: &Case) -> bool {
    nodes(case).is_some() && case.args["env"]["SLURM_STEP_NUM_TASKS"].is_null() && !case.is_answered()
}

/// Returns whether the names of a case's nodes are not in alphabetical order.
pub(crate) fn unsorted_nodes(case: &Case) -> bool {
    case.is_answered() && nodes(case).is_some_and(|nodes| !nodes.is_sorted_by(|one, next| one.0 <= next.0))
}

pub(crate) fn are_given(case: &Case) -> bool {
    case.args["resolver"]["kwargs"]["tasks_per_node"].is_object()
}

/// Returns the answer of the Slurm resolver: tasks node by node, jobs in the order of their names.
pub(crate) fn of_slurm(case: &Case) -> Value {
    let given = |name: &str| case.args["resolver"]["kwargs"].get(name);
    let environment = |name: &str| case.args["env"][name].as_str();
    let nodes = nodes(case).expect("nodes with tasks");
    let base = given("port_base").and_then(number).unwrap_or(8888);
    let places = nodes
        .iter()
        .flat_map(|(host, tasks)| (0..*tasks).map(move |local| (local, format!("{host}:{}", base + local))));
    let places: Vec<(usize, String)> = places.collect();
    let counts = given("jobs").and_then(Json::as_object).into_iter().flatten();
    let mut counts: BTreeMap<String, usize> =
        counts.filter_map(|(job, count)| Some((job.clone(), number(count)?))).collect();
    if counts.is_empty() {
        counts.insert("worker".to_owned(), places.len());
    }
    let process: usize = environment("SLURM_PROCID").and_then(|text| text.parse().ok()).expect("a process's number");
    let (mut cluster, mut own, mut next) = (Cluster::new(), None, 0);
    for (job, count) in counts {
        own = own.or_else(|| (next..next + count).contains(&process).then(|| (job.clone(), process - next)));
        let addresses = places[next..next + count].iter().map(|(_, address)| address.clone());
        cluster.push((job, addresses.enumerate().collect()));
        next += count;
    }
    let (job, index) = own.expect("a process of the step");
    let layer = given("rpc_layer").map_or(Some("grpc"), Json::as_str);
    let mut parts = BTreeMap::from([
        ("cluster_spec".to_owned(), specified(&cluster)),
        ("task_type".to_owned(), plain(job.clone())),
        ("task_id".to_owned(), plain(index)),
        ("rpc_layer".to_owned(), plain(layer)),
        ("get_task_info".to_owned(), plain(json!([job, index]))),
        ("master".to_owned(), plain(url(layer, &places[process].1))),
    ]);
    for (place, call) in master_calls(case) {
        let job = call["task_type"].as_str().unwrap_or(&job);
        let index = number(&call["task_id"]).unwrap_or(index);
        let layer = call["rpc_layer"].as_str().or(layer);
        let address = find(&cluster, job).and_then(|tasks| tasks.get(&index));
        parts.extend(address.map(|address| (format!("master_{place}"), plain(url(layer, address)))));
    }
    // We compute GPUs as TensorFlow does: from the largest number of tasks of a node, for all nodes
    // alike.
    if let Some(gpus) = given("gpus_per_node").and_then(number).filter(|_| given("auto_set_gpu") != Some(&json!(false)))
    {
        let most = nodes.iter().map(|(_, tasks)| *tasks).max().expect("a node");
        let own = given("gpus_per_task").and_then(number).unwrap_or(gpus / most);
        let local = places[process].0;
        let visible: Vec<String> = (local * own..(local + 1) * own).map(|gpu| gpu.to_string()).collect();
        parts.insert("num_accelerators".to_owned(), plain(json!({ "GPU": own })));
        parts.insert("cuda_visible_devices".to_owned(), plain(visible.join(",")));
    }
    Value::Dict(parts)
}

/// Returns whether a name in a list of hosts has several brackets, each with numbers.
pub(crate) fn several_brackets(case: &Case) -> bool {
    case.text("function") == "expand_hostlist" && case.text("text").contains("][") && hosts(case.text("text")).is_some()
}

pub(crate) fn expanded(case: &Case) -> Value {
    plain(hosts(case.text("text")).expect("a list of hosts"))
}

/// Returns the hosts of one name whose brackets follow one another.
fn hosts(name: &str) -> Option<Vec<String>> {
    let Some((before, rest)) = name.split_once('[') else { return Some(vec![name.to_owned()]) };
    let (inside, after) = rest.split_once(']')?;
    let mut all = Vec::new();
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for number in first.parse::<usize>().ok()?..=last.parse().ok()? {
            all.extend(
                hosts(after)?.iter().map(|after| format!("{before}{number:0width$}{after}", width = first.len())),
            );
        }
    }
    Some(all)
}

pub(crate) fn blank_in_a_name(case: &Case) -> bool {
    case.text("function") == "expand_hostlist" && case.is_answered() && case.text("text").contains(' ')
}

/// Returns the indices of the calls that ask for all tasks of a job without tasks.
fn tasks_of_none(case: &Case) -> impl Iterator<Item = usize> {
    let calls = case.args["calls"].as_array().into_iter().flatten().enumerate();
    let jobs = &case.args["cluster"];
    let has_none = |job: &Json| {
        job.as_str().and_then(|job| jobs.get(job)).is_some_and(|tasks| *tasks == json!([]) || *tasks == json!({}))
    };
    calls.filter(move |(_, call)| call[0] == "job_tasks" && has_none(&call[1])).map(|(place, _)| place)
}

pub(crate) fn asks_for_no_tasks(case: &Case) -> bool {
    case.api == "cluster_spec" && tasks_of_none(case).next().is_some()
}

pub(crate) fn no_tasks(case: &Case) -> Value {
    Value::Dict(tasks_of_none(case).map(|place| (format!("call_{place}"), plain(json!([])))).collect())
}
