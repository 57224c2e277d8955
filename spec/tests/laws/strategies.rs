use consonance_spec::{
    dataset::{Deal, batch_sizes_for_worker, deal, steps},
    strategy::{ValueContext, replica_ids, values_from_function},
};
use quickcheck::quickcheck;

/// Returns the number of replicas of each worker. At least one worker has a replica.
fn workers(replicas: &[u8]) -> Vec<usize> {
    replicas.iter().take(5).map(|&replicas| replicas as usize % 4).chain([1]).collect()
}

quickcheck! {
    fn replicas_are_numbered_once_in_worker_order(replicas: Vec<u8>) -> bool {
        let replicas = workers(&replicas);
        let ids = |worker| replica_ids(&replicas, worker);
        (0..replicas.len()).flat_map(ids).eq(0..replicas.iter().sum())
            && (0..replicas.len()).all(|worker| ids(worker).len() == replicas[worker])
    }

    fn each_replica_has_the_value_of_its_id(replicas: Vec<u8>) -> bool {
        let replicas = workers(&replicas);
        let total = replicas.iter().sum();
        let values = (0..replicas.len()).flat_map(|worker| values_from_function(&replicas, worker, |context| context));
        values.eq((0..total).map(|replica_id_in_sync_group| ValueContext {
            replica_id_in_sync_group,
            num_replicas_in_sync: total,
        }))
    }

    fn the_batches_of_a_step_are_a_global_batch(global_batch: u8, replicas: Vec<u8>) -> bool {
        let (global_batch, replicas) = (global_batch as usize, workers(&replicas));
        let total: usize = replicas.iter().sum();
        let sizes: Vec<Vec<usize>> =
            (0..replicas.len()).map(|worker| batch_sizes_for_worker(global_batch, &replicas, worker)).collect();
        // In each step a worker takes its next sizes, one for each of its replicas.
        let taken = |step: usize, worker: usize| -> usize {
            (0..replicas[worker]).map(|j| sizes[worker][(step * replicas[worker] + j) % total]).sum()
        };
        let first: usize = (0..replicas.len()).map(|worker| taken(0, worker)).sum();
        first == global_batch && sizes.iter().all(|sizes| sizes.iter().sum::<usize>() == global_batch)
    }

    fn with_as_many_replicas_on_each_worker_every_step_is_a_global_batch(batch: u8, workers: u8, each: u8) -> bool {
        let (batch, workers, each) = (batch as usize, 1 + workers as usize % 5, 1 + each as usize % 4);
        let size = |worker: usize, i: usize| batch_sizes_for_worker(batch, &vec![each; workers], worker)[i % (workers * each)];
        (0..workers * each).all(|step| {
            let replicas = (0..workers).flat_map(|worker| (0..each).map(move |j| (worker, step * each + j)));
            replicas.map(|(worker, i)| size(worker, i)).sum::<usize>() == batch
        })
    }

    fn each_element_is_dealt_once_in_order(elements: u8, batch: u8, replicas: u8) -> bool {
        let (elements, batch, replicas) = (elements as usize, 1 + batch as usize % 40, 1 + replicas as usize % 6);
        Deal::ALL.into_iter().all(|how| {
            let steps = steps(how, elements, batch, replicas);
            steps.len() == elements.div_ceil(batch)
                && steps.iter().all(|parts| parts.len() == replicas)
                && steps.into_iter().flatten().flatten().eq(0..elements)
        })
    }

    fn full_batches_are_balanced_and_partial_ones_as_the_deal_says(count: u8, batch: u8, replicas: u8) -> bool {
        let (batch, replicas) = (batch as usize, 1 + replicas as usize % 6);
        let count = count as usize % (batch + 1);
        let sizes = |how, count| deal(how, count, batch, replicas).iter().map(|part| part.len()).collect::<Vec<usize>>();
        let spread = |sizes: &[usize]| sizes.iter().max().unwrap() - sizes.iter().min().unwrap();
        let full = sizes(Deal::Packed, batch);
        let packed = sizes(Deal::Packed, count);
        let chunked = sizes(Deal::Chunked, count);
        let last = chunked.iter().rposition(|&size| size > 0).unwrap_or(0);
        spread(&full) <= 1
            && full == sizes(Deal::Balanced, batch)
            && spread(&sizes(Deal::Balanced, count)) <= 1
            // A replica gets less than from a full batch only if the next replicas get nothing.
            && (1..replicas).all(|i| packed[i] == 0 || packed[i - 1] == full[i - 1])
            && chunked[..last].iter().all(|&size| size == count.div_ceil(replicas))
    }
}

#[test]
fn the_documented_deals() {
    let ranges = |how, elements, batch, replicas| {
        let sizes = |parts: Vec<std::ops::Range<usize>>| parts.iter().map(|part| part.len()).collect::<Vec<usize>>();
        steps(how, elements, batch, replicas).into_iter().map(sizes).collect::<Vec<_>>()
    };
    assert_eq!(ranges(Deal::Chunked, 6, 4, 2), [[2, 2], [1, 1]]);
    assert_eq!(ranges(Deal::Packed, 6, 4, 2), [[2, 2], [2, 0]]);
    assert_eq!(ranges(Deal::Chunked, 6, 8, 2), [[3, 3]]);
    assert_eq!(ranges(Deal::Packed, 6, 8, 2), [[4, 2]]);
    assert_eq!(ranges(Deal::Chunked, 8, 4, 3), [[2, 2, 0], [2, 2, 0]]);
    assert_eq!(ranges(Deal::Packed, 8, 4, 3), [[2, 1, 1], [2, 1, 1]]);
    assert_eq!(ranges(Deal::Chunked, 10, 5, 4), [[2, 2, 1, 0], [2, 2, 1, 0]]);
    assert_eq!(ranges(Deal::Chunked, 10, 10, 4), [[3, 3, 3, 1]]);
    assert_eq!(ranges(Deal::Packed, 10, 10, 4), [[3, 3, 2, 2]]);
    assert_eq!(ranges(Deal::Chunked, 5, 4, 2), [[2, 2], [1, 0]]);
    assert_eq!(ranges(Deal::Packed, 5, 4, 2), [[2, 2], [1, 0]]);
    assert_eq!(ranges(Deal::Balanced, 5, 4, 3), [[2, 1, 1], [1, 0, 0]]);
}
