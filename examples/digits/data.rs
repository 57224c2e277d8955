//! The handwritten digits: 1,797 images of 8 × 8 pixels that the crate `smartcore` carries.

#[path = "random.rs"]
mod random;

pub(crate) use random::Random;

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
