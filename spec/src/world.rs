//! A rank and the number of ranks.

/// A rank of a group and the group's size. The constructor checks that `rank` is below `size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    rank: usize,
    size: usize,
}

impl World {
    /// Makes the world of `rank` among `size` ranks; `None` unless `rank < size`.
    pub const fn new(rank: usize, size: usize) -> Option<World> {
        if rank < size { Some(World { rank, size }) } else { None }
    }

    /// Returns this rank, from 0.
    pub const fn rank(self) -> usize {
        self.rank
    }

    /// Returns the number of ranks, at least 1.
    pub const fn size(self) -> usize {
        self.size
    }

    /// Returns every other rank, in the order `rank + 1, rank + 2, …` modulo `size`, so that not
    /// all ranks access the same peer first.
    pub fn peers(self) -> impl Iterator<Item = usize> + Clone {
        (self.rank + 1..self.rank + self.size).map(move |peer| if peer < self.size { peer } else { peer - self.size })
    }
}
