//! The model: a softmax over one dense layer. Nothing in this file depends on replicas.

use consonance::{
    Nest, Result, Tensor,
    training::{Accuracy, Mean},
};

pub(crate) const PIXELS: usize = 64;
pub(crate) const CLASSES: usize = 10;

/// The results of a number of samples. As a [`Nest`], all of it goes through one collective.
#[derive(Clone, Nest)]
pub(crate) struct Pass {
    /// The summed gradients of the weights.
    gradient: Tensor,
    pub(crate) loss: Mean,
    pub(crate) right: Accuracy,
}

impl Pass {
    /// Computes the loss of each image, and the gradients.
    pub(crate) fn new(weights: &Tensor, images: &Tensor, labels: &Tensor) -> Result<Pass> {
        let (mut gradient, mut loss, mut right) = ([0.0; PIXELS * CLASSES], Mean::new(), Accuracy::new());
        let weights = weights.as_slice::<f32>()?;
        for (image, &label) in images.as_slice::<f32>()?.chunks(PIXELS).zip(labels.as_slice::<u32>()?) {
            let mut scores = [0.0; CLASSES];
            for (pixel, row) in image.iter().zip(weights.chunks(CLASSES)) {
                (0..CLASSES).for_each(|class| scores[class] += pixel * row[class]);
            }
            let best = (0..CLASSES).fold(0, |best, class| if scores[class] > scores[best] { class } else { best });
            let exponentials = scores.map(|score| (score - scores[best]).exp());
            let sum: f32 = exponentials.iter().sum();
            right.add(best == label as usize);
            loss.add(f64::from(sum.ln() + scores[best] - scores[label as usize]));
            let mut errors = exponentials.map(|exponential| exponential / sum);
            errors[label as usize] -= 1.0;
            for (pixel, row) in image.iter().zip(gradient.chunks_mut(CLASSES)) {
                (0..CLASSES).for_each(|class| row[class] += pixel * errors[class]);
            }
        }
        Ok(Pass { gradient: Tensor::new([PIXELS, CLASSES], &gradient)?, loss, right })
    }

    /// Returns what a step along the mean gradient subtracts from the weights.
    pub(crate) fn step(&self, rate: f32) -> Result<Tensor> {
        let rate = rate / self.right.count() as f32;
        let step: Vec<f32> = self.gradient.as_slice::<f32>()?.iter().map(|gradient| rate * gradient).collect();
        Tensor::new(self.gradient.shape(), &step)
    }
}
