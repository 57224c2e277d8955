//! The test cases: values, each made from bytes.

mod source;
mod script;
mod nest;
mod deviation;
mod messages;

pub use deviation::{RankDeviation, RankDoes, ReplicaDeviation, ReplicaDoes};
pub use messages::{Exchange, Letter};
pub use nest::{AxisCase, Caller, Leaf, NestCall, NestCase, Then};
pub use script::{Buffer, Collective, Counts, Memory, Runs, Script};
pub use source::Source;

/// A test case that can be made from bytes.
pub trait Case: Clone + std::fmt::Debug + Send + 'static {
    /// Returns the case that the bytes of `source` encode.
    fn read(source: &mut Source<'_>) -> Self;
}
