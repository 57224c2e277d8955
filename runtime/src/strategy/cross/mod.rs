//! Cross-replica calls: reduce and gather of what the replicas hold.

mod across;
mod reduce;

pub use reduce::Destinations;
