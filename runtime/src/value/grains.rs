//! The values of a replica's grains.

use std::ops::Range;

/// The values of the grains of one replica, with their numbers. A grain is a part of a step that is
/// a contribution of its own: see
/// [`Strategy::distribute_grains`](crate::Strategy::distribute_grains).
///
/// ```
/// use consonance::Grains;
/// let grains = Grains::new(3, vec!["a", "b"]);
/// assert_eq!(grains.numbers(), 3..5);
/// assert_eq!(grains.into_iter().collect::<Vec<_>>(), [(3, "a"), (4, "b")]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grains<E> {
    first: usize,
    values: Vec<E>,
}

impl<E> Grains<E> {
    /// Makes the values of the grains from number `first` on.
    pub fn new(first: usize, values: Vec<E>) -> Grains<E> {
        Grains { first, values }
    }

    /// Returns the numbers of the grains, among those of all replicas.
    pub fn numbers(&self) -> Range<usize> {
        self.first..self.first + self.values.len()
    }

    /// Returns the values in the order of their grains.
    pub fn values(&self) -> &[E] {
        &self.values
    }

    /// Returns the results of `f` with the number and the value of each grain.
    ///
    /// ```
    /// use consonance::Grains;
    /// let lengths = Grains::new(3, vec!["a", "bc"]).map(|grain, text| grain * 10 + text.len());
    /// assert_eq!(lengths, Grains::new(3, vec![31, 42]));
    /// ```
    pub fn map<R>(self, mut f: impl FnMut(usize, E) -> R) -> Grains<R> {
        let first = self.first;
        Grains { first, values: self.into_iter().map(|(grain, value)| f(grain, value)).collect() }
    }

    /// Returns the values, and gives them up.
    pub fn into_values(self) -> Vec<E> {
        self.values
    }
}

/// The number of each grain, and its value.
impl<E> IntoIterator for Grains<E> {
    type Item = (usize, E);
    type IntoIter = std::iter::Zip<Range<usize>, std::vec::IntoIter<E>>;

    fn into_iter(self) -> Self::IntoIter {
        self.numbers().zip(self.values)
    }
}
