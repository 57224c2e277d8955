use consonance_spec::nest::{Merged, Mismatch, Nest, join, split};
use quickcheck::{Arbitrary, Gen, quickcheck};

/// A nest of at most three levels.
#[derive(Clone, Debug)]
struct Any(Nest<u16>);

impl Arbitrary for Any {
    fn arbitrary(g: &mut Gen) -> Any {
        Any(nest(g, 3))
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Any>> {
        match self.0.clone() {
            Nest::Leaf(_) => quickcheck::empty_shrinker(),
            Nest::List(items) | Nest::Tuple(items) => Box::new(items.into_iter().map(Any)),
            Nest::Map(items) => Box::new(items.into_values().map(Any)),
        }
    }
}

fn nest(g: &mut Gen, levels: usize) -> Nest<u16> {
    let kind = if levels == 0 { 0 } else { u8::arbitrary(g) % 4 };
    let count = u8::arbitrary(g) % 4;
    let mut items = |levels| (0..count).map(|_| nest(g, levels - 1)).collect::<Vec<_>>();
    match kind {
        0 => Nest::Leaf(u16::arbitrary(g)),
        1 => Nest::List(items(levels)),
        2 => Nest::Tuple(items(levels)),
        _ => Nest::Map(["d", "a", "c", "b"].map(String::from).into_iter().zip(items(levels)).collect()),
    }
}

quickcheck! {
    fn unflatten_undoes_flatten(nest: Any) -> bool {
        let (structure, leaves) = nest.0.flatten();
        structure.unflatten(leaves) == nest.0
    }

    fn structures_agree_where_they_are_equal(a: Any, b: Any) -> bool {
        let (a, b) = (a.0, b.0);
        a.mismatch(&a.map(&mut |leaf| !leaf)).is_none()
            && a.mismatch(&b) == b.mismatch(&a)
            && a.mismatch(&b).is_none() == (a.flatten().0 == b.flatten().0)
    }

    fn split_undoes_join(nest: Any, replicas: u8) -> bool {
        let replicas = 1 + replicas as usize % 5;
        let nests: Vec<Nest<u32>> =
            (0..replicas).map(|r| nest.0.map(&mut |&leaf| 10 * u32::from(leaf) + r as u32)).collect();
        let joined = join(&nests).unwrap();
        split(&joined.map(&mut |leaves| Merged::PerReplica(leaves.clone())), replicas) == nests
    }

    fn equal_leaves_go_to_all(nest: Any, replicas: u8) -> bool {
        let replicas = replicas as usize % 6;
        split(&nest.0.map(&mut |&leaf| Merged::Same(leaf)), replicas) == vec![nest.0; replicas]
    }

    fn join_names_the_first_different_replica(a: Any, b: Any, before: u8) -> bool {
        let replica = 1 + before as usize % 4;
        let mut nests = vec![a.0.clone(); replica];
        nests.extend([b.0.clone(), a.0.clone()]);
        match a.0.mismatch(&b.0) {
            Some(path) => join(&nests) == Err(Mismatch { replica, path }),
            None => join(&nests).is_ok(),
        }
    }
}

fn leaf() -> Nest<u16> {
    Nest::Leaf(1)
}

fn map<const N: usize>(items: [(&str, Nest<u16>); N]) -> Nest<u16> {
    Nest::Map(items.map(|(key, item)| (key.to_owned(), item)).into())
}

#[test]
fn leaves_are_in_the_order_of_items_and_sorted_keys() {
    let nest = map([("b", Nest::List(vec![Nest::Leaf(2), Nest::Leaf(3)])), ("a", Nest::Tuple(vec![Nest::Leaf(1)]))]);
    assert_eq!(nest.flatten().1, [1, 2, 3]);
}

#[test]
fn paths_of_mismatches() {
    let list = |count| Nest::List(vec![leaf(); count]);
    let path = |a: Nest<u16>, b: Nest<u16>| a.mismatch(&b).expect("a mismatch");
    assert_eq!(path(leaf(), list(1)), "/");
    assert_eq!(path(list(1), Nest::Tuple(vec![leaf()])), "/");
    assert_eq!(path(list(11), list(12)), "/11");
    assert_eq!(path(map([("a", leaf()), ("b", list(2))]), map([("a", leaf()), ("b", list(1))])), "/b/1");
    assert_eq!(path(map([("a", leaf()), ("c", leaf())]), map([("b", leaf()), ("c", leaf())])), "/a");
    assert_eq!(path(map([("a", list(1)), ("b", leaf())]), map([("a", leaf())])), "/a");
    assert_eq!(join(&[list(1), list(1), list(2)]), Err(Mismatch { replica: 2, path: "/1".to_owned() }));
}
