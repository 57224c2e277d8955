//! Buffers and numbers from what C passes. The checks are inlined into each call, because most of
//! what a small call costs here would be to pass them their arguments and results.

use crate::codes::{CONS_ON_GPU, OPS, TYPES, Type};
use consonance::{
    DType, Error, ReduceOp, World,
    raw::{Buf, BufMut, CallerStream, Space},
};
use std::{
    ffi::{c_int, c_void},
    num::NonZero,
    ptr::NonNull,
};

/// The call whose arguments are checked, the number of ranks, and this rank's GPU.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    pub(crate) call: &'static str,
    pub(crate) world: World,
    pub(crate) gpu: Option<u32>,
}

impl Check {
    pub(crate) fn invalid(self, argument: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        let (argument, expected, found) = (argument.to_owned(), expected.into(), found.into());
        Error::InvalidCall { call: self.call, argument, replica: Some(self.world.rank()), expected, found }
    }

    /// Checks a pointer for a result, before anything is done.
    #[inline(always)]
    pub(crate) fn pointer<T>(self, argument: &str, to: *mut T) -> Result<(), Error> {
        if to.is_null() { Err(self.invalid(argument, "a pointer", "null")) } else { Ok(()) }
    }

    /// Returns the element type of a number, which also says whether the buffers lie on the GPU.
    #[inline(always)]
    pub(crate) fn dtype(self, number: c_int) -> Result<Type, Error> {
        match number & CONS_ON_GPU {
            // All bits of a negative number may be set.
            flag if flag == 0 || number < 0 => self.plain_dtype(number),
            _ if self.gpu.is_none() => {
                let expected = "a type without CONS_ON_GPU: this rank is on no GPU";
                Err(self.invalid("dtype", expected, number.to_string()))
            }
            _ => Ok(Type { on_gpu: true, ..self.plain_dtype(number & !CONS_ON_GPU)? }),
        }
    }

    #[inline(always)]
    fn plain_dtype(self, number: c_int) -> Result<Type, Error> {
        // A type's number is its index.
        let of_number = usize::try_from(number).ok().and_then(|index| TYPES.get(index).copied());
        of_number.ok_or_else(|| self.invalid("dtype", "the number of an element type", number.to_string()))
    }

    /// Returns the operation of a reduction of this type.
    #[inline(always)]
    pub(crate) fn op(self, number: c_int, of: Type) -> Result<ReduceOp, Error> {
        // As for types.
        let op = usize::try_from(number).ok().and_then(|index| OPS.get(index)).map(|(.., op)| *op);
        let op = op.ok_or_else(|| self.invalid("op", "the number of an operation", number.to_string()))?;
        match of.parts == 1 || matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
            true => Ok(op),
            false => Err(self.invalid("op", "sum or mean, for complex numbers", op.name())),
        }
    }

    /// Returns a rank of the group.
    pub(crate) fn rank(self, argument: &str, rank: c_int) -> Result<usize, Error> {
        let size = self.world.size();
        let found = usize::try_from(rank).ok().filter(|&rank| rank < size);
        found.ok_or_else(|| self.invalid(argument, format!("a rank below {size}"), rank.to_string()))
    }

    /// Returns the counts of all ranks, in parts of this type.
    ///
    /// # Safety
    /// `counts` is null or has a count for each rank.
    pub(crate) unsafe fn counts(self, argument: &str, counts: *const usize, of: Type) -> Result<Vec<usize>, Error> {
        if counts.is_null() || !counts.is_aligned() {
            return Err(self.invalid(argument, "a pointer to a count for each rank", format!("{counts:?}")));
        }
        // SAFETY: the caller's promise.
        let counts = unsafe { std::slice::from_raw_parts(counts, self.world.size()) };
        let parts = |&count: &usize| self.times(argument, count, of.parts);
        counts.iter().map(parts).collect()
    }

    /// Returns the sum of counts.
    pub(crate) fn total(self, argument: &str, counts: &[usize]) -> Result<usize, Error> {
        let sum = counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
        sum.ok_or_else(|| self.invalid(argument, "counts whose sum fits the address space", "more"))
    }

    /// Returns `count` times `factor`.
    #[inline(always)]
    pub(crate) fn times(self, argument: &str, count: usize, factor: usize) -> Result<usize, Error> {
        let product = count.checked_mul(factor);
        product.ok_or_else(|| self.invalid(argument, "a count that fits the address space", count.to_string()))
    }

    /// Checks that `count` parts of elements of a type may lie at this address.
    #[inline(always)]
    fn address(self, argument: &str, start: *const c_void, count: usize, of: Type) -> Result<(), Error> {
        if start.is_null() && count > 0 {
            return Err(self.invalid(argument, "a pointer", "null"));
        }
        // A size is a power of two.
        if start.addr() & (of.dtype.size() - 1) != 0 {
            let expected = format!("an address that is a multiple of {}, for {}", of.dtype.size(), of.dtype);
            return Err(self.invalid(argument, expected, format!("{start:?}")));
        }
        let bytes = count.checked_mul(of.dtype.size()).filter(|&bytes| isize::try_from(bytes).is_ok());
        bytes.ok_or_else(|| self.invalid("count", "a count that fits the address space", count.to_string()))?;
        match self.gpu {
            Some(_) if !of.on_gpu && count > 0 => self.on_host(argument, start),
            _ => Ok(()),
        }
    }

    /// Checks that an address is none of a GPU.
    #[cold]
    fn on_host(self, argument: &str, start: *const c_void) -> Result<(), Error> {
        let gpu = CallerStream::gpu_of_address(start.addr() as u64);
        gpu.map_or(Ok(()), |gpu| {
            let expected = "memory of the host, as dtype is without CONS_ON_GPU";
            Err(self.invalid(argument, expected, format!("memory of cuda:{gpu} at {start:?}")))
        })
    }

    /// Returns the memory that the buffers of a type lie in.
    #[inline(always)]
    fn space(self, of: Type) -> Space {
        self.gpu.filter(|_| of.on_gpu).map_or(Space::Host, Space::Cuda)
    }

    /// Returns a buffer of `count` parts that is read.
    ///
    /// # Safety
    /// The memory is valid for reads, and nobody writes it, until the call has ended.
    #[inline(always)]
    pub(crate) unsafe fn input(
        self,
        argument: &str,
        start: *const c_void,
        count: usize,
        of: Type,
    ) -> Result<Buf<'static>, Error> {
        self.address(argument, start, count, of)?;
        // SAFETY: the caller's promise; the address was checked, and bools are.
        unsafe {
            self.bools(argument, start, count, of)?;
            Ok(Buf::from_raw(self.space(of), of.dtype, at(start.cast_mut(), of), count))
        }
    }

    /// Returns a buffer of `count` parts that is read and written.
    ///
    /// # Safety
    /// The memory is valid for reads and writes, and nobody else touches it, until the call has
    /// ended.
    #[inline(always)]
    pub(crate) unsafe fn in_place(
        self,
        argument: &str,
        start: *mut c_void,
        count: usize,
        of: Type,
    ) -> Result<BufMut<'static>, Error> {
        self.address(argument, start, count, of)?;
        // SAFETY: as in `input`.
        unsafe {
            self.bools(argument, start, count, of)?;
            Ok(BufMut::from_raw(self.space(of), of.dtype, at(start, of), count))
        }
    }

    /// Returns a buffer of `count` parts that is only written. Its bytes may be any.
    ///
    /// # Safety
    /// As for [`in_place`](Check::in_place).
    #[inline(always)]
    pub(crate) unsafe fn output(
        self,
        argument: &str,
        start: *mut c_void,
        count: usize,
        of: Type,
    ) -> Result<BufMut<'static>, Error> {
        self.address(argument, start, count, of)?;
        if of.dtype == DType::Bool && count > 0 && !of.on_gpu {
            // SAFETY: the caller's promise. A bool must be 0 or 1 before it is written, too.
            unsafe { start.cast::<u8>().write_bytes(0, count) };
        }
        // SAFETY: as in `input`.
        Ok(unsafe { BufMut::from_raw(self.space(of), of.dtype, at(start, of), count) })
    }

    /// Checks that bools are 0 or 1.
    ///
    /// # Safety
    /// `start` has `count` elements of the type.
    #[inline(always)]
    unsafe fn bools(self, argument: &str, start: *const c_void, count: usize, of: Type) -> Result<(), Error> {
        if of.dtype != DType::Bool || count == 0 || of.on_gpu {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), count) };
        match bytes.iter().find(|&&byte| byte > 1) {
            None => Ok(()),
            Some(byte) => Err(self.invalid(argument, "bools of 0 or 1", byte.to_string())),
        }
    }
}

/// Returns the address, or for null, which has no elements, any other that is aligned.
fn at(start: *mut c_void, of: Type) -> NonNull<u8> {
    let aligned = NonZero::new(of.dtype.size()).expect("every element has bytes");
    NonNull::new(start.cast()).unwrap_or(NonNull::without_provenance(aligned))
}
