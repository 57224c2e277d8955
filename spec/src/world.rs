//! Who takes part: a rank and the number of ranks.

/// One rank's place among all: `rank` is below `size`, which the constructor checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    rank: usize,
    size: usize,
}

impl World {
    /// The place of `rank` among `size` ranks; `None` unless `rank < size`.
    pub const fn new(rank: usize, size: usize) -> Option<World> {
        if rank < size { Some(World { rank, size }) } else { None }
    }

    /// This rank, from 0.
    pub const fn rank(self) -> usize {
        self.rank
    }

    /// The number of ranks, at least 1.
    pub const fn size(self) -> usize {
        self.size
    }

    /// Every rank but this one, in the order `rank + 1, rank + 2, …` around the world, so that not
    /// all ask the same peer first.
    pub fn peers(self) -> impl Iterator<Item = usize> + Clone {
        (self.rank + 1..self.rank + self.size).map(move |peer| if peer < self.size { peer } else { peer - self.size })
    }
}
