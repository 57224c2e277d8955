//! Tensors as arrays of the crate `ndarray`, and arrays as tensors.

use crate::{Error, Result, Tensor};
use consonance_kernels::memory::HostMemory;
use consonance_spec::Element;
use ndarray::{Array, ArrayView, ArrayViewMut, Dimension, ShapeError};

impl Tensor {
    /// Returns the elements as an array of `ndarray` that borrows them. `D` is its dimension, such
    /// as `Ix2`, or `IxDyn` for any. Needs the feature `ndarray`.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the elements are not of type `T`, or do not lie in host memory, or
    /// the tensor has another number of dimensions.
    ///
    /// ```
    /// use consonance::Tensor;
    /// use ndarray::{Axis, Ix2};
    /// let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.view::<f32, Ix2>()?.sum_axis(Axis(0)).as_slice(), Some(&[4.0, 6.0][..]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn view<T: Element, D: Dimension>(&self) -> Result<ArrayView<'_, T, D>> {
        let elements = self.as_slice_for("Tensor::view")?;
        // An array of fixed rank is made of one of any rank, because the latter takes any shape.
        let view = ArrayView::from_shape(self.shape(), elements);
        view.and_then(|view| view.into_dimensionality()).map_err(|_| other_rank::<D>("Tensor::view", self))
    }

    /// Returns the elements as an array of `ndarray` for writing. Copies them first if another
    /// tensor shares them. Needs the feature `ndarray`.
    ///
    /// # Errors
    /// As [`view`](Tensor::view).
    ///
    /// ```
    /// use consonance::Tensor;
    /// use ndarray::Ix2;
    /// let mut x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
    /// x.view_mut::<f32, Ix2>()?.row_mut(1).fill(0.0);
    /// assert_eq!(x, Tensor::from([[1.0f32, 2.0], [0.0, 0.0]]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn view_mut<T: Element, D: Dimension>(&mut self) -> Result<ArrayViewMut<'_, T, D>> {
        let (shape, refused) = (self.shape().to_vec(), other_rank::<D>("Tensor::view_mut", self));
        let view = ArrayViewMut::from_shape(shape, self.as_mut_slice_for("Tensor::view_mut")?);
        view.and_then(|view| view.into_dimensionality()).map_err(|_| refused)
    }
}

/// Keeps the elements where they are if they are in row-major order and the array has no others,
/// else copies them. Needs the feature `ndarray`.
///
/// ```
/// use consonance::{MirroredStrategy, Tensor};
/// use ndarray::{Array2, array};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let weights = array![[1.0f32, 2.0], [3.0, 4.0]];
/// let sums = strategy.run(|replica| {
///     let sum = replica.all_reduce("sum", Tensor::from(weights.clone()))?;
///     Ok(Array2::<f32>::try_from(sum)?)
/// })?;
/// assert_eq!(sums[1], 2.0 * weights);
/// # Ok::<(), consonance::Error>(())
/// ```
impl<T: Element, D: Dimension> From<Array<T, D>> for Tensor {
    fn from(array: Array<T, D>) -> Self {
        if !array.is_standard_layout() {
            return Tensor::from(array.view());
        }
        let (shape, count) = (array.shape().to_vec(), array.len());
        let (mut elements, offset) = array.into_raw_vec_and_offset();
        // Slicing has left elements before or behind those of the array.
        elements.truncate(offset.unwrap_or(0) + count);
        elements.drain(..offset.unwrap_or(0));
        Tensor::of_all(HostMemory::from_vec(elements), shape)
    }
}

/// Copies the elements. Needs the feature `ndarray`.
impl<T: Element, D: Dimension> From<ArrayView<'_, T, D>> for Tensor {
    fn from(array: ArrayView<'_, T, D>) -> Self {
        let shape = array.shape().to_vec();
        let memory = match array.to_slice() {
            Some(elements) => HostMemory::from(elements),
            None => HostMemory::from_vec(array.iter().copied().collect()),
        };
        Tensor::of_all(memory, shape)
    }
}

/// Copies nothing if the tensor was made of an array or a vector, and no other shares its elements.
/// Needs the feature `ndarray`.
impl<T: Element, D: Dimension> TryFrom<Tensor> for Array<T, D> {
    type Error = Error;

    fn try_from(tensor: Tensor) -> Result<Self> {
        let (shape, refused) = (tensor.shape().to_vec(), other_rank::<D>("Array::try_from", &tensor));
        let array = Array::from_shape_vec(shape, tensor.into_vec()?);
        array.and_then(|array| array.into_dimensionality()).map_err(|_| refused)
    }
}

/// The shape of an array of user code does not fit.
impl From<ShapeError> for Error {
    fn from(error: ShapeError) -> Self {
        Error::other(error)
    }
}

fn other_rank<D: Dimension>(call: &'static str, tensor: &Tensor) -> Error {
    let expected = D::NDIM.map_or_else(|| "fewer elements".to_owned(), |rank| format!("{rank} dimensions"));
    Error::invalid(call, "self", expected, tensor.spec())
}
