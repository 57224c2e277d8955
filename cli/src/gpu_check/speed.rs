//! The bandwidth of sums on the device, in turn with copies on the device.

use super::{PATIENCE, times::Times};
use consonance_kernels::{
    cpu::reduce::Reducer,
    cuda::{Context, DeviceMemory, DeviceSlice, Event, Fold, Kernels, PinnedMemory, Stream, kernels::Stage},
    memory::{HostBuf, HostMemory},
};
use consonance_spec::{DType, ReduceOp};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The element types and the numbers of inputs.
const TYPES: [DType; 2] = [DType::F32, DType::Bf16];
const INPUTS: [usize; 3] = [2, 4, 8];

/// The bytes of each input.
const SIZES: [usize; 6] = [1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];

/// The part of the free memory that is used: the driver's compiler needs some.
const PART: (usize, usize) = (9, 10);

/// The rounds, of which the median is shown, and the time that a round takes at least, if it has
/// less than the greatest number of launches. An event's time has an error of a few microseconds.
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(2);
const MOST: u128 = 200;

/// The bytes that are compared at a time.
const CHUNK: usize = 16 << 20;

/// Sums of one size, measured.
#[derive(Clone, Debug)]
pub struct Row {
    /// The element type.
    pub dtype: DType,
    /// The number of inputs.
    pub inputs: usize,
    /// The bytes of each input.
    pub bytes: usize,
    /// Whether all inputs get the sum, in place. Otherwise it goes to one other target.
    pub in_place: bool,
    /// The time of a sum.
    pub time: Duration,
    /// The time of a copy, on the device, between the halves of the same memory.
    pub copy_time: Duration,
    /// The number of wrong elements of the first sum.
    pub wrong: usize,
}

impl Row {
    /// The head of the table.
    pub(super) const HEADER: &'static str = "dtype  inputs      bytes  targets      time us      GB/s  copy GB/s  ratio  wrong  \
                                             stack.sum us     adds us  foreach us";

    fn targets(&self) -> usize {
        if self.in_place { self.inputs } else { 1 }
    }

    /// Returns the number of buffers that the sum uses.
    fn buffers(&self) -> usize {
        if self.in_place { self.inputs } else { self.inputs + 1 }
    }

    /// Returns the bytes that the sum reads and writes in a second.
    pub fn bandwidth(&self) -> f64 {
        ((self.inputs + self.targets()) * self.bytes) as f64 / self.time.as_secs_f64()
    }

    /// Returns the bytes that the copy reads and writes in a second.
    pub fn copy_bandwidth(&self) -> f64 {
        (self.buffers() * self.bytes) as f64 / self.copy_time.as_secs_f64()
    }

    pub(super) fn text(&self, torch: Option<&Times>) -> String {
        let (bandwidth, copy) = (self.bandwidth() / 1e9, self.copy_bandwidth() / 1e9);
        let us = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{:.1}", time * 1e6));
        // PyTorch has one target.
        let torch = torch.filter(|_| !self.in_place);
        format!(
            "{:5}  {:>6} {:>10}  {:>7} {:>12.1} {bandwidth:>9.1}  {copy:>9.1} {:>6.2}  {:>5}  {:>12} {:>11} {:>11}",
            self.dtype.name(),
            self.inputs,
            self.bytes,
            self.targets(),
            self.time.as_secs_f64() * 1e6,
            bandwidth / copy,
            self.wrong,
            us(torch.and_then(|times| times.stack_sum)),
            us(torch.and_then(|times| times.adds)),
            us(torch.and_then(|times| times.foreach)),
        )
    }

    pub(super) fn json(&self, torch: Option<&Times>) -> Value {
        let torch = torch.filter(|_| !self.in_place);
        json!({
            "dtype": self.dtype.name(),
            "inputs": self.inputs,
            "bytes": self.bytes,
            "targets": self.targets(),
            "seconds": self.time.as_secs_f64(),
            "bytes_per_second": self.bandwidth(),
            "copy_bytes_per_second": self.copy_bandwidth(),
            "ratio": self.bandwidth() / self.copy_bandwidth(),
            "wrong": self.wrong,
            "torch_stack_sum_seconds": torch.and_then(|times| times.stack_sum),
            "torch_adds_seconds": torch.and_then(|times| times.adds),
            "torch_foreach_seconds": torch.and_then(|times| times.foreach),
        })
    }
}

/// The means to measure on a device.
struct Meter {
    context: Context,
    kernels: Kernels,
    stream: Stream,
    begin: Event,
    end: Event,
}

/// Measures sums of each size for which the device has memory.
///
/// # Errors
/// The device's.
pub(super) fn measure(context: &Context, progress: impl Fn(usize, usize)) -> Result<Vec<Row>, String> {
    let meter = Meter::new(context)?;
    let free = context.free_bytes().map_err(|failure| failure.to_string())?;
    let mut rows = Vec::new();
    for dtype in TYPES {
        for inputs in INPUTS {
            for bytes in SIZES {
                for in_place in [false, true] {
                    let (time, copy_time) = (Duration::ZERO, Duration::ZERO);
                    rows.push(Row { dtype, inputs, bytes, in_place, time, copy_time, wrong: 0 });
                }
            }
        }
    }
    rows.retain(|row| row.buffers() * row.bytes <= free / PART.1 * PART.0);
    let all = rows.len();
    for (index, row) in rows.iter_mut().enumerate() {
        progress(index, all);
        meter.fill(row)?;
    }
    Ok(rows)
}

impl Meter {
    fn new(context: &Context) -> Result<Meter, String> {
        let told = |failure: consonance_kernels::cuda::Failure| failure.to_string();
        Ok(Meter {
            context: context.clone(),
            kernels: Kernels::new(context),
            stream: Stream::new(context).map_err(told)?,
            begin: Event::new(context).map_err(told)?,
            end: Event::new(context).map_err(told)?,
        })
    }

    /// Measures the row.
    fn fill(&self, row: &mut Row) -> Result<(), String> {
        let told = |failure: consonance_kernels::cuda::Failure| failure.to_string();
        let (bytes, buffers) = (row.bytes, row.buffers());
        let memory = DeviceMemory::new(&self.context, bytes * buffers).map_err(told)?;
        let slices: Vec<DeviceSlice<'_>> = (0..buffers).map(|index| memory.slice(index * bytes)).collect();
        let sources = &slices[..row.inputs];
        let targets = if row.in_place { sources } else { &slices[row.inputs..] };
        let sum = || {
            let fold = Fold {
                stage: Stage::Whole,
                op: ReduceOp::Sum,
                dtype: row.dtype,
                sources,
                targets,
                count: bytes / row.dtype.size(),
                divisor: 1,
                most_blocks: u32::MAX,
            };
            fold.enqueue(&self.kernels, &self.stream).map_err(|error| error.to_string())
        };
        // The element of each input has equal bytes, of a small positive number.
        let byte = |input: usize| 0x30 + input as u8;
        slices
            .iter()
            .enumerate()
            .try_for_each(|(at, slice)| self.stream.fill(*slice, bytes, byte(at)))
            .map_err(told)?;
        sum()?;
        let element = expected(row.dtype, (0..row.inputs).map(byte));
        let mut wrong = 0;
        for target in targets {
            wrong += self.wrong(*target, bytes, &element)?;
        }

        let half = bytes * buffers / 2;
        let copy = || self.stream.copy(memory.slice(0), memory.slice(half), half).map_err(told);
        let (launches, copies) = (self.launches(&sum)?, self.launches(&copy)?);
        let (mut times, mut copy_times) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            times.push(self.time(launches, &sum)?);
            copy_times.push(self.time(copies, &copy)?);
        }
        times.sort();
        copy_times.sort();
        (row.time, row.copy_time, row.wrong) = (times[ROUNDS / 2], copy_times[ROUNDS / 2], wrong);
        Ok(())
    }

    /// Returns how many launches take a round.
    fn launches(&self, work: &impl Fn() -> Result<(), String>) -> Result<u32, String> {
        self.time(1, work)?;
        let once = self.time(1, work)?;
        Ok((ROUND.as_nanos() / once.as_nanos().max(1)).clamp(1, MOST) as u32)
    }

    /// Returns the time of one of so many pieces of work.
    fn time(&self, launches: u32, work: &impl Fn() -> Result<(), String>) -> Result<Duration, String> {
        let told = |failure: consonance_kernels::cuda::Failure| failure.to_string();
        self.stream.record(&self.begin).map_err(told)?;
        (0..launches).try_for_each(|_| work())?;
        self.stream.record(&self.end).map_err(told)?;
        self.stream.wait(Instant::now() + PATIENCE).map_err(told)?;
        self.end.since(&self.begin).map(|time| time / launches).map_err(told)
    }

    /// Returns how many elements of the target's bytes are not this one.
    fn wrong(&self, target: DeviceSlice<'_>, bytes: usize, element: &[u8]) -> Result<usize, String> {
        let told = |failure: consonance_kernels::cuda::Failure| failure.to_string();
        let mut pinned = PinnedMemory::new(&self.context, CHUNK.min(bytes)).map_err(told)?;
        let expected = element.repeat(CHUNK.min(bytes) / element.len());
        let mut wrong = 0;
        for start in (0..bytes).step_by(CHUNK) {
            let count = CHUNK.min(bytes - start);
            let copy =
                self.stream.read(self.context.slice(target.address() + start as u64), pinned, count).map_err(told)?;
            pinned = copy.wait(Instant::now() + PATIENCE).map_err(told)?;
            let found = &pinned.as_slice()[..count];
            // Almost always all bytes are equal, which is found faster.
            if *found != expected[..count] {
                wrong += found.chunks(element.len()).filter(|found| *found != element).count();
            }
        }
        Ok(wrong)
    }
}

/// Returns the bytes of the sum of elements, each of which consists of one byte, repeated.
fn expected(dtype: DType, bytes: impl Iterator<Item = u8>) -> Vec<u8> {
    let inputs: Vec<HostMemory> = bytes
        .map(|byte| {
            let mut memory = HostMemory::zeroed(dtype, 1);
            memory.as_buf_mut().copy_from_bytes(&vec![byte; dtype.size()]);
            memory
        })
        .collect();
    let inputs: Vec<HostBuf<'_>> = inputs.iter().map(HostMemory::as_buf).collect();
    let mut sum = HostMemory::zeroed(dtype, 1);
    let reducer = Reducer::new(ReduceOp::Sum, dtype).expect("sums of floats are defined");
    reducer.reduce(&inputs, &mut sum.as_buf_mut());
    sum.as_buf().as_bytes().to_vec()
}
