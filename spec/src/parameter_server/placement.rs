//! The servers on which the shards of variables lie.

use super::RefusedPartition;

/// The round in which servers are chosen: the shards of all variables, in the order in which the
/// variables are made, lie on one server after the other.
///
/// A variable that is not divided has one shard. A variable that is made beside another one, as an
/// optimizer's slot is, lies where that one lies, and takes no place in the round. Neither does one
/// that is made outside the strategy: it lies at the chief.
///
/// ```
/// use consonance_spec::RoundRobin;
/// let mut round = RoundRobin::new(3);
/// assert_eq!(round.place(1), [0]);
/// assert_eq!(round.place(3), [1, 2, 0]);
/// assert_eq!(round.place(1), [1]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundRobin {
    servers: usize,
    /// The server of the next shard.
    next: usize,
}

impl RoundRobin {
    /// Begins a round.
    ///
    /// # Panics
    /// If there are no servers.
    pub fn new(servers: usize) -> RoundRobin {
        assert!(servers > 0, "variables without servers");
        RoundRobin { servers, next: 0 }
    }

    /// Returns the server of each shard of the next variable.
    pub fn place(&mut self, shards: usize) -> Vec<usize> {
        let placed = (self.next..self.next + shards).map(|place| place % self.servers).collect();
        self.next = (self.next + shards) % self.servers;
        placed
    }
}

/// Returns the number of shards of a variable of this shape whose partitioner answers
/// `partitions`: the parts along the first axis, but not more than there are rows.
///
/// A scalar has one shard, and its partitioner is not asked.
///
/// ```
/// use consonance_spec::{RefusedPartition, parameter_server::shards_of};
/// assert_eq!(shards_of(&[6, 2], &[9, 1]), Ok(6));
/// assert_eq!(shards_of(&[6, 2], &[1, 2]), Err(RefusedPartition::OtherAxis { axis: 1, parts: 2 }));
/// ```
///
/// # Errors
/// If there is not one number for each axis, if a number is 0, or if another axis than the first
/// one is divided.
pub fn shards_of(shape: &[usize], partitions: &[usize]) -> Result<usize, RefusedPartition> {
    if shape.is_empty() {
        return Ok(1);
    }
    if partitions.len() != shape.len() {
        return Err(RefusedPartition::Rank { expected: shape.len(), found: partitions.len() });
    }
    if let Some(axis) = partitions.iter().position(|&parts| parts == 0) {
        return Err(RefusedPartition::NoParts { axis });
    }
    if let Some(axis) = (1..partitions.len()).find(|&axis| partitions[axis] > 1) {
        return Err(RefusedPartition::OtherAxis { axis, parts: partitions[axis] });
    }
    Ok(partitions[0].min(shape[0]).max(1))
}
