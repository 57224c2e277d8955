//! Collectives of random kinds and sizes, each compared with a plain computation of its result.

use consonance::{Communicator, Element, ReduceOp, Result, SharedMemory};
use std::ops::{Deref, DerefMut, Range};

/// A small pseudorandom generator; its output depends on the seed alone.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        // The constants of Knuth's MMIX generator. Use the high bits: they are more random.
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % limit as u64) as usize
    }

    /// Returns a number from 1 to `most`. Each range between powers of two has the same
    /// probability.
    fn size(&mut self, most: usize) -> usize {
        let bits = self.below(most.ilog2() as usize + 1);
        ((1 << bits) + self.below(1 << bits)).min(most)
    }
}

/// A sequence of random calls, the same on all ranks.
pub(crate) struct Calls {
    pub(crate) random: Random,
    /// Approximate limit on the bytes of a rank in a call.
    pub(crate) most: usize,
    /// Whether data are generated and compared. Otherwise they are all zero, so that nearly all
    /// time is spent in the calls.
    pub(crate) checks: bool,
}

/// Returns the element of `rank`'s input at this index.
fn value(rank: usize, index: usize, salt: usize) -> u32 {
    ((rank + 1) * 0x9e37_79b1 + index * 0x85eb_ca6b + salt) as u32
}

/// The data of a rank in a call, in a vector or in memory from `Communicator::alloc`.
enum Held<T> {
    Own(Vec<T>),
    Shared(SharedMemory<T>),
}

impl<T: Element> Held<T> {
    /// Chooses each kind with equal probability, independently of the other ranks.
    fn new(rank: &Communicator, salt: usize, data: Vec<T>) -> Result<Held<T>> {
        if (salt >> (rank.rank() % 16)) & 1 == 0 {
            return Ok(Held::Own(data));
        }
        let mut shared = rank.alloc(data.len())?;
        shared.copy_from_slice(&data);
        Ok(Held::Shared(shared))
    }
}

impl<T: Element> Deref for Held<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Held::Own(data) => data,
            Held::Shared(data) => data,
        }
    }
}

impl<T: Element> DerefMut for Held<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Held::Own(data) => data,
            Held::Shared(data) => data,
        }
    }
}

/// The number of kinds of [`Calls`].
pub(crate) const RAW_CALLS: usize = 14;

impl Calls {
    /// Makes one collective of all ranks.
    pub(crate) fn step(&mut self, rank: &mut Communicator) -> Result<()> {
        let kind = self.random.below(RAW_CALLS);
        self.call(rank, kind)
    }

    fn values(&self, rank: usize, range: Range<usize>, salt: usize) -> Vec<u32> {
        match self.checks {
            true => range.map(|index| value(rank, index, salt)).collect(),
            false => vec![0; range.len()],
        }
    }

    fn bytes(&self, rank: usize, range: Range<usize>, salt: usize) -> Vec<u8> {
        match self.checks {
            true => range.map(|index| value(rank, index, salt) as u8).collect(),
            false => vec![0; range.len()],
        }
    }

    /// Compares without formatting millions of equal elements.
    #[track_caller]
    fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, found: &[T], expected: impl FnOnce() -> Vec<T>) {
        if !self.checks {
            return;
        }
        let expected = expected();
        assert_eq!(found.len(), expected.len(), "{what}");
        if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
            panic!("{what}: element {at} of {}: {:?} in place of {:?}", found.len(), found[at], expected[at]);
        }
    }

    /// Makes a collective of this kind.
    pub(crate) fn call(&mut self, rank: &mut Communicator, kind: usize) -> Result<()> {
        let (size, own) = (rank.size(), rank.rank());
        let Calls { random, most, .. } = self;
        let (root, salt) = (random.below(size), random.below(1 << 30));
        let (elements, count) = (random.size(*most / 4), random.size(*most));
        let mut counts = || -> Vec<usize> { (0..size).map(|_| random.below(count / size + 1)).collect() };
        let counts = [counts(), vec![count.div_ceil(size); size]];
        let sum = |range: Range<usize>| -> Vec<u32> {
            range.map(|index| (0..size).fold(0, |sum: u32, rank| sum.wrapping_add(value(rank, index, salt)))).collect()
        };
        let all = |counts: &[usize]| -> Vec<u8> {
            let parts = counts.iter().enumerate().map(|(rank, &count)| self.bytes(rank, 0..count, salt));
            parts.collect::<Vec<_>>().concat()
        };
        match kind {
            0 => {
                let mut data = Held::new(rank, salt, self.values(own, 0..elements, salt))?;
                rank.all_reduce(ReduceOp::Sum, &mut data)?;
                self.same("all_reduce", &data, || sum(0..elements));
            }
            1 => {
                let mut data = Held::new(rank, salt, self.values(own, 0..elements, salt))?;
                rank.reduce(ReduceOp::Sum, &mut data, root)?;
                let expected = || if own == root { sum(0..elements) } else { self.values(own, 0..elements, salt) };
                self.same("reduce", &data, expected);
            }
            2 => {
                let data = if own == root { self.bytes(root, 0..count, salt) } else { vec![0; count] };
                let mut data = Held::new(rank, salt, data)?;
                rank.broadcast(&mut data, root)?;
                self.same("broadcast", &data, || self.bytes(root, 0..count, salt));
            }
            3 => {
                let block = elements.div_ceil(size);
                let send = Held::new(rank, salt, self.values(own, 0..block * size, salt))?;
                let mut data = Held::new(rank, salt >> 1, vec![0; block])?;
                rank.reduce_scatter_into(ReduceOp::Sum, &send, &mut data)?;
                self.same("reduce_scatter", &data, || sum(own * block..(own + 1) * block));
            }
            4 => {
                let block = count.div_ceil(size);
                let send = Held::new(rank, salt, self.bytes(own, 0..block, salt))?;
                let mut data = vec![0; block * size];
                rank.all_gather_into(&send, &mut data)?;
                self.same("all_gather", &data, || all(&vec![block; size]));
            }
            5 => {
                let [counts, _] = counts;
                let mut data = vec![0; counts.iter().sum()];
                rank.all_gather_v(Some(&self.bytes(own, 0..counts[own], salt)), &mut data, &counts)?;
                self.same("all_gather_v", &data, || all(&counts));
            }
            6 | 7 => {
                let counts = &counts[usize::from(kind == 6)];
                let mut data = vec![0; if own == root { counts.iter().sum() } else { 0 }];
                let recv = (own == root).then_some(data.as_mut_slice());
                let send = Held::new(rank, salt, self.bytes(own, 0..counts[own], salt))?;
                match kind {
                    6 => rank.gather(&send, recv, root)?,
                    _ => rank.gather_v(Some(&send), recv, counts, root)?,
                }
                if own == root {
                    self.same("gather", &data, || all(counts));
                }
            }
            8 | 9 => {
                let counts = &counts[usize::from(kind == 8)];
                let (send, mut data) = (Held::new(rank, salt, all(counts))?, vec![0; counts[own]]);
                let send = (own == root).then_some(&*send);
                match kind {
                    8 => rank.scatter(send, Some(&mut data), root)?,
                    _ => rank.scatter_v(send, Some(&mut data), counts, root)?,
                }
                self.same("scatter", &data, || self.bytes(own, 0..counts[own], salt));
            }
            10 | 11 => {
                // Returns the number of elements that a rank sends to another.
                let block = count.div_ceil(size);
                let between = |from: usize, to: usize| match kind {
                    10 => block,
                    _ => value(from, to, salt) as usize % (block + 1),
                };
                let sent: Vec<usize> = (0..size).map(|to| between(own, to)).collect();
                let received: Vec<usize> = (0..size).map(|from| between(from, own)).collect();
                let part = |from: usize, to: usize| self.bytes(from, to << 24..(to << 24) + between(from, to), salt);
                let send = Held::new(rank, salt, (0..size).map(|to| part(own, to)).collect::<Vec<_>>().concat())?;
                let mut data = vec![0; received.iter().sum()];
                match kind {
                    10 => rank.all_to_all_into(&send, &mut data)?,
                    _ => rank.all_to_all_v(&send, &sent, &mut data, &received)?,
                }
                self.same("all_to_all", &data, || (0..size).flat_map(|from| part(from, own)).collect::<Vec<u8>>());
            }
            12 => {
                // Each even rank sends to the next. A rank without a partner does nothing.
                match own ^ 1 {
                    partner if partner >= size => {}
                    partner if own < partner => rank.send(&self.bytes(own, 0..count, salt), partner)?,
                    partner => {
                        let mut data = vec![0; count];
                        rank.recv(&mut data, partner)?;
                        self.same("recv", &data, || self.bytes(partner, 0..count, salt));
                    }
                }
            }
            _ => {
                let mut half = rank.split(Some((own % 2) as u32), 0)?.expect("a color was given");
                let mut data = [own as u32];
                half.all_reduce(ReduceOp::Max, &mut data)?;
                let last = (0..size).rev().find(|rank| rank % 2 == own % 2);
                self.same("all_reduce of a part", &data, || vec![last.unwrap() as u32]);
                rank.barrier()?;
            }
        }
        Ok(())
    }
}
