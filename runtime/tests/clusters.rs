//! Cluster resolvers: errors name the position of malformed input, and a written cluster is read
//! back equal.

mod fields;

use consonance::{
    ClusterResolver, ClusterSpec, Error, MultiWorkerMirroredStrategy, SimpleClusterResolver, SlurmClusterResolver,
    TfConfigClusterResolver, UnionResolver,
};
use fields::{found, refusal};
use std::{env, process::Command};

#[test]
fn a_malformed_tf_config_is_refused_where_it_is_wrong() {
    let task =
        |task: &str| format!(r#"{{"cluster": {{"worker": ["a:1", "b:1"], "ps": {{"3": "c:1"}}}}, "task": {task}}}"#);
    let cluster = |cluster: &str| format!(r#"{{"cluster": {cluster}}}"#);
    let cases = [
        ("{".to_owned(), "TF_CONFIG", "JSON"),
        ("{} x".to_owned(), "TF_CONFIG", "JSON"),
        ("[".repeat(10_000), "TF_CONFIG", "JSON"),
        ("[]".to_owned(), "TF_CONFIG", "an object"),
        (r#"{"task": {}, "task": {}}"#.to_owned(), "TF_CONFIG", "each key once"),
        (cluster("[]"), "TF_CONFIG: cluster", "an object from job to tasks"),
        (cluster("null"), "TF_CONFIG: cluster", "an object from job to tasks"),
        (cluster(r#"{"": ["a:1"]}"#), "TF_CONFIG: cluster.job", "a name"),
        (
            cluster(r#"{"ps": "a:1"}"#),
            "TF_CONFIG: cluster.ps",
            "a list of addresses, or an object from task index to address",
        ),
        (cluster(r#"{"ps": [1]}"#), "TF_CONFIG: cluster.ps[0]", "text (host:port)"),
        (cluster(r#"{"ps": ["a:1", ""]}"#), "TF_CONFIG: cluster.ps[1]", "host:port"),
        (cluster(r#"{"ps": ["a"]}"#), "TF_CONFIG: cluster.ps[0]", "host:port"),
        (cluster(r#"{"ps": ["a:"]}"#), "TF_CONFIG: cluster.ps[0]", "host:port"),
        (cluster(r#"{"ps": [":1"]}"#), "TF_CONFIG: cluster.ps[0]", "host:port"),
        (cluster(r#"{"ps": ["a:65536"]}"#), "TF_CONFIG: cluster.ps[0]", "host:port"),
        (cluster(r#"{"ps": ["a b:1"]}"#), "TF_CONFIG: cluster.ps[0]", "host:port"),
        (cluster(r#"{"ps": ["::1:1"]}"#), "TF_CONFIG: cluster.ps[0]", "host:port"),
        (cluster(r#"{"ps": ["a:1", "a:1"]}"#), "TF_CONFIG: cluster.ps[1]", "an address of its own"),
        (cluster(r#"{"ps": ["a:1"], "worker": ["a:1"]}"#), "TF_CONFIG: cluster.worker[0]", "an address of its own"),
        (cluster(r#"{"ps": {"-1": "a:1"}}"#), "TF_CONFIG: cluster.ps[-1]", "a task index from 0"),
        (cluster(r#"{"ps": {"x": "a:1"}}"#), "TF_CONFIG: cluster.ps[x]", "a task index from 0"),
        (cluster(r#"{"ps": {"1": "a:1", "01": "b:1"}}"#), "TF_CONFIG: cluster.ps[1]", "each task index once"),
        (cluster(r#"{"ps": {"1": "a:1", "1": "b:1"}}"#), "TF_CONFIG", "each key once"),
        (cluster(r#"{"ps": {"1048576": "a:1"}}"#), "TF_CONFIG: cluster.ps[1048576]", "an index below 1048576"),
        (task("null"), "TF_CONFIG: task", "an object with a type and an index"),
        (task("{}"), "TF_CONFIG: task.type", "text (a job of the cluster)"),
        (task(r#"{"type": 3, "index": 0}"#), "TF_CONFIG: task.type", "text (a job of the cluster)"),
        (task(r#"{"type": "worker"}"#), "TF_CONFIG: task.index", "a whole number from 0"),
        (task(r#"{"type": "worker", "index": -1}"#), "TF_CONFIG: task.index", "a whole number from 0"),
        (task(r#"{"type": "worker", "index": 1.0}"#), "TF_CONFIG: task.index", "a whole number from 0"),
        (task(r#"{"type": "worker", "index": "x"}"#), "TF_CONFIG: task.index", "a whole number from 0"),
        (task(r#"{"type": "worker", "index": ""}"#), "TF_CONFIG: task.index", "a whole number from 0"),
        (task(r#"{"type": "worker", "index": 2}"#), "TF_CONFIG: task.index", r#"a task of "worker" (0 to 1)"#),
        (task(r#"{"type": "ps", "index": 0}"#), "TF_CONFIG: task.index", r#"a task of "ps" (3)"#),
        (task(r#"{"type": "chief", "index": 0}"#), "TF_CONFIG: task.type", "a job of the cluster (worker, ps)"),
        (r#"{"task": {"type": "worker", "index": 0}}"#.to_owned(), "TF_CONFIG: cluster", "the jobs of the cluster"),
        (r#"{"worker": ["a:1"]}"#.to_owned(), "TF_CONFIG: cluster", "the jobs of the cluster"),
        (r#"{"rpc_layer": 1}"#.to_owned(), "TF_CONFIG: rpc_layer", "text"),
        (r#"{"session_master": []}"#.to_owned(), "TF_CONFIG: session_master", "text"),
    ];
    for (text, place, right) in cases {
        let error = TfConfigClusterResolver::from_text(&text).unwrap_err();
        let Error::InvalidCall { call, argument, expected, .. } = &error else { panic!("{text}: {error}") };
        assert_eq!((*call, &argument[..], &expected[..]), ("TfConfigClusterResolver", place, right), "{text}: {error}");
    }
}

#[test]
fn a_tf_config_is_read_as_it_is_written() {
    for text in [
        r#"{"cluster":{}}"#,
        r#"{"cluster":{"z":["z:1"],"a":["a:1","[::1]:2222"],"none":[]}}"#,
        r#"{"cluster":{"worker":{"1":"b:1","3":"d:1"},"quoted \"job\"":["q:0"]},"task":{"type":"worker","index":3}}"#,
        r#"{"cluster":{"worker":["a:1"]},"task":{"type":"evaluator","index":7},"rpc_layer":"grpc","session_master":"m"}"#,
    ] {
        let resolver = TfConfigClusterResolver::from_text(text).unwrap();
        assert_eq!(resolver.to_string(), text);
        assert_eq!(TfConfigClusterResolver::from_text(&resolver.to_string()).unwrap(), resolver);
    }
}

#[test]
fn a_lone_task_has_an_address_unless_it_is_task_0() {
    let master = |cluster: &str, index: usize| {
        let text = format!(r#"{{"cluster": {{"worker": {cluster}}}, "task": {{"type": "worker", "index": {index}}}}}"#);
        TfConfigClusterResolver::from_text(&text).unwrap().master(None, None, None).unwrap()
    };
    assert_eq!(master(r#"{"1": "b:2"}"#, 1), "b:2");
    assert_eq!(master(r#"{"0": "a:1"}"#, 0), "");
    assert_eq!(master(r#"["a:1"]"#, 0), "");
}

#[test]
fn task_0_overrides_the_task_of_a_tf_config() {
    let text = r#"{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}"#;
    let resolver = TfConfigClusterResolver::from_text(text).unwrap();
    assert_eq!(resolver.master(None, Some(0), None).unwrap(), "a:1");
    let resolver = resolver.with_task("worker", 0).unwrap();
    assert_eq!((resolver.task_id(), resolver.master(None, None, None).unwrap()), (Some(0), "a:1".to_owned()));
}

#[test]
fn the_task_of_a_union_keeps_its_address() {
    let resolver = |text: &str, job: &str, index| -> Box<dyn ClusterResolver> {
        let simple = SimpleClusterResolver::new(text.parse().unwrap());
        Box::new(if job.is_empty() { simple } else { simple.with_task(job, index).unwrap() })
    };
    let lists = ["a:1", "b:1", "c:1"].map(|address| format!(r#"{{"ps": ["p{address}"], "worker": ["{address}"]}}"#));
    for owner in 0..3 {
        let all = lists.iter().enumerate();
        let all = all.map(|(place, list)| resolver(list, if place == owner { "worker" } else { "" }, 0));
        let union = UnionResolver::new(all).unwrap();
        assert_eq!((union.task_type(), union.task_id()), (Some("worker"), Some(owner)));
        assert_eq!(union.cluster_spec().task_address("worker", owner).unwrap(), ["a:1", "b:1", "c:1"][owner]);
    }
    let gaps = UnionResolver::new([
        resolver(r#"{"worker": ["a:1"]}"#, "", 0),
        resolver(r#"{"worker": {"2": "c:1"}}"#, "worker", 2),
    ]);
    assert_eq!(gaps.unwrap().task_id(), Some(2));
}

#[test]
fn a_union_without_resolvers_or_with_one_task_twice_is_refused() {
    let error = UnionResolver::new([]).unwrap_err();
    assert_eq!((refusal(&error), found(&error)), (("UnionResolver::new", "resolvers", None), "none"));
    let sparse = |address: &str| -> Box<dyn ClusterResolver> {
        let cluster = ClusterSpec::new().sparse_job("worker", [(1, address)]).unwrap();
        Box::new(SimpleClusterResolver::new(cluster))
    };
    let error = UnionResolver::new([sparse("a:1"), sparse("b:1")]).unwrap_err();
    assert_eq!((refusal(&error), found(&error)), (("UnionResolver::new", "worker[1]", None), "it twice"));
}

/// The variables of a step of two nodes with two tasks each, some of them changed.
fn step(changes: &[(&str, &str)], name: &str) -> Option<String> {
    let step = [
        ("SLURM_PROCID", "2"),
        ("SLURM_STEP_NODELIST", "n[2,10]"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
        ("SLURM_STEP_NUM_TASKS", "4"),
    ];
    let value = changes.iter().chain(&step).find(|(known, _)| *known == name)?.1;
    (value != "unset").then(|| value.to_owned())
}

#[test]
fn tasks_of_slurm_are_placed_in_the_order_of_its_list() {
    let block = [("SLURM_NODEID", "1"), ("SLURM_LOCALID", "0")];
    let resolver = SlurmClusterResolver::builder().build_from(|name| step(&block, name)).unwrap();
    let expected = ["n2:8888", "n2:8889", "n10:8888", "n10:8889"].map(Some);
    assert_eq!(resolver.cluster_spec().job_tasks("worker").unwrap(), expected);
    assert_eq!((resolver.task_id(), resolver.gpus()), (Some(2), 0..0));
    let unsorted = [("SLURM_STEP_NODELIST", "b,a"), ("SLURM_STEP_TASKS_PER_NODE", "3,1"), ("SLURM_GPUS_ON_NODE", "3")];
    let resolver = SlurmClusterResolver::builder().build_from(|name| step(&unsorted, name)).unwrap();
    assert_eq!(resolver.master(None, None, None).unwrap(), "grpc://b:8890");
    assert_eq!(resolver.gpus(), 2..3);
}

#[test]
fn a_job_of_slurm_stands_in_for_a_step() {
    let job = [
        ("SLURM_STEP_NODELIST", "unset"),
        ("SLURM_STEP_TASKS_PER_NODE", "unset"),
        ("SLURM_STEP_NUM_TASKS", "unset"),
        ("SLURM_JOB_NODELIST", "m[1-3]"),
        ("SLURM_TASKS_PER_NODE", "1(x3)"),
    ];
    let resolver = SlurmClusterResolver::builder().build_from(|name| step(&job, name)).unwrap();
    assert_eq!(resolver.master(None, None, Some("")).unwrap(), "m3:8888");
}

#[test]
fn malformed_variables_of_slurm_are_refused() {
    for (name, value) in [
        ("SLURM_PROCID", "unset"),
        ("SLURM_PROCID", ""),
        ("SLURM_PROCID", "x"),
        ("SLURM_PROCID", "-1"),
        ("SLURM_PROCID", "4"),
        ("SLURM_STEP_NODELIST", "unset"),
        ("SLURM_STEP_NODELIST", "n[2,10"),
        ("SLURM_STEP_NODELIST", "n[2-10]"),
        ("SLURM_STEP_NODELIST", "n2"),
        ("SLURM_STEP_NODELIST", "n2,n2"),
        ("SLURM_STEP_TASKS_PER_NODE", "unset"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x"),
        ("SLURM_STEP_TASKS_PER_NODE", "2,1"),
        ("SLURM_STEP_TASKS_PER_NODE", "1048576(x2)"),
        ("SLURM_STEP_NUM_TASKS", "5"),
        ("SLURM_STEP_NUM_TASKS", "x"),
        ("SLURM_GPUS_ON_NODE", "x"),
        ("SLURM_NODEID", "0"),
        ("SLURM_LOCALID", "1"),
    ] {
        let error = SlurmClusterResolver::builder().build_from(|known| step(&[(name, value)], known)).unwrap_err();
        assert!(matches!(error, Error::InvalidCall { call: "SlurmClusterResolver", .. }), "{name}={value}: {error}");
    }
    let build = |builder: consonance::cluster::SlurmBuilder| builder.build_from(|name| step(&[], name));
    assert!(build(SlurmClusterResolver::builder().jobs([("worker", 3)])).is_err());
    assert!(build(SlurmClusterResolver::builder().jobs([("worker", 2), ("worker", 2)])).is_err());
    assert!(build(SlurmClusterResolver::builder().gpus_per_node(3).gpus_per_task(2)).is_err());
    assert!(build(SlurmClusterResolver::builder().port_base(65535)).is_err());
    assert!(build(SlurmClusterResolver::builder().tasks_per_node([("n1", usize::MAX), ("n2", 5)])).is_err());
}

#[test]
fn one_process_of_a_cluster_is_its_chief() {
    let chiefs = |cluster: &str| -> Vec<(&str, usize)> {
        let tasks = [("chief", 0), ("worker", 0), ("worker", 1), ("worker", 2), ("ps", 0), ("evaluator", 0)];
        let is_chief = |&(job, index): &(&str, usize)| {
            let task = format!(r#"{{"type": "{job}", "index": {index}}}"#);
            let resolver = TfConfigClusterResolver::from_text(&format!(r#"{{"cluster": {cluster}, "task": {task}}}"#));
            resolver.is_ok_and(|resolver| resolver.is_chief())
        };
        tasks.into_iter().filter(is_chief).collect()
    };
    assert_eq!(chiefs(r#"{"worker": ["a:1", "b:1"], "ps": ["c:1"]}"#), [("worker", 0)]);
    assert_eq!(chiefs(r#"{"worker": {"1": "a:1", "2": "b:1"}, "ps": ["c:1"]}"#), [("worker", 1)]);
    assert_eq!(chiefs(r#"{"worker": ["a:1", "b:1"], "chief": ["c:1"]}"#), [("chief", 0)]);
    assert_eq!(chiefs(r#"{"ps": ["c:1"]}"#), []);
    assert!(SimpleClusterResolver::new(ClusterSpec::new()).is_chief(), "a program by itself");
}

/// The variables of rank `rank` of two, as torch's launcher sets them, with these changes.
#[cfg(target_os = "linux")]
fn ranks<'c>(rank: &str, changes: &'c [(&str, &str)]) -> impl Fn(&str) -> Option<String> + use<'c> {
    let job = format!("clusters {}", std::process::id());
    let rank = rank.to_owned();
    move |name| {
        let changed = changes.iter().find(|(changed, _)| *changed == name).map(|(_, value)| (*value).to_owned());
        changed.or_else(|| match name {
            "RANK" | "LOCAL_RANK" => Some(rank.clone()),
            "WORLD_SIZE" | "LOCAL_WORLD_SIZE" => Some("2".to_owned()),
            "MASTER_ADDR" => Some("localhost".to_owned()),
            "MASTER_PORT" => Some("29500".to_owned()),
            "TORCHELASTIC_RUN_ID" => Some(job.clone()),
            _ => None,
        })
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_ranks_of_torchrun_form_a_group() {
    use consonance::ProcessGroup;
    for restart in ["0", "1"] {
        let join = |rank: &str| {
            let mut group =
                ProcessGroup::from_environment(ranks(rank, &[("TORCHELASTIC_RESTART_COUNT", restart)]))?.join()?;
            group.communicators()[0].barrier()?;
            Ok::<_, Error>(group.ranks())
        };
        let joined = std::thread::scope(|scope| {
            ["0", "1"].map(|rank| scope.spawn(move || join(rank))).map(|rank| rank.join().unwrap().unwrap())
        });
        assert_eq!(joined, [0..1, 1..2]);
    }
    for (name, value, told) in
        [("LOCAL_WORLD_SIZE", "3", "3"), ("WORLD_SIZE", "two", r#""two""#), ("MASTER_PORT", "", "nothing")]
    {
        let error = ProcessGroup::from_environment(ranks("0", &[(name, value)])).err().unwrap();
        assert_eq!((refusal(&error), found(&error)), (("ProcessGroup::from_env", name, None), told));
    }
    let error = ProcessGroup::from_environment(ranks("5", &[])).err().unwrap();
    assert_eq!((refusal(&error), found(&error)), (("ProcessGroup::from_env", "RANK", None), "5"));
}

#[test]
fn a_worker_reports_unused_parameter_servers() {
    const NAME: &str = "a_worker_reports_unused_parameter_servers";
    const WORKER: &str = "CONSONANCE_TEST_WORKER";
    if env::var_os(WORKER).is_some() {
        assert_eq!(MultiWorkerMirroredStrategy::new().unwrap().num_replicas_in_sync(), 1);
        return;
    }
    let cluster =
        r#"{"cluster": {"worker": ["localhost:1"], "ps": ["localhost:2"]}, "task": {"type": "worker", "index": 0}}"#;
    let mut worker = Command::new(env::current_exe().unwrap());
    let worker = worker.args(["--exact", NAME, "--nocapture"]).env(WORKER, "").env("TF_CONFIG", cluster);
    let output = worker.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let told =
        "consonance: MultiWorkerMirroredStrategy: the ps task of the cluster takes no part: each worker has a copy";
    assert!(said.lines().any(|line| line.starts_with(told)), "{said}");
}

#[test]
fn an_address_of_one_host_alone_is_refused_among_several_hosts() {
    let cluster = ClusterSpec::new().job("worker", ["localhost:1", "192.0.2.1:1"]).unwrap();
    let resolver = SimpleClusterResolver::new(cluster).with_task("worker", 0).unwrap();
    let error = MultiWorkerMirroredStrategy::builder(resolver).build().err().unwrap();
    // Without UCX there is no such group at all.
    let Error::Meeting { call: "ProcessGroup", task, problem, missing } = error else { panic!("{error}") };
    assert_eq!((&task[..], &missing[..]), ("worker[0] (localhost:1)", &[][..]));
    assert!(!problem.is_empty());
}
