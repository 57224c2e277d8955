use super::sample::mix;
use consonance_spec::order::{BLOCK, LANES, fold, fold_along};
use quickcheck::quickcheck;

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
