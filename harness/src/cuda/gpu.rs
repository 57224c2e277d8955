//! Jobs on a device, by the driver.
//!
//! The buffers of a job lie in one block of device memory, with bytes between them that nothing may
//! change. The whole block is compared afterwards.

use super::{
    Case,
    job::{GUARD, Job, Step},
};
use crate::compare::Verdict;
use consonance_kernels::cuda::{Context, DeviceMemory, DeviceSlice, Failure, Fold, Kernels, PinnedMemory, Stream};
use std::{
    ops::Range,
    time::{Duration, Instant},
};

/// Buffers begin at multiples of this, if they are not shifted.
const ALIGNMENT: usize = 256;

/// The least number of bytes between two buffers.
const GUARDS: usize = 64;

/// Results of more elements are compared with the host's only.
const SPEC: usize = 600;

/// A device that runs cases, one after the other.
#[derive(Debug)]
pub struct Gpu {
    kernels: Kernels,
    stream: Stream,
    memory: DeviceMemory,
    pinned: Option<PinnedMemory>,
    patience: Duration,
}

impl Gpu {
    /// Takes a device. Each wait for it ends after `patience`.
    ///
    /// # Errors
    /// The device's.
    pub fn new(context: &Context, patience: Duration) -> Result<Gpu, Failure> {
        Ok(Gpu {
            kernels: Kernels::new(context),
            stream: Stream::new(context)?,
            memory: DeviceMemory::new(context, 0)?,
            pinned: None,
            patience,
        })
    }

    /// Returns the kernels that the cases use.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Judges a case.
    ///
    /// # Errors
    /// The device's, if the case did not run.
    pub fn judge(&mut self, case: &Case) -> Result<Verdict, String> {
        let job = match case.job(SPEC) {
            Ok(job) => job,
            Err(wrong) => return Ok(Err(wrong)),
        };
        let (block, starts) = laid_out(&job);
        let after = self.run(&block, &job, &starts)?;
        Ok(compare(&job, &starts, &after))
    }

    /// Copies a block to the device, runs the job on the buffers that begin at `starts`, and
    /// returns the block.
    ///
    /// # Errors
    /// The device's.
    fn run(&mut self, block: &[u8], job: &Job, starts: &[usize]) -> Result<Vec<u8>, String> {
        let told = |failure: Failure| failure.to_string();
        let deadline = Instant::now() + self.patience;
        let (context, bytes) = (self.kernels.context().clone(), block.len());
        if self.memory.bytes() < bytes {
            self.memory = DeviceMemory::new(&context, bytes.next_power_of_two()).map_err(told)?;
        }
        let mut pinned = match self.pinned.take().filter(|pinned| pinned.bytes() >= bytes) {
            Some(pinned) => pinned,
            None => PinnedMemory::new(&context, bytes.next_power_of_two()).map_err(told)?,
        };
        pinned.as_mut_slice()[..bytes].copy_from_slice(block);
        let copy = self.stream.write(pinned, self.memory.slice(0), bytes).map_err(told)?;
        let pinned = copy.wait(deadline).map_err(told)?;
        let slices: Vec<DeviceSlice<'_>> = starts.iter().map(|&start| self.memory.slice(start)).collect();
        job.steps.iter().try_for_each(|step| self.enqueue(step, &slices, job.blocks))?;
        let copy = self.stream.read(self.memory.slice(0), pinned, bytes).map_err(told)?;
        let pinned = copy.wait(deadline).map_err(told)?;
        let result = pinned.as_slice()[..bytes].to_vec();
        self.pinned = Some(pinned);
        Ok(result)
    }

    fn enqueue(&self, step: &Step, slice: &[DeviceSlice<'_>], blocks: u32) -> Result<(), String> {
        let (kernels, stream) = (&self.kernels, &self.stream);
        let all = |indices: &[usize]| indices.iter().map(|&index| slice[index]).collect::<Vec<_>>();
        let enqueued = match *step {
            Step::Fold { stage, op, dtype, ref sources, ref targets, count, divisor } => {
                let (sources, targets) = (&all(sources), &all(targets));
                Fold { stage, op, dtype, sources, targets, count, divisor, most_blocks: blocks }
                    .enqueue(kernels, stream)
            }
            Step::Along { op, dtype, source, target, shape } => {
                kernels.along(stream, op, dtype, slice[source], slice[target], shape)
            }
            Step::Tree { op, dtype, source, target, shape } => {
                kernels.tree(stream, op, dtype, slice[source], slice[target], shape)
            }
            Step::Rows { .. } => return Err("no safe function adds rows, whose indices are on the device".to_owned()),
            Step::Concat { dtype, outer, ref sources, target } => {
                let sources: Vec<_> = sources.iter().map(|&(index, count)| (slice[index], count)).collect();
                kernels.concat(stream, dtype, outer, &sources, slice[target])
            }
            Step::Fill { dtype, target, count, bits } => kernels.fill(stream, dtype, slice[target], count, bits),
            Step::Cast { from, to, source, target, count } => {
                kernels.cast(stream, (from, slice[source]), (to, slice[target]), count)
            }
            Step::Scale { dtype, source, target, count, factor } => {
                kernels.scale(stream, dtype, slice[source], slice[target], count, factor)
            }
            Step::Compare { dtype, arrays, count, results } => {
                let arrays = arrays.map(|index| slice[index]);
                kernels.compare(stream, dtype, arrays, count, slice[results], blocks).map(drop)
            }
        };
        enqueued.map_err(|error| error.to_string())
    }
}

/// Returns the block before the job, and where its buffers begin.
fn laid_out(job: &Job) -> (Vec<u8>, Vec<usize>) {
    let (mut block, mut starts) = (Vec::new(), Vec::new());
    for buffer in &job.buffers {
        let start = (block.len() + GUARDS).next_multiple_of(ALIGNMENT) + buffer.shift;
        block.resize(start, GUARD);
        block.extend(buffer.before.iter().flatten());
        block.resize(start + buffer.bytes, !GUARD);
        starts.push(start);
    }
    block.resize(block.len() + GUARDS, GUARD);
    (block, starts)
}

/// Compares the buffers, and the bytes between them.
fn compare(job: &Job, starts: &[usize], after: &[u8]) -> Verdict {
    let unchanged = |mut between: Range<usize>| match between.find(|&at| after[at] != GUARD) {
        Some(at) => Err(format!("byte {at} of the memory changed, which is in no buffer")),
        None => Ok(()),
    };
    let mut end = 0;
    for (buffer, &start) in job.buffers.iter().zip(starts) {
        unchanged(end..start)?;
        end = start + buffer.bytes;
        buffer.judge(&after[start..end])?;
    }
    unchanged(end..after.len())
}
