//! Batches: elements stacked along a new axis 0.

use super::{Cardinality, Dataset, Elements, TensorSpec, pool::Pool};
use crate::{
    Error, Nest, Result, Tensor,
    value::{
        nest::{self, Leaf, Path, Value},
        tensor,
    },
};
use consonance_kernels::cpu::copy::copy_own;

/// See [`Dataset::batch`].
#[derive(Clone, Debug)]
pub struct Batch<D> {
    dataset: D,
    size: usize,
    drop_remainder: bool,
}

impl<D: Dataset> Batch<D> {
    pub(super) fn new(dataset: D, size: usize) -> Batch<D> {
        Batch { dataset, size, drop_remainder: false }
    }

    /// Keeps full batches only: leaves out remaining elements that do not fill a batch.
    pub fn drop_remainder(mut self) -> Batch<D> {
        self.drop_remainder = true;
        self
    }
}

impl<D: Dataset> Dataset for Batch<D> {
    type Element = D::Element;

    fn iterate(&self, epoch: u64) -> Result<Elements<D::Element>> {
        self.dataset.batches(epoch, self.size, self.drop_remainder)
    }

    fn cardinality(&self) -> Cardinality {
        let size = self.size.max(1);
        self.dataset.cardinality().map(|all| if self.drop_remainder { all / size } else { all.div_ceil(size) })
    }

    fn batch_size(&self) -> Option<usize> {
        Some(self.size)
    }

    fn element_spec(&self) -> Option<Vec<TensorSpec>> {
        let mut specs = self.dataset.element_spec()?;
        specs.iter_mut().for_each(|spec| spec.shape.insert(0, self.drop_remainder.then_some(self.size)));
        Some(specs)
    }

    fn reads_files(&self) -> bool {
        self.dataset.reads_files()
    }

    fn copied_bytes(&self) -> Option<usize> {
        self.dataset.copied_bytes()?.checked_mul(self.size)
    }
}

pub(super) fn check_size(size: usize) -> Result<()> {
    if size > 0 {
        return Ok(());
    }
    Err(Error::invalid("Dataset::batch", "size", "at least one element", "0"))
}

/// Stacks single elements into batches.
pub(super) fn stack<E: Nest + Clone + Send + 'static>(
    elements: Elements<E>,
    size: usize,
    drop_remainder: bool,
) -> Result<Elements<E>> {
    check_size(size)?;
    Ok(Box::new(Stack { elements, size, drop_remainder, pools: Vec::new() }))
}

struct Stack<E> {
    elements: Elements<E>,
    size: usize,
    drop_remainder: bool,
    /// For each leaf, the memory of earlier batches, for reuse.
    pools: Vec<Pool>,
}

impl<E: Nest + Clone> Iterator for Stack<E> {
    type Item = Result<E>;

    fn next(&mut self) -> Option<Result<E>> {
        // An element that cannot be read fails its batch; the elements before it in that batch are
        // lost.
        let rows: Result<Vec<E>> = self.elements.by_ref().take(self.size).collect();
        match rows {
            Ok(rows) if rows.is_empty() || self.drop_remainder && rows.len() < self.size => None,
            rows => Some(rows.and_then(|rows| self.stack(rows))),
        }
    }
}

impl<E: Nest + Clone> Stack<E> {
    /// Stacks these elements, at least one, into a batch.
    fn stack(&mut self, mut rows: Vec<E>) -> Result<E> {
        let mut leaves: Vec<Vec<Leaf>> = rows.iter_mut().map(nest::take).collect();
        let mut stacked = leaves[0].clone();
        if let Some(more) = leaves.iter().find_map(|row| row.get(stacked.len())) {
            return Err(unlike_structures(&more.path));
        }
        self.pools.resize_with(stacked.len(), Pool::default);
        for (place, (leaf, pool)) in stacked.iter_mut().zip(&mut self.pools).enumerate() {
            let tensors = leaves.iter_mut().map(|row| match row.get_mut(place) {
                Some(own) if own.path == leaf.path => own.dense(CALL).cloned(),
                _ => Err(unlike_structures(&leaf.path)),
            });
            let tensors: Vec<Tensor> = tensors.collect::<Result<_>>()?;
            let first = &tensors[0];
            let unlike = |tensor: &&Tensor| (tensor.dtype(), tensor.shape()) != (first.dtype(), first.shape());
            if let Some(other) = tensors.iter().find(unlike) {
                let expected = format!("{}, as the first element of the batch has", first.spec());
                return Err(Error::invalid(CALL, leaf.path.to_string(), expected, other.spec()));
            }
            let shape = tensor::joined(CALL, &[&[1], first.shape()].concat(), 0, &[tensors.len()])?;
            let count = first.count();
            let tensor = pool.tensor(first.dtype(), shape, |mut into| {
                for (row, tensor) in tensors.iter().enumerate() {
                    copy_own(tensor.host()?, &mut into.reborrow().slice(row * count..(row + 1) * count));
                }
                Ok(())
            })?;
            leaf.value = Value::Dense(tensor);
        }
        nest::put(rows.swap_remove(0), stacked).map_err(|error| error.of_call(CALL))
    }
}

const CALL: &str = "Dataset::batch";

/// The error for a tensor that is missing in some elements of a batch.
fn unlike_structures(path: &Path) -> Error {
    Error::invalid(CALL, path.to_string(), "elements of one structure", "different ones")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DType, IndexedSlices,
        dataset::from_fn,
        fields::{found, refusal},
    };

    /// Found by a review: the product of the sizes overflowed before it reached the zero among
    /// them.
    #[test]
    fn no_batch_has_a_shape_beyond_numbers() {
        let element = Tensor::zeros(DType::F32, [usize::MAX / 2 + 1, 0]);
        let two = from_fn(move || [element.clone(), element.clone()]);
        let shape =
            |size| two.clone().batch(size).iterate(0).unwrap().next().unwrap().map(|batch| batch.shape().to_vec());
        assert_eq!(shape(1).unwrap(), [1, usize::MAX / 2 + 1, 0]);
        let error = shape(2).unwrap_err();
        assert_eq!(refusal(&error), ("Dataset::batch", "value", None));
        assert_eq!(found(&error), format!("[2] in shapes like [1, {}, 0]", usize::MAX / 2 + 1));
    }

    #[test]
    fn elements_of_different_shapes_are_refused() {
        let refused = |elements: Vec<Vec<Tensor>>| {
            let dataset = from_fn(move || elements.clone()).batch(2);
            let error = dataset.iterate(0).unwrap().find_map(Result::err)?;
            assert_eq!(refusal(&error), ("Dataset::batch", "value/0", None));
            Some(found(&error).to_owned())
        };
        let (x, y) = (Tensor::from([1, 2]), Tensor::from([1]));
        assert_eq!(refused(vec![vec![x.clone()], vec![x.clone()], vec![y.clone()]]), None);
        assert_eq!(refused(vec![vec![x.clone()], vec![y.clone()]]).unwrap(), "i32[1]");
        assert_eq!(refused(vec![vec![x.clone()], vec![Tensor::from([0.5, 1.5])]]).unwrap(), "f64[2]");
        assert_eq!(refused(vec![vec![x.clone()], vec![]]).unwrap(), "different ones");
        assert_eq!(refused(vec![vec![], vec![x.clone()]]).unwrap(), "different ones");
        let slices = IndexedSlices::new(Tensor::from([[1.0]]), Tensor::from([0i64]), None).unwrap();
        assert!(from_fn(move || [slices.clone()]).batch(1).iterate(0).unwrap().next().unwrap().is_err());
        let numbers = from_fn(|| 0..4i64).batch(2).iterate(0).unwrap().next().unwrap().unwrap_err();
        assert_eq!(refusal(&numbers), ("Dataset::batch", "value", None));
        assert_eq!(found(&numbers), "a number of type i64");
    }
}
