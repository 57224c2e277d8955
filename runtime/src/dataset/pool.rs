//! Memory of batches, reused when no tensor shares it: faulting in new pages costs more than the
//! copy into them.

use crate::{DType, Error, Result, Tensor};
use consonance_kernels::memory::{HostBufMut, HostMemory, Memory};
use std::sync::Arc;

/// Number of batches kept for reuse, a few more than are in flight by default. Memory of further
/// batches is not reused.
const REMEMBERED: usize = 8;

/// The memory of one tensor of earlier batches.
#[derive(Default)]
pub(super) struct Pool(Vec<Arc<Memory>>);

impl Pool {
    /// Makes a tensor. `fill` writes all elements. The product of `shape` must not overflow.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no memory, and those of `fill`.
    pub(super) fn tensor(
        &mut self,
        dtype: DType,
        shape: Vec<usize>,
        fill: impl FnOnce(HostBufMut<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        let count = shape.iter().product();
        let fits = |memory: &Memory| memory.dtype() == dtype && memory.count() >= count;
        let free = |memory: &mut Arc<Memory>| Arc::get_mut(memory).is_some();
        let mut memory = match self.0.iter_mut().position(|memory| fits(memory) && free(memory)) {
            Some(place) => self.0.swap_remove(place),
            None => {
                // Drop free memory that is too small. Keep memory that fits, even if it became free
                // just now: the next call can use it.
                self.0.retain_mut(|memory| fits(memory) || !free(memory));
                let memory = HostMemory::try_unspecified(dtype, count);
                Arc::new(memory.map_err(Error::no_memory(dtype, count))?.into())
            }
        };
        let free = Arc::get_mut(&mut memory).and_then(Memory::host_mut).expect("the only handle, in host memory");
        fill(free.as_buf_mut().slice(0..count))?;
        if self.0.len() < REMEMBERED {
            self.0.push(memory.clone());
        }
        Ok(Tensor::of_first(memory, shape))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_without_memory_is_an_error() {
        let made = Pool::default().tensor(DType::I64, vec![1 << 60], |_| Ok(()));
        assert!(matches!(made, Err(Error::System { .. })), "{made:?}");
    }

    #[test]
    fn memory_is_used_again_only_when_nobody_holds_it() {
        let mut pool = Pool::default();
        let mut next = |value: i32| {
            let fill = |into: HostBufMut<'_>| {
                into.into_mut_slice::<i32>().unwrap().fill(value);
                Ok(())
            };
            pool.tensor(DType::I32, vec![3], fill).unwrap()
        };
        let address = |tensor: &Tensor| tensor.as_slice::<i32>().unwrap().as_ptr();
        let first = next(1);
        let row = first.rows(1..2).unwrap();
        let second = next(2);
        assert_ne!(address(&first), address(&second));
        let place = address(&first);
        drop(first);
        assert_ne!(address(&next(3)), place, "a row of it is still held");
        assert_eq!(row.item::<i32>().unwrap(), 1);
        drop((row, second));
        let held: Vec<Tensor> = (0..20).map(&mut next).collect();
        assert!(held.iter().enumerate().all(|(value, tensor)| tensor.as_slice::<i32>().unwrap() == [value as i32; 3]));
        assert!(held.iter().any(|tensor| address(tensor) == place));
    }

    #[test]
    fn a_smaller_batch_uses_the_memory_of_a_larger_one() {
        let mut pool = Pool::default();
        let large = pool.tensor(DType::U8, vec![4, 2], |_| Ok(())).unwrap();
        let place = large.as_slice::<u8>().unwrap().as_ptr();
        drop(large);
        let small = pool.tensor(DType::U8, vec![1, 2], |_| Ok(())).unwrap();
        assert_eq!((small.shape(), small.as_slice::<u8>().unwrap().as_ptr()), (&[1, 2][..], place));
    }
}
