//! The runtime's own calls above the collectives: in them ranks only wait for each other, or
//! exchange data of the runtime.

use consonance_kernels::{digest::digest, shm::codes};
use consonance_spec::{Extension, Kind, Signature};

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// The places of the kinds in the table.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "the names of the constants")]
        enum Index { $($kind,)* }

        $($(#[$doc])* pub(crate) const $kind: Kind = Kind::Extension(&Extension { place: Index::$kind as u8, name: $name });)*

        /// The kinds of calls that the runtime adds to those of the collectives, for reports of
        /// calls by their codes.
        pub const EXTENSIONS: &[&Extension] = &[$(&Extension { place: Index::$kind as u8, name: $name }),*];
    };
}

kinds! {
    /// All replicas wait while one function gets the arguments of all.
    MERGE_CALL = "merge_call",
    /// The replicas continue with the results of the function.
    MERGE_RETURN = "merge_call's return",
    /// Sets a variable to the aggregate of the replicas' values.
    ASSIGN = "assign",
    /// Adds the aggregate of the replicas' values to a variable.
    ASSIGN_ADD = "assign_add",
    /// Subtracts the aggregate of the replicas' values from a variable.
    ASSIGN_SUB = "assign_sub",
    /// Adds the aggregate of the replicas' rows to rows of a variable.
    SCATTER_ADD = "scatter_add",
    /// Subtracts the aggregate of the replicas' rows from rows of a variable.
    SCATTER_SUB = "scatter_sub",
    /// The replicas continue with the variable's new value.
    ASSIGN_RETURN = "assign's return",
    /// After calls that did not agree, every rank reports the call that it made.
    EXPLAIN = "comparison of the calls",
    /// The first call of the replicas of all workers.
    WORKERS = "MultiWorkerMirroredStrategy",
    /// Combines a value of each replica for all workers.
    STRATEGY_REDUCE = "Strategy::reduce",
    /// Combines a value of each replica for all workers, with destinations.
    STRATEGY_REDUCE_TO = "Strategy::reduce_to",
    /// Combines a value of each grain for all workers.
    STRATEGY_REDUCE_GRAINS = "Strategy::reduce_grains",
    /// Combines a value of each replica for all workers, rounded once.
    STRATEGY_REDUCE_EXACT = "Strategy::reduce_exact",
    /// Combines a value of each replica or rank for all of them, rounded once.
    ALL_REDUCE_EXACT = "all_reduce_exact",
    /// Concatenates a value of each replica for all workers.
    STRATEGY_GATHER = "Strategy::gather",
    /// Creates a variable on all workers, with the chief's initial value.
    NEW_VARIABLE = "Variable::builder",
    /// Reads the components of all workers' replicas as one value.
    READ_VARIABLE = "Variable::read",
    /// Reads some rows of a variable.
    READ_ROWS = "Variable::read_rows",
    /// The workers tell each other whether their data sets have a step.
    NEXT_STEP = "DistributedIterator::next",
    /// The chief writes a checkpoint, and the other workers wait until it is written.
    SAVE = "checkpoint::save",
    /// All workers restore the same checkpoint.
    RESTORE = "checkpoint::restore",
    /// The replicas compare the bits of their parameters.
    COMPARE_PARAMETERS = "training::compare_parameters",
    /// All ranks begin the next generation of their group.
    RENEW = "the next run",
    /// The ranks that are left after a loss form a group.
    REFORM = "MultiWorkerMirroredStrategy::reform",
}

/// Returns the signature of a call of one of these kinds. Its detail is a digest of the name: in
/// another build, another kind may have its place.
pub(crate) const fn signature(kind: Kind) -> Signature {
    Signature { detail: digest(kind.name()), ..Signature::new(kind) }
}

/// Whether reports show calls of this code: they do not show those in which ranks compare their
/// calls, but the calls that differ.
pub(crate) fn is_shown(code: u32) -> bool {
    code as u8 != codes::code_of(EXPLAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance_kernels::shm::codes::{code_of, fingerprint};
    use std::collections::HashSet;

    #[test]
    fn every_kind_has_its_own_name_and_code() {
        let kinds = || Kind::ALL.iter().copied().chain(EXTENSIONS.iter().map(|extension| Kind::Extension(extension)));
        let names: HashSet<&str> = kinds().map(Kind::name).collect();
        let codes: HashSet<u8> = kinds().map(code_of).collect();
        assert_eq!([names.len(), codes.len()], [kinds().count(); 2]);
        let [own, other] = [&Extension { place: 2, name: "assign" }, &Extension { place: 2, name: "assign_all" }]
            .map(|of| signature(Kind::Extension(of)));
        assert_ne!(fingerprint(&own), fingerprint(&other), "kinds of two builds in one place");
    }
}
