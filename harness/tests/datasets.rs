//! Compares distributed data sets with the spec: each element goes to one replica, in order, with
//! the same bits. Also tests sources that fail, block or never end.

use consonance::{
    CommunicationOptions, Dataset, DistributedDataset, DistributedIterator, Error, MirroredStrategy, PerReplica,
    Result, Strategy, Tensor,
    dataset::{self, AutoShardPolicy, Cardinality, Column, Deal, Elements, InputOptions},
};
use consonance_harness::subjects::{Replicas, STRATEGIES};
use consonance_spec::dataset::{Deal as SpecDeal, batch_sizes_for_worker, interleave, range, shuffled, steps};
use quickcheck::{QuickCheck, TestResult};
use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

/// Far longer than any wait here. It only ends a test that would hang.
const DEADLINE: Duration = Duration::from_secs(60);

fn strategy(replicas: usize) -> Strategy {
    (*MirroredStrategy::new((0..replicas).map(|id| format!("cpu:{id}").parse::<consonance::Device>().unwrap()))
        .unwrap())
    .clone()
}

/// Returns the bit pattern of an element. No two elements have the same, and most patterns are not
/// ordinary numbers.
fn bits(element: usize) -> u32 {
    0x7f80_0001u32.wrapping_add((element as u32).wrapping_mul(0x9e37_79b1))
}

fn column(elements: usize) -> Tensor {
    Tensor::from((0..elements).map(|element| f32::from_bits(bits(element))).collect::<Vec<_>>())
}

/// Returns the bits of the elements that each replica gets at each step.
fn given(steps: impl Iterator<Item = Result<PerReplica<Tensor>>>) -> Vec<Vec<Vec<u32>>> {
    let replica = |part: Tensor| part.as_slice::<f32>().unwrap().iter().map(|x| x.to_bits()).collect();
    steps.map(|step| step.unwrap().map(replica).into_values()).collect()
}

fn expected(steps: Vec<Vec<Range<usize>>>) -> Vec<Vec<Vec<u32>>> {
    steps.into_iter().map(|step| step.into_iter().map(|part| part.map(bits).collect()).collect()).collect()
}

/// Returns the same batches, made in every way: rows of a table, stacked elements, and batches from
/// a function.
fn sources(elements: usize, batch: usize) -> Vec<Box<dyn Dataset<Element = Tensor>>> {
    let (rows, whole) = (column(elements), column(elements));
    let rows_again = rows.clone();
    let one_by_one = dataset::from_fn(move || {
        let rows = rows_again.clone();
        (0..elements).map(move |row| rows.rows(row..row + 1).unwrap().reshape([]).unwrap())
    });
    let outside = dataset::from_fn(move || {
        let whole = whole.clone();
        (0..elements).step_by(batch).map(move |start| whole.rows(start..(start + batch).min(elements)).unwrap())
    });
    let table = dataset::from_tensor_slices(rows).unwrap();
    vec![Box::new(table.batch(batch)), Box::new(one_by_one.batch(batch)), Box::new(outside)]
}

/// A data set that reports that it reads files.
struct InFiles(Box<dyn Dataset<Element = Tensor>>);

impl Dataset for InFiles {
    type Element = Tensor;

    fn iterate(&self, epoch: u64) -> Result<Elements<Tensor>> {
        self.0.iterate(epoch)
    }

    fn batch_size(&self) -> Option<usize> {
        self.0.batch_size()
    }

    fn reads_files(&self) -> bool {
        true
    }
}

fn dealt_as_the_spec_says(elements: u8, batch: u8, replicas: u8, prefetch: u8) -> TestResult {
    let (elements, batch) = (elements as usize % 70, batch as usize % 20 + 1);
    let (replicas, prefetch) = (replicas as usize % 5 + 1, prefetch as usize % 4);
    let strategy = strategy(replicas);
    let options = InputOptions::new().prefetch(prefetch);
    let ways = [
        (options, SpecDeal::Chunked),
        (options.auto_shard_policy(AutoShardPolicy::Data), SpecDeal::Chunked),
        (options.auto_shard_policy(AutoShardPolicy::Off), SpecDeal::Packed),
        (options.deal(Deal::Balanced), SpecDeal::Balanced),
        (options.auto_shard_policy(AutoShardPolicy::Off).deal(Deal::Chunked), SpecDeal::Chunked),
    ];
    for (options, deal) in ways {
        for (place, source) in sources(elements, batch).into_iter().enumerate() {
            // Batches from a function have no known batch size, so they cannot be packed.
            let deal = if place == 2 && deal == SpecDeal::Packed { SpecDeal::Chunked } else { deal };
            let distributed = strategy.distribute_dataset_with(source, options).unwrap();
            let expected = expected(steps(deal, elements, batch, replicas));
            if place < 2 && replicas > 1 {
                let spec = distributed.element_spec().unwrap_or_default();
                assert!(spec.iter().all(|spec| spec.shape == [None]), "{spec:?}");
            }
            if place == 0 {
                assert_eq!(distributed.cardinality(), Cardinality::Finite(expected.len()));
            }
            let dealt = format!("{deal:?}: {elements} by {batch} for {replicas}");
            assert_eq!(given(distributed.iter()), expected, "{dealt}");
            // A second iteration gives the same batches, even if all of them are kept: no memory is
            // reused too early.
            let kept: Vec<_> = distributed.iter().collect();
            assert_eq!(given(kept.into_iter()), expected, "{dealt}");
        }
    }
    let packed = expected(steps(SpecDeal::Packed, elements, batch, replicas));
    let chunked = expected(steps(SpecDeal::Chunked, elements, batch, replicas));
    let of_files = [
        (AutoShardPolicy::Auto, &packed),
        (AutoShardPolicy::File, &packed),
        (AutoShardPolicy::Off, &packed),
        (AutoShardPolicy::Data, &chunked),
    ];
    for (policy, expected) in of_files {
        for source in sources(elements, batch).into_iter().take(2) {
            let options = options.auto_shard_policy(policy);
            let distributed = strategy.distribute_dataset_with(InFiles(source), options).unwrap();
            assert_eq!(&given(distributed.iter()), expected, "{policy:?}: {elements} by {batch} for {replicas}");
        }
    }
    TestResult::passed()
}

#[test]
fn every_element_goes_where_the_spec_says() {
    QuickCheck::new().tests(150).quickcheck(dealt_as_the_spec_says as fn(u8, u8, u8, u8) -> TestResult);
}

fn dealt_to_workers_as_the_spec_says(elements: u8, batch: u8, replicas: u8, prefetch: u8) -> TestResult {
    let (elements, batch) = (elements as usize % 70, batch as usize % 20 + 1);
    let (replicas, prefetch) = (replicas as usize % 4 + 2, prefetch as usize % 4);
    let options = InputOptions::new().prefetch(prefetch);
    let ways = [
        (options, SpecDeal::Chunked),
        (options.deal(Deal::Packed), SpecDeal::Packed),
        (options.deal(Deal::Balanced), SpecDeal::Balanced),
    ];
    let has_several_workers =
        |subject: &&Replicas| (subject.workers)(replicas).is_some_and(|workers| workers.len() > 1);
    for subject in STRATEGIES.iter().filter(has_several_workers) {
        subject.on_workers(replicas, Default::default(), |strategy| {
            for ((options, deal), source) in ways.into_iter().flat_map(|way| [0, 1].map(|source| (way, source))) {
                let source = sources(elements, batch).swap_remove(source);
                let distributed = strategy.distribute_dataset_with(source, options).unwrap();
                let mut expected = expected(steps(deal, elements, batch, replicas));
                expected.iter_mut().for_each(|step| *step = step[strategy.local_replicas()].to_vec());
                assert_eq!(given(distributed.iter()), expected, "{deal:?}: {elements} by {batch} for {replicas}");
            }
        });
    }
    TestResult::passed()
}

#[test]
fn every_element_goes_to_the_worker_of_the_spec() {
    QuickCheck::new().tests(50).quickcheck(dealt_to_workers_as_the_spec_says as fn(u8, u8, u8, u8) -> TestResult);
}

#[test]
fn rows_of_a_file_are_dealt_as_those_of_files() {
    let path = std::env::temp_dir().join(format!("consonance-datasets-{}.npy", std::process::id()));
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }").bytes());
    (0..6).for_each(|element| bytes.extend(bits(element).to_le_bytes()));
    std::fs::write(&path, bytes).unwrap();
    let column = Column::npy(&path).unwrap();
    let batches = dataset::from_tensor_slices(column).unwrap().batch(8);
    let distributed = strategy(2).distribute_dataset(batches).unwrap();
    assert_eq!(given(distributed.iter()), expected(steps(SpecDeal::Packed, 6, 8, 2)));
    std::fs::remove_file(path).unwrap();
}

fn packed_over_the_ends_of_epochs(elements: u8, batch: u8, replicas: u8, epochs: u8) -> TestResult {
    let (elements, batch) = (elements as usize % 30 + 1, batch as usize % 12 + 1);
    let (replicas, epochs) = (replicas as usize % 4 + 2, epochs as usize % 4);
    let numbers = dataset::from_tensor_slices(column(elements)).unwrap().batch(batch).repeat(epochs as u64);
    let options = InputOptions::new().auto_shard_policy(AutoShardPolicy::Off);
    let distributed = strategy(replicas).distribute_dataset_with(numbers, options).unwrap();
    let parts: Vec<Vec<u32>> = given(distributed.iter()).into_iter().flatten().collect();
    let all: Vec<u32> = (0..epochs).flat_map(|_| (0..elements).map(bits)).collect();
    assert_eq!(parts.concat(), all);
    // TensorFlow divides by the same sizes over and over, until no element is left.
    let mut left = all.len();
    for (part, size) in parts.iter().zip(batch_sizes_for_worker(batch, &[replicas], 0).into_iter().cycle()) {
        assert_eq!(part.len(), size.min(left));
        left -= part.len();
    }
    TestResult::passed()
}

#[test]
fn packed_batches_cross_the_ends_of_epochs() {
    QuickCheck::new().tests(100).quickcheck(packed_over_the_ends_of_epochs as fn(u8, u8, u8, u8) -> TestResult);
}

fn each_replica_gets_its_own_batch(elements: u8, batch: u8, replicas: u8) -> TestResult {
    let (elements, batch, replicas) = (elements as usize % 50, batch as usize % 9 + 1, replicas as usize % 5 + 1);
    for source in 0..3 {
        let make = |_| Ok(sources(elements, batch).swap_remove(source));
        let distributed = strategy(replicas).distribute_datasets_from_function(make).unwrap();
        let ranges: Vec<Range<usize>> =
            (0..elements).step_by(batch).map(|start| start..(start + batch).min(elements)).collect();
        let step = |step: &[Range<usize>]| {
            let mut step = step.to_vec();
            step.resize(replicas, 0..0);
            step
        };
        assert_eq!(given(distributed.iter()), expected(ranges.chunks(replicas).map(step).collect()));
    }
    TestResult::passed()
}

#[test]
fn batches_of_a_function_are_not_divided() {
    QuickCheck::new().tests(100).quickcheck(each_replica_gets_its_own_batch as fn(u8, u8, u8) -> TestResult);
}

fn drop_remainder_keeps_full_batches(elements: u8, batch: u8, replicas: u8) -> TestResult {
    let (elements, batch, replicas) = (elements as usize % 60, batch as usize % 12 + 1, replicas as usize % 4 + 1);
    let rows = dataset::from_tensor_slices(column(elements)).unwrap().batch(batch).drop_remainder();
    let distributed = strategy(replicas).distribute_dataset(rows).unwrap();
    let full = elements - elements % batch;
    assert_eq!(given(distributed.iter()), expected(steps(SpecDeal::Chunked, full, batch, replicas)));
    let rows = (batch.is_multiple_of(replicas)).then_some(batch / replicas);
    assert_eq!(distributed.element_spec().unwrap()[0].shape, [rows]);
    TestResult::passed()
}

#[test]
fn without_the_remainder_all_batches_are_full() {
    QuickCheck::new().tests(100).quickcheck(drop_remainder_keeps_full_batches as fn(u8, u8, u8) -> TestResult);
}

#[test]
fn rows_are_shuffled_as_the_spec_says() {
    for (count, seed, epoch) in [(0, 1, 0), (1, 1, 0), (2, 7, 3), (40, 5, 0), (40, 5, u64::MAX), (1000, u64::MAX, 2)] {
        let table = dataset::from_tensor_slices(column(count)).unwrap().shuffle(seed);
        let rows = table.batch(1).iterate(epoch).unwrap();
        let found: Vec<u32> = rows.map(|row| row.unwrap().as_slice::<f32>().unwrap()[0].to_bits()).collect();
        let expected: Vec<u32> = shuffled(count, seed, epoch).into_iter().map(bits).collect();
        assert_eq!(found, expected, "{count} rows, seed {seed}, epoch {epoch}");
    }
}

/// Returns the elements, each of one number.
fn items(dataset: &impl Dataset<Element = Tensor>) -> Vec<i64> {
    dataset.iterate(0).unwrap().map(|element| element.unwrap().item().unwrap()).collect()
}

#[test]
fn ranges_are_those_of_the_spec() {
    let ends = [-7, -1, 0, 1, 2, 6, 7];
    let near = ends.into_iter().flat_map(|start| ends.map(|stop| (start, stop)));
    let far = [(i64::MIN, i64::MIN + 5), (i64::MAX - 5, i64::MAX), (i64::MAX, i64::MAX - 5), (i64::MIN, i64::MAX)];
    for ((start, stop), step) in near.chain(far).flat_map(|ends| [1, 2, 3, 7, i64::MAX].map(|step| (ends, step))) {
        for step in [step, -step] {
            let numbers = dataset::range(start, stop, step).unwrap();
            if matches!(numbers.cardinality(), Cardinality::Finite(count) if count > 20) {
                continue;
            }
            let expected = range(start, stop, step);
            assert_eq!(items(&numbers), expected, "from {start} to {stop} by {step}");
            assert_eq!(numbers.cardinality(), Cardinality::Finite(expected.len()));
        }
    }
    let all = dataset::range(i64::MIN, i64::MAX, 1).unwrap();
    assert_eq!(all.cardinality(), Cardinality::Finite(usize::MAX));
    assert_eq!(items(&all.skip(usize::MAX - 2)), [i64::MAX - 2, i64::MAX - 1]);
    assert!(matches!(dataset::range(0, 1, 0), Err(Error::InvalidCall { .. })));
    // It is a table: its rows are shuffled, and read as lists.
    let expected: Vec<i64> = shuffled(20, 3, 0).into_iter().map(|row| 2 * row as i64 - 4).collect();
    assert_eq!(items(&dataset::range(-4, 36, 2).unwrap().shuffle(3)), expected);
}

fn interleaved_as_the_spec_says(sizes: Vec<u8>, cycle_length: u8, block_length: u8) -> TestResult {
    let sizes: Vec<usize> = sizes.into_iter().take(12).map(|size| usize::from(size) % 9).collect();
    let (cycle_length, block_length) = (usize::from(cycle_length) % 6 + 1, usize::from(block_length) % 5 + 1);
    // The element at place 3 of data set 2 is 203.
    let each = sizes.clone();
    let make = move |number: Tensor| {
        let number = number.item::<i64>()?;
        dataset::range(100 * number, 100 * number + each[number as usize] as i64, 1)
    };
    let numbers = dataset::range(0, sizes.len() as i64, 1).unwrap();
    let expected = interleave(&sizes, cycle_length, block_length);
    let expected: Vec<i64> = expected.into_iter().map(|(number, place)| (100 * number + place) as i64).collect();
    assert_eq!(items(&numbers.interleave(make, cycle_length, block_length)), expected);
    TestResult::passed()
}

#[test]
fn data_sets_are_interleaved_as_the_spec_says() {
    QuickCheck::new().tests(500).quickcheck(interleaved_as_the_spec_says as fn(Vec<u8>, u8, u8) -> TestResult);
}

/// The example of TensorFlow's documentation of `Dataset.interleave`.
#[test]
fn data_sets_are_interleaved_as_tensorflow_documents() {
    let repeated = |x: Tensor| Ok(dataset::from_fn(move || vec![x.clone(); 6]));
    let mixed = dataset::range(1, 6, 1).unwrap().interleave(repeated, 2, 4);
    let expected = [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 3, 3, 4, 4, 5, 5, 5, 5, 5, 5];
    assert_eq!(items(&mixed), expected);
}

#[test]
fn as_many_data_sets_as_there_are_can_be_open() {
    let one = |x: Tensor| Ok(dataset::from_fn(move || [x.clone()]));
    let mixed = dataset::range(0, 4, 1).unwrap().interleave(one, usize::MAX, usize::MAX);
    assert_eq!(items(&mixed), [0, 1, 2, 3]);
    for (cycle_length, block_length, argument) in [(0, 1, "cycle_length"), (1, 0, "block_length")] {
        let error = dataset::range(0, 4, 1).unwrap().interleave(one, cycle_length, block_length).iterate(0).err();
        assert!(matches!(error, Some(Error::InvalidCall { argument: found, .. }) if found == argument));
    }
}

#[test]
fn interleaved_data_sets_go_on_after_an_error() {
    let make = |x: Tensor| match x.item::<i64>()? {
        1 => Err(Error::other("torn")),
        x => Ok(dataset::range(10 * x, 10 * x + 3, 1)?),
    };
    let mixed = dataset::range(0, 3, 1).unwrap().interleave(make, 2, 2).iterate(0).unwrap();
    let found: Vec<Option<i64>> = mixed.map(|element| Some(element.ok()?.item().unwrap())).collect();
    assert_eq!(found, [Some(0), Some(1), None, Some(20), Some(21), Some(2), Some(22)]);
}

#[test]
fn pairs_end_with_the_shorter_data_set_and_stay_in_step_after_an_error() {
    let range = |count| dataset::range(0, count, 1).unwrap();
    for (first, second) in [(0, 3), (3, 0), (2, 5), (5, 2), (4, 4)] {
        let pairs = range(first).zip(range(second).map(Ok));
        assert_eq!(pairs.cardinality(), Cardinality::Finite(first.min(second) as usize));
        let found: Vec<_> = pairs.iterate(0).unwrap().map(Result::unwrap).collect();
        let expected = (0..first.min(second)).map(|x| (Tensor::from(x), Tensor::from(x)));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }
    let odd = |x: Tensor| if x.item::<i64>()? == 1 { Err(Error::other("torn")) } else { Ok(x) };
    for swap in [false, true] {
        let (broken, whole) = (range(3).map(odd), range(4));
        let sums: Vec<Option<i64>> = if swap { each_sum(whole.zip(broken)) } else { each_sum(broken.zip(whole)) };
        assert_eq!(sums, [Some(0), None, Some(4)]);
    }
    let endless = || range(2).repeat(None);
    assert_eq!(endless().zip(range(3)).cardinality(), Cardinality::Finite(3));
    assert_eq!(endless().zip(endless()).cardinality(), Cardinality::Infinite);
    let unknown = || range(2).filter(|_| Ok(true));
    assert_eq!(unknown().zip(range(3)).cardinality(), Cardinality::Unknown);
    assert_eq!(unknown().zip(endless()).cardinality(), Cardinality::Unknown);
}

fn each_sum(pairs: impl Dataset<Element = (Tensor, Tensor)>) -> Vec<Option<i64>> {
    let sum = |(x, y): (Tensor, Tensor)| x.item::<i64>().unwrap() + y.item::<i64>().unwrap();
    pairs.iterate(0).unwrap().map(|pair| pair.ok().map(sum)).collect()
}

/// A pair is described, divided and read as the rows of a table with two columns.
#[test]
fn pairs_are_distributed_as_a_table_of_two_columns() {
    let (x, y) = (column(11), Tensor::new([11, 2], &[7u8; 22]).unwrap());
    let table = dataset::from_tensor_slices((x.clone(), y.clone())).unwrap();
    let pairs = dataset::from_tensor_slices(x).unwrap().zip(dataset::from_tensor_slices(y).unwrap());
    assert_eq!(pairs.element_spec(), table.element_spec());
    assert_eq!((pairs.copied_bytes(), pairs.has_single_rows()), (table.copied_bytes(), table.has_single_rows()));
    let text = |steps: DistributedIterator<(Tensor, Tensor)>| format!("{:?}", steps.collect::<Vec<_>>());
    let strategy = strategy(3);
    let [pairs, table]: [DistributedDataset<_>; 2] =
        [strategy.distribute_dataset(pairs.batch(4)).unwrap(), strategy.distribute_dataset(table.batch(4)).unwrap()];
    assert_eq!(text(pairs.iter()), text(table.iter()));
    assert_eq!(pairs.cardinality(), table.cardinality());
}

#[test]
fn repeat_goes_through_the_permutations_of_the_epochs() {
    let shuffled = || dataset::from_tensor_slices(column(40)).unwrap().shuffle(5);
    let strategy = strategy(2);
    let order = |steps| given(steps).concat().concat();
    let distributed = strategy.distribute_dataset(shuffled().batch(8)).unwrap();
    let epochs: Vec<Vec<u32>> = (0..3).map(|epoch| order(distributed.epoch(epoch))).collect();
    assert_eq!(order(distributed.iter()), epochs[0]);
    assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2] && epochs[0] != epochs[2]);
    let repeated = strategy.distribute_dataset(shuffled().repeat(3).batch(8)).unwrap();
    assert_eq!(order(repeated.iter()), epochs.concat());
    for mut epoch in epochs {
        epoch.sort_unstable();
        let mut all: Vec<u32> = (0..40).map(bits).collect();
        all.sort_unstable();
        assert_eq!(epoch, all);
    }
    // Together, the shards of one shuffle have each row once.
    let shards = (0..3).flat_map(|index| shuffled().shard(3, index).batch(1).iterate(1).unwrap());
    let mut rows: Vec<u32> = shards.map(|row| row.unwrap().as_slice::<f32>().unwrap()[0].to_bits()).collect();
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), 40);
}

/// Returns three batches, then `end`.
fn broken(end: fn() -> Result<Tensor>) -> dataset::FromFn<Tensor> {
    dataset::try_from_fn(move || {
        Ok((0..).map(move |batch| if batch < 3 { Ok(Tensor::from([batch, batch])) } else { end() }))
    })
}

#[test]
fn an_error_comes_after_the_batches_before_it_and_is_the_last_item() {
    let torn = || Err(Error::other("torn page"));
    let panics = || panic!("no such {}", "record");
    let cases = [(broken(torn), "torn page"), (broken(panics), ": no such record")];
    for prefetch in 0..4 {
        for (source, text) in cases.clone() {
            let options = InputOptions::new().prefetch(prefetch);
            let mut steps = strategy(2).distribute_dataset_with(source, options).unwrap().iter();
            for batch in 0..3 {
                let step = steps.next_or_none().unwrap().unwrap();
                assert_eq!(step, PerReplica::new(vec![Tensor::from([batch]), Tensor::from([batch])]));
            }
            let error = steps.next_or_none().unwrap_err();
            assert!(matches!(&error, Error::Other(own) if format!("{own}").ends_with(text)), "{error}");
            assert!(steps.next_or_none().unwrap().is_none());
        }
        let closed = dataset::try_from_fn(|| Err::<[Result<Tensor>; 0], _>(Error::other("no such file")));
        let mut steps = strategy(2).distribute_dataset(closed).unwrap().iter();
        let error = steps.next().unwrap().unwrap_err();
        assert!(matches!(&error, Error::Other(own) if format!("{own}") == "no such file"), "{error}");
        assert!(steps.next().is_none());
    }
}

/// An endless source that counts the batches read. Its channel is closed when it is dropped.
struct Watched {
    read: Arc<AtomicUsize>,
    alive: Mutex<Sender<()>>,
}

impl Dataset for Watched {
    type Element = Tensor;

    fn iterate(&self, _epoch: u64) -> Result<Elements<Tensor>> {
        let (read, alive) = (self.read.clone(), self.alive.lock().unwrap().clone());
        Ok(Box::new((0i64..).map(move |batch| {
            let _alive = &alive;
            read.fetch_add(1, Ordering::SeqCst);
            Ok(Tensor::from([batch, batch]))
        })))
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Infinite
    }
}

fn watched() -> (Watched, Arc<AtomicUsize>, Receiver<()>) {
    let read = Arc::new(AtomicUsize::new(0));
    let (alive, dead) = channel();
    (Watched { read: read.clone(), alive: Mutex::new(alive) }, read, dead)
}

#[test]
fn no_more_is_read_ahead_than_asked_and_dropping_ends_the_thread() {
    for prefetch in 0..4 {
        let (source, read, dead) = watched();
        let options = InputOptions::new().prefetch(prefetch);
        let distributed = strategy(2).distribute_dataset_with(source, options).unwrap();
        assert_eq!(distributed.cardinality(), Cardinality::Infinite);
        let mut steps = distributed.iter();
        for taken in 1..=5 {
            steps.next_or_none().unwrap().unwrap();
            let ahead = read.load(Ordering::SeqCst) - taken;
            assert!(ahead <= prefetch, "{ahead} batches read ahead of {prefetch}");
        }
        drop(distributed);
        drop(steps);
        // The source sends nothing. The channel is closed when the last part of the source is
        // dropped.
        let hung_up = std::sync::mpsc::RecvTimeoutError::Disconnected;
        assert_eq!(dead.recv_timeout(DEADLINE), Err(hung_up), "the thread is still there");
    }
}

#[test]
fn no_more_memory_is_held_than_for_the_batches_ahead_and_the_one_in_use() {
    for prefetch in 0..4 {
        for source in sources(400, 4).into_iter().take(2) {
            let options = InputOptions::new().prefetch(prefetch);
            let distributed = strategy(2).distribute_dataset_with(source, options).unwrap();
            let first =
                |step: Result<PerReplica<Tensor>>| step.unwrap()[0].as_slice::<f32>().unwrap().as_ptr() as usize;
            let places: BTreeSet<usize> = distributed.iter().map(first).collect();
            assert!(
                places.len() <= prefetch + 1,
                "{} memories for {prefetch} batches ahead and one in use",
                places.len()
            );
        }
    }
}

#[test]
fn a_slow_reader_finds_all_prefetched_batches_ready() {
    let (source, read, _dead) = watched();
    let options = InputOptions::new().prefetch(3);
    let steps = strategy(1).distribute_dataset_with(source, options).unwrap().iter();
    let start = std::time::Instant::now();
    while read.load(Ordering::SeqCst) < 3 && start.elapsed() < DEADLINE {
        std::thread::yield_now();
    }
    assert_eq!(read.load(Ordering::SeqCst), 3, "three are read before one is asked for");
    drop(steps);
}

#[test]
fn the_wait_for_a_silent_source_has_a_deadline() {
    let (go, gate) = channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let source = dataset::from_fn(move || {
        let gate = gate.clone();
        (0..2).map(move |_| {
            let _ = gate.lock().unwrap().recv();
            Tensor::from([1])
        })
    });
    let options = CommunicationOptions::new().timeout(Duration::from_millis(50)).unwrap();
    let strategy = MirroredStrategy::builder(["cpu:0"]).options(options).build().unwrap();
    let mut steps = strategy.distribute_dataset(source).unwrap().iter();
    let error = steps.next_or_none().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    // The source was slow and not at its end, so no batch is lost.
    drop(go);
    let given =
        std::iter::repeat_with(|| steps.next_or_none()).find(|step| !matches!(step, Err(Error::Timeout { .. })));
    assert_eq!(given.unwrap().unwrap().unwrap()[0], Tensor::from([1]));
}

#[test]
fn a_replica_reads_no_steps() {
    let strategy = strategy(2);
    let batches = || dataset::from_fn(|| [Tensor::from([1, 2])]);
    let steps = Mutex::new(strategy.distribute_dataset(batches()).unwrap().iter());
    let error = strategy.run(|_| steps.lock().unwrap().next_or_none().map(|_| ())).unwrap_err();
    assert!(matches!(error.root(), Error::WrongContext { .. }), "{error}");
    assert!(steps.into_inner().is_ok_and(|mut steps| steps.next_or_none().unwrap().is_some()), "nothing was lost");
    let error = strategy.run(|replica| replica.strategy().distribute_dataset(batches()).map(|_| ())).unwrap_err();
    assert!(matches!(error.root(), Error::WrongContext { .. }), "{error}");
}

#[test]
fn indivisible_elements_are_refused_for_several_replicas_only() {
    let scalars = || dataset::from_tensor_slices(Tensor::from([1, 2, 3])).unwrap();
    let unknown = || dataset::from_fn(|| [Tensor::from(1)]);
    assert_eq!(strategy(1).distribute_dataset(scalars()).unwrap().iter().count(), 3);
    let is_refused = |error: Error| matches!(error, Error::InvalidCall { found, .. } if found == "i32[]");
    assert!(is_refused(strategy(2).distribute_dataset(scalars()).err().unwrap()));
    assert!(is_refused(strategy(2).distribute_dataset(unknown()).unwrap().iter().next().unwrap().unwrap_err()));
    let by_files = InputOptions::new().auto_shard_policy(AutoShardPolicy::File);
    assert!(strategy(2).distribute_dataset_with(unknown(), by_files).is_err());
}
