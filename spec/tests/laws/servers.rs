use consonance_spec::{
    DType, FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner, RoundRobin, Shards,
    parameter_server::{RefusedPartition, shards_of},
};
use quickcheck::quickcheck;

/// The rows of each shard.
fn sizes(shards: Shards) -> Vec<usize> {
    (0..shards.count()).map(|shard| shards.rows_of(shard).len()).collect()
}

/// The number of parts along the first axis of `rows` rows of `width` elements of 4 bytes.
fn parts(partitioner: &dyn Partitioner, rows: usize, width: usize) -> usize {
    partitioner.partitions(&[rows, width], DType::F32, 0).expect("an axis")[0]
}

quickcheck! {
    fn shards_have_each_row_once_and_in_order(rows: u8, shards: u8) -> bool {
        let shards = Shards::new(rows.into(), usize::from(shards) % 20 + 1);
        let all: Vec<usize> = (0..shards.count()).flat_map(|shard| shards.rows_of(shard)).collect();
        all == (0..shards.rows()).collect::<Vec<_>>()
    }

    fn shards_differ_by_a_row_at_most_and_the_first_have_it(rows: u8, shards: u8) -> bool {
        let sizes = sizes(Shards::new(rows.into(), usize::from(shards) % 20 + 1));
        sizes.is_sorted_by(|one, next| one >= next) && sizes[0] - sizes[sizes.len() - 1] <= 1
    }

    fn a_row_is_at_its_place(rows: u8, shards: u8, row: u8) -> bool {
        let (shards, row) = (Shards::new(rows.into(), usize::from(shards) % 20 + 1), usize::from(row));
        match shards.place_of(row) {
            Some((shard, within)) => shards.rows_of(shard).nth(within) == Some(row),
            None => row >= shards.rows(),
        }
    }

    fn a_split_has_each_position_once_with_its_row(rows: u8, shards: u8, list: Vec<u8>) -> bool {
        let shards = Shards::new(usize::from(rows) + 1, usize::from(shards) % 20 + 1);
        let list: Vec<usize> = list.iter().map(|&row| usize::from(row) % shards.rows()).collect();
        let split = shards.split(&list).expect("rows within");
        let row = |shard: usize, within: usize| shards.rows_of(shard).start + within;
        let mut back: Vec<(usize, usize)> = (0..shards.count())
            .flat_map(|shard| split[shard].iter().map(move |&(position, within)| (position, row(shard, within))))
            .collect();
        let is_in_order = split.iter().all(|part| part.is_sorted());
        back.sort_unstable();
        is_in_order && back == list.into_iter().enumerate().collect::<Vec<_>>()
    }

    fn a_missing_row_is_named_by_its_position(rows: u8, shards: u8, before: Vec<u8>) -> bool {
        let shards = Shards::new(usize::from(rows) + 1, usize::from(shards) % 20 + 1);
        let mut list: Vec<usize> = before.iter().map(|&row| usize::from(row) % shards.rows()).collect();
        list.extend([shards.rows(), 0, shards.rows()]);
        shards.split(&list) == Err(before.len())
    }

    fn a_variable_has_as_many_shards_as_rows_at_most(rows: u8, width: u8, bytes: u8, shards: u8) -> bool {
        let (rows, width) = (usize::from(rows), usize::from(width));
        let (bytes, shards) = (usize::from(bytes) + 1, usize::from(shards) + 1);
        let partitioners: [Box<dyn Partitioner>; 4] = [
            Box::new(FixedShardsPartitioner::new(shards).expect("positive")),
            Box::new(MinSizePartitioner::new(bytes, shards).expect("positive")),
            Box::new(MaxSizePartitioner::new(bytes, Some(shards)).expect("positive")),
            Box::new(MaxSizePartitioner::new(bytes, None).expect("positive")),
        ];
        partitioners.iter().enumerate().all(|(place, partitioner)| {
            let partitions = partitioner.partitions(&[rows, width], DType::F32, 0).expect("an axis");
            let parts = partitions[0];
            let is_bound = place == 3 || parts <= shards;
            shards_of(&[rows, width], &partitions) == Ok(parts) && is_bound && (1..=rows.max(1)).contains(&parts)
        })
    }

    fn one_part_less_has_the_least_bytes_in_each(rows: u8, width: u8, bytes: u8) -> bool {
        let (rows, width, bytes) = (usize::from(rows), usize::from(width), usize::from(bytes) + 1);
        let parts = parts(&MinSizePartitioner::new(bytes, usize::MAX).expect("positive"), rows, width);
        // All together have the bytes of all parts but one.
        (parts - 1) * bytes <= (rows * width * 4).saturating_sub(1)
            && (parts == rows.max(1) || parts * bytes >= rows * width * 4)
    }

    fn parts_have_the_most_bytes_or_one_row_and_are_as_few_as_can_be(rows: u8, width: u8, bytes: u16) -> bool {
        let (rows, width, bytes) = (usize::from(rows), usize::from(width), usize::from(bytes) + 1);
        let parts = parts(&MaxSizePartitioner::new(bytes, None).expect("positive"), rows, width);
        let largest = |parts: usize| sizes(Shards::new(rows, parts))[0];
        let fits = |parts: usize| largest(parts) * width * 4 <= bytes || largest(parts) <= 1;
        fits(parts) && (parts == 1 || !fits(parts - 1))
    }

    fn shards_lie_on_one_server_after_the_other(servers: u8, variables: Vec<u8>) -> bool {
        let servers = usize::from(servers) % 7 + 1;
        let mut round = RoundRobin::new(servers);
        let placed: Vec<usize> = variables.iter().flat_map(|&shards| round.place(usize::from(shards) % 9)).collect();
        placed.iter().enumerate().all(|(place, &server)| server == place % servers)
    }
}

#[test]
fn partitions_along_another_axis_and_of_no_parts_are_refused() {
    use RefusedPartition::{AxisOutOfRange, NoParts, NotPositive, OtherAxis, Rank, Scalar};
    assert_eq!(shards_of(&[6, 2], &[1, 2]), Err(OtherAxis { axis: 1, parts: 2 }));
    assert_eq!(shards_of(&[6, 2], &[0, 1]), Err(NoParts { axis: 0 }));
    assert_eq!(shards_of(&[6, 2], &[3, 1, 1]), Err(Rank { expected: 2, found: 3 }));
    assert_eq!(shards_of(&[], &[]), Ok(1));
    let two = FixedShardsPartitioner::new(2).expect("positive");
    assert_eq!(two.partitions(&[], DType::F32, 0), Err(Scalar));
    assert_eq!(two.partitions(&[3], DType::F32, 1), Err(AxisOutOfRange { axis: 1, rank: 1 }));
    assert_eq!(FixedShardsPartitioner::new(0), Err(NotPositive { argument: "num_shards" }));
    assert_eq!(MinSizePartitioner::new(0, 1), Err(NotPositive { argument: "min_shard_bytes" }));
    assert_eq!(MinSizePartitioner::new(1, 0), Err(NotPositive { argument: "max_shards" }));
    assert_eq!(MaxSizePartitioner::new(0, None), Err(NotPositive { argument: "max_shard_bytes" }));
    assert_eq!(MaxSizePartitioner::new(1, Some(0)), Err(NotPositive { argument: "max_shards" }));
}

#[test]
fn a_variable_without_bytes_has_one_shard() {
    let partitioner = MaxSizePartitioner::new(4, None).expect("positive");
    assert_eq!(partitioner.partitions(&[0, 3], DType::F32, 0), Ok(vec![1, 1]));
    assert_eq!(partitioner.partitions(&[7, 0], DType::F32, 0), Ok(vec![1, 1]));
}
