//! Work on single elements, from memory to memory of a device.

use super::{
    failure::LoadError,
    kernels::Kernels,
    memory::DeviceSlice,
    operands::{Operands, refused},
    stream::Stream,
};
use crate::cuda::kernels::{MOST, cast, compare, concat, fill, scale};
use consonance_spec::DType;

impl Kernels {
    /// Enqueues writing the same element `count` times: the one with these `bits`, of which an
    /// element of fewer bits has the low ones.
    ///
    /// # Errors
    /// If the target has too few bytes, is of another context, or is not aligned; the driver's.
    pub fn fill(
        &self,
        stream: &Stream,
        dtype: DType,
        target: DeviceSlice<'_>,
        count: usize,
        bits: u64,
    ) -> Result<(), LoadError> {
        let refused = refused(self.context());
        let count = count as u64;
        let launch = fill(dtype, target.address(), count, bits).map_err(&refused)?;
        let operands = Operands::new().write("target", target, Some(count), dtype.size()).map_err(&refused)?;
        // SAFETY: the table made the launch for this address. It writes so many elements.
        unsafe { operands.launch(self, stream, &launch) }
    }

    /// Enqueues converting `count` elements from one type to another: see
    /// [`cast`](crate::cuda::kernels::cast).
    ///
    /// # Errors
    /// If a part has too few bytes, is of another context, is not aligned, or overlaps the other;
    /// the driver's.
    pub fn cast(
        &self,
        stream: &Stream,
        source: (DType, DeviceSlice<'_>),
        target: (DType, DeviceSlice<'_>),
        count: usize,
    ) -> Result<(), LoadError> {
        let refused = refused(self.context());
        let ((from, source), (to, target), count) = (source, target, count as u64);
        let launch = cast(from, to, source.address(), target.address(), count).map_err(&refused)?;
        let operands = Operands::new()
            .read("source", source, Some(count), from.size())
            .and_then(|operands| operands.write("target", target, Some(count), to.size()))
            .map_err(&refused)?;
        // SAFETY: the table made the launch for these addresses and types. It reads and writes so
        // many elements.
        unsafe { operands.launch(self, stream, &launch) }
    }

    /// Enqueues multiplying `count` floats: see [`scale`](crate::cuda::kernels::scale). The target
    /// may be the source.
    ///
    /// # Errors
    /// If the type is not a float, or a part has too few bytes, is of another context, is not
    /// aligned, or overlaps the other in part; the driver's.
    pub fn scale(
        &self,
        stream: &Stream,
        dtype: DType,
        source: DeviceSlice<'_>,
        target: DeviceSlice<'_>,
        count: usize,
        factor: f64,
    ) -> Result<(), LoadError> {
        let refused = refused(self.context());
        let count = count as u64;
        let launch = scale(dtype, source.address(), target.address(), count, factor).map_err(&refused)?;
        let operands = (Operands::new().in_place())
            .read("source", source, Some(count), dtype.size())
            .and_then(|operands| operands.write("target", target, Some(count), dtype.size()))
            .map_err(&refused)?;
        // SAFETY: the table made the launch for these addresses. It reads and writes so many
        // elements.
        unsafe { operands.launch(self, stream, &launch) }
    }

    /// Enqueues comparing two arrays of `count` elements: see
    /// [`compare`](crate::cuda::kernels::compare). Each of at most `most_blocks` blocks writes a
    /// 64-bit index to `results`. Returns the number of blocks.
    ///
    /// # Errors
    /// If a part has too few bytes, is of another context, is not aligned, or the results overlap
    /// an array; the driver's.
    pub fn compare(
        &self,
        stream: &Stream,
        dtype: DType,
        arrays: [DeviceSlice<'_>; 2],
        count: usize,
        results: DeviceSlice<'_>,
        most_blocks: u32,
    ) -> Result<u32, LoadError> {
        let refused = refused(self.context());
        let ([left, right], count) = (arrays, count as u64);
        let launch = compare(dtype, left.address(), right.address(), count, results.address()).map_err(&refused)?;
        let launch = launch.at_most(most_blocks);
        let operands = Operands::new()
            .read("array", left, Some(count), dtype.size())
            .and_then(|operands| operands.read("array", right, Some(count), dtype.size()))
            .and_then(|operands| operands.write("results", results, Some(launch.grid.into()), size_of::<u64>()))
            .map_err(&refused)?;
        // SAFETY: the table made the launch for these addresses. It reads so many elements of both,
        // and each block writes one index.
        unsafe { operands.launch(self, stream, &launch)? };
        Ok(launch.grid)
    }

    /// Enqueues concatenating tensors along an axis: see [`concat`](crate::cuda::kernels::concat).
    /// Each source has `outer` rows of its number of elements.
    ///
    /// # Errors
    /// If a part has too few bytes, is of another context, is not aligned, or the target overlaps a
    /// source; the driver's.
    pub fn concat(
        &self,
        stream: &Stream,
        dtype: DType,
        outer: usize,
        sources: &[(DeviceSlice<'_>, usize)],
        target: DeviceSlice<'_>,
    ) -> Result<(), LoadError> {
        let refused = refused(self.context());
        let outer = outer as u64;
        let addresses: Vec<(u64, u64)> =
            sources.iter().map(|(source, count)| (source.address(), *count as u64)).collect();
        let launches = concat(dtype, outer, &addresses, target.address()).map_err(&refused)?;
        let row = addresses.iter().try_fold(0u64, |row, (_, count)| row.checked_add(*count));
        let all = row.and_then(|row| row.checked_mul(outer));
        for (launch, sources) in launches.iter().zip(sources.chunks(MOST)) {
            let mut operands = Operands::new();
            for (source, count) in sources {
                operands = operands
                    .read("source", *source, outer.checked_mul(*count as u64), dtype.size())
                    .map_err(&refused)?;
            }
            let operands = operands.write("target", target, all, dtype.size()).map_err(&refused)?;
            // SAFETY: the table made the launch for these addresses. It reads the rows of these
            // sources, and writes their places in the rows of the target.
            unsafe { operands.launch(self, stream, launch)? };
        }
        Ok(())
    }
}
