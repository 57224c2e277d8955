//! The ways of data from rank to rank, where they do not come with an arrival.

mod in_place;
mod process_read;
mod windows;
mod heaps;
mod staged;
mod two_shot;
#[cfg(all(test, target_os = "linux"))]
mod tests;
