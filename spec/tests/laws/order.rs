use super::sample::mix;
use consonance_spec::order::{BLOCK, LANES, fold, fold_along, fold_nodes, nodes};
use quickcheck::{TestResult, quickcheck};
use std::{collections::BTreeSet, ops::Range};

/// An operation that is neither associative nor commutative: equal results mean equal trees.
fn meet(a: u64, b: u64) -> u64 {
    mix(mix(1, a), b)
}

fn leaves(count: usize) -> Vec<u64> {
    (0..count as u64).collect()
}

/// Combines in the order of a binary counter: as soon as two whole groups of 1, 2, 4, … are equal
/// in size, they are combined; the rest is combined at the end.
fn counted(items: &[u64]) -> Option<u64> {
    let mut groups: Vec<(usize, u64)> = Vec::new();
    for &item in items {
        let mut group = (1, item);
        while let Some(&(count, left)) = groups.last().filter(|last| last.0 == group.0) {
            groups.pop();
            group = (2 * count, meet(left, group.1));
        }
        groups.push(group);
    }
    groups.into_iter().map(|group| group.1).rev().reduce(|right, left| meet(left, right))
}

#[test]
fn a_binary_counter_makes_the_same_tree() {
    for count in 0..300 {
        assert_eq!(fold(&leaves(count), meet), counted(&leaves(count)), "{count}");
    }
}

#[test]
fn five_ranks() {
    let [a, b, c, d, e] = [0, 1, 2, 3, 4];
    assert_eq!(fold(&[a, b, c, d, e], meet), Some(meet(meet(meet(a, b), meet(c, d)), e)));
}

quickcheck! {
    fn aligned_groups_may_meet_first(items: Vec<u64>, power: u8) -> bool {
        let groups: Vec<u64> = items.chunks(1 << (power % 7)).filter_map(|group| fold(group, meet)).collect();
        fold(&groups, meet) == fold(&items, meet)
    }
}

/// Returns the nodes of each owner with their values. `owners[leaf]` is the owner of a leaf.
fn valued_nodes(owners: &[u8]) -> Vec<Vec<(Range<usize>, u64)>> {
    let all = leaves(owners.len());
    let of = |owner| (0..owners.len()).filter(|&leaf| owners[leaf] == owner).collect::<BTreeSet<usize>>();
    let valued = |node: Range<usize>| (node.clone(), fold(&all[node], meet).unwrap());
    (0..=u8::MAX).map(|owner| nodes(owners.len(), &of(owner)).into_iter().map(valued).collect()).collect()
}

quickcheck! {
    // Most bytes own nothing; the owners' leaves interleave.
    fn nodes_of_any_owners_have_the_value_of_all_leaves(owners: Vec<u8>) -> bool {
        fold_nodes(owners.len(), &valued_nodes(&owners).concat(), meet) == fold(&leaves(owners.len()), meet)
    }

    fn nodes_of_few_owners_have_the_value_of_all_leaves(owners: Vec<u8>, few: u8) -> bool {
        let owners: Vec<u8> = owners.into_iter().map(|owner| owner % (few % 4 + 1)).collect();
        let mut nodes = valued_nodes(&owners).concat();
        nodes.reverse();
        fold_nodes(owners.len(), &nodes, meet) == fold(&leaves(owners.len()), meet)
    }

    fn nodes_are_the_leaves_of_their_owner(owners: Vec<u8>, few: u8) -> bool {
        let owners: Vec<u8> = owners.into_iter().map(|owner| owner % (few % 4 + 1)).collect();
        (0..=u8::MAX).zip(valued_nodes(&owners)).all(|(owner, nodes)| {
            let own: Vec<usize> = (0..owners.len()).filter(|&leaf| owners[leaf] == owner).collect();
            nodes.into_iter().flat_map(|(node, _)| node).collect::<Vec<usize>>() == own
        })
    }

    fn a_missing_node_leaves_no_value(owners: Vec<u8>, missing: usize) -> TestResult {
        let mut nodes = valued_nodes(&owners).concat();
        if nodes.is_empty() {
            return TestResult::discard();
        }
        nodes.swap_remove(missing % nodes.len());
        TestResult::from_bool(fold_nodes(owners.len(), &nodes, meet).is_none())
    }
}

#[test]
fn each_division_of_few_leaves_into_two_sets_has_the_value_of_all_leaves() {
    for n in 0..=10 {
        for mask in 0..1u32 << n {
            let owners: Vec<u8> = (0..n).map(|leaf| (mask >> leaf & 1) as u8).collect();
            assert_eq!(fold_nodes(n, &valued_nodes(&owners)[..2].concat(), meet), fold(&leaves(n), meet), "{owners:?}");
        }
    }
}

#[test]
fn a_run_of_leaves_has_few_nodes() {
    for n in 0..=70usize {
        for start in 0..n {
            for end in start + 2..=n {
                let (count, m) = (nodes(n, &(start..end).collect()).len(), end - start);
                assert!(count < 2 * (m + 2).ilog2() as usize, "{start}..{end} of {n} has {count} nodes");
            }
        }
    }
}

#[test]
fn an_aligned_power_of_two_is_one_node() {
    for n in 1..=70usize {
        for length in (0..=n.ilog2()).map(|power| 1 << power) {
            for start in (0..=n - length).step_by(length) {
                let node = start..start + length;
                assert_eq!(nodes(n, &node.clone().collect()), std::slice::from_ref(&node), "of {n}");
            }
        }
    }
}

#[test]
fn each_part_at_the_right_end_is_one_node() {
    for n in 1..=70usize {
        let mut start = 0;
        while start < n {
            let node = start..n;
            assert_eq!(nodes(n, &node.clone().collect()), std::slice::from_ref(&node), "of {n}");
            start += 1 << (n - start).saturating_sub(1).checked_ilog2().unwrap_or_default();
        }
    }
}

#[test]
fn along_an_axis_each_element_knows_its_lane() {
    for count in [0, 1, 2, 31, 32, 33, 63, 64, 65, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 33] {
        let mut lanes: Vec<Vec<Option<u64>>> = vec![vec![None; LANES]; count.div_ceil(BLOCK)];
        for i in 0..count {
            let lane = &mut lanes[i / BLOCK][i % LANES];
            *lane = Some(lane.map_or(i as u64, |before| meet(before, i as u64)));
        }
        let meet_all = |lanes: Vec<Option<u64>>| counted(&lanes.into_iter().flatten().collect::<Vec<u64>>());
        let blocks: Vec<u64> = lanes.into_iter().filter_map(meet_all).collect();
        assert_eq!(fold_along(&leaves(count), meet), counted(&blocks), "{count}");
    }
}

#[test]
fn the_scheme_never_changes() {
    // Changing either constant changes the bits of results.
    assert_eq!((LANES, BLOCK), (32, 4096));
}
