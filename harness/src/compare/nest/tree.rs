//! Nests whose structure is known only at run time.

use super::{
    super::with_type,
    outcome::{self, Outcome},
};
use crate::{
    cases::{Leaf, NestCase},
    sample::Sample,
};
use consonance::{
    IndexedSlices, Nest, Result, Tensor,
    nest::{self, Path},
};
use consonance_spec::{self as spec, DType, for_each_dtype};
use std::{collections::BTreeMap, ops::Range};

/// A nest whose structure is a value.
#[derive(Clone, Debug)]
pub(crate) enum Tree {
    Dense(Tensor),
    Sparse(IndexedSlices),
    List(Vec<Tree>),
    Map(BTreeMap<String, Tree>),
}

impl Nest for Tree {
    fn take_leaves(&mut self, at: &Path, leaves: &mut Vec<nest::Leaf>) {
        match self {
            Tree::Dense(tensor) => tensor.take_leaves(at, leaves),
            Tree::Sparse(slices) => slices.take_leaves(at, leaves),
            Tree::List(items) => items.take_leaves(at, leaves),
            Tree::Map(items) => items.take_leaves(at, leaves),
        }
    }

    fn put_leaves(&mut self, leaves: &mut dyn Iterator<Item = nest::Leaf>) -> Result<()> {
        match self {
            // Sparse rows that are reduced along an axis come back as a tensor, so each leaf takes
            // either.
            Tree::Dense(_) | Tree::Sparse(_) => {
                let leaf = leaves.next().expect("a leaf for each place");
                *self = match leaf.value {
                    nest::Value::Dense(tensor) => Tree::Dense(tensor),
                    nest::Value::Sparse(slices) => Tree::Sparse(slices),
                };
                Ok(())
            }
            Tree::List(items) => items.put_leaves(leaves),
            Tree::Map(items) => items.put_leaves(leaves),
        }
    }
}

impl Tree {
    /// Returns the same structure, with `f` applied to the sparse leaves.
    pub(crate) fn map_rows(self, f: &dyn Fn(IndexedSlices) -> Result<Tree>) -> Result<Tree> {
        match self {
            Tree::Dense(tensor) => Ok(Tree::Dense(tensor)),
            Tree::Sparse(slices) => f(slices),
            Tree::List(items) => items.into_iter().map(|item| item.map_rows(f)).collect::<Result<_>>().map(Tree::List),
            Tree::Map(items) => {
                let items = items.into_iter().map(|(key, item)| Ok((key, item.map_rows(f)?)));
                items.collect::<Result<_>>().map(Tree::Map)
            }
        }
    }

    /// Returns the same structure, with the bits of its leaves.
    pub(crate) fn structure(&self) -> spec::nest::Nest<Outcome> {
        match self {
            Tree::Dense(tensor) => spec::nest::Nest::Leaf(Outcome::of(tensor)),
            Tree::Sparse(slices) => spec::nest::Nest::Leaf(Outcome::of_rows(slices)),
            Tree::List(items) => spec::nest::Nest::List(items.iter().map(Tree::structure).collect()),
            Tree::Map(items) => {
                spec::nest::Nest::Map(items.iter().map(|(key, item)| (key.clone(), item.structure())).collect())
            }
        }
    }
}

/// Returns the values of these replicas, or grains.
pub(crate) fn trees(case: &NestCase, numbers: Range<usize>) -> Vec<Tree> {
    numbers.map(|number| tree(&case.nest, number)).collect()
}

fn tree(nest: &spec::nest::Nest<Leaf>, number: usize) -> Tree {
    match nest {
        spec::nest::Nest::Leaf(leaf) => for_each_dtype!(with_type leaf.dtype, leaf_of(leaf, number);),
        spec::nest::Nest::List(items) | spec::nest::Nest::Tuple(items) => {
            Tree::List(items.iter().map(|item| tree(item, number)).collect())
        }
        spec::nest::Nest::Map(items) => {
            Tree::Map(items.iter().map(|(key, item)| (key.clone(), tree(item, number))).collect())
        }
    }
}

fn leaf_of<T: Sample>(leaf: &Leaf, number: usize) -> Tree {
    let tensor = |array: &spec::array::Array<T>| {
        Tensor::new(array.shape.clone(), &array.data).expect("elements as the shape says")
    };
    if !leaf.sparse {
        return Tree::Dense(tensor(&outcome::array(leaf, number)));
    }
    let rows = outcome::rows::<T>(leaf, number);
    // Indices of either width.
    let indices = match leaf.seed % 2 {
        0 => Tensor::from(rows.indices.as_slice()),
        _ => Tensor::from(rows.indices.iter().map(|&index| index as i32).collect::<Vec<i32>>()),
    };
    let slices = IndexedSlices::new(tensor(&rows.values), indices, Some(rows.dense_shape));
    Tree::Sparse(slices.expect("rows that fit each other"))
}
