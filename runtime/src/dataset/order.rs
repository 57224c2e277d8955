//! The choice and order of the rows of a table.

use super::adaptors::check_shard;
use crate::{DType, Error, Result, execution::random::SplitMix64};
use std::{borrow::Cow, io, ops::Range};

/// One step of the choice, applied to the result of the steps before it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pick {
    Take(usize),
    Skip(usize),
    Shard { count: usize, index: usize },
    Shuffle { seed: u64 },
}

/// The chosen rows, in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Order {
    /// `count` rows from `first`, `step` apart.
    Strided { first: usize, step: usize, count: usize },
    /// These.
    Listed(Vec<usize>),
}

impl Order {
    /// Applies `picks` to `rows` rows in this epoch.
    ///
    /// # Errors
    /// If there is no such shard, or no memory for the order of that many rows.
    pub(super) fn new(rows: usize, picks: &[Pick], epoch: u64) -> Result<Order> {
        picks.iter().try_fold(Order::Strided { first: 0, step: 1, count: rows }, |order, &pick| order.pick(pick, epoch))
    }

    fn pick(self, pick: Pick, epoch: u64) -> Result<Order> {
        let count = self.count();
        Ok(match pick {
            Pick::Take(most) => self.every(1, 0..most.min(count)),
            Pick::Skip(skipped) => self.every(1, skipped.min(count)..count),
            Pick::Shard { count: shards, index } => {
                check_shard(shards, index)?;
                self.every(shards, index.min(count)..count)
            }
            Pick::Shuffle { seed } => {
                let mut rows = match self {
                    Order::Listed(rows) => rows,
                    strided => {
                        let mut rows = Vec::new();
                        let no_memory = Error::no_memory(DType::U64, count);
                        rows.try_reserve_exact(count).map_err(|_| no_memory(io::ErrorKind::OutOfMemory.into()))?;
                        rows.extend((0..count).map(|place| strided.row(place)));
                        rows
                    }
                };
                shuffle(&mut rows, seed, epoch);
                Order::Listed(rows)
            }
        })
    }

    /// Returns the rows at every `stride`-th of these places.
    fn every(self, stride: usize, places: Range<usize>) -> Order {
        let left = places.len().div_ceil(stride);
        match self {
            Order::Strided { first, step, .. } => {
                // Saturated: if no row is left, `first` is past the end.
                let first = first.saturating_add(places.start.saturating_mul(step));
                Order::Strided { first, step: step.saturating_mul(stride), count: left }
            }
            Order::Listed(rows) => Order::Listed(rows[places].iter().copied().step_by(stride).collect()),
        }
    }

    /// Returns the number of rows.
    pub(super) fn count(&self) -> usize {
        match self {
            Order::Strided { count, .. } => *count,
            Order::Listed(rows) => rows.len(),
        }
    }

    fn row(&self, place: usize) -> usize {
        match self {
            Order::Strided { first, step, .. } => first + place * step,
            Order::Listed(rows) => rows[place],
        }
    }

    /// Returns the rows at `places`.
    pub(super) fn rows(&self, places: Range<usize>) -> ChosenRows<'_> {
        match self {
            Order::Strided { first, step: 1, .. } => ChosenRows::Range(first + places.start..first + places.end),
            Order::Strided { .. } => ChosenRows::List(places.map(|place| self.row(place)).collect()),
            Order::Listed(rows) => ChosenRows::List(Cow::Borrowed(&rows[places])),
        }
    }
}

/// Some of the chosen rows.
pub(super) enum ChosenRows<'a> {
    Range(Range<usize>),
    List(Cow<'a, [usize]>),
}

/// Shuffles `rows` by this seed and epoch.
///
/// This is Durstenfeld's shuffle from the last place down. Place `i` is swapped with place
/// `⌊x (i + 1) / 2⁶⁴⌋`, where `x` is the next output of SplitMix64. Its initial state is
/// `mix(seed) + epoch`, where `mix(seed)` is the first output of SplitMix64 with the initial state
/// `seed`. This never changes: a seed and epoch give the same order in all versions.
fn shuffle(rows: &mut [usize], seed: u64, epoch: u64) {
    let mut random = SplitMix64(SplitMix64(seed).next().wrapping_add(epoch));
    for place in (1..rows.len()).rev() {
        let other = (random.next() as u128 * (place as u128 + 1)) >> 64;
        rows.swap(place, other as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(order: &Order) -> Vec<usize> {
        (0..order.count()).map(|place| order.row(place)).collect()
    }

    #[test]
    fn seed_and_epoch_alone_decide_the_permutation_of_a_shuffle() {
        let shuffled = |seed, epoch| rows(&Order::new(100, &[Pick::Shuffle { seed }], epoch).unwrap());
        let mut sorted = shuffled(3, 0);
        assert_eq!(shuffled(3, 0), sorted);
        assert_ne!(shuffled(4, 0), sorted);
        assert_ne!(shuffled(3, 1), sorted);
        sorted.sort_unstable();
        assert_eq!(sorted, Vec::from_iter(0..100));
    }

    #[test]
    fn picks_follow_each_other() {
        let picks =
            [Pick::Skip(3), Pick::Shard { count: 4, index: 1 }, Pick::Take(5), Pick::Shard { count: 2, index: 1 }];
        for count in 0..60 {
            let plain: Vec<usize> = (0..count).skip(3).skip(1).step_by(4).take(5).skip(1).step_by(2).collect();
            assert_eq!(rows(&Order::new(count, &picks, 0).unwrap()), plain);
            let shuffled = [&[Pick::Shuffle { seed: 1 }], &picks[..]].concat();
            let base = rows(&Order::new(count, &shuffled[..1], 0).unwrap());
            let listed: Vec<usize> = plain.iter().map(|&place| base[place]).collect();
            assert_eq!(rows(&Order::new(count, &shuffled, 0).unwrap()), listed);
        }
    }

    #[test]
    fn rows_without_memory_for_their_order_are_an_error() {
        let order = Order::new(1 << 60, &[Pick::Shuffle { seed: 1 }], 0);
        assert!(matches!(order, Err(Error::System { .. })), "{order:?}");
    }

    #[test]
    fn picks_may_leave_no_row() {
        let picks = [Pick::Shard { count: usize::MAX, index: 1 }, Pick::Skip(1)];
        assert_eq!(rows(&Order::new(3, &picks[..1], 0).unwrap()), [1]);
        assert_eq!(rows(&Order::new(3, &picks, 0).unwrap()), [0usize; 0]);
    }

    #[test]
    fn runs_are_the_rows_in_order() {
        let chosen = |order: &Order, places| match order.rows(places) {
            ChosenRows::Range(rows) => (true, rows.collect::<Vec<_>>()),
            ChosenRows::List(rows) => (false, rows.into_owned()),
        };
        assert_eq!(chosen(&Order::Strided { first: 2, step: 1, count: 9 }, 1..5), (true, vec![3, 4, 5, 6]));
        assert_eq!(chosen(&Order::Strided { first: 2, step: 3, count: 9 }, 1..3), (false, vec![5, 8]));
        assert_eq!(chosen(&Order::Listed(vec![9, 4, 5, 6]), 1..3), (false, vec![4, 5]));
        assert_eq!(chosen(&Order::Listed(vec![9, 4, 5, 6]), 2..2), (false, vec![]));
    }
}
