//! The protocols that move data from rank to rank, other than inline payloads.

mod heaps;
mod in_place;
mod process_read;
mod staged;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod two_shot;
mod windows;

pub(super) use staged::Showing;
