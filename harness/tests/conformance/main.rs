//! Compares our answers with TensorFlow's: every golden vector is judged through the public API.
//! Those of parameter servers are judged by the spec, and by the runtime where the spec has nothing
//! of their subject ([`servers`]).
//!
//! The vectors were made by running TensorFlow 2.21 on CPU. `CONSONANCE_CONFORMANCE_DIR` names
//! another folder of such files. A case passes if we give TensorFlow's answer or the alternative,
//! or refuse with the same kind of error. Of parameter servers, the alternative is a difference,
//! too. [`decisions`] has the deliberate differences: our answers, which are checked, and the
//! reasons.

mod arithmetic;
mod case;
mod clusters;
mod cross;
mod datasets;
mod decisions;
mod gradients;
mod programs;
mod replica;
mod resolvers;
mod servers;
mod static_shapes;
mod value;
mod variables;

use case::{Answer, Case};
use decisions::{DECISIONS, NOT_JUDGED};
use serde_json::{Value as Json, json};
use std::{
    collections::BTreeMap,
    env, fs,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

const FILES: [&str; 13] = [
    "reduce",
    "gather",
    "all_gather",
    "all_reduce",
    "reduce_to",
    "merge_call",
    "values_and_run",
    "datasets",
    "gradients",
    "documented_examples",
    "variables",
    "cluster_resolvers",
    "parameter_server",
];

/// The verdict on a case.
enum Verdict {
    Passed,
    /// Differs by this row of the table.
    Differs(usize),
    Failed(String),
}

#[test]
fn every_vector_is_judged() {
    let report = judge_all(false);
    // Written to stdout directly, because the test harness shows the output of `println!` only for
    // failed tests.
    std::io::stdout().write_all(report.as_bytes()).expect("standard output is open");
}

/// Counts the verdicts on the cases of parameter servers: each is played, by the spec or the
/// runtime, or is a difference by decision.
#[test]
fn every_case_of_parameter_servers_is_played_or_decided() {
    let cases = cases("parameter_server", &mut vec![0; NOT_JUDGED.len()]);
    let counted = |is: fn(&Verdict) -> bool| cases.iter().filter(|case| is(&judge(case))).count();
    let counts = [
        counted(|verdict| matches!(verdict, Verdict::Passed)),
        counted(|verdict| matches!(verdict, Verdict::Differs(_))),
    ];
    assert_eq!(counts.iter().sum::<usize>(), cases.len(), "{counts:?}");
    let foreign =
        cases.iter().filter(|case| matches!(judge(case), Verdict::Differs(row) if DECISIONS[row].is_foreign()));
    assert_eq!(foreign.map(|case| &case.api).filter(|api| *api == "ParameterServer.program").count(), FOREIGN);
}

/// The cases whose features no program of this library has.
const FOREIGN: usize = 41;

/// Checks that the verdicts do not depend on the engine.
#[test]
fn every_vector_is_judged_on_messages_too() {
    assert_eq!(judge_all(true), judge_all(false));
}

/// Returns the cases of a file.
fn cases(name: &str, left_out: &mut [usize]) -> Vec<Case> {
    let folder = env::var_os("CONSONANCE_CONFORMANCE_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/vectors"), PathBuf::from);
    let path = folder.join(name).with_extension("json");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Case::all(&text, left_out)
}

/// Judges all cases of all files, and returns the report.
fn judge_all(on_messages: bool) -> String {
    let mut groups = BTreeMap::new();
    let mut failures = Vec::new();
    let mut used = vec![0; DECISIONS.len()];
    let mut left_out = vec![0; NOT_JUDGED.len()];
    for name in FILES {
        let group = groups.entry(name).or_insert([0; 3]);
        for mut case in cases(name, &mut left_out) {
            case.on_messages = on_messages;
            let column = match judge(&case) {
                Verdict::Passed => 0,
                Verdict::Differs(row) => {
                    used[row] += 1;
                    1
                }
                Verdict::Failed(problem) => {
                    failures.push(format!("{}: {problem}", case.id));
                    2
                }
            };
            group[column] += 1;
        }
    }
    for (row, _) in used.iter().enumerate().filter(|&(_, &cases)| cases == 0) {
        failures.push(format!("{}: no case differs by this row of the table", DECISIONS[row].ids.join(" ")));
    }
    for (row, _) in left_out.iter().enumerate().filter(|&(_, &cases)| cases == 0) {
        failures.push(format!("{}: no answer has this part", NOT_JUDGED[row].part));
    }
    let report = report(&groups, &used, &left_out);
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
    report
}

/// Judges cases that are in no file. TensorFlow's answers are taken from its source.
#[test]
fn further_cases_are_judged() {
    let config = r#"{\"cluster\": {\"worker\": [\"a:1\", \"b:2\"]}, \"task\": {\"type\": \"worker\", \"index\": 1}}"#;
    let cluster = r#"{"jobs": ["worker"], "as_dict": {"worker": ["a:1", "b:2"]}}"#;
    // Task 0 instead of the environment's task, without a type.
    let task = format!(
        r#"{{"id": "cluster_resolvers/own/0", "api": "cluster_resolver", "num_replicas": 1, "inputs": [], "compare": "exact",
            "args": {{"env": {{"TF_CONFIG": "{config}"}}, "resolver": {{"kind": "tfconfig", "kwargs": {{"task_id": 0}}}}}},
            "expect": {{"ok": {{"dict": {{"cluster_spec": {{"json": {cluster}}}, "task_type": {{"json": "worker"}},
                "task_id": {{"json": 0}}, "rpc_layer": {{"json": null}}, "master": {{"json": "a:1"}}}}}}}}}}"#
    );
    // The scope of the default strategy changes nothing.
    let scope = r#"{"id": "values_and_run/own/0", "api": "contexts", "num_replicas": 1, "inputs": [], "compare": "exact",
        "args": {"where": "scope", "strategy": "default"},
        "expect": {"ok": {"dict": {"has_strategy": {"py": false}, "in_cross_replica_context": {"py": false},
            "replica_context_is_none": {"py": false}, "is_this_strategy": {"py": true}, "num_replicas_in_sync": {"py": 1}}}}}"#;
    let dict = |key: &str| {
        format!(r#"{{"args": [{{"dict": {{"{key}": {{"dtype": "i32", "shape": [1], "hex": "01000000"}}}}}}]}}"#)
    };
    let keys = format!(
        r#"{{"id": "merge_call/own/0", "api": "ReplicaContext.merge_call", "num_replicas": 2, "inputs": [{}, {}],
            "args": {{"merge_fn": "identity"}}, "compare": "exact", "expect": {{"error": "structure_mismatch"}}}}"#,
        dict("a"),
        dict("b")
    );
    let text = format!(r#"{{"cases": [{task}, {scope}, {keys}]}}"#);
    for case in Case::all(&text, &mut vec![0; NOT_JUDGED.len()]) {
        if let Verdict::Failed(problem) = judge(&case) {
            panic!("{}: {problem}", case.id);
        }
    }
    // The mean of a dict of one replica's integers: TensorFlow returns the integers, we return
    // floats.
    let mean = r#"{"cases": [{"id": "all_reduce/dtype_1_replica/99", "api": "ReplicaContext.all_reduce", "num_replicas": 1,
        "inputs": [{"dict": {"a": {"dtype": "i32", "shape": [1], "hex": "03000000"}}}], "args": {"op": "MEAN"}, "compare": "exact",
        "expect": {"ok": {"local_results": [{"dict": {"a": {"dtype": "i32", "shape": [1], "hex": "03000000"}}}]}}}]}"#;
    for case in Case::all(mean, &mut vec![0; NOT_JUDGED.len()]) {
        assert!(matches!(judge(&case), Verdict::Differs(_)));
    }
}

/// A union may be one of the resolvers of another. TensorFlow's answers are taken from its source.
#[test]
fn unions_within_unions_are_judged() {
    let simple =
        |worker: &str, kwargs: Json| json!({"kind": "simple", "cluster": {"worker": [worker]}, "kwargs": kwargs});
    let union = |of: [Json; 2], kwargs: Json| json!({"kind": "union", "of": of, "kwargs": kwargs});
    let pair = |kwargs: Json| union([simple("a:1", json!({})), simple("b:1", kwargs)], json!({}));
    let verdict = |resolver: Json, workers: Json, task: Json, layer: Json, master: Json, of_task: &str| {
        let cluster = json!({"json": {"jobs": ["worker"], "as_dict": {"worker": workers}}});
        let expected = json!({
            "cluster_spec": cluster, "task_type": {"json": task[0]}, "task_id": {"json": task[1]},
            "rpc_layer": {"json": layer}, "num_accelerators": {"json": {}}, "master": {"json": master},
            "master_0": {"json": of_task},
        });
        let case = json!({
            "id": "cluster_resolvers/own/1", "api": "cluster_resolver", "num_replicas": 1, "inputs": [],
            "args": {"env": {}, "resolver": resolver, "master_calls": [{"task_type": "worker", "task_id": 2}]},
            "expect": {"ok": {"dict": expected}}, "compare": "exact",
        });
        let text = json!({ "cases": [case] }).to_string();
        judge(&Case::all(&text, &mut vec![0; NOT_JUDGED.len()])[0])
    };
    let (none, task) = (json!([null, null]), json!({"task_type": "worker", "task_id": 0}));
    let row = |verdict: Verdict| match verdict {
        Verdict::Passed => None,
        Verdict::Differs(row) => Some(DECISIONS[row].why),
        Verdict::Failed(problem) => panic!("{problem}"),
    };
    let has = |why: Option<&str>, words: &str| assert!(why.is_some_and(|why| why.contains(words)), "{why:?}");
    // The tasks of the inner union are those of one resolver.
    let outer = union([pair(json!({})), simple("c:1", json!({}))], json!({}));
    assert_eq!(row(verdict(outer, json!(["a:1", "b:1", "c:1"]), none.clone(), json!(null), json!(""), "c:1")), None);
    let workers = json!(["c:1", "a:1", "b:1"]);
    // The first resolver has no task, and its union's is one of a later resolver: worker 2.
    let outer = union([simple("c:1", json!({})), pair(task.clone())], json!({}));
    has(
        row(verdict(outer, workers.clone(), none.clone(), json!(null), json!(""), "b:1")),
        "the first resolver that has one",
    );
    // The same for the protocol.
    let outer = union([simple("c:1", json!({})), pair(json!({"rpc_layer": "grpc"}))], json!({}));
    has(row(verdict(outer, workers.clone(), none.clone(), json!(null), json!(""), "b:1")), "begin with its protocol");
    // The index of a task is one of its own resolver.
    let wrong = json!({"task_type": "worker", "task_id": 1});
    let outer = union([simple("c:1", task), pair(wrong)], json!({}));
    has(
        row(verdict(outer, workers, json!(["worker", 0]), json!(null), json!(""), "b:1")),
        "a task is one of its cluster",
    );
    // Two unions have the same address.
    let outer = union([pair(json!({})), pair(json!({}))], json!({}));
    let twice = json!(["a:1", "b:1", "a:1", "b:1"]);
    has(row(verdict(outer, twice, none, json!(null), json!(""), "a:1")), "two tasks cannot listen");
}

fn judge(case: &Case) -> Verdict {
    match catch_unwind(AssertUnwindSafe(|| answer(case))) {
        Ok(answer) => judge_answer(case, answer),
        Err(_) => Verdict::Failed("panicked".to_owned()),
    }
}

fn judge_answer(case: &Case, answer: Answer) -> Verdict {
    let difference = case.differs_from_tensorflow(&answer);
    let row = DECISIONS.iter().position(|decision| decision.covers(case));
    match (row, difference) {
        (None, None) => Verdict::Passed,
        (None, Some(difference)) => Verdict::Failed(difference),
        (Some(_), None) => {
            Verdict::Failed("answered as TensorFlow does, but the table lists it as different".to_owned())
        }
        (Some(row), Some(_)) => match DECISIONS[row].ours.differs(case, &answer) {
            None => Verdict::Differs(row),
            Some(difference) => Verdict::Failed(format!("differs from the table: {difference}")),
        },
    }
}

fn answer(case: &Case) -> Answer {
    match case.api.as_str() {
        "Strategy.reduce" => cross::reduce(case),
        "Strategy.gather" => cross::gather(case),
        "StrategyExtended.reduce_to" => cross::reduce_to(case),
        "StrategyExtended.batch_reduce_to" => cross::batch_reduce_to(case),
        "ReplicaContext.all_reduce" => replica::all_reduce(case),
        "ReplicaContext.all_gather" => replica::all_gather(case),
        "ReplicaContext.merge_call" => replica::merge_call(case),
        "gradient" => gradients::gradient(case),
        "Strategy.run" => programs::run(case),
        "Strategy.num_replicas_in_sync" => programs::num_replicas_in_sync(case),
        "Strategy.experimental_distribute_values_from_function" => programs::values_from_function(case),
        "Strategy.experimental_local_results" => programs::local_results(case),
        "contexts" => programs::contexts(case),
        "variables" => variables::variables(case),
        "Strategy.experimental_distribute_dataset" => datasets::distribute_dataset(case),
        "Strategy.distribute_datasets_from_function" => datasets::from_function(case),
        "InputContext" => datasets::input_context(case),
        "cluster_resolver" => resolvers::cluster_resolver(case),
        "cluster_spec" => resolvers::cluster_spec(case),
        "slurm_expand" => resolvers::slurm_expand(case),
        "ParameterServer.partition" => servers::partition(case),
        "ParameterServer.cluster" => servers::cluster(case),
        "ParameterServer.program" => servers::program(case),
        "ParameterServer.checkpoint" => servers::checkpoint(case),
        api => panic!("no judge for {api}"),
    }
}

fn report(groups: &BTreeMap<&str, [usize; 3]>, used: &[usize], left_out: &[usize]) -> String {
    let [passed, differing, failed] = ["passed", "differing by decision", "failed"];
    let mut text = format!("\n{:<22}{passed:>8}{differing:>24}{failed:>8}\n", "vectors of");
    let mut total = [0; 3];
    let mut line = |name: &str, counts: &[usize; 3]| {
        let [passed, differing, failed] = counts;
        text += &format!("{name:<22}{passed:>8}{differing:>24}{failed:>8}\n");
    };
    for (name, counts) in groups {
        line(name, counts);
        total.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
    }
    line("all", &total);
    for (decision, cases) in DECISIONS.iter().zip(used) {
        text += &format!("{cases:>5}  {} ({}): {}\n", decision.ours.name(), decision.ids.join(" "), decision.why);
    }
    for (part, answers) in NOT_JUDGED.iter().zip(left_out) {
        text += &format!("{answers:>5}  not compared: {} of {}: {}\n", part.part, part.api, part.why);
    }
    text
}
