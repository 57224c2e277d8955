//! Structures of values: their form, when they agree, and how `merge_call` joins and splits them.

use std::collections::BTreeMap;

/// A value, or a structure of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nest<T> {
    /// One value.
    Leaf(T),
    /// A list. It never agrees with a tuple.
    List(Vec<Nest<T>>),
    /// A tuple.
    Tuple(Vec<Nest<T>>),
    /// A map, in the order of its keys.
    Map(BTreeMap<String, Nest<T>>),
}

impl<T> Nest<T> {
    /// Returns the same structure with `f` applied to each leaf, in order.
    pub fn map<U>(&self, f: &mut impl FnMut(&T) -> U) -> Nest<U> {
        match self {
            Nest::Leaf(value) => Nest::Leaf(f(value)),
            Nest::List(items) => Nest::List(items.iter().map(|item| item.map(f)).collect()),
            Nest::Tuple(items) => Nest::Tuple(items.iter().map(|item| item.map(f)).collect()),
            Nest::Map(items) => Nest::Map(items.iter().map(|(key, item)| (key.clone(), item.map(f))).collect()),
        }
    }

    /// Returns the structure, and separately the leaves in order.
    pub fn flatten(&self) -> (Nest<()>, Vec<T>)
    where
        T: Clone,
    {
        let mut leaves = Vec::new();
        let structure = self.map(&mut |leaf| leaves.push(leaf.clone()));
        (structure, leaves)
    }

    /// Returns the path of the first place where the structures differ, such as `/b/1`. Returns `/`
    /// if they differ as a whole, and `None` if they agree.
    ///
    /// A place that only one of the structures has is a difference.
    pub fn mismatch<U>(&self, other: &Nest<U>) -> Option<String> {
        self.first_difference(other).map(|path| if path.is_empty() { "/".to_owned() } else { path })
    }

    fn first_difference<U>(&self, other: &Nest<U>) -> Option<String> {
        let same_kind = match (self, other) {
            (Nest::Leaf(_), Nest::Leaf(_)) => true,
            (Nest::List(_), Nest::List(_)) => true,
            (Nest::Tuple(_), Nest::Tuple(_)) => true,
            (Nest::Map(_), Nest::Map(_)) => true,
            (Nest::Leaf(_) | Nest::List(_) | Nest::Tuple(_) | Nest::Map(_), _) => false,
        };
        if !same_kind {
            return Some(String::new());
        }
        let (ours, theirs) = (self.children(), other.children());
        (0..ours.len().max(theirs.len())).find_map(|i| match (ours.get(i), theirs.get(i)) {
            (Some((name, a)), Some((other_name, b))) if name == other_name => {
                Some(format!("/{name}{}", a.first_difference(b)?))
            }
            // Names are sorted, so the lesser of two different names is missing in the other
            // structure.
            (a, b) => {
                let names = [a.map(|(name, _)| name), b.map(|(name, _)| name)];
                names.into_iter().flatten().min().map(|name| format!("/{name}"))
            }
        })
    }

    fn children(&self) -> Vec<(String, &Nest<T>)> {
        match self {
            Nest::Leaf(_) => Vec::new(),
            Nest::List(items) | Nest::Tuple(items) => {
                items.iter().enumerate().map(|(i, item)| (i.to_string(), item)).collect()
            }
            Nest::Map(items) => items.iter().map(|(key, item)| (key.clone(), item)).collect(),
        }
    }
}

impl Nest<()> {
    /// Makes the nest of this structure with these leaves.
    ///
    /// # Panics
    /// If the number of leaves is not the structure's.
    pub fn unflatten<T>(&self, leaves: Vec<T>) -> Nest<T> {
        let mut leaves = leaves.into_iter();
        let nest = self.map(&mut |()| leaves.next().expect("a leaf for each of the structure's"));
        assert!(leaves.next().is_none(), "more leaves than the structure has");
        nest
    }
}

/// The error for a replica whose structure differs from replica 0's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The first replica that differs.
    pub replica: usize,
    /// The first place where it differs, as in [`Nest::mismatch`].
    pub path: String,
}

/// Joins the replicas' nests into the arguments of `merge_call`: one nest, in which each leaf is
/// the list of the replicas' leaves.
///
/// # Panics
/// If there are no replicas.
pub fn join<T: Clone>(replicas: &[Nest<T>]) -> Result<Nest<Vec<T>>, Mismatch> {
    for (replica, nest) in replicas.iter().enumerate() {
        if let Some(path) = replicas[0].mismatch(nest) {
            return Err(Mismatch { replica, path });
        }
    }
    let leaves: Vec<Vec<T>> = replicas.iter().map(|nest| nest.flatten().1).collect();
    let (structure, first) = replicas[0].flatten();
    Ok(structure.unflatten((0..first.len()).map(|i| leaves.iter().map(|leaves| leaves[i].clone()).collect()).collect()))
}

/// A leaf of the nest that the function in `merge_call` returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merged<T> {
    /// One value for each replica.
    PerReplica(Vec<T>),
    /// The same value for all replicas.
    Same(T),
}

/// Splits the result of the function into the results of `merge_call`: each replica's nest, with
/// its own values and the values that are for all.
///
/// # Panics
/// If a per-replica list does not have one value for each replica.
pub fn split<T: Clone>(result: &Nest<Merged<T>>, replicas: usize) -> Vec<Nest<T>> {
    let own = |replica: usize, leaf: &Merged<T>| match leaf {
        Merged::PerReplica(values) => {
            assert_eq!(values.len(), replicas, "values for each replica");
            values[replica].clone()
        }
        Merged::Same(value) => value.clone(),
    };
    (0..replicas).map(|replica| result.map(&mut |leaf| own(replica, leaf))).collect()
}
