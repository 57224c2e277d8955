use consonance_spec::{
    DType, FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner, RoundRobin, Shards,
    array::Array,
    parameter_server::{Effect, FunctionUpdate, Refused, RefusedPartition, lookup, shards_of},
    variable::Update,
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

/// A variable of rows of two elements, its shards, and a list of its rows; `None` if there is no
/// row.
fn table_of(rows: &[(i16, i16)], shards: u8, list: &[u8]) -> Option<(Array<i64>, Shards, Vec<usize>)> {
    let data: Vec<i64> = rows.iter().flat_map(|&(one, other)| [one.into(), other.into()]).collect();
    let list = list.iter().map(|&row| usize::from(row).checked_rem(rows.len())).collect::<Option<_>>()?;
    let shards = Shards::new(rows.len(), usize::from(shards) % 9 + 1);
    Some((Array::new(&[rows.len(), 2], data), shards, list))
}

/// The variables of the shards.
fn shard_tables(table: &Array<i64>, shards: Shards) -> Vec<Array<i64>> {
    let part = |shard| {
        let rows = shards.rows_of(shard);
        Array::new(&[rows.len(), 2], table.data[2 * rows.start..2 * rows.end].to_vec())
    };
    (0..shards.count()).map(part).collect()
}

/// Adds the gradient, times the number of gradients that the row has had. The slot counts them.
fn counted(rows: &mut [Array<i64>], gradient: &Array<i64>) {
    let [table, counts] = rows else { unreachable!("one slot") };
    for (row, count) in counts.data.iter_mut().enumerate() {
        *count += 1;
        for place in 2 * row..2 * row + 2 {
            table.data[place] += *count * gradient.data[place];
        }
    }
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

    fn rows_looked_up_in_shards_are_those_of_the_whole(table: Vec<(i16, i16)>, shards: u8, list: Vec<u8>) -> bool {
        let Some((table, shards, list)) = table_of(&table, shards, &list) else { return true };
        let mut found = vec![0; 2 * list.len()];
        for (part, rows) in shard_tables(&table, shards).iter().zip(shards.split(&list).expect("rows within")) {
            let within: Vec<i64> = rows.iter().map(|&(_, within)| within as i64).collect();
            let values = lookup(part, &within).expect("rows within");
            for (place, (position, _)) in rows.into_iter().enumerate() {
                found[2 * position..][..2].copy_from_slice(&values.data[2 * place..][..2]);
            }
        }
        let indices: Vec<i64> = list.iter().map(|&row| row as i64).collect();
        lookup(&table, &indices) == Ok(Array::new(&[list.len(), 2], found))
    }

    fn rows_scattered_to_shards_are_those_of_the_whole(
        table: Vec<(i16, i16)>, shards: u8, list: Vec<u8>, update: u8
    ) -> bool {
        let Some((table, shards, list)) = table_of(&table, shards, &list) else { return true };
        let update = Update::ALL[usize::from(update) % 3];
        let values: Vec<i64> = (0..2 * list.len() as i64).map(|place| place * place + 1).collect();
        let scatter = |indices: Vec<i64>, values: Vec<i64>| {
            let values = Array::new(&[indices.len(), 2], values);
            Effect::Scatter(update, indices, values)
        };
        let mut parts = Vec::new();
        for (part, rows) in shard_tables(&table, shards).iter().zip(shards.split(&list).expect("rows within")) {
            let within = rows.iter().map(|&(_, within)| within as i64).collect();
            let own = rows.iter().flat_map(|&(position, _)| values[2 * position..][..2].to_vec()).collect();
            parts.extend(scatter(within, own).apply(part).expect("rows within").data);
        }
        let indices = list.iter().map(|&row| row as i64).collect();
        scatter(indices, values).apply(&table) == Ok(Array::new(&table.shape, parts))
    }

    fn a_function_on_shards_does_the_same_as_on_the_whole(
        table: Vec<(i16, i16)>, shards: u8, list: Vec<u8>, is_dense: bool
    ) -> bool {
        let Some((table, shards, list)) = table_of(&table, shards, &list) else { return true };
        let slot = Array::new(&[shards.rows()], (0..shards.rows() as i64).collect());
        let list = if is_dense { (0..shards.rows()).collect() } else { list };
        let values: Vec<i64> = (0..2 * list.len() as i64).map(|place| place * place - 7).collect();
        let update = |indices: Vec<i64>, values: Vec<i64>| FunctionUpdate {
            variables: vec![0, 1],
            gradient: Array::new(&[indices.len(), 2], values),
            indices: (!is_dense).then_some(indices),
            function: counted,
        };
        let mut parts = [Vec::new(), Vec::new()];
        let split = shards.split(&list).expect("rows within");
        for (shard, (part, rows)) in shard_tables(&table, shards).into_iter().zip(split).enumerate() {
            let within = rows.iter().map(|&(_, within)| within as i64).collect();
            let own = rows.iter().flat_map(|&(position, _)| values[2 * position..][..2].to_vec()).collect();
            let range = shards.rows_of(shard);
            let mut tables = [part, Array::new(&[range.len()], slot.data[range].to_vec())];
            update(within, own).apply(&mut tables).expect("rows within");
            parts.iter_mut().zip(tables).for_each(|(part, table)| part.extend(table.data));
        }
        let mut tables = [table, slot];
        let indices = list.iter().map(|&row| row as i64).collect();
        update(indices, values).apply(&mut tables).expect("rows within");
        tables.map(|table| table.data) == parts
    }

    fn a_function_gets_each_row_once(table: Vec<(i16, i16)>, list: Vec<u8>) -> bool {
        let Some((table, shards, list)) = table_of(&table, 0, &list) else { return true };
        let mut tables = [table, Array::new(&[shards.rows()], vec![0; shards.rows()])];
        let gradient = Array::new(&[list.len(), 2], vec![1; 2 * list.len()]);
        let indices = Some(list.iter().map(|&row| row as i64).collect());
        let update = FunctionUpdate { variables: vec![0, 1], indices, gradient, function: counted };
        update.apply(&mut tables).expect("rows within");
        (0..shards.rows()).all(|row| tables[1].data[row] == i64::from(list.contains(&row)))
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

#[test]
fn ill_fitting_effects_are_refused() {
    let table = Array::new(&[2, 1], vec![1, 2]);
    let rows = |count: usize| Array::new(&[count, 1], vec![7; count]);
    let shape = |expected: &[usize], found: &[usize]| {
        Err(Refused::Shape { expected: expected.to_vec(), found: found.to_vec() })
    };
    assert_eq!(Effect::Assign(Update::Assign, rows(3)).apply(&table), shape(&[2, 1], &[3, 1]));
    assert_eq!(Effect::Scatter(Update::AssignAdd, vec![0], rows(2)).apply(&table), shape(&[1, 1], &[2, 1]));
    let out_of_range = |position, index| Err(Refused::IndexOutOfRange { position, index, rows: 2 });
    assert_eq!(Effect::Scatter(Update::AssignAdd, vec![0, 2], rows(2)).apply(&table), out_of_range(1, 2));
    assert_eq!(lookup(&table, &[1, 0, -1]), out_of_range(2, -1).map(|found: Array<i32>| found));
    let scalar = Array::new(&[], vec![1]);
    assert_eq!(Effect::Scatter(Update::Assign, vec![], rows(0)).apply(&scalar), Err(Refused::Scalar));
    let truths = Array::new(&[1], vec![true]);
    for update in [Update::AssignAdd, Update::AssignSub] {
        let refused = Err(Refused::Undefined { dtype: DType::Bool });
        assert_eq!(Effect::Assign(update, truths.clone()).apply(&truths), refused);
    }
}

#[test]
fn a_function_with_a_gradient_of_other_rows_is_refused() {
    let rows = |count: usize| Array::new(&[count, 2], vec![1; 2 * count]);
    let update = |indices, gradient| {
        let mut tables = [rows(2), Array::new(&[2], vec![0; 2])];
        let refused = FunctionUpdate { variables: vec![0, 1], indices, gradient, function: counted }.apply(&mut tables);
        assert!(refused.is_ok() || tables == [rows(2), Array::new(&[2], vec![0; 2])]);
        refused
    };
    let shape = |expected: &[usize], found: &[usize]| {
        Err(Refused::Shape { expected: expected.to_vec(), found: found.to_vec() })
    };
    assert_eq!(update(None, rows(2)), Ok(()));
    assert_eq!(update(None, rows(3)), shape(&[2, 2], &[3, 2]));
    assert_eq!(update(Some(vec![1]), rows(2)), shape(&[1, 2], &[2, 2]));
    let out_of_range = Err(Refused::IndexOutOfRange { position: 1, index: -1, rows: 2 });
    assert_eq!(update(Some(vec![0, -1]), rows(2)), out_of_range);
    let truths = Array::new(&[1], vec![true]);
    let update =
        FunctionUpdate { variables: vec![0], indices: None, gradient: truths.clone(), function: |_, _| unreachable!() };
    assert_eq!(update.apply(&mut [truths]), Err(Refused::Undefined { dtype: DType::Bool }));
}
