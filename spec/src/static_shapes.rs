//! The rules of static shapes: the contract of a TPU, where one compiled program runs on all
//! replicas, so that a tensor has one shape everywhere.

/// A rule: data for checks, errors and pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name in errors.
    pub name: &'static str,
    /// The calls that it is for.
    pub calls: &'static str,
    /// Its sentence.
    pub sentence: &'static str,
    /// The place where TensorFlow has it.
    pub source: &'static str,
}

/// The shapes of what is gathered.
pub const GATHERED_SHAPE: Rule = Rule {
    name: "gathered shape",
    calls: "`all_gather`, `gather`",
    sentence: "one rank and shape on all replicas, also along the axis",
    source: "`ReplicaContext.all_gather`, its page",
};

/// The kinds of leaves that are gathered.
pub const GATHERED_LEAF: Rule = Rule {
    name: "gathered leaf",
    calls: "`all_gather`, `gather`",
    sentence: "tensors of rank 1 or more, and no `IndexedSlices`",
    source: "`ReplicaContext.all_gather`, its page",
};

/// The shapes of what is reduced.
pub const REDUCED_SHAPE: Rule = Rule {
    name: "reduced shape",
    calls: "`all_reduce`, `reduce`, `reduce_to`, `batch_reduce_to`",
    sentence: "one shape on all replicas, also with an axis",
    source: "`ReplicaContext.all_reduce`, its page",
};

/// The operations of reductions.
pub const REDUCED_OP: Rule = Rule {
    name: "reduced op",
    calls: "`all_reduce`, `reduce`, `reduce_to`, `batch_reduce_to`",
    sentence: "only `sum` and `mean`",
    source: "`tpu_strategy.py`, `TPUExtended._reduce_to`",
};

/// The shapes of arguments whose batches are dynamic.
pub const ARGUMENTS: Rule = Rule {
    name: "arguments",
    calls: "`run_with`",
    sentence: "one rank and dtype on all replicas; sizes may differ along axis 0 only",
    source: "`RunOptions.experimental_enable_dynamic_batch_size`",
};

/// The shapes of arguments whose batches are not dynamic.
pub const FIXED_ARGUMENTS: Rule = Rule {
    name: "fixed arguments",
    calls: "`run_with`, with `dynamic_batch(false)`",
    sentence: "one shape and dtype on all replicas",
    source: "`RunOptions.experimental_enable_dynamic_batch_size`",
};

/// The kinds of leaves of data sets.
pub const DATA_LEAF: Rule = Rule {
    name: "data leaf",
    calls: "`distribute_dataset`, `distribute_datasets_from_function`",
    sentence: "no `IndexedSlices`",
    source: "`tpu_strategy.py`, `TPUExtended._experimental_distribute_dataset`",
};

/// The batches of data sets that are not dynamic.
pub const FULL_BATCHES: Rule = Rule {
    name: "full batches",
    calls: "the same, with `dynamic_batch(false)`",
    sentence: "only full batches, by `drop_remainder`, that divide evenly among the replicas",
    source: "`RunOptions.experimental_enable_dynamic_batch_size`",
};

/// The operands of variables, whose rule holds without the option, too.
pub const OPERANDS: Rule = Rule {
    name: "operands",
    calls: "`update`, `assign` and its like",
    sentence: "the same on all replicas in `update` and in assignments outside of replicas; of equal shapes in replicas; so also without the option",
    source: "`StrategyExtended.update`, its page",
};

/// All rules, in the order of the guide's table.
pub const RULES: [Rule; 9] = [
    GATHERED_SHAPE,
    GATHERED_LEAF,
    REDUCED_SHAPE,
    REDUCED_OP,
    ARGUMENTS,
    FIXED_ARGUMENTS,
    DATA_LEAF,
    FULL_BATCHES,
    OPERANDS,
];
