use consonance_spec::{
    DType, Kind, ReduceOp, World, dataset,
    packing::packs,
    partition::{aligned_block, block},
};
use quickcheck::quickcheck;
use std::{collections::HashSet, ops::Range};

fn covers(parts: impl Iterator<Item = Range<usize>>, count: usize) -> bool {
    parts.flatten().eq(0..count)
}

quickcheck! {
    fn blocks_cover_each_element_once(count: u16, parts: u8) -> bool {
        let (count, parts) = (count as usize, 1 + parts as usize);
        let sizes: Vec<usize> = (0..parts).map(|i| block(count, parts, i).len()).collect();
        covers((0..parts).map(|i| block(count, parts, i)), count)
            && sizes.is_sorted_by(|a, b| a >= b)
            && sizes[0] - sizes[parts - 1] <= 1
    }

    fn blocks_of_data_sets_are_the_blocks_of_programs(count: u16, parts: u8) -> bool {
        let (count, parts) = (count as usize, 1 + parts as usize);
        (0..parts).all(|index| dataset::block(count, parts, index) == block(count, parts, index))
    }

    fn aligned_blocks_cover_each_element_once(count: u16, unit: u8, parts: u8) -> bool {
        let (count, unit, parts) = (count as usize, 1 + unit as usize, 1 + parts as usize);
        let of = |i| aligned_block(count, unit, parts, i);
        covers((0..parts).map(of), count) && (0..parts).all(|i| of(i).end % unit == 0 || of(i).end == count)
    }

    fn peers_are_all_but_oneself(rank: u8, size: u8) -> bool {
        match World::new(rank as usize, size as usize) {
            None => rank >= size,
            Some(world) => {
                let peers: HashSet<usize> = world.peers().collect();
                world.peers().count() == peers.len()
                    && peers == (0..world.size()).filter(|&peer| peer != world.rank()).collect()
            }
        }
    }

    fn packs_hold_each_tensor_once_in_order_within_the_limit(tensors: Vec<(u8, u8)>, limit: u8) -> bool {
        let tensors: Vec<(DType, usize)> =
            tensors.into_iter().map(|(d, bytes)| (DType::ALL[d as usize % 3], bytes as usize)).collect();
        let (limit, packs) = (limit as usize, packs(&tensors, limit as usize));
        let bytes = |pack: &[usize]| pack.iter().map(|&i| tensors[i].1).sum::<usize>();
        let dtype = |pack: &[usize]| tensors[pack[0]].0;
        let within = |pack: &Vec<usize>| limit == 0 || bytes(pack) <= limit || pack.len() == 1;
        let uniform = |pack: &Vec<usize>| pack.iter().all(|&i| tensors[i].0 == dtype(pack));
        // For one dtype: the packs have all tensors in order, and no pack could have taken the
        // first tensor of the next.
        let full = |of: DType| {
            let own: Vec<&Vec<usize>> = packs.iter().filter(|pack| dtype(pack) == of).collect();
            let places = (0..tensors.len()).filter(|&i| tensors[i].0 == of);
            own.iter().copied().flatten().copied().eq(places)
                && own.windows(2).all(|pair| limit != 0 && bytes(pair[0]) + tensors[pair[1][0]].1 > limit)
        };
        packs.iter().all(|pack| !pack.is_empty() && within(pack) && uniform(pack))
            && packs.is_sorted_by_key(|pack| pack[0])
            && DType::ALL.iter().all(|&dtype| full(dtype))
    }
}

#[test]
fn ops_and_kinds_have_names_of_their_own() {
    for op in ReduceOp::ALL {
        assert_eq!(op.name().to_uppercase().parse(), Ok(op));
    }
    assert_eq!(
        "avg".parse::<ReduceOp>().unwrap_err().to_string(),
        "\"avg\" is not a reduce op; expected one of sum, mean, product, min, max, and, or, xor"
    );
    let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(names.len(), names.iter().collect::<HashSet<_>>().len());
}
