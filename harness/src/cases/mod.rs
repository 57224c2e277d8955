//! With what is tested: cases as values, each made from bytes.

mod source;
mod script;
mod nest;
mod odd;

pub use nest::{AxisCase, Carrier, Leaf, NestCall, NestCase, Then};
pub use odd::{OddRank, OddReplica, RankDoes, ReplicaDoes};
pub use script::{Buffer, Collective, Counts, Memory, Script};
pub use source::Source;

/// What a case is called and how it is made.
pub trait Case: Clone + std::fmt::Debug + Send + 'static {
    /// The case that these bytes say.
    fn read(source: &mut Source<'_>) -> Self;
}
