//! Tensors: a shape over copy-on-write elements, in host memory or in the memory of a device.

use crate::{Error, Result};
use consonance_kernels::{
    cpu::duplicate::to_vec,
    memory::{Buf, BufMut, HostBuf, HostMemory, Memory, Space},
};
use consonance_spec::{DType, Element, for_each_dtype};
use std::{
    ops::Range,
    sync::{Arc, LazyLock},
};

/// A dense row-major array of any rank, with its element type as a value.
///
/// A clone shares the elements. A write copies them first if they are shared. The elements lie in
/// host memory, unless [`to`](Tensor::to) or an engine has put them into that of a device: see
/// [`space`](Tensor::space).
///
/// It has no arithmetic, on purpose: a program computes with a library of its own, and gives values
/// to the replicas as tensors. [`as_slice`](Tensor::as_slice) and
/// [`as_mut_slice`](Tensor::as_mut_slice) read and write the elements, `from` and
/// [`into_vec`](Tensor::into_vec) move vectors in and out, and the feature `ndarray` has arrays.
///
/// ```
/// use consonance::{DType, Tensor};
/// let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
/// assert_eq!((x.dtype(), x.shape()), (DType::F32, &[2, 2][..]));
/// assert_eq!(x.to_string(), "f32[2, 2] [[1, 2], [3, 4]]");
/// ```
#[derive(Clone)]
pub struct Tensor {
    memory: Arc<Memory>,
    /// The position of the first element in the memory.
    start: usize,
    shape: Vec<usize>,
}

impl Tensor {
    /// Makes a tensor of this shape from these elements, in row-major order.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the shape has another number of elements.
    ///
    /// ```
    /// use consonance::Tensor;
    /// assert_eq!(Tensor::new([2, 1], &[5u8, 6])?, Tensor::from([[5u8], [6]]));
    /// assert!(Tensor::new([3], &[5u8, 6]).is_err());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn new<T: Element>(shape: impl Into<Vec<usize>>, elements: &[T]) -> Result<Tensor> {
        Tensor::from_memory(shape.into(), HostMemory::from(elements))
    }

    /// Makes a tensor of this shape with all elements zero (`false`).
    ///
    /// # Panics
    /// If the shape has more elements than can be addressed.
    ///
    /// ```
    /// use consonance::{DType, Tensor};
    /// assert_eq!(Tensor::zeros(DType::I32, [2, 1]), Tensor::from([[0], [0]]));
    /// ```
    pub fn zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> Tensor {
        let shape = shape.into();
        let count = count(&shape).expect("a shape with fewer elements than addresses");
        Tensor { memory: Arc::new(HostMemory::zeroed(dtype, count).into()), start: 0, shape }
    }

    /// Makes a tensor of this shape over elements in any space.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the shape has another number of elements.
    ///
    /// ```
    /// use consonance::{DType, Tensor, raw::HostMemory};
    /// let tensor = Tensor::from_memory(vec![2, 1], HostMemory::zeroed(DType::I32, 2))?;
    /// assert_eq!(tensor, Tensor::from([[0], [0]]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn from_memory(shape: Vec<usize>, memory: impl Into<Memory>) -> Result<Tensor> {
        let memory = memory.into();
        match count(&shape) {
            Some(count) if count == memory.count() => Ok(Tensor { memory: Arc::new(memory), start: 0, shape }),
            _ => {
                let expected = match count(&shape) {
                    Some(_) => format!("{} elements", memory.count()),
                    None => "sizes whose product is a number, zeros left out".to_owned(),
                };
                Err(Error::invalid("Tensor::new", "shape", expected, format!("shape {shape:?}")))
            }
        }
    }

    /// Makes a tensor of this shape over these elements, which fit it.
    pub(crate) fn of_all(memory: HostMemory, shape: Vec<usize>) -> Tensor {
        debug_assert_eq!(count(&shape), Some(memory.count()), "a shape of these elements");
        Tensor { memory: Arc::new(memory.into()), start: 0, shape }
    }

    /// Makes a tensor of this shape over the first elements of `memory`, which has enough of them.
    pub(crate) fn of_first(memory: Arc<Memory>, shape: Vec<usize>) -> Tensor {
        Tensor { memory, start: 0, shape }
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.memory.dtype()
    }

    /// Returns the memory that the elements lie in.
    ///
    /// ```
    /// use consonance::{Tensor, raw::Space};
    /// assert_eq!(Tensor::from([1, 2]).space(), Space::Host);
    /// ```
    pub fn space(&self) -> Space {
        self.memory.space()
    }

    /// Returns a tensor of the same elements in host memory: this one if they lie there, else a
    /// copy, which is made after the calls that are enqueued on them.
    ///
    /// # Errors
    /// [`Error::System`] if the device cannot be read.
    ///
    /// ```
    /// use consonance::Tensor;
    /// assert_eq!(Tensor::from([1, 2]).to_host()?.as_slice::<i32>()?, [1, 2]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn to_host(&self) -> Result<Tensor> {
        if self.space() == Space::Host {
            return Ok(self.clone());
        }
        let what = || format!("copy {} from {} to the host", self.spec(), self.space());
        let memory = self.memory.to_host(self.start, self.count());
        let memory = memory.map_err(|source| Error::system(what(), source))?;
        Tensor::from_memory(self.shape.clone(), memory)
    }

    /// Returns the size of each dimension; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the elements in row-major order.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if they are not of type `T`, or do not lie in host memory.
    ///
    /// ```
    /// use consonance::Tensor;
    /// assert_eq!(Tensor::from([[1u8, 2], [3, 4]]).as_slice::<u8>()?, [1, 2, 3, 4]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.as_slice_for("Tensor::as_slice")
    }

    /// [`as_slice`](Tensor::as_slice), with errors that name `call`.
    pub(crate) fn as_slice_for<T: Element>(&self, call: &'static str) -> Result<&[T]> {
        self.host_for(call)?.as_slice().ok_or_else(|| self.not::<T>(call))
    }

    /// Returns the elements in row-major order for writing. Copies them first if another tensor
    /// shares them.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if they are not of type `T`, or do not lie in host memory.
    ///
    /// ```
    /// use consonance::Tensor;
    /// let mut x = Tensor::from([1.0f32, 2.0]);
    /// x.as_mut_slice::<f32>()?[1] = 5.0;
    /// assert_eq!(x, Tensor::from([1.0f32, 5.0]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.as_mut_slice_for("Tensor::as_mut_slice")
    }

    /// [`as_mut_slice`](Tensor::as_mut_slice), with errors that name `call`.
    pub(crate) fn as_mut_slice_for<T: Element>(&mut self, call: &'static str) -> Result<&mut [T]> {
        if T::DTYPE != self.dtype() {
            return Err(self.not::<T>(call));
        }
        self.host_for(call)?;
        let host = self.buf_mut()?.host().expect("the space was checked");
        Ok(host.into_mut_slice().expect("the dtype was checked"))
    }

    /// Returns the elements in row-major order. Copies nothing if the tensor was made of a vector
    /// and no other shares them: an all-reduce in between leaves them where they are.
    ///
    /// # Errors
    /// As [`as_slice`](Tensor::as_slice).
    ///
    /// ```
    /// use consonance::{MirroredStrategy, PerReplica, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let gradients = PerReplica::new(vec![vec![1.0f32, 2.0], vec![3.0, 4.0]]);
    /// let sums = strategy.run_with(gradients, |replica, gradient| {
    ///     replica.all_reduce("sum", Tensor::from(gradient))?.into_vec::<f32>()
    /// })?;
    /// assert_eq!(sums[0], [4.0, 6.0]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>> {
        let call = "Tensor::into_vec";
        let elements = self.as_slice_for::<T>(call)?;
        if elements.len() < self.memory.count() || Arc::strong_count(&self.memory) > 1 {
            return Ok(to_vec(elements));
        }
        match Arc::try_unwrap(self.memory) {
            Ok(Memory::Host(memory)) => Ok(memory.into_vec().expect("the dtype was checked")),
            _ => unreachable!("only this tensor has the memory, and it is the host's"),
        }
    }

    /// Returns the only element.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the tensor does not have exactly one element, or it is not of type
    /// `T`.
    ///
    /// ```
    /// # use consonance::Tensor;
    /// assert_eq!(Tensor::from(2.5f64).item::<f64>()?, 2.5);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.as_slice()? {
            &[item] => Ok(item),
            _ => Err(Error::invalid("Tensor::item", "self", "one element", format!("shape {:?}", self.shape))),
        }
    }

    /// Returns the same elements in another shape.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the shape has another number of elements.
    ///
    /// ```
    /// use consonance::Tensor;
    /// assert_eq!(Tensor::from([1, 2, 3, 4]).reshape([2, 2])?, Tensor::from([[1, 2], [3, 4]]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn reshape(mut self, shape: impl Into<Vec<usize>>) -> Result<Tensor> {
        let shape = shape.into();
        if count(&shape) != Some(self.count()) {
            let expected = format!("{} elements", self.count());
            return Err(Error::invalid("Tensor::reshape", "shape", expected, format!("shape {shape:?}")));
        }
        self.shape = shape;
        Ok(self)
    }

    /// Returns the entries `rows` along axis 0. The elements are shared, not copied.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a scalar, or if `rows` is not within axis 0.
    ///
    /// ```
    /// use consonance::Tensor;
    /// let x = Tensor::from([[1, 2], [3, 4], [5, 6]]);
    /// assert_eq!(x.rows(1..3)?, Tensor::from([[3, 4], [5, 6]]));
    /// assert!(x.rows(2..4).is_err());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn rows(&self, rows: Range<usize>) -> Result<Tensor> {
        self.rows_for("Tensor::rows", rows)
    }

    /// [`rows`](Tensor::rows), with errors that name `call`.
    pub(crate) fn rows_for(&self, call: &'static str, rows: Range<usize>) -> Result<Tensor> {
        let Some(&size) = self.shape.first() else {
            return Err(Error::invalid(call, "self", "at least one dimension", "a scalar"));
        };
        if rows.start > rows.end || rows.end > size {
            return Err(Error::invalid(call, "rows", format!("a range within 0..{size}"), format!("{rows:?}")));
        }
        let row_count: usize = self.shape[1..].iter().product();
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        Ok(Tensor { memory: self.memory.clone(), start: self.start + rows.start * row_count, shape })
    }

    /// Returns a copy whose axis `i` is axis `order[i]` of this tensor.
    pub(crate) fn transpose(&self, order: &[usize]) -> Result<Tensor> {
        let shape: Vec<usize> = order.iter().map(|&axis| self.shape[axis]).collect();
        if self.count() == 0 {
            // An axis of an empty tensor may be too long to iterate over.
            return Ok(Tensor::zeros(self.dtype(), shape));
        }
        let host = self.host()?;
        // An axis of one entry moves no element. A tensor has fewer longer axes than a `usize` has
        // bits, so a recursion per axis stays shallow.
        let long: Vec<usize> = order.iter().copied().filter(|&axis| self.shape[axis] > 1).collect();
        let sizes: Vec<usize> = long.iter().map(|&axis| self.shape[axis]).collect();
        let strides: Vec<usize> = long.iter().map(|&axis| self.shape[axis + 1..].iter().product()).collect();
        macro_rules! copy {
            ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
                match self.dtype() {
                    $(DType::$variant => {
                        let mut elements = Vec::with_capacity(self.count());
                        collect_strided(host.as_slice::<$type>().unwrap_or(&[]), &sizes, &strides, 0, &mut elements);
                        HostMemory::from(elements.as_slice())
                    })*
                }
            };
        }
        Tensor::from_memory(shape, for_each_dtype!(copy))
    }

    /// Returns dtype and shape as text: `f32[2, 3]`.
    pub(crate) fn spec(&self) -> String {
        format!("{}{:?}", self.dtype(), self.shape)
    }

    /// Returns the elements, in their [space](Tensor::space).
    ///
    /// ```
    /// assert_eq!(consonance::Tensor::from([1, 2]).buf().count(), 2);
    /// ```
    pub fn buf(&self) -> Buf<'_> {
        self.memory.as_buf().slice(self.elements())
    }

    /// Returns the elements.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if they do not lie in host memory.
    pub(crate) fn host(&self) -> Result<HostBuf<'_>> {
        self.host_for("a computation on the host")
    }

    fn host_for(&self, call: &'static str) -> Result<HostBuf<'_>> {
        let elsewhere = || {
            let expected = "a tensor in host memory (see Tensor::to_host)";
            Error::invalid(call, "tensor", expected, format!("{} in memory of {}", self.spec(), self.space()))
        };
        self.buf().host().ok_or_else(elsewhere)
    }

    /// Returns the elements for writing. Copies them first if the memory is shared, or another
    /// library's.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the memory is shared and is a device's.
    pub(crate) fn buf_mut(&mut self) -> Result<BufMut<'_>> {
        if self.own_buf_mut().is_none() {
            let copy = HostMemory::from(self.host()?);
            (self.memory, self.start) = (Arc::new(copy.into()), 0);
        }
        Ok(self.own_buf_mut().expect("the memory is this tensor's alone"))
    }

    /// Returns the elements for writing, `None` if the memory is shared, or another library's.
    pub(crate) fn own_buf_mut(&mut self) -> Option<BufMut<'_>> {
        let elements = self.elements();
        let own = Arc::get_mut(&mut self.memory).filter(|memory| memory.is_writable());
        own.map(|memory| memory.as_buf_mut().slice(elements))
    }

    fn elements(&self) -> Range<usize> {
        self.start..self.start + self.count()
    }

    fn not<T: Element>(&self, call: &'static str) -> Error {
        Error::invalid(call, "T", format!("{}, the tensor's element type", self.dtype()), T::DTYPE.name())
    }
}

/// Returns the number of elements of a shape. `None` if the product of its nonzero sizes overflows:
/// other code multiplies the sizes of some dimensions only.
fn count(shape: &[usize]) -> Option<usize> {
    let most = shape.iter().filter(|&&dim| dim > 0).try_fold(1usize, |count, &dim| count.checked_mul(dim))?;
    Some(if shape.contains(&0) { 0 } else { most })
}

/// Returns the shape of a concatenation along `axis`. The parts have the given sizes on this axis
/// and agree with `shape` on all others.
///
/// # Errors
/// [`Error::InvalidCall`] if the product of the nonzero sizes overflows.
pub(crate) fn joined(call: &'static str, shape: &[usize], axis: usize, sizes: &[usize]) -> Result<Vec<usize>> {
    let joined = sizes.iter().try_fold(0usize, |all, &size| all.checked_add(size)).map(|all| {
        let mut joined = shape.to_vec();
        joined[axis] = all;
        joined
    });
    joined.filter(|joined| count(joined).is_some()).ok_or_else(|| {
        let expected = format!("sizes along axis {axis} that make a shape together");
        Error::invalid(call, "value", expected, format!("{sizes:?} in shapes like {shape:?}"))
    })
}

/// Appends to `into` the elements from `start` on with these sizes and strides, in row-major order.
fn collect_strided<T: Element>(from: &[T], shape: &[usize], strides: &[usize], start: usize, into: &mut Vec<T>) {
    match (shape.split_first(), strides.split_first()) {
        (Some((&size, shape)), Some((&stride, strides))) => {
            (0..size).for_each(|index| collect_strided(from, shape, strides, start + index * stride, into));
        }
        _ => into.push(from[start]),
    }
}

/// Makes a tensor without elements. It takes the place of a tensor that was moved out.
impl Default for Tensor {
    fn default() -> Self {
        static NOTHING: LazyLock<Arc<Memory>> = LazyLock::new(|| Arc::new(HostMemory::zeroed(DType::U8, 0).into()));
        Tensor { memory: NOTHING.clone(), start: 0, shape: vec![0] }
    }
}

/// Compares dtype, shape and element values. A float NaN differs from itself. Elements on a
/// device are copied to the host first, and differ from all others if that fails.
impl PartialEq for Tensor {
    fn eq(&self, other: &Tensor) -> bool {
        if self.shape != other.shape || self.dtype() != other.dtype() {
            return false;
        }
        let (Some(own), Some(other)) = (self.buf().host(), other.buf().host()) else {
            return matches!((self.to_host(), other.to_host()), (Ok(own), Ok(other)) if own == other);
        };
        macro_rules! same {
            ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
                match self.dtype() {
                    $(DType::$variant => own.as_slice::<$type>() == other.as_slice::<$type>(),)*
                }
            };
        }
        for_each_dtype!(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_shape_is_beyond_numbers() {
        assert_eq!(Tensor::new([0, 1 << 40], &[0u8; 0]).unwrap().rows(0..0).unwrap().count(), 0);
        for shape in [[0, 1 << 40, 1 << 40], [1 << 40, 1 << 40, 0], [1 << 40, 0, 1 << 40]] {
            let error = Tensor::new(shape, &[0u8; 0]).unwrap_err();
            let Error::InvalidCall { call: "Tensor::new", argument, .. } = &error else { panic!("{error}") };
            assert_eq!(argument, "shape");
            assert!(Tensor::zeros(DType::U8, [0]).reshape(shape).is_err());
        }
    }

    #[test]
    fn axes_change_places() {
        let x = Tensor::from([[[1, 2, 3]], [[4, 5, 6]]]);
        assert_eq!(x.transpose(&[2, 1, 0]).unwrap(), Tensor::from([[[1, 4]], [[2, 5]], [[3, 6]]]));
        assert_eq!(x.transpose(&[1, 2, 0]).unwrap(), Tensor::from([[[1, 4], [2, 5], [3, 6]]]));
        assert_eq!(x.transpose(&[0, 1, 2]).unwrap(), x);
        assert_eq!(Tensor::from(7).transpose(&[]).unwrap(), Tensor::from(7));
    }

    /// Found by a review: the recursion had one level per axis.
    #[test]
    fn axes_of_one_entry_may_be_any_number() {
        let rank = 200_000;
        let mut shape = vec![1; rank];
        (shape[0], shape[rank / 2], shape[rank - 1]) = (2, 3, 2);
        let x = Tensor::new(shape, &(0..12).collect::<Vec<i32>>()).unwrap();
        let order: Vec<usize> = (0..rank).rev().collect();
        let small = x.clone().reshape([2, 3, 2]).unwrap().transpose(&[2, 1, 0]).unwrap();
        assert_eq!(x.transpose(&order).unwrap().reshape([2, 3, 2]).unwrap(), small);
    }

    #[test]
    fn long_dimensions_are_cut_short() {
        let show = |rows: i32| Tensor::from((0..rows).collect::<Vec<_>>()).to_string();
        assert_eq!(show(16), "i32[16] [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]");
        assert_eq!(show(17), "i32[17] [0, 1, 2, 3, 4, 5, 6, 7, …, 9, 10, 11, 12, 13, 14, 15, 16]");
        assert_eq!(Tensor::zeros(DType::F32, [1 << 40, 0]).to_string(), "f32[1099511627776, 0] []");
        assert_eq!(format!("{:#}", Tensor::zeros(DType::F32, [&[16; 15][..], &[0]].concat())), "[]");
    }
}
