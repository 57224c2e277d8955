//! The protocols that move data from rank to rank, other than inline payloads.

mod in_place;
mod process_read;
mod windows;
mod heaps;
mod staged;
mod two_shot;
#[cfg(all(test, target_os = "linux"))]
mod tests;
