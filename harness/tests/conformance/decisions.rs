//! The deliberate differences from TensorFlow: the cases, our answers, and the reasons. Every row
//! is checked: its cases give the answer of the row, and none of them gives TensorFlow's answer.

use crate::{
    arithmetic,
    case::{Answer, Case, Stop, kind},
    clusters, datasets, gradients,
    servers::{self, Foreign},
    value::Value,
    variables,
};
use consonance::ReduceOp;
use serde_json::Value as Json;

/// A deliberate difference.
pub(crate) struct Decision {
    /// Prefixes of the categories of its cases. A category is an id without its number.
    pub(crate) ids: &'static [&'static str],
    /// Selects the cases of these categories.
    pub(crate) when: fn(&Case) -> bool,
    pub(crate) ours: Ours,
    pub(crate) why: &'static str,
}

/// Our answer.
pub(crate) enum Ours {
    /// An error of this kind.
    Refused(&'static str),
    /// The reduction by our definition, computed in another way.
    Reduced,
    /// All rows concatenated along axis 0, dense or sparse.
    Gathered,
    /// The steps of a variable by the spec.
    Specified,
    /// A batch for each replica until no batch is left.
    AllBatches,
    /// This value. For a dict, only the parts that differ.
    Instead(fn(&Case) -> Value),
    /// The result and its gradient by definition.
    Differentiated,
    /// The alternative of the case.
    Alternative,
    /// No answer: no program that compiles makes the call.
    NotExpressible,
}

/// A part of TensorFlow's answers that has no equivalent here.
pub(crate) struct NotJudged {
    pub(crate) api: &'static str,
    pub(crate) part: &'static str,
    pub(crate) why: &'static str,
}

pub(crate) const NOT_JUDGED: &[NotJudged] = &[
    NotJudged {
        api: "Strategy.run",
        part: "structure",
        why: "results are always a PerReplica, also where all replicas return the same object",
    },
    NotJudged {
        api: "Strategy.experimental_distribute_values_from_function",
        part: "type",
        why: "values are always a PerReplica, whatever their type and however many replicas there are",
    },
    NotJudged {
        api: "cluster_resolver",
        part: "environment",
        why: "there is no Google inside of which the program might run",
    },
    NotJudged {
        api: "cluster_resolver",
        part: "task_type_before",
        why: "a resolver knows all when it is made; TensorFlow's for Slurm learns its task when it is asked for the cluster",
    },
];

pub(crate) const DECISIONS: &[Decision] = &[
    Decision {
        ids: &["reduce/other_dtype", "gather/dtype_", "all_gather/dtype_", "all_reduce/dtype_"],
        when: |case| case.has_dtype(&["c"]),
        ours: Ours::NotExpressible,
        why: "there are no complex tensors",
    },
    Decision {
        ids: &[
            "reduce/none_i",
            "reduce/scalar/",
            "reduce/other_dtype_1_replica/",
            "reduce/int_mean_1_replica/",
            "all_reduce/single_i",
            "all_reduce/dtype_1_replica/",
            "all_reduce/mixed_i32_f32/",
            "all_reduce/all_i32_list/",
            "reduce_to/reduce_to_",
            "merge_call/list/",
        ],
        when: mean_of_one_integer,
        ours: Ours::Reduced,
        why: "the mean of integers is a float for one replica as for many; TensorFlow gives one replica's integers back",
    },
    Decision {
        ids: &[
            "reduce/int_overflow_mean/",
            "reduce/uint_overflow/",
            "reduce/int_mean_large/",
            "all_reduce/int_overflow/",
        ],
        when: reduced_otherwise,
        ours: Ours::Reduced,
        why: "the sum of which a mean is taken does not wrap",
    },
    Decision {
        ids: &["reduce/none_", "reduce/axis_", "reduce/float_overflow/", "all_reduce/single_"],
        when: |case| case.has_dtype(&["f16", "bf16"]) && reduced_otherwise(case),
        ours: Ours::Reduced,
        why: "f16 and bf16 are summed in f32 and rounded once, after the division; TensorFlow rounds the sum first",
    },
    Decision {
        ids: &["all_reduce/slices_as_returned/", "all_reduce/slices_densified/"],
        when: reduced_otherwise,
        ours: Ours::Reduced,
        why: "a mean is divided; TensorFlow's graph optimizer multiplies by a rounded third",
    },
    Decision {
        ids: &["reduce/other_dtype_1_replica/", "all_reduce/dtype_1_replica/"],
        when: |case| case.has_dtype(&["bool"]),
        ours: Ours::Refused("dtype_unsupported"),
        why: "truth values have no sum or mean, for one replica as for many; TensorFlow does not look",
    },
    Decision {
        ids: &["gather/", "all_gather/"],
        when: |case| {
            case.replicas == 1 && rank(case).is_some_and(|rank| rank > 0 && !(-rank..rank).contains(&case.axis()))
        },
        ours: Ours::Refused("axis_out_of_range"),
        why: "arguments are checked for one replica as for many; TensorFlow does not look",
    },
    Decision {
        ids: &["gather/", "all_gather/"],
        when: |case| case.replicas == 1 && rank(case) == Some(0),
        ours: Ours::Refused("scalar_not_allowed"),
        why: "arguments are checked for one replica as for many; TensorFlow does not look",
    },
    Decision {
        ids: &["reduce/bad_op", "all_reduce/bad_op/"],
        when: |case| case.text("op") == "MAX",
        ours: Ours::Reduced,
        why: "there are more operations: max is one",
    },
    Decision {
        ids: &["reduce/bad_op_type/"],
        when: always,
        ours: Ours::NotExpressible,
        why: "an operation is a ReduceOp or text",
    },
    Decision {
        ids: &["reduce/non_distributed", "gather/non_distributed", "reduce_to/non_distributed"],
        when: several_replicas,
        ours: Ours::NotExpressible,
        why: "the type asks for one value of each replica",
    },
    Decision {
        ids: &["reduce/nest_value_axis/"],
        when: always,
        ours: Ours::Reduced,
        why: "each leaf of a nest is reduced by itself; TensorFlow packs the leaves together first",
    },
    Decision {
        ids: &["gather/nest_value/"],
        when: always,
        ours: Ours::Gathered,
        why: "a nest is gathered leaf by leaf; TensorFlow gives the first replica's back",
    },
    Decision {
        ids: &["gather/indexed_slices/", "all_gather/indexed_slices/"],
        when: always,
        ours: Ours::Gathered,
        why: "IndexedSlices are gathered, and stay sparse",
    },
    Decision {
        ids: &["all_reduce/empty_nest/"],
        when: always,
        ours: Ours::Reduced,
        why: "a nest without leaves is reduced to itself",
    },
    Decision {
        ids: &["all_reduce/rank_mismatch/"],
        when: Case::is_answered,
        ours: Ours::Refused("shape_mismatch"),
        why: "shapes are compared always; TensorFlow's packing in a graph hides the difference",
    },
    Decision {
        ids: &["all_reduce/slices_dense_shape_differs/"],
        when: always,
        ours: Ours::Refused("shape_mismatch"),
        why: "rows of tensors of different shapes do not add up",
    },
    Decision {
        ids: &["all_reduce/slices_mixed_with_dense/"],
        when: always,
        ours: Ours::Refused("structure_mismatch"),
        why: "an error that says what differs; TensorFlow fails an assertion",
    },
    Decision {
        ids: &["reduce_to/batch_device/", "reduce_to/batch_mixed_dest/"],
        when: several_replicas,
        ours: Ours::Reduced,
        why: "a value for one device is on that device; TensorFlow gives a copy for each replica",
    },
    Decision {
        ids: &["reduce_to/batch_i32/", "reduce_to/batch_mixed_i32_f32/"],
        when: always,
        ours: Ours::Reduced,
        why: "a batch may have any dtypes",
    },
    Decision {
        ids: &["gradients/slices/"],
        when: always,
        ours: Ours::Differentiated,
        why: "IndexedSlices have a gradient",
    },
    Decision {
        ids: &["gradients/all_gather_list/"],
        when: always,
        ours: Ours::Differentiated,
        why: "a nest has the gradients of its leaves, whatever their sizes; TensorFlow stacks them",
    },
    Decision {
        ids: &["merge_call/"],
        when: |case| [case.text("merge_fn"), case.text("nested")].contains(&"kinds"),
        ours: Ours::NotExpressible,
        why: "arguments are always a PerReplica, also where all replicas give the same",
    },
    Decision {
        ids: &["merge_call/cross_context/"],
        when: always,
        ours: Ours::NotExpressible,
        why: "only a replica has a replica context",
    },
    Decision {
        ids: &["values_and_run/dv_in_replica_context/"],
        when: always,
        ours: Ours::Refused("wrong_context"),
        why: "values for all replicas are made in the cross-replica context",
    },
    Decision {
        ids: &["values_and_run/run_wrong_arity/"],
        when: always,
        ours: Ours::NotExpressible,
        why: "the compiler counts arguments",
    },
    Decision {
        ids: &[
            "values_and_run/local_results_py/",
            "values_and_run/local_results_none/",
            "values_and_run/local_results_list/",
        ],
        when: always,
        ours: Ours::NotExpressible,
        why: "local results are of what has them; a plain value is its own",
    },
    Decision {
        ids: &["variables/central_storage_i", "variables/one_device_i", "variables/default_i"],
        when: |case| case.text("aggregation") == "MEAN",
        ours: Ours::Refused("dtype_unsupported"),
        why: "a variable of integers is no mean: told when it is made, whatever the strategy",
    },
    Decision {
        ids: &["variables/mirrored_"],
        when: |case| {
            let on_write = ["AUTO", "ON_WRITE"].contains(&case.text("synchronization"));
            on_write && case.text("aggregation") == "NONE" && several_replicas(case) && specified_otherwise(case)
        },
        ours: Ours::Specified,
        why: "replicas that assign without aggregation would make the copies differ: refused; TensorFlow lets them",
    },
    Decision {
        ids: &["variables/mirrored_"],
        when: |case| {
            let summed = case.text("synchronization") == "ON_READ" && case.text("aggregation") == "SUM";
            summed && specified_otherwise(case)
        },
        ours: Ours::Specified,
        why: "what is assigned across is read again: integers are shared without a loss, and a sum can be added to",
    },
    Decision {
        ids: &["variables/extended_update_per_replica/"],
        when: always,
        ours: Ours::NotExpressible,
        why: "an update has the same arguments for every copy; TensorFlow lets the copies differ",
    },
    Decision {
        ids: &["datasets/from_function/", "datasets/from_function_central_storage/"],
        when: |case| {
            let even = datasets::batches(case).len().is_multiple_of(case.replicas);
            !even && (case.args["drop_remainder"] == true || case.text("strategy") == "central_storage")
        },
        ours: Ours::AllBatches,
        why: "all batches are given to replicas, also where the last ones are too few for all; TensorFlow leaves them out",
    },
    Decision {
        ids: &["datasets/input_context_not_divisible/"],
        when: |case| case.args["global_batch"].as_i64() < Some(0),
        ours: Ours::NotExpressible,
        why: "a number of elements is not negative",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::empty_text,
        ours: Ours::Instead(clusters::of_nothing),
        why: "an empty TF_CONFIG is none",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::no_json,
        ours: Ours::Refused("jsondecode"),
        why: "what a resolver reads is refused when it is made; TensorFlow refuses each question",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::key_twice,
        ours: Ours::Refused("value"),
        why: "a key that is there twice is refused; TensorFlow takes the last",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::no_argument,
        ours: Ours::NotExpressible,
        why: "the types ask for a ClusterSpec, text and resolvers",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::no_name,
        ours: Ours::NotExpressible,
        why: "the compiler knows the names of methods",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::other_type,
        ours: Ours::Refused("type"),
        why: "parts of another type than the format's are refused when the resolver is made; TensorFlow reads what it can",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::task_twice,
        ours: Ours::Refused("duplicate_task"),
        why: "a union is refused when it is made; TensorFlow refuses when it is asked for the cluster",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::address_twice,
        ours: Ours::Refused("value"),
        why: "two tasks cannot listen at one address",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::wrong_task,
        ours: Ours::Refused("value"),
        why: "indices are numbers and a task is one of its cluster, or the resolver is refused when it is made; TensorFlow looks \
              when it is asked for what is wrong",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::protocol_of_a_member,
        ours: Ours::Instead(clusters::of_union),
        why: "addresses of a union begin with its protocol; TensorFlow has it for some and not for others",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::protocol_not_of_the_first,
        ours: Ours::Instead(clusters::of_union),
        why: "what is given counts, though it be empty, or given to a later resolver; TensorFlow asks the first alone",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::task_of_a_later_member,
        ours: Ours::Instead(clusters::of_union),
        why: "the task of a union is that of the first resolver that has one; TensorFlow asks the first alone",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::nodes_without_tasks,
        ours: Ours::Refused("value"),
        why: "nodes without a number of tasks are a mistake; TensorFlow leaves them out",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::no_gpus,
        ours: Ours::Instead(clusters::of_slurm),
        why: "nodes may have no GPU; TensorFlow fails",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::unsaid_number_of_tasks,
        ours: Ours::Instead(clusters::of_slurm),
        why: "the tasks of the nodes add up to the number of tasks, which need not be said again",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: |case| clusters::unsorted_nodes(case) && !clusters::are_given(case),
        ours: Ours::Instead(clusters::of_slurm),
        why: "tasks are where Slurm puts them: in the order of its list; TensorFlow sorts the hosts, as text, and not the tasks",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::unsorted_nodes,
        ours: Ours::Instead(clusters::of_slurm),
        why: "hosts stay in the order in which they are given; TensorFlow sorts them",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::several_brackets,
        ours: Ours::Instead(clusters::expanded),
        why: "Slurm's names may have several brackets",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::blank_in_a_name,
        ours: Ours::Refused("value"),
        why: "no host's name has a blank",
    },
    Decision {
        ids: &["cluster_resolvers/"],
        when: clusters::asks_for_no_tasks,
        ours: Ours::Instead(clusters::no_tasks),
        why: "a job without tasks has no addresses; TensorFlow fails to find the last",
    },
    Decision {
        ids: &["parameter_server/partitioner_"],
        when: servers::has_other_dtype,
        ours: Ours::NotExpressible,
        why: "there are no complex tensors and no texts",
    },
    Decision {
        ids: &["parameter_server/partitioner_"],
        when: |case| servers::has_negative(&case.args["partitioner"]),
        ours: Ours::NotExpressible,
        why: "a number of bytes or shards is not negative",
    },
    Decision {
        ids: &["parameter_server/misuse/"],
        when: |case| case.args["partitioner"] == serde_json::json!(["fixed", 0]),
        ours: Ours::Refused("not_positive"),
        why: "a partitioner is checked when it is made; TensorFlow's answers 0, and a variable is refused",
    },
    Decision {
        ids: &["parameter_server/misuse/"],
        when: |case| case.args["partitioner"] == serde_json::json!(["returns", [3, 1, 1]]),
        ours: Ours::Refused("bad_partition"),
        why: "a partition has one number of parts for each axis; TensorFlow looks at the first axis alone",
    },
    Decision {
        ids: &[
            "parameter_server/lookup_out_of_range/",
            "parameter_server/read_rows/",
            "parameter_server/scatter_shape/",
        ],
        when: servers::is_told_later,
        ours: Ours::Instead(servers::told_later),
        why: "a closure is not traced: its reads and updates are refused where it runs, and `join` and `fetch` say so; \
              TensorFlow's `schedule` refuses",
    },
    Decision {
        ids: &["parameter_server/assign/", "parameter_server/assign_add/", "parameter_server/assign_sub/"],
        when: servers::is_better,
        ours: Ours::Alternative,
        why: "an update with too few or too many rows is refused whole; TensorFlow writes the first shards before it refuses, \
              or drops rows",
    },
    Decision {
        ids: &["parameter_server/variable_argument/"],
        when: servers::is_better,
        ours: Ours::Alternative,
        why: "a variable that is an argument is the same variable; TensorFlow looks up among its shards",
    },
    Decision {
        ids: &["parameter_server/error/", "parameter_server/error_among_many/"],
        when: servers::is_better,
        ours: Ours::Alternative,
        why: "a closure that failed leaves no effect; TensorFlow's do, now and then",
    },
    Decision {
        ids: &["parameter_server/dataset/"],
        when: servers::is_better,
        ours: Ours::Alternative,
        why: "a closure that failed has taken no element; TensorFlow's iterator has gone on",
    },
    Decision {
        ids: &["parameter_server/fetch/"],
        when: servers::is_better,
        ours: Ours::Alternative,
        why: "None is a value like any other; TensorFlow's coordinator fails when it copies it",
    },
    Decision {
        ids: &["parameter_server/scatter_shape/"],
        when: servers::scatters_a_scalar,
        ours: Ours::Instead(servers::refused_scatter),
        why: "a scatter has a row for each index; TensorFlow takes one number for all rows, if the variable is not divided",
    },
    Decision {
        ids: &["parameter_server/fetch/"],
        when: servers::has_result_as_argument,
        ours: Ours::Instead(servers::both_ready),
        why: "a closure may have the result of another one as an argument, and waits for it",
    },
    Decision {
        ids: &["parameter_server/checkpoint/"],
        when: |case| case.args["programs"][1]["steps"][0][0] == "restore",
        ours: Ours::Instead(servers::refused_restore),
        why: "a restore of a variable that the checkpoint lacks is refused; TensorFlow leaves the variable as it is, \
              unless it is asked for all",
    },
    Decision {
        ids: &["parameter_server/"],
        when: |case| Foreign::Gradients.is_in(case),
        ours: Ours::NotExpressible,
        why: "a program computes the gradients of what it has read: there is no tape of reads",
    },
    Decision {
        ids: &["parameter_server/scatter_other/"],
        when: |case| Foreign::Scatters.is_in(case),
        ours: Ours::NotExpressible,
        why: "rows are added, subtracted and replaced; other changes are update functions, which run at the servers",
    },
    Decision {
        ids: &["parameter_server/"],
        when: |case| Foreign::Contexts.is_in(case),
        ours: Ours::NotExpressible,
        why: "a closure runs once, at one worker: it has the context of its worker, and no strategy whose replicas run, \
              reduce or gather",
    },
    Decision {
        ids: &["parameter_server/"],
        when: |case| Foreign::Options.is_in(case),
        ours: Ours::NotExpressible,
        why: "a variable is one value on the servers, made as a whole: it has no initializer by parts, no aggregation or \
              synchronization of copies, and no mark for training",
    },
    Decision {
        ids: &["parameter_server/"],
        when: |case| Foreign::Types.is_in(case),
        ours: Ours::NotExpressible,
        why: "the compiler checks functions, their arguments and data sets",
    },
    Decision {
        ids: &["parameter_server/misuse/"],
        when: |case| servers::has_step(case, "define"),
        ours: Ours::Refused("wrong_context"),
        why: "variables and functions are declared before the first closure: then processes compare their programs",
    },
    Decision {
        ids: &["parameter_server/cluster/"],
        when: |case| case.args["cluster"]["reader"].is_u64(),
        ours: Ours::Refused("no_chief"),
        why: "other jobs of a cluster are no matter of the strategy, and a chief is; TensorFlow refuses the other jobs",
    },
    Decision {
        ids: &["parameter_server/cluster/"],
        when: |case| case.args["cluster"]["evaluator"].is_u64(),
        ours: Ours::Refused("no_servers"),
        why: "evaluators are no matter of the strategy; TensorFlow counts them first",
    },
];

impl Decision {
    pub(crate) fn covers(&self, case: &Case) -> bool {
        let (category, _) = case.id.rsplit_once('/').expect("a number within a category");
        let category = format!("{category}/");
        self.ids.iter().any(|ids| category.starts_with(ids)) && (self.when)(case)
    }
}

impl Decision {
    /// Whether no program that compiles is such a case.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.ours, Ours::NotExpressible)
    }
}

impl Ours {
    pub(crate) fn name(&self) -> String {
        match self {
            Ours::Refused(kind) => format!("refused as {kind}"),
            Ours::Reduced => "another value".to_owned(),
            Ours::Gathered => "gathered".to_owned(),
            Ours::Specified => "as specified".to_owned(),
            Ours::AllBatches => "all batches".to_owned(),
            Ours::Instead(_) => "another answer".to_owned(),
            Ours::Differentiated => "differentiated".to_owned(),
            Ours::Alternative => "the alternative".to_owned(),
            Ours::NotExpressible => "not expressible".to_owned(),
        }
    }

    /// Returns how an answer differs from the row's.
    pub(crate) fn differs(&self, case: &Case, answer: &Answer) -> Option<String> {
        match (self, answer) {
            (Ours::Refused(expected), Err(Stop::Refused(error))) if kind(error) == *expected => None,
            (Ours::Refused(expected), Err(Stop::OfSpec(kind))) if kind == expected => None,
            (Ours::NotExpressible, Err(Stop::NotExpressible)) => None,
            (Ours::Alternative, answer) => case.differs_from_alternative(answer),
            (Ours::Specified, Ok(found)) => variables::specified(case).difference(found, 0),
            (Ours::AllBatches, Ok(Value::Dict(parts))) => datasets::all_batches(case).difference(&parts["steps"], 0),
            (Ours::Instead(ours), Ok(found)) => case.with_parts(ours(case)).difference(found, 0),
            (Ours::Differentiated, Ok(found)) => gradients::by_definition(case).difference(found, 0),
            (Ours::Reduced, Ok(found)) => reduced(case).difference(found, 0),
            (Ours::Gathered, Ok(found)) => {
                let gathered = arithmetic::gather(case.nests().expect("nests of tensors").values());
                let local = if case.api == "Strategy.gather" { gathered } else { Value::Local(vec![gathered]) };
                local.difference(&found.clone().densify().expect("rows within their shape"), 0)
            }
            (expected, found) => Some(format!("expected {}, found {found:?}", expected.name())),
        }
    }
}

fn reduced(case: &Case) -> Value {
    if case.text("merge_fn") == "list" {
        let own = Value::parse(&case.raw_inputs()[0]["args"][0]);
        let mean = arithmetic::reduce(ReduceOp::Mean, &[], std::slice::from_ref(&own));
        return Value::Local(vec![Value::List(vec![own, mean])]);
    }
    let op: ReduceOp = case.op().ok().and_then(|op| op.try_into().ok()).expect("an operation");
    let nests = case.nests().expect("a nest of tensors for each replica");
    let result = arithmetic::reduce(op, &case.axes().unwrap_or_default(), nests.values());
    let placed = |value, to: &Json| if to == "value" { Value::Local(vec![value; case.replicas]) } else { value };
    match (result, &case.args["destinations"]) {
        (Value::List(values), Json::Array(to)) => {
            Value::List(values.into_iter().zip(to).map(|(value, to)| placed(value, to)).collect())
        }
        (value, _) if case.api == "ReplicaContext.all_reduce" => {
            let value = if case.args.get("densify").is_some() {
                value.densify().expect("rows within their shape")
            } else {
                value
            };
            Value::Local(vec![value; case.replicas])
        }
        (value, to) => placed(value, to),
    }
}

fn always(_: &Case) -> bool {
    true
}

fn several_replicas(case: &Case) -> bool {
    case.replicas > 1
}

fn mean_of_one_integer(case: &Case) -> bool {
    let mean = case.text("op") == "MEAN" || case.text("merge_fn") == "list";
    mean && case.replicas == 1 && case.has_dtype(&["i", "u"])
}

/// Returns whether TensorFlow's arithmetic gives another value than ours.
fn reduced_otherwise(case: &Case) -> bool {
    case.differs_from_tensorflow(&Ok(reduced(case))).is_some()
}

/// Returns whether TensorFlow's variable behaves differently from ours.
fn specified_otherwise(case: &Case) -> bool {
    case.differs_from_tensorflow(&Ok(variables::specified(case))).is_some()
}

/// Returns the rank of the first replica's tensor.
fn rank(case: &Case) -> Option<isize> {
    case.inputs().into_iter().next()?.into_tensor().map(|tensor| tensor.rank() as isize)
}
