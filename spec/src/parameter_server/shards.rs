//! The rows of each shard of a variable: TensorFlow's "div" split.

use crate::partition::block;
use std::ops::Range;

/// The division of the rows of a variable into shards. They are the even blocks of the rows: the
/// first ones have one row more, if they are not of one size.
///
/// ```
/// use consonance_spec::Shards;
/// let shards = Shards::new(10, 4);
/// assert_eq!((0..4).map(|shard| shards.rows_of(shard)).collect::<Vec<_>>(), [0..3, 3..6, 6..8, 8..10]);
/// assert_eq!(shards.place_of(7), Some((2, 1)));
/// assert_eq!(shards.place_of(10), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    rows: usize,
    shards: usize,
}

impl Shards {
    /// Divides `rows` into `shards`.
    ///
    /// # Panics
    /// If there are no shards.
    pub fn new(rows: usize, shards: usize) -> Shards {
        assert!(shards > 0, "{rows} rows in no shards");
        Shards { rows, shards }
    }

    /// Returns the number of rows of all shards.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of shards.
    pub fn count(&self) -> usize {
        self.shards
    }

    /// Returns the rows of a shard.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn rows_of(&self, shard: usize) -> Range<usize> {
        block(self.rows, self.shards, shard)
    }

    /// Returns the shard of a row, and its number among the rows of the shard; `None` if there is
    /// no such row.
    pub fn place_of(&self, row: usize) -> Option<(usize, usize)> {
        let shard = (0..self.shards).find(|&shard| self.rows_of(shard).contains(&row))?;
        Some((shard, row - self.rows_of(shard).start))
    }

    /// Returns for each shard the positions of its rows in a list of rows, in the order of the
    /// list, and their numbers in the shard.
    ///
    /// ```
    /// use consonance_spec::Shards;
    /// // Rows 0 to 2 are in the first shard.
    /// let split = Shards::new(5, 2).split(&[4, 0, 4, 2]);
    /// assert_eq!(split, Ok(vec![vec![(1, 0), (3, 2)], vec![(0, 1), (2, 1)]]));
    /// assert_eq!(Shards::new(5, 2).split(&[4, 5]), Err(1));
    /// ```
    ///
    /// # Errors
    /// If there is no such row: its position in the list, the first one.
    pub fn split(&self, rows: &[usize]) -> Result<Vec<Vec<(usize, usize)>>, usize> {
        let mut split = vec![Vec::new(); self.shards];
        for (position, &row) in rows.iter().enumerate() {
            let (shard, within) = self.place_of(row).ok_or(position)?;
            split[shard].push((position, within));
        }
        Ok(split)
    }
}
