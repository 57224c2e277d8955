//! Cross-replica calls: reduce and gather the replicas' values.

mod across;
mod reduce;

pub use reduce::Destinations;
