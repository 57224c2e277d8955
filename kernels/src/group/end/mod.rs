//! The end of a group, and the reports of it to its ranks.
//!
//! An [`Abort`] ends a group in one generation: it names the rank at fault and the reason, and the
//! first wins. A step that it ends, or that fails for another reason, returns a [`Fault`]. An
//! [`Aborter`] ends the group from any thread. A [`Witness`] sees what a report says: how the group
//! was [ended](End), and the [last calls](LastCall) of its ranks.

pub(super) mod abort;
pub(super) mod aborter;
pub(super) mod witness;

pub use abort::{Abort, Fault, Reason};
pub use aborter::Aborter;
pub use witness::{End, LastCall, Witness};
