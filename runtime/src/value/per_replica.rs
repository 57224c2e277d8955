//! Values that exist once for each replica.

use crate::Device;
use std::{fmt, ops::Index, slice, vec};

/// One value for each replica of this process, in replica order.
///
/// ```
/// use consonance::MirroredStrategy;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let ids = strategy.run(|replica| Ok(replica.replica_id_in_sync_group()))?;
/// assert_eq!(ids.to_string(), "PerReplica:{\n  0: 0,\n  1: 1\n}");
/// assert_eq!(ids.map(|id| id * 10)[1], 10);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerReplica<T>(Vec<T>);

impl<T> PerReplica<T> {
    /// The values of this process's replicas, in their order.
    pub fn new(values: Vec<T>) -> PerReplica<T> {
        PerReplica(values)
    }

    /// The values in replica order.
    pub fn values(&self) -> &[T] {
        &self.0
    }

    /// The values in replica order, given up.
    pub fn into_values(self) -> Vec<T> {
        self.0
    }

    /// The values in replica order.
    pub fn iter(&self) -> slice::Iter<'_, T> {
        self.0.iter()
    }

    /// `f` of each value.
    pub fn map<U>(self, f: impl FnMut(T) -> U) -> PerReplica<U> {
        PerReplica(self.0.into_iter().map(f).collect())
    }
}

/// The value of a replica, by its place among those of this process: where that has all replicas,
/// its id.
impl<T> Index<usize> for PerReplica<T> {
    type Output = T;

    fn index(&self, replica: usize) -> &T {
        &self.0[replica]
    }
}

/// The values of this process's replicas, in their order.
impl<T> FromIterator<T> for PerReplica<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        PerReplica(values.into_iter().collect())
    }
}

impl<T> IntoIterator for PerReplica<T> {
    type Item = T;
    type IntoIter = vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a PerReplica<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// As TensorFlow prints it.
impl<T: fmt::Display> fmt::Display for PerReplica<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PerReplica:{{")?;
        for (id, value) in self.iter().enumerate() {
            write!(f, "{}\n  {id}: {value}", if id == 0 { "" } else { "," })?;
        }
        write!(f, "\n}}")
    }
}

/// One value that is the same on several devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrored<T> {
    value: T,
    devices: Vec<Device>,
}

impl<T> Mirrored<T> {
    pub(crate) fn new(value: T, devices: Vec<Device>) -> Mirrored<T> {
        Mirrored { value, devices }
    }

    /// The value.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// The value, given up.
    pub fn into_value(self) -> T {
        self.value
    }

    /// Where it is.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }
}

/// What [`merge_call`](crate::ReplicaContext::merge_call) gives back to the replicas.
pub trait Merged {
    /// What each replica gets.
    type Value;

    /// The value of each of `replicas` replicas of this process; fewer or more if this has not as
    /// many.
    fn split(self, replicas: usize) -> Vec<Self::Value>;
}

/// To each replica nothing, from a function that only does something.
impl Merged for () {
    type Value = ();

    fn split(self, replicas: usize) -> Vec<()> {
        vec![(); replicas]
    }
}

/// To each replica its own value.
impl<T> Merged for PerReplica<T> {
    type Value = T;

    fn split(self, _replicas: usize) -> Vec<T> {
        self.0
    }
}

/// To each replica the same value.
impl<T: Clone> Merged for Mirrored<T> {
    type Value = T;

    fn split(self, replicas: usize) -> Vec<T> {
        vec![self.value; replicas]
    }
}
