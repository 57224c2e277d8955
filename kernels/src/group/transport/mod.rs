//! The protocols that move data from rank to rank, other than inline payloads.

mod divided;
mod holdings;
mod holdings_step;
mod in_place;
mod staged;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod two_shot;

pub(super) use divided::Divided;
pub use holdings::{Holdings, Last, OwnHoldings};
pub(super) use holdings_step::HoldingsStep;
pub(super) use in_place::divided_in_place;
pub(super) use staged::{Input, Showing, in_windows};
pub(super) use two_shot::divided_on_stage;
