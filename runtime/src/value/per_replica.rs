//! Values that exist once for each replica.

use crate::{
    Device, Error, Nest, Result,
    value::nest::{self, NestSignature},
};
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
#[derive(Clone)]
pub struct PerReplica<T> {
    values: Vec<T>,
    /// The signature of each value, as far as it is known.
    shapes: Option<Vec<NestSignature>>,
}

impl<T> PerReplica<T> {
    /// Wraps the values of this process's replicas, in replica order.
    pub fn new(values: Vec<T>) -> PerReplica<T> {
        PerReplica { values, shapes: None }
    }

    /// Notes the shapes of the values, so that [`run_with`](crate::Strategy::run_with) of a
    /// strategy with [`StaticShapes`](crate::StaticShapes) can compare them. It takes values of
    /// every type, so it sees no others than noted ones. Steps of such a strategy's data sets have
    /// them, [`zip`](PerReplica::zip) keeps those of its parts, [`map`](PerReplica::map) none.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] from a [`Nest`] that does not take back the leaves that it gave.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, PerReplica, StaticShapes, Tensor};
    /// let shapes = StaticShapes::new();
    /// let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).static_shapes(shapes).build()?;
    /// let batches = PerReplica::new(vec![Tensor::from([0, 1]), Tensor::from([[2, 3]])]).with_shapes()?;
    /// let error = strategy.run_with(batches, |_, batch| Ok(batch.count())).unwrap_err();
    /// assert!(error.to_string().contains("mismatch in value of replica 1: expected i32[2], found i32[1, 2]"));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn with_shapes(self) -> Result<PerReplica<T>>
    where
        T: Nest,
    {
        let mut shapes = Vec::with_capacity(self.values.len());
        let noted = self.values.into_iter().map(|mut value| {
            let leaves = nest::take(&mut value);
            shapes.push(NestSignature::of_static_shapes(&leaves));
            nest::put(value, leaves).map_err(|error| error.of_call("PerReplica::with_shapes"))
        });
        let values = noted.collect::<Result<_>>()?;
        Ok(PerReplica { values, shapes: Some(shapes) })
    }

    /// Returns the signatures of the values, if they are known.
    pub(crate) fn shapes(&self) -> Option<&[NestSignature]> {
        self.shapes.as_deref()
    }

    /// Returns the values in replica order.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Consumes this and returns the values in replica order.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }

    /// Iterates over the values in replica order.
    pub fn iter(&self) -> slice::Iter<'_, T> {
        self.values.iter()
    }

    /// Applies `f` to each value.
    pub fn map<U>(self, f: impl FnMut(T) -> U) -> PerReplica<U> {
        PerReplica::new(self.values.into_iter().map(f).collect())
    }

    /// Pairs each value with that of the same replica: for a
    /// [`run_with`](crate::Strategy::run_with) of several arguments.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the other has another number of replicas.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, PerReplica};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let (weights, names) = (PerReplica::new(vec![0.5, 1.5]), PerReplica::new(vec!["a", "b"]));
    /// let told = strategy.run_with(weights.zip(names)?, |_, (weight, name)| Ok(format!("{name} {weight}")))?;
    /// assert_eq!(told.values(), ["a 0.5", "b 1.5"]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn zip<U>(self, other: PerReplica<U>) -> Result<PerReplica<(T, U)>> {
        let (own, others) = (self.values.len(), other.values.len());
        match own == others {
            true => {
                let below =
                    |key: usize| move |shapes: &Vec<NestSignature>| shapes.iter().map(|of| of.below(key)).collect();
                let known: [Option<Vec<NestSignature>>; 2] =
                    [self.shapes.as_ref().map(below(0)), other.shapes.as_ref().map(below(1))];
                let shapes = known.into_iter().flatten().reduce(|first, second| {
                    first.into_iter().zip(second).map(|(first, second)| first.beside(second)).collect()
                });
                Ok(PerReplica { values: self.values.into_iter().zip(other.values).collect(), shapes })
            }
            false => Err(Error::invalid("PerReplica::zip", "other", format!("{own} values"), others.to_string())),
        }
    }
}

/// Values are equal whether their shapes are noted or not.
impl<T: PartialEq> PartialEq for PerReplica<T> {
    fn eq(&self, other: &PerReplica<T>) -> bool {
        self.values == other.values
    }
}

impl<T: Eq> Eq for PerReplica<T> {}

impl<T: fmt::Debug> fmt::Debug for PerReplica<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerReplica").field(&self.values).finish()
    }
}

/// Indexes by the position of a replica among those of this process. In a single process this is
/// the replica's id.
impl<T> Index<usize> for PerReplica<T> {
    type Output = T;

    fn index(&self, replica: usize) -> &T {
        &self.values[replica]
    }
}

/// Collects the values of this process's replicas, in replica order.
impl<T> FromIterator<T> for PerReplica<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        PerReplica::new(values.into_iter().collect())
    }
}

impl<T> IntoIterator for PerReplica<T> {
    type Item = T;
    type IntoIter = vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a PerReplica<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Prints the values like TensorFlow, each with the precision and the flags of the whole.
///
/// ```
/// use consonance::{PerReplica, Tensor};
/// let losses = PerReplica::new(vec![Tensor::from(0.625f32), Tensor::from(2.0f32)]);
/// assert_eq!(format!("{losses:#.1}"), "PerReplica:{\n  0: 0.6,\n  1: 2.0\n}");
/// ```
impl<T: fmt::Display> fmt::Display for PerReplica<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PerReplica:{{")?;
        for (id, value) in self.iter().enumerate() {
            write!(f, "{}\n  {id}: ", if id == 0 { "" } else { "," })?;
            fmt::Display::fmt(value, f)?;
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

    /// Returns the value.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Consumes this and returns the value.
    pub fn into_value(self) -> T {
        self.value
    }

    /// Returns the devices that hold the value.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }
}

/// Prints the value.
///
/// ```
/// use consonance::{MirroredStrategy, Tensor};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let losses = strategy.run(|_| Ok(Tensor::from(0.5f32)))?;
/// let total = strategy.reduce_to("sum", &losses, "cpu:0")?;
/// assert_eq!(total.to_string(), "f32[] 1");
/// # Ok::<(), consonance::Error>(())
/// ```
impl<T: fmt::Display> fmt::Display for Mirrored<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.value, f)
    }
}

/// A result that [`merge_call`](crate::ReplicaContext::merge_call) distributes to the replicas.
pub trait Merged {
    /// The value that one replica receives.
    type Value;

    /// Splits the result into a value for each of `replicas` replicas of this process. The list is
    /// longer or shorter if the result has another number of values.
    fn split(self, replicas: usize) -> Vec<Self::Value>;
}

/// Gives the replicas no value: for a merge function that is called for its effect.
impl Merged for () {
    type Value = ();

    fn split(self, replicas: usize) -> Vec<()> {
        vec![(); replicas]
    }
}

/// Gives each replica its own value.
impl<T> Merged for PerReplica<T> {
    type Value = T;

    fn split(self, _replicas: usize) -> Vec<T> {
        self.values
    }
}

/// Gives each replica a clone of the value.
impl<T: Clone> Merged for Mirrored<T> {
    type Value = T;

    fn split(self, replicas: usize) -> Vec<T> {
        vec![self.value; replicas]
    }
}
