//! The protocols that move data from rank to rank, other than inline payloads.

mod divided;
mod holdings;
mod held;
mod in_place;
mod staged;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod two_shot;

pub(super) use divided::Divided;
pub(super) use held::HeldStep;
pub use holdings::{Held, Holdings, Last};
pub(super) use in_place::divided_in_place;
pub(super) use staged::{Input, Showing, in_windows};
pub(super) use two_shot::divided_on_stage;
