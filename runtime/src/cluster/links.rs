//! The processes of a group that met at addresses.

use crate::{Communicator, comm::engine::hosts::Hosts};
use std::sync::Arc;

/// The network of a group, and the means to form it again.
pub(super) struct Links {
    pub(super) hosts: Arc<Hosts>,
    pub(super) control: Communicator,
    /// The number of the next group of ranks on this network.
    pub(super) next: u64,
}
