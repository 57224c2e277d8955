//! The sources of tensors: numbers, arrays of arrays of numbers, vectors and slices.

use crate::{Error, Tensor};
use consonance_kernels::memory::HostMemory;
use consonance_spec::{Element, for_each_dtype};

/// An [element](Element), or arrays of arrays of elements with any number of dimensions. A
/// [`Tensor`] is made of each by `Tensor::from`.
///
/// ```
/// use consonance::Tensor;
/// assert_eq!(Tensor::from(7u8).shape(), [0usize; 0]);
/// assert_eq!(Tensor::from([[1.5f32, 2.5], [3.5, 4.5]]).shape(), [2, 2]);
/// assert_eq!(Tensor::from([[[[1i64]]]; 3]).shape(), [3, 1, 1, 1]);
/// ```
pub trait ElementArray: Copy + sealed::Sealed {
    /// The element type.
    type Element: Element;

    /// Appends the size of each dimension.
    #[doc(hidden)]
    fn append_shape(shape: &mut Vec<usize>);

    /// Returns the elements of all values, in row-major order.
    #[doc(hidden)]
    fn flatten(values: &[Self]) -> &[Self::Element];
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! of_element {
    ($({ type: $type:ty, $($more:tt)* })*) => {
        $(
            impl sealed::Sealed for $type {}

            impl ElementArray for $type {
                type Element = $type;

                fn append_shape(_: &mut Vec<usize>) {}

                fn flatten(values: &[Self]) -> &[Self] {
                    values
                }
            }
        )*
    };
}

for_each_dtype!(of_element);

impl<V: ElementArray, const COUNT: usize> sealed::Sealed for [V; COUNT] {}

impl<V: ElementArray, const COUNT: usize> ElementArray for [V; COUNT] {
    type Element = V::Element;

    fn append_shape(shape: &mut Vec<usize>) {
        shape.push(COUNT);
        V::append_shape(shape);
    }

    fn flatten(values: &[Self]) -> &[V::Element] {
        V::flatten(values.as_flattened())
    }
}

/// Copies a number, or arrays of arrays of numbers: the tensor has a dimension for each level.
impl<V: ElementArray> From<V> for Tensor {
    fn from(value: V) -> Self {
        let mut shape = Vec::new();
        V::append_shape(&mut shape);
        Tensor::of_all(HostMemory::from(V::flatten(&[value])), shape)
    }
}

/// Copies the elements, into one dimension.
impl<T: Element> From<&[T]> for Tensor {
    fn from(elements: &[T]) -> Self {
        Tensor::of_all(HostMemory::from(elements), vec![elements.len()])
    }
}

/// Keeps the elements where they are, in one dimension. [`Tensor::into_vec`] gives them back.
impl<T: Element> From<Vec<T>> for Tensor {
    fn from(elements: Vec<T>) -> Self {
        let count = elements.len();
        Tensor::of_all(HostMemory::from_vec(elements), vec![count])
    }
}

/// Collects the elements into one dimension.
///
/// ```
/// use consonance::Tensor;
/// assert_eq!((0..3).map(|place| place as f32 / 2.0).collect::<Tensor>(), Tensor::from([0.0f32, 0.5, 1.0]));
/// ```
impl<T: Element> FromIterator<T> for Tensor {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        Tensor::from(elements.into_iter().collect::<Vec<T>>())
    }
}

/// [`Tensor::into_vec`]
impl<T: Element> TryFrom<Tensor> for Vec<T> {
    type Error = Error;

    fn try_from(tensor: Tensor) -> Result<Self, Error> {
        tensor.into_vec()
    }
}
