//! Records of calls, for the timeline that `consonance run --profile` writes, and spans of calls
//! for `tracing`.
//!
//! The launcher names a folder in the variable [`VARIABLE`]. Each thread that makes calls then
//! writes its own file in it (`kernels/src/os/record_file.rs`): a record when a call or a run
//! begins, completed when it ends. So the file of a worker that was killed has the call that it was
//! in. Without the variable a call costs one branch more.

mod record;
mod spans;
mod stream;

pub use consonance_kernels::group::plan::Path;
pub use record::{CallRecord, ClockRecord, ClosureRecord, Event, GpuRecord, Name, Record, RequestRecord, Transport};
pub(crate) use spans::{CallSpan, RunSpan, are_wanted};
pub use stream::{EXTENSION, VARIABLE};
pub(crate) use stream::{Span, is_on, name_gpu, tell_clock};
