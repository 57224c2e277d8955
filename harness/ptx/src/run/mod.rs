//! Executes programs.

mod random;
mod failure;
mod machine;
mod warp;
mod access;
mod exchange;
mod block;
mod launch;

pub(crate) use crate::program::{Shuffle, Vote};
pub(crate) use launch::launch;
pub use launch::{Launch, Stats};
