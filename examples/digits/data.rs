//! The handwritten digits: 1,797 images of 8 × 8 pixels that the crate `smartcore` carries.

use ndarray::{Array2, Axis};
use smartcore::dataset::digits::load_dataset;

/// Brightness is an integer from 0 to this.
const BRIGHTEST: f32 = 16.0;

/// Images to train on, and others to test with.
pub(crate) struct Digits {
    pub(crate) train: Samples,
    pub(crate) test: Samples,
}

/// Images with the digits that they show.
pub(crate) struct Samples {
    /// One image a row, its pixels from 0 to 1.
    pub(crate) images: Array2<f32>,
    pub(crate) labels: Vec<usize>,
}

impl Digits {
    /// Loads all digits in random order: four fifths to train on, the rest to test with.
    pub(crate) fn load(seed: u64) -> Digits {
        let data = load_dataset();
        let images = Array2::from_shape_vec((data.num_samples, data.num_features), data.data);
        let all = Samples {
            images: images.expect("the data set has as many pixels as it says") / BRIGHTEST,
            labels: data.target.iter().map(|&digit| digit as usize).collect(),
        };
        let order = Random::new(seed).permutation(all.count());
        let (train, test) = order.split_at(all.count() * 4 / 5);
        Digits { train: all.select(train), test: all.select(test) }
    }
}

impl Samples {
    pub(crate) fn count(&self) -> usize {
        self.labels.len()
    }

    /// Returns the samples at these indices.
    pub(crate) fn select(&self, places: &[usize]) -> Samples {
        Samples {
            images: self.images.select(Axis(0), places),
            labels: places.iter().map(|&place| self.labels[place]).collect(),
        }
    }
}

/// A generator of random numbers that are the same on every machine: SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from -1 up to, not including, 1.
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Returns the numbers below `count` in random order.
    pub(crate) fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for place in (1..count).rev() {
            order.swap(place, (self.next() % (place as u64 + 1)) as usize);
        }
        order
    }
}
