//! The global norm of gradients, and the gradients clipped by it.

use crate::{
    DType, Error, Nest, Result, Tensor,
    value::nest::{self, Leaf, Path, Value},
};
use consonance_spec::{
    bf16, f16, for_each_dtype,
    order::{BLOCK, LANES},
};

/// Scales gradients so that their [global norm](global_norm) is `most`, if it is larger. Returns
/// the norm before.
///
/// Elements are multiplied by `most / norm`. The factor is rounded to f32 for f16, bf16 and f32,
/// and the product once. So the norm after the call may differ from `most` by roundings. If the
/// norm is infinite or NaN the gradients stay as they are: check the norm to skip such a step,
/// which all replicas then skip.
///
/// No replica communicates. Replicas with the same gradients, as after an all-reduce, get the same
/// bits.
///
/// # Errors
/// [`Error::InvalidCall`] for elements other than floats, or outside of host memory; for `most`
/// that is negative or NaN. Nothing is scaled then.
///
/// ```
/// use consonance::{Tensor, training};
/// let mut gradients = vec![Tensor::from([3.0f32, 0.0]), Tensor::from([[4.0f32]])];
/// let norm = training::clip_by_global_norm(&mut gradients, 1.0)?;
/// assert_eq!(norm, 5.0);
/// assert_eq!(gradients[1], Tensor::from([[0.8f32]]));
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn clip_by_global_norm<N: Nest>(gradients: &mut N, most: f64) -> Result<f64> {
    let call = "training::clip_by_global_norm";
    if most.is_nan() || most < 0.0 {
        return Err(Error::invalid(call, "most", "a norm of at least 0", most.to_string()));
    }
    let mut leaves = nest::take(gradients);
    let norm = norm_of(call, &leaves);
    if let Ok(norm) = norm
        && norm > most
        && norm.is_finite()
    {
        leaves.iter_mut().try_for_each(|leaf| scale(values_mut(leaf), most / norm))?;
    }
    gradients.put_leaves(&mut leaves.into_iter()).map_err(|error| error.of_call(call))?;
    norm
}

/// Returns the square root of the sum of the squares of all elements, computed in f64 in the
/// canonical order: within a tensor as along an axis, then over the tensors by a balanced tree. Of
/// [`IndexedSlices`](crate::IndexedSlices) every row counts, as it is.
///
/// # Errors
/// [`Error::InvalidCall`] for elements other than floats, or outside of host memory.
///
/// ```
/// use consonance::{Tensor, training};
/// assert_eq!(training::global_norm(&(Tensor::from([3.0f32, 0.0]), 4.0f64))?, 5.0);
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn global_norm<N: Nest + Clone>(gradients: &N) -> Result<f64> {
    norm_of("training::global_norm", &nest::take(&mut gradients.clone()))
}

fn norm_of(call: &'static str, leaves: &[Leaf]) -> Result<f64> {
    let mut sums = Tree::default();
    for leaf in leaves {
        sums.add(sum_of_squares(call, &leaf.path, values(leaf))?);
    }
    Ok(sums.total().sqrt())
}

fn values(leaf: &Leaf) -> &Tensor {
    match &leaf.value {
        Value::Dense(tensor) => tensor,
        Value::Sparse(slices) => &slices.values,
    }
}

fn values_mut(leaf: &mut Leaf) -> &mut Tensor {
    match &mut leaf.value {
        Value::Dense(tensor) => tensor,
        Value::Sparse(slices) => &mut slices.values,
    }
}

fn sum_of_squares(call: &'static str, path: &Path, tensor: &Tensor) -> Result<f64> {
    let host = tensor.host().map_err(|error| error.of_call(call))?;
    macro_rules! sum {
        (Float $type:ty) => {
            Ok(squares(host.as_slice::<$type>().unwrap_or(&[]), |&x| x.into()))
        };
        ($other:ident $type:ty) => {
            Err(Error::invalid(call, path.to_string(), "floats", tensor.spec()))
        };
    }
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
            match tensor.dtype() {
                $(DType::$variant => sum!($class $type),)*
            }
        };
    }
    for_each_dtype!(by_dtype)
}

/// Returns the sum of the squares in the order along an axis. Lanes begin at 0 and a block has all
/// lanes: neither changes a bit, because a square is no -0.
fn squares<T>(elements: &[T], exact: impl Fn(&T) -> f64) -> f64 {
    let mut blocks = Tree::default();
    for block in elements.chunks(BLOCK) {
        let mut lanes = [0.0f64; LANES];
        for row in block.chunks(LANES) {
            lanes.iter_mut().zip(row).for_each(|(lane, x)| {
                let x = exact(x);
                *lane += x * x;
            });
        }
        let mut sums = Tree::default();
        lanes.into_iter().for_each(|lane| sums.add(lane));
        blocks.add(sums.total());
    }
    blocks.total()
}

/// Adds numbers by a balanced tree while they come: equal neighbouring groups of 1, 2, 4, … are
/// added as soon as they are whole.
#[derive(Default)]
struct Tree {
    /// Sums of groups with their sizes, the largest first.
    groups: Vec<(usize, f64)>,
}

impl Tree {
    fn add(&mut self, number: f64) {
        let mut group = (1, number);
        while let Some(&(count, left)) = self.groups.last().filter(|last| last.0 == group.0) {
            self.groups.pop();
            group = (2 * count, left + group.1);
        }
        self.groups.push(group);
    }

    fn total(self) -> f64 {
        self.groups.into_iter().rev().map(|(_, sum)| sum).reduce(|right, left| left + right).unwrap_or(0.0)
    }
}

/// Multiplies every element by `factor`.
fn scale(tensor: &mut Tensor, factor: f64) -> Result<()> {
    macro_rules! scaled {
        (Float $type:ty) => {
            tensor.as_mut_slice::<$type>()?.iter_mut().for_each(|x| *x = Scaled::scaled(*x, factor))
        };
        ($other:ident $type:ty) => {
            unreachable!("the norm was computed")
        };
    }
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
            match tensor.dtype() {
                $(DType::$variant => scaled!($class $type),)*
            }
        };
    }
    for_each_dtype!(by_dtype);
    Ok(())
}

/// A float that is scaled in its accumulation type.
trait Scaled {
    fn scaled(self, factor: f64) -> Self;
}

macro_rules! scaled_in_f32 {
    ($($type:ident)*) => {
        $(impl Scaled for $type {
            fn scaled(self, factor: f64) -> $type {
                $type::from_f32(self.to_f32() * factor as f32)
            }
        })*
    };
}

scaled_in_f32!(f16 bf16);

impl Scaled for f32 {
    fn scaled(self, factor: f64) -> f32 {
        self * factor as f32
    }
}

impl Scaled for f64 {
    fn scaled(self, factor: f64) -> f64 {
        self * factor
    }
}
