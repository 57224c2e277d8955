//! A small network: dense layers, rectified between, and the cross-entropy of a softmax. Nothing in
//! this file depends on replicas.

use crate::data::{Random, Samples};
use consonance::{
    Device, Error, Nest, Result, Tensor,
    training::{Accuracy, Mean},
};
use ndarray::{Array, Array2, ArrayView1, ArrayView2, Axis, Dimension};
use std::ops::AddAssign;

/// The weights of all layers, or values of the same shape: gradients, velocities.
///
/// As a [`Nest`], all of it goes through one collective.
#[derive(Clone, Nest)]
pub(crate) struct Network {
    layers: Vec<Layer>,
}

/// The weights of a layer, or values of the same shape.
#[derive(Clone, Nest)]
pub(crate) struct Layer {
    /// f32[inputs, outputs]
    weights: Tensor,
    /// f32[outputs]
    bias: Tensor,
}

/// The results of a number of samples, and the time that they took. The tallies of replicas are
/// added up.
#[derive(Clone, Default, Nest)]
pub(crate) struct Tally {
    pub(crate) right: Accuracy,
    pub(crate) loss: Mean,
    /// Seconds in collectives, including waits for other replicas.
    pub(crate) collectives: f64,
    /// Seconds in which the training waited for collectives.
    pub(crate) waited: f64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.right += other.right;
        self.loss += other.loss;
        self.collectives += other.collectives;
        self.waited += other.waited;
    }
}

impl Tally {
    pub(crate) fn count(&self) -> u64 {
        self.right.count()
    }

    /// Returns the fraction of the samples that were classified correctly.
    pub(crate) fn accuracy(&self) -> f64 {
        self.right.value().unwrap_or_default()
    }

    pub(crate) fn mean_loss(&self) -> f64 {
        self.loss.value().unwrap_or_default()
    }
}

impl Network {
    /// Makes a network with layers of these sizes, the input's first. Weights are random, scaled as
    /// by He et al.
    pub(crate) fn random(sizes: &[usize], random: &mut Random) -> Result<Network> {
        let layers = sizes.windows(2).map(|size| {
            let (inputs, outputs) = (size[0], size[1]);
            let scale = (6.0 / inputs as f32).sqrt();
            let weights = Array2::from_shape_simple_fn((inputs, outputs), || scale * random.uniform());
            Ok(Layer { weights: tensor(weights)?, bias: Tensor::from(vec![0.0f32; outputs]) })
        });
        Ok(Network { layers: layers.collect::<Result<_>>()? })
    }

    /// Returns a network of the same shape with all values zero.
    pub(crate) fn zeros_like(&self) -> Network {
        let zeros = |tensor: &Tensor| Tensor::zeros(tensor.dtype(), tensor.shape());
        let layers = self.layers.iter().map(|layer| Layer { weights: zeros(&layer.weights), bias: zeros(&layer.bias) });
        Network { layers: layers.collect() }
    }

    /// Returns a digest of every bit of every weight in 64 bits (FNV-1a). All NaN count as the same
    /// value, so trainings that diverged compare equal, too.
    pub(crate) fn digest(&self) -> Result<u64> {
        self.tensors().try_fold(0xcbf2_9ce4_8422_2325, |digest, tensor| {
            let weights =
                tensor.as_slice::<f32>()?.iter().map(|&weight| if weight.is_nan() { f32::NAN } else { weight });
            let bytes = weights.flat_map(f32::to_le_bytes);
            Ok(bytes.fold(digest, |digest: u64, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
        })
    }

    /// Returns how well the network classifies these samples.
    pub(crate) fn evaluate(&self, samples: &Samples) -> Result<Tally> {
        let mut scores = self.forward(samples)?.pop().expect("a network has a last layer");
        Ok(softmax_loss(&mut scores, &samples.labels))
    }

    /// Computes the gradients of the samples' summed loss. Passes the gradients of each layer to
    /// `made` as soon as they are computed, the last layer's first. Without samples the gradients
    /// are zero.
    pub(crate) fn gradients(&self, samples: &Samples, mut made: impl FnMut(Layer) -> Result<()>) -> Result<Tally> {
        let mut activations = self.forward(samples)?;
        let mut delta = activations.pop().expect("a network has a last layer");
        let tally = softmax_loss(&mut delta, &samples.labels);
        for (depth, input) in activations.iter().enumerate().rev() {
            made(Layer { weights: tensor(input.t().dot(&delta))?, bias: tensor(delta.sum_axis(Axis(0)))? })?;
            if depth > 0 {
                delta = delta.dot(&matrix(&self.layers[depth].weights)?.t());
                delta.zip_mut_with(input, |delta, &input| *delta = if input > 0.0 { *delta } else { 0.0 });
            }
        }
        Ok(tally)
    }

    /// Makes the network of these layers of any device, the last layer first.
    pub(crate) fn from_last(layers: Vec<Layer>) -> Result<Network> {
        let on_host = layers.into_iter().rev().map(|layer| layer.to(Device::Cpu(0)));
        Ok(Network { layers: on_host.collect::<Result<_>>()? })
    }

    /// Makes a step of gradient descent with momentum, along the mean of the gradients of `samples`
    /// samples.
    pub(crate) fn descend(
        &mut self,
        velocity: &mut Network,
        gradients: &Network,
        samples: usize,
        rate: f32,
    ) -> Result<()> {
        const MOMENTUM: f32 = 0.9;
        let tensors = self.tensors_mut().zip(velocity.tensors_mut()).zip(gradients.tensors());
        for ((weights, velocity), gradient) in tensors {
            let weights = weights.as_mut_slice::<f32>()?.iter_mut();
            let velocity = velocity.as_mut_slice::<f32>()?.iter_mut();
            for ((weight, velocity), gradient) in weights.zip(velocity).zip(gradient.as_slice::<f32>()?) {
                *velocity = MOMENTUM * *velocity + gradient / samples as f32;
                *weight -= rate * *velocity;
            }
        }
        Ok(())
    }

    /// Returns the inputs of each layer, one row a sample, and the scores of the last layer.
    fn forward(&self, samples: &Samples) -> Result<Vec<Array2<f32>>> {
        let mut activations = vec![samples.images.clone()];
        for (depth, layer) in self.layers.iter().enumerate() {
            if depth > 0 {
                activations[depth].mapv_inplace(|value| value.max(0.0));
            }
            let bias = ArrayView1::from(layer.bias.as_slice::<f32>()?);
            activations.push(activations[depth].dot(&matrix(&layer.weights)?) + bias);
        }
        Ok(activations)
    }

    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flat_map(|layer| [&layer.weights, &layer.bias])
    }

    pub(crate) fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.layers.iter_mut().flat_map(|layer| [&mut layer.weights, &mut layer.bias])
    }
}

impl Layer {
    /// Moves the layer to the memory of a device.
    pub(crate) fn to(self, device: Device) -> Result<Layer> {
        Ok(Layer { weights: self.weights.to(device)?, bias: self.bias.to(device)? })
    }
}

/// Compares scores with labels, and replaces the scores by the gradients of the summed loss.
fn softmax_loss(scores: &mut Array2<f32>, labels: &[usize]) -> Tally {
    let mut tally = Tally::default();
    for (mut row, &label) in scores.rows_mut().into_iter().zip(labels) {
        let best = (0..row.len()).fold(0, |best, digit| if row[digit] > row[best] { digit } else { best });
        let highest = row[best];
        row -= highest;
        let score = row[label];
        row.mapv_inplace(f32::exp);
        let sum = row.sum();
        row /= sum;
        row[label] -= 1.0;
        tally.right.add(best == label);
        tally.loss.add(f64::from(sum.ln() - score));
    }
    tally
}

fn tensor<D: Dimension>(array: Array<f32, D>) -> Result<Tensor> {
    let (shape, elements) = (array.shape(), array.as_standard_layout());
    Tensor::new(shape, elements.as_slice().expect("the standard layout is a slice"))
}

fn matrix(tensor: &Tensor) -> Result<ArrayView2<'_, f32>> {
    let shape = (tensor.shape()[0], tensor.shape()[1]);
    ArrayView2::from_shape(shape, tensor.as_slice()?).map_err(Error::other)
}
