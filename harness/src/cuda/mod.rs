//! The kernels of CUDA devices against the spec and the host's kernels.
//!
//! A [`Case`] is a value. It is made into a job: the memory before some launches, the launches, and
//! the memory that they must leave. The [`Interpreter`] runs the PTX that ships, without a device.
//! A [`Gpu`] runs the same jobs by the driver. Results are compared bit for bit; all NaNs are
//! equal.

mod job;
mod interpreter;
mod gpu;
mod fold;
mod along;
mod rows;
mod concat;
mod elements;
mod exact;
mod list;
mod fuzzed_cases;

pub use along::AlongCase;
pub use concat::ConcatCase;
pub use elements::{ElementsCase, Work};
pub use fold::{FoldCase, Route};
pub use fuzzed_cases::fuzzed;
pub use gpu::Gpu;
pub use interpreter::Interpreter;
pub use list::cases;
pub use rows::RowsCase;

use crate::compare::with_type;
use along::of_along;
use concat::of_concat;
use consonance_spec::{DType, ReduceOp, for_each_dtype};
use elements::of_elements;
use fold::of_fold;
use job::Job;
use rows::of_rows;

/// Work on a device. A seed chooses the elements.
#[derive(Clone, Debug)]
pub enum Case {
    /// A reduction of several sources, element by element.
    Fold(FoldCase),
    /// A reduction along an axis.
    Along(AlongCase),
    /// Sums of rows.
    Rows(RowsCase),
    /// A concatenation.
    Concat(ConcatCase),
    /// Work on single elements.
    Elements(ElementsCase),
}

impl Case {
    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        match self {
            Case::Fold(case) => case.dtype,
            Case::Along(case) => case.dtype,
            Case::Rows(case) => case.dtype,
            Case::Concat(case) => case.dtype,
            Case::Elements(case) => case.dtype,
        }
    }

    /// Returns what the case does to elements: the name of an operation, or of other work.
    pub fn name(&self) -> &'static str {
        match self {
            Case::Fold(case) => case.op.name(),
            Case::Along(case) => case.op.name(),
            Case::Rows(_) => ReduceOp::Sum.name(),
            Case::Concat(_) => "concat",
            Case::Elements(case) => case.work.name(),
        }
    }

    /// Returns the job. Its results are the host's; where they come from at most `most` elements,
    /// they are compared with the spec's, which is slow.
    ///
    /// # Errors
    /// The difference of the host from the spec.
    fn job(&self, most: usize) -> Result<Job, String> {
        match self {
            Case::Fold(case) => for_each_dtype!(with_type case.dtype, of_fold(case, most);),
            Case::Along(case) => for_each_dtype!(with_type case.dtype, of_along(case, most);),
            Case::Rows(case) => for_each_dtype!(with_type case.dtype, of_rows(case);),
            Case::Concat(case) => for_each_dtype!(with_type case.dtype, of_concat(case);),
            Case::Elements(case) => for_each_dtype!(with_type case.dtype, of_elements(case);),
        }
    }
}
