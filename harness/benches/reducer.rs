//! Compares the reduction kernels with the machine's copy and reads: `cargo bench --bench reducer`.
//!
//! Without a filter the bench prints tables. Each reduction and a `memcpy` that reads and writes as
//! many bytes run in turn, under the same conditions. The ratio of their times is the median over
//! the turns; the aim is at least 0.9 from 64 KiB on. The next column is the ratio to a copy by
//! ordinary stores (a reduction of one input). An ordinary store reads the line that it overwrites,
//! while `memcpy` avoids that read by microcode. The last column is the ratio of the `memcpy`'s
//! time to the time of a plain read of the inputs, without computation or writes. No reduction can
//! exceed this ratio, and just past the second-level cache it is below 0.9. Reductions along an
//! axis are compared with a plain read of the tensor, both by one thread and by one thread per
//! core. Exact sums are compared with plain ones, with the crate `xsum`, and with `math.fsum` if
//! there is a `python3`.
//!
//! With a filter it runs criterion benches of every dtype, operation, number of inputs, size and
//! instruction set, each with a `memcpy` of as many bytes:
//! `cargo bench --bench reducer -- f16/max/4/64KiB`, or `f32/sum/.*/1MiB/avx512`.

use consonance_kernels::{
    cpu::{
        axis::{Along, Part},
        exact,
        isa::Isa,
        read::read,
        reduce::Reducer,
    },
    memory::{HostBuf, HostMemory},
    os::thread_pool::Team,
};
use consonance_spec::{DType, Element, ReduceOp, bf16, f16};
use criterion::{Criterion, Throughput};
use std::{
    hint::black_box,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};
use wide::f32x8;
use xsum::{Xsum, XsumLarge, XsumSmall};

/// Turns of a comparison.
const TURNS: usize = 21;

/// The minimum time of one side of a turn, so that the overhead of clock and calls is negligible.
const TURN: Duration = Duration::from_millis(4);

/// Bytes of an input.
const SIZES: [usize; 9] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

const INPUTS: [usize; 3] = [2, 4, 8];

/// The reductions that are compared besides the f32 sum, at [`ORDINARY_BYTES`].
const OTHERS: [(ReduceOp, DType); 11] = [
    (ReduceOp::Mean, DType::F32),
    (ReduceOp::Max, DType::F32),
    (ReduceOp::Sum, DType::F64),
    (ReduceOp::Sum, DType::Bf16),
    (ReduceOp::Max, DType::Bf16),
    (ReduceOp::Sum, DType::F16),
    (ReduceOp::Max, DType::F16),
    (ReduceOp::Sum, DType::I32),
    (ReduceOp::Sum, DType::U8),
    (ReduceOp::Max, DType::I64),
    (ReduceOp::Mean, DType::I32),
];

const ORDINARY_BYTES: usize = 1 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Without `--bench` cargo only tests that the benchmarks run.
    let bench = arguments.iter().any(|argument| argument == "--bench");
    let filter = arguments.iter().any(|argument| !argument.starts_with('-'));
    if bench && !filter {
        reductions();
        portable();
        axes();
        exact_sums();
        exact_sums_of_others();
        return;
    }
    let criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    let mut criterion = criterion.configure_from_args();
    every(&mut criterion, if bench { &SIZES } else { &SIZES[..1] });
    criterion.final_summary();
}

/// A reduction with its own buffers.
struct Case {
    reducer: Reducer,
    inputs: Vec<HostMemory>,
    output: HostMemory,
}

impl Case {
    fn new(op: ReduceOp, dtype: DType, isa: Isa, inputs: usize, bytes: usize) -> Case {
        let reducer = Reducer::with_isa(op, dtype, isa).expect("defined, and available");
        let count = bytes / dtype.size();
        let inputs = (0..inputs).map(|_| ones(dtype, count)).collect();
        Case { reducer, inputs, output: ones(reducer.output(), count) }
    }

    fn bytes(&self) -> usize {
        self.inputs.iter().map(|input| input.as_buf().bytes()).sum::<usize>() + self.output.as_buf().bytes()
    }

    /// Runs once. Checks an f32 result; all inputs are one.
    fn check(&mut self) {
        self.run();
        let expected = if self.reducer.op() == ReduceOp::Sum { self.inputs.len() as f32 } else { 1.0 };
        let output = self.output.as_buf().as_slice::<f32>().unwrap_or(&[]);
        assert!(output.iter().all(|&element| element == expected), "{:?}", self.reducer);
    }

    /// Only reads the inputs, as fast as possible.
    fn read(&self) {
        for input in &self.inputs {
            black_box(read(black_box(input.as_buf().as_bytes())));
        }
    }

    fn run(&mut self) {
        let inputs: Vec<HostBuf<'_>> = self.inputs.iter().map(HostMemory::as_buf).collect();
        self.reducer.reduce(black_box(&inputs), &mut self.output.as_buf_mut());
    }
}

/// Returns elements that are one, in memory whose pages are present.
fn ones(dtype: DType, count: usize) -> HostMemory {
    fn of<T: Element>(one: T, count: usize) -> HostMemory {
        vec![one; count][..].into()
    }
    match dtype {
        DType::F16 => of(f16::ONE, count),
        DType::Bf16 => of(bf16::ONE, count),
        DType::F32 => of(1f32, count),
        DType::F64 => of(1f64, count),
        DType::Bool => of(true, count),
        DType::I8 => of(1i8, count),
        DType::I16 => of(1i16, count),
        DType::I32 => of(1i32, count),
        DType::I64 => of(1i64, count),
        DType::U8 => of(1u8, count),
        DType::U16 => of(1u16, count),
        DType::U32 => of(1u32, count),
        DType::U64 => of(1u64, count),
    }
}

/// The median seconds of each side, and the median of the ratio of the second side to the first.
struct Compared {
    ours: f64,
    theirs: f64,
    ratio: f64,
}

/// Runs both sides in turn.
fn compare(mut ours: impl FnMut(), mut theirs: impl FnMut()) -> Compared {
    let rounds = |f: &mut dyn FnMut()| {
        f();
        let start = Instant::now();
        f();
        (TURN.as_secs_f64() / start.elapsed().as_secs_f64()).ceil() as usize
    };
    let (our_rounds, their_rounds) = (rounds(&mut ours), rounds(&mut theirs));
    let seconds = |f: &mut dyn FnMut(), rounds: usize| {
        let start = Instant::now();
        (0..rounds).for_each(|_| f());
        start.elapsed().as_secs_f64() / rounds as f64
    };
    let turns: Vec<(f64, f64)> =
        (0..TURNS).map(|_| (seconds(&mut ours, our_rounds), seconds(&mut theirs, their_rounds))).collect();
    Compared {
        ours: median(turns.iter().map(|turn| turn.0)),
        theirs: median(turns.iter().map(|turn| turn.1)),
        ratio: median(turns.iter().map(|turn| turn.1 / turn.0)),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn reductions() {
    println!("reductions in {}, against a copy that moves the same bytes, and that against a read", Isa::best());
    println!(
        "{:>6} {:>5} {:>9} {:>3} {:>12} {:>12} {:>6} {:>12} {:>6} {:>12} {:>11}",
        "op",
        "dtype",
        "bytes",
        "n",
        "reduce GB/s",
        "memcpy GB/s",
        "ratio",
        "stores GB/s",
        "ratio",
        "read GB/s",
        "read/memcpy"
    );
    let sums = SIZES.into_iter().map(|bytes| (ReduceOp::Sum, DType::F32, bytes));
    let others = OTHERS.into_iter().map(|(op, dtype)| (op, dtype, ORDINARY_BYTES));
    for (op, dtype, bytes) in sums.chain(others) {
        for inputs in INPUTS {
            let mut case = Case::new(op, dtype, Isa::best(), inputs, bytes);
            case.check();
            let moved = case.bytes();
            let (source, mut target) = (vec![1u8; moved / 2], vec![2u8; moved / 2]);
            let mut memcpy = || black_box(&mut target).copy_from_slice(black_box(&source));
            let against_memcpy = compare(|| case.run(), &mut memcpy);
            let read = compare(|| case.read(), &mut memcpy);
            let mut copy = Case::new(ReduceOp::Sum, DType::U8, Isa::best(), 1, moved / 2);
            let stores = compare(|| case.run(), || copy.run());
            println!(
                "{:>6} {:>5} {:>9} {:>3} {:>12.1} {:>12.1} {:>6.2} {:>12.1} {:>6.2} {:>12.1} {:>11.2}",
                op,
                dtype,
                bytes,
                inputs,
                moved as f64 / against_memcpy.ours / 1e9,
                moved as f64 / against_memcpy.theirs / 1e9,
                against_memcpy.ratio,
                moved as f64 / stores.theirs / 1e9,
                stores.ratio,
                (inputs * bytes) as f64 / read.ours / 1e9,
                read.ratio
            );
        }
    }
}

/// Sums f32 inputs with portable SIMD, whose width the build decides: eight lanes at a time, from
/// the first input to the last.
fn sum_with_wide(inputs: &[Vec<f32>], output: &mut [f32]) {
    for (index, target) in output.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let lanes = |input: &Vec<f32>| f32x8::new(input.as_chunks().0[index]);
        *target = inputs[1..].iter().map(lanes).fold(lanes(&inputs[0]), |sum, next| sum + next).to_array();
    }
}

fn portable() {
    println!("\nf32 sums in {}, against the same written with the crate `wide`", Isa::best());
    println!("{:>9} {:>3} {:>12} {:>12} {:>6}", "bytes", "n", "ours GB/s", "wide GB/s", "ratio");
    for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        for inputs in [2, 8] {
            let mut case = Case::new(ReduceOp::Sum, DType::F32, Isa::best(), inputs, bytes);
            let moved = case.bytes() as f64;
            let theirs = vec![vec![1f32; bytes / 4]; inputs];
            let mut output = vec![0f32; bytes / 4];
            let result = compare(|| case.run(), || sum_with_wide(black_box(&theirs), black_box(&mut output)));
            println!(
                "{bytes:>9} {inputs:>3} {:>12.1} {:>12.1} {:>6.2}",
                moved / result.ours / 1e9,
                moved / result.theirs / 1e9,
                result.ratio
            );
        }
    }
}

/// Returns elements near each other, and far apart.
fn summands(count: usize) -> [Vec<f64>; 2] {
    let near: Vec<f64> = (0..count).map(|place| ((place * 7919 % 10_007) as f64 - 5000.5) / 3.0).collect();
    let far = (0..count).map(|place| near[place] * 2f64.powi((place * 31 % 160) as i32 - 80)).collect();
    [near, far]
}

fn exact_sums() {
    println!("\nexact sums along an axis, against plain ones: elements near each other, and far apart");
    println!("{:>5} {:>22} {:>12} {:>12} {:>6} {:>6}", "dtype", "shape", "exact GB/s", "plain GB/s", "ratio", "far");
    // In the caches and beyond them.
    for count in [1 << 14, 1 << 25] {
        for shape in [[1, count, 1], [1, 2, count / 2], [1, 8, count / 8]] {
            let [near, far] = summands(count);
            let narrow = |elements: &[f64]| elements.iter().map(|&element| element as f32).collect::<Vec<f32>>();
            let sides: [(HostMemory, HostMemory); 2] =
                [(narrow(&near)[..].into(), narrow(&far)[..].into()), (near[..].into(), far[..].into())];
            for (near, far) in &sides {
                let dtype = near.dtype();
                let results = shape[0] * shape[2];
                let mut target = HostMemory::unspecified(dtype, results);
                let mut sum = |elements: HostBuf<'_>| {
                    exact::reduce(ReduceOp::Sum, black_box(&[(elements, shape)]), 0..results, target.as_buf_mut());
                };
                let plain = || {
                    let along = Along::new(ReduceOp::Sum, black_box(&[(near.as_buf(), shape)])).expect("memory");
                    let mut along = along.expect("defined");
                    along.parts(1).into_iter().for_each(Part::run);
                    black_box(along.finish().expect("memory"));
                };
                let result = compare(|| sum(near.as_buf()), plain);
                let apart = compare(|| sum(far.as_buf()), plain);
                let bytes = near.as_buf().bytes() as f64 / 1e9;
                println!(
                    "{:>5} {:>22} {:>12.1} {:>12.1} {:>6.2} {:>6.2}",
                    dtype,
                    format!("{shape:?}"),
                    bytes / result.ours,
                    bytes / result.theirs,
                    result.ratio,
                    apart.ratio
                );
            }
        }
    }
}

/// Sums floats for each line of the input, and prints the time and the bits.
const FSUM: &str = r#"
import array, math, struct, sys, time
data = array.array("d", sys.stdin.buffer.read(8 * int(sys.argv[1]))).tolist()
for _ in sys.stdin.buffer:
    start = time.perf_counter()
    total = math.fsum(data)
    print(time.perf_counter() - start, struct.unpack("<Q", struct.pack("<d", total))[0], flush=True)
"#;

/// A process of Python that holds a list of floats. It ends when its input is closed.
struct Fsum {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Fsum {
    /// Starts the process; `None` without Python.
    fn start(elements: &[f64]) -> Option<Fsum> {
        let mut python = Command::new("python3");
        python.args(["-c", FSUM, &elements.len().to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = python.spawn().ok()?;
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_ne_bytes()).collect();
        process.stdin.as_mut()?.write_all(&bytes).ok()?;
        let output = BufReader::new(process.stdout.take()?);
        Some(Fsum { process, output })
    }

    /// Returns the seconds and the bits of a sum.
    fn sum(&mut self) -> (f64, u64) {
        let mut line = String::new();
        self.process.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("Python reads");
        self.output.read_line(&mut line).expect("Python writes");
        let (seconds, bits) = line.trim().split_once(' ').expect("a time and bits");
        (seconds.parse().expect("a time"), bits.parse().expect("bits"))
    }
}

fn exact_sums_of_others() {
    println!("\nexact sums of f64, against the crate `xsum` and `math.fsum`: elements near each other, and far apart");
    println!(
        "{:>5} {:>9} {:>12} {:>12} {:>6} {:>12} {:>6}",
        "", "count", "ours GB/s", "xsum GB/s", "ratio", "fsum GB/s", "ratio"
    );
    for count in [1 << 14, 1 << 22] {
        for (name, elements) in ["near", "far"].into_iter().zip(summands(count)) {
            let mut target = [0f64];
            row(name, &elements, || {
                let view = (elements.as_slice().into(), [1, count, 1]);
                exact::reduce(ReduceOp::Sum, black_box(&[view]), 0..1, target.as_mut_slice().into());
                target[0].to_bits()
            });
        }
    }
}

fn sum_by(mut sum: impl Xsum, elements: &[f64]) -> u64 {
    sum.add_list(elements);
    sum.sum().to_bits()
}

fn row(name: &str, elements: &[f64], mut ours: impl FnMut() -> u64) {
    let (count, bits) = (elements.len(), ours());
    // The faster `XsumLarge` of version 0.1.6 returns wrong sums of 2^18 such elements and more.
    let xsum = || match count < 1 << 16 {
        true => sum_by(XsumLarge::new(), black_box(elements)),
        false => sum_by(XsumSmall::new(), black_box(elements)),
    };
    assert_eq!(xsum(), bits, "exact sums are the same");
    let result = compare(|| _ = black_box(ours()), || _ = black_box(xsum()));
    let speed = |seconds: f64| 8e-9 * count as f64 / seconds;
    print!("{name:>5} {count:>9} {:>12.2} {:>12.2} {:>6.2}", speed(result.ours), speed(result.theirs), result.ratio);
    let Some(mut fsum) = Fsum::start(elements) else { return println!(" {:>12}", "no python3") };
    let turn = |_| {
        let (theirs, found) = fsum.sum();
        assert_eq!(found, bits, "exact sums are the same");
        let start = Instant::now();
        black_box(ours());
        (start.elapsed().as_secs_f64(), theirs)
    };
    let turns: Vec<(f64, f64)> = (0..TURNS).map(turn).collect();
    let (ratio, theirs) = (median(turns.iter().map(|turn| turn.1 / turn.0)), median(turns.iter().map(|turn| turn.1)));
    println!(" {:>12.2} {ratio:>6.2}", speed(theirs));
}

fn axes() {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let places: Vec<_> = (0..cores).map(Some).collect();
    let mut team = Team::new("axis", &places).expect("a thread for each core");
    println!("\nreductions along an axis, against a plain read of the tensor: by one thread, and by {cores}");
    println!(
        "{:>6} {:>5} {:>22} {:>12} {:>12} {:>6} {:>12} {:>12} {:>6}",
        "op", "dtype", "shape", "reduce GB/s", "read GB/s", "ratio", "reduce GB/s", "read GB/s", "ratio"
    );
    let (small, large) = (1 << 18, 1 << 26);
    for count in [small, large] {
        for shape in [
            [1, count, 1],
            [count / 256, 256, 1],
            [count / 100, 100, 1],
            [1, count / 8, 8],
            [1, count / 256, 256],
            [1, 16, count / 16],
            [1, 64, count / 64],
            [1, 256, count / 256],
            [16, count / 16384, 1024],
        ] {
            for (op, dtype) in [(ReduceOp::Sum, DType::F32), (ReduceOp::Mean, DType::Bf16)] {
                let tensor = ones(dtype, shape.iter().product());
                let (buf, bytes) = (tensor.as_buf(), tensor.as_buf().as_bytes());
                let one = compare(
                    || {
                        let along = Along::new(op, black_box(&[(buf, shape)])).expect("memory");
                        let mut along = along.expect("defined");
                        along.parts(1).into_iter().for_each(Part::run);
                        black_box(along.finish().expect("memory"));
                    },
                    || {
                        black_box(read(black_box(bytes)));
                    },
                );
                let team = Mutex::new(&mut team);
                let run = |job: &(dyn Fn(usize) + Sync)| team.lock().expect("one at a time").run(job);
                let many = compare(
                    || {
                        let along = Along::new(op, black_box(&[(buf, shape)])).expect("memory");
                        let mut along = along.expect("defined");
                        let parts: Vec<_> = along.parts(cores).into_iter().map(|part| Mutex::new(Some(part))).collect();
                        run(&|thread| {
                            let part = parts.get(thread).and_then(|part| part.lock().expect("its own").take());
                            part.into_iter().for_each(Part::run);
                        });
                        drop(parts);
                        black_box(along.finish().expect("memory"));
                    },
                    || {
                        run(&|thread| {
                            let part = bytes.len() / cores;
                            black_box(read(black_box(&bytes[thread * part..][..part])));
                        });
                    },
                );
                let rate = |seconds: f64| bytes.len() as f64 / seconds / 1e9;
                println!(
                    "{:>6} {:>5} {:>22} {:>12.1} {:>12.1} {:>6.2} {:>12.1} {:>12.1} {:>6.2}",
                    op,
                    dtype,
                    format!("{shape:?}"),
                    rate(one.ours),
                    rate(one.theirs),
                    one.ratio,
                    rate(many.ours),
                    rate(many.theirs),
                    many.ratio
                );
            }
        }
    }
}

/// Benches every combination, as `dtype/op/inputs/size/instruction set`. Buffers are made only for
/// benches that the filter selects.
fn every(criterion: &mut Criterion, sizes: &[usize]) {
    for &dtype in DType::ALL {
        let mut group = criterion.benchmark_group(dtype.name());
        for op in ReduceOp::ALL.into_iter().filter(|op| op.result(dtype).is_some()) {
            for inputs in INPUTS {
                for &bytes in sizes {
                    let size =
                        if bytes < 1 << 20 { format!("{}KiB", bytes >> 10) } else { format!("{}MiB", bytes >> 20) };
                    let output = bytes / dtype.size() * op.result(dtype).expect("defined").size();
                    let moved = inputs * bytes + output;
                    group.throughput(Throughput::Bytes(moved as u64));
                    for isa in Isa::available() {
                        group.bench_function(format!("{op}/{inputs}/{size}/{isa}"), |bencher| {
                            let mut case = Case::new(op, dtype, isa, inputs, bytes);
                            bencher.iter(|| case.run());
                        });
                    }
                    group.bench_function(format!("{op}/{inputs}/{size}/memcpy"), |bencher| {
                        let (source, mut target) = (vec![1u8; moved / 2], vec![2u8; moved / 2]);
                        bencher.iter(|| black_box(&mut target).copy_from_slice(black_box(&source)));
                    });
                }
            }
        }
        group.finish();
    }
}
