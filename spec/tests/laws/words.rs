use consonance_spec::{
    DType, Kind, ReduceOp, Signature, World,
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
        // Of one dtype: all tensors in order, and no pack could have taken the next one's first
        // tensor.
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

    fn fingerprints_differ_where_a_field_does(count: u32, root: u8, detail: u64) -> bool {
        let base = Signature {
            kind: Kind::Reduce,
            op: Some(ReduceOp::Sum),
            dtype: Some(DType::F32),
            count: Some(count as usize),
            root: Some(root as usize),
            detail,
        };
        let others = [
            base,
            Signature { kind: Kind::AllReduce, ..base },
            Signature { op: Some(ReduceOp::Mean), ..base },
            Signature { op: None, ..base },
            Signature { dtype: Some(DType::F64), ..base },
            Signature { dtype: None, ..base },
            Signature { count: Some(count as usize + 1), ..base },
            Signature { count: None, ..base },
            Signature { root: Some(root as usize + 1), ..base },
            Signature { root: None, ..base },
            Signature { detail: detail ^ 1, ..base },
            // Fields do not stand in for each other.
            Signature { count: base.root, root: base.count, ..base },
        ];
        let same = if count as usize == root as usize { 1 } else { 0 };
        others.iter().map(Signature::fingerprint).collect::<HashSet<u64>>().len() == others.len() - same
    }
}

#[test]
fn codes_are_read_back() {
    let options = |count| [None].into_iter().chain((0..count).map(Some));
    let mut codes = HashSet::new();
    for kind in (0..=u8::MAX).filter_map(Kind::from_code) {
        for op in options(ReduceOp::ALL.len()).map(|op| op.map(|i| ReduceOp::ALL[i])) {
            for dtype in options(DType::ALL.len()).map(|dtype| dtype.map(|i| DType::ALL[i])) {
                let signature = Signature { op, dtype, ..Signature::new(kind) };
                assert_eq!(Signature::read_code(signature.code()), Some(signature));
                assert!(codes.insert(signature.code()), "{signature}");
            }
        }
    }
    let (ops, dtypes) = (ReduceOp::ALL.len() as u32, DType::ALL.len() as u32);
    for no_code in [0xff, (ops + 1) << 8, (dtypes + 1) << 16] {
        assert_eq!(Signature::read_code(no_code), None, "{no_code:#x}");
    }
}

#[test]
fn ops_and_kinds_are_told_by_their_names() {
    for op in ReduceOp::ALL {
        assert_eq!(op.name().to_uppercase().parse(), Ok(op));
    }
    assert_eq!(
        "avg".parse::<ReduceOp>().unwrap_err().to_string(),
        "\"avg\" is not a reduce op; expected one of sum, mean, product, min, max, and, or, xor"
    );
    let names: Vec<&str> = (0..=u8::MAX).filter_map(Kind::from_code).map(Kind::name).collect();
    assert_eq!(names.len(), names.iter().collect::<HashSet<_>>().len());
}
