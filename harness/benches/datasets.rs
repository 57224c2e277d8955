//! Compares reading a large mapped file through a distributed data set with a copy of as many
//! bytes, measured in the same run.
//!
//! `cargo bench -p consonance-harness --bench datasets` first prints two tables. One has the
//! anonymous memory that the process takes to read the file, and the bound on data that are read
//! ahead. The other has the speed at which 1 GiB of a `.npy` file in the page cache reaches 2
//! replicas, and the speeds of memory-to-memory copies of 1 GiB by one thread and by two. The
//! values are medians of interleaved rounds, A B C A B C, because the machine is shared: compare
//! the ratios.

use consonance::{
    Dataset, DistributedDataset, MirroredStrategy, Tensor,
    dataset::{self, Column, InputOptions},
};
use consonance_kernels::os::thread_pool::Team;
use criterion::{BenchmarkId, Criterion, Throughput};
use std::{
    env, fs,
    hint::black_box,
    io::{self, BufWriter, Write},
    path::PathBuf,
    process,
    sync::Mutex,
    time::{Duration, Instant},
};

/// Rounds of each measurement in the table. The median is printed.
const ROUNDS: usize = 9;

/// Elements of a row of the file. Each element is its own index in the file.
const ROW_COUNT: usize = 1024;
const ROW_BYTES: usize = ROW_COUNT * size_of::<u32>();

/// The number of batches that are read ahead, as by default.
const PREFETCH: usize = 2;

/// A `.npy` file of consecutive numbers, which is removed when this value is dropped.
struct Numbers {
    path: PathBuf,
    rows: usize,
}

impl Numbers {
    fn new(bytes: usize) -> io::Result<Numbers> {
        let rows = bytes / ROW_BYTES;
        let path = env::temp_dir().join(format!("consonance-bench-{}-{bytes}.npy", process::id()));
        let mut file = BufWriter::with_capacity(1 << 20, fs::File::create(&path)?);
        let numbers = Numbers { path, rows };
        // The header is padded so that the elements begin at byte 128.
        let header = format!("{{'descr': '<u4', 'fortran_order': False, 'shape': ({rows}, {ROW_COUNT}), }}");
        file.write_all(b"\x93NUMPY\x01\x00\x76\x00")?;
        writeln!(file, "{header:<117}")?;
        (0..(rows * ROW_COUNT) as u32).try_for_each(|element| file.write_all(&element.to_le_bytes()))?;
        file.flush()?;
        Ok(numbers)
    }

    /// Returns the file's rows in batches of `bytes` bytes, for 2 replicas.
    fn batches(&self, bytes: usize) -> consonance::Result<DistributedDataset<Tensor>> {
        let rows = dataset::from_tensor_slices(Column::npy(&self.path)?)?;
        let options = InputOptions::new().prefetch(PREFETCH);
        MirroredStrategy::new(["cpu:0", "cpu:1"])?.distribute_dataset_with(rows.batch(bytes / ROW_BYTES), options)
    }

    /// Reads all batches, calls `each` after each batch, and checks the ends of each replica's
    /// part.
    fn read(&self, batches: &DistributedDataset<Tensor>, mut each: impl FnMut()) -> Duration {
        let begin = Instant::now();
        let mut next = 0;
        for step in batches {
            for part in step.expect("the file is as it was written") {
                let elements = part.as_slice::<u32>().expect("u32");
                assert_eq!(elements[0], next);
                next += elements.len() as u32;
                assert_eq!(elements[elements.len() - 1], next - 1);
            }
            each();
        }
        assert_eq!(next as usize, self.rows * ROW_COUNT);
        begin.elapsed()
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        // A file that remains is removed with the system's other temporary files.
        let _ = fs::remove_file(&self.path);
    }
}

/// Buffers to copy from and to, and the threads that copy.
struct Copies {
    team: Team,
    parts: Vec<Mutex<(Vec<u8>, Vec<u8>)>>,
}

impl Copies {
    fn new(bytes: usize, threads: usize) -> Copies {
        let team = Team::new("copy", &vec![None; threads]).expect("threads");
        // The buffers are written, so that their pages are present.
        let part = || Mutex::new((vec![1u8; bytes / threads], vec![2u8; bytes / threads]));
        Copies { team, parts: (0..threads).map(|_| part()).collect() }
    }

    fn copy(&mut self) -> Duration {
        let begin = Instant::now();
        self.team.run(&|thread| {
            let (source, target) = &mut *self.parts[thread].lock().expect("one thread a part");
            target.copy_from_slice(black_box(source));
            black_box(target);
        });
        begin.elapsed()
    }
}

/// Returns the anonymous memory of this process, in bytes.
fn anonymous_bytes() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? << 10)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn table() -> Result<(), Box<dyn std::error::Error>> {
    let bytes = 1 << 30;
    let numbers = Numbers::new(bytes)?;
    println!(
        "1 GiB of a mapped .npy file to 2 replicas, {PREFETCH} batches ahead; medians of {ROUNDS} interleaved rounds\n"
    );
    println!("{:>12}  {:>16}  {:>30}", "batch bytes", "own memory bytes", "bound (ahead + 1 being used)");
    for batch in [1 << 20, 4 << 20, 16 << 20] {
        let batches = numbers.batches(batch)?;
        let before = anonymous_bytes();
        let mut most = before;
        numbers.read(&batches, || most = most.max(anonymous_bytes()));
        let own = before.zip(most).map_or("not known".to_owned(), |(before, most)| (most - before).to_string());
        println!("{batch:>12}  {own:>16}  {:>30}", (PREFETCH + 1) * batch);
    }
    let (mut one, mut two) = (Copies::new(bytes, 1), Copies::new(bytes, 2));
    println!(
        "\n{:>12}  {:>10}  {:>22}  {:>22}",
        "batch bytes", "read GB/s", "1 thread copies, ratio", "2 threads copy, ratio"
    );
    for batch in [1 << 20, 4 << 20, 16 << 20] {
        let batches = numbers.batches(batch)?;
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            times[0].push(numbers.read(&batches, || ()));
            times[1].push(one.copy());
            times[2].push(two.copy());
        }
        let [read, one, two] = times.map(|times| bytes as f64 / median(times) / 1e9);
        println!("{batch:>12}  {read:10.2}  {one:14.2}  {:6.2}  {two:14.2}  {:6.2}", read / one, read / two);
    }
    println!(
        "\n0.8 or more of a copy by one thread is the aim: one thread reads ahead, so that the other cores are the replicas'"
    );
    Ok(())
}

fn criterion_groups(criterion: &mut Criterion) {
    let bytes = 64 << 20;
    let numbers = Numbers::new(bytes).expect("a folder for temporary files with room");
    let mut group = criterion.benchmark_group("64 MiB of a mapped .npy file to 2 replicas");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    group.throughput(Throughput::Bytes(bytes as u64));
    for batch in [64 << 10, 1 << 20, 4 << 20] {
        let batches = numbers.batches(batch).expect("the file was written");
        group.bench_function(BenchmarkId::new("batch bytes", batch), |bencher| {
            bencher.iter_custom(|rounds| (0..rounds).map(|_| numbers.read(&batches, || ())).sum());
        });
    }
    group.finish();
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if env::args().any(|argument| argument == "--bench") {
        table()?;
    }
    let mut criterion = Criterion::default().configure_from_args();
    criterion_groups(&mut criterion);
    criterion.final_summary();
    Ok(())
}
