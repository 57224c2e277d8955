//! The synchronization and aggregation of a variable's components.

/// The time at which the components of a variable are synchronised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VariableSynchronization {
    /// As [`OnWrite`](VariableSynchronization::OnWrite).
    #[default]
    Auto,
    /// Never. Only strategies with one copy of a variable have such variables.
    None,
    /// At each assignment, so that the components are always equal.
    OnWrite,
    /// At a read of the variable outside of the replicas.
    OnRead,
}

/// The aggregation of a variable's components.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VariableAggregation {
    /// They are not aggregated.
    #[default]
    None,
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The component of the first replica.
    OnlyFirstReplica,
}
