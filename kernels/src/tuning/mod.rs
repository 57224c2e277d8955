//! Every threshold of the protocols and copies in one table, and where its value comes from.
//!
//! No knob changes a bit of a result. A knob of a [group](Scope::Group) must be the same on all
//! ranks, because each computes from it where the others' data are: the process that makes the
//! segment writes these knobs into its header, and the others take them from there
//! (`shm/header.rs`), until all choose a pipeline. All other knobs are of a
//! [process](Scope::Process), and may change at any time.
//!
//! A process settles its values before its first group. A group of processes measures its pipelines
//! after its first large call (`group/measured.rs`).
//!
//! `knobs.rs` has the table, `value.rs` the types of values, `pipelines.rs` the ways to choose
//! from, `pipeline_choice.rs` what follows from a choice. `machine.rs` reads what the system says
//! of the machine, and `choice.rs` sets knobs by it. `text.rs` reads and writes files of knobs.
//! `process.rs` keeps the values of this process.

mod way;
mod pipelines;
mod value;
mod fastest;
mod knobs;
mod pipeline_choice;
mod machine;
mod choice;
mod text;
mod process;

pub(crate) use fastest::{TURNS, fastest, median};
pub use knobs::{Knob, Scope, Tuning};
pub(crate) use knobs::{LEAST_CELL_BYTES, LEAST_CELLS, RING_CELL_BYTES, RING_CELLS};
pub use machine::{Cache, Machine};
pub(crate) use pipeline_choice::Choice;
pub(crate) use pipelines::MOVSB_BYTES;
pub use pipelines::Pipeline;
pub use process::{Origin, Settled, Trial, VARIABLE, adopt, current, for_ranks, join, keep, settle, settled};
pub(crate) use process::{begin_trial, choice, choose, choose_own, end_trial, is_own_due, note, try_out};
pub use text::{TuningError, parse, to_text};
pub use value::Value;
pub use way::Way;
