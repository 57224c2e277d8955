//! Division of elements among replicas: a step is one element for each replica.

use super::{Deal, Elements};
use crate::{
    DType, Error, Nest, PerReplica, Result, Tensor,
    value::nest::{self, Leaf, Value},
};
use consonance_kernels::memory::{HostBuf, HostMemory};
use consonance_spec::partition::block;
use std::{collections::VecDeque, iter::Fuse, ops::Range};

/// The input of one step and its division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One element for each replica, undivided.
    Each,
    /// One batch, in chunks of `rows / replicas` rows, rounded up.
    Chunked,
    /// One batch, in even blocks.
    Balanced,
    /// This number of rows, across the borders of batches, in even blocks.
    Packed(usize),
}

impl Form {
    /// Chooses how batches are divided. `batch_size` is that of a full batch, if known.
    pub(crate) fn new(deal: Deal, batch_size: Option<usize>, replicas: usize) -> Form {
        match (deal, batch_size) {
            _ if replicas == 1 => Form::Each,
            (Deal::Balanced, _) => Form::Balanced,
            (Deal::Packed, Some(rows)) if rows > 0 => Form::Packed(rows),
            (Deal::Packed | Deal::Chunked, _) => Form::Chunked,
        }
    }

    /// Returns the range of `rows` rows for each replica.
    fn parts(self, rows: usize, replicas: usize) -> Vec<Range<usize>> {
        let part = |replica: usize| match self {
            Form::Packed(full) => block(full, replicas, replica),
            Form::Balanced => block(rows, replicas, replica),
            Form::Each | Form::Chunked => {
                let chunk = rows.div_ceil(replicas);
                replica.saturating_mul(chunk)..(replica + 1).saturating_mul(chunk)
            }
        };
        (0..replicas).map(part).map(|part| part.start.min(rows)..part.end.min(rows)).collect()
    }
}

/// The replicas of a process and the division of its data set among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) form: Form,
    /// The replicas of all processes.
    pub(crate) replicas: usize,
    /// The replicas of this process.
    pub(crate) local: Range<usize>,
    /// Whether each process has its own data set, whose elements all go to its replicas. Else all
    /// processes have the same data set, and each takes the parts of its replicas.
    pub(crate) own: bool,
}

/// The steps of a data set. Rows are copied only if a replica's part is in several batches.
pub(super) struct Steps<E> {
    elements: Fuse<Elements<E>>,
    share: Share,
    /// Batches that have rows left, in order.
    pending: VecDeque<Batch<E>>,
    /// Parts not given to a replica yet, if the process has its own data set.
    parts: VecDeque<E>,
}

impl<E: Nest + Clone> Steps<E> {
    pub(super) fn new(elements: Elements<E>, share: Share) -> Steps<E> {
        Steps { elements: elements.fuse(), share, pending: VecDeque::new(), parts: VecDeque::new() }
    }

    fn step(&mut self) -> Result<Option<PerReplica<E>>> {
        let Share { form, replicas, local, own } = self.share.clone();
        if form == Form::Each {
            let step = self.elements.by_ref().take(local.len()).collect::<Result<_>>()?;
            return filled(step, local.len());
        }
        if own && local.len() < replicas {
            return self.own_step();
        }
        let rows = self.rows()?;
        if rows == 0 {
            return Ok(None);
        }
        let parts = form.parts(rows, replicas).drain(local).map(|part| self.part(part)).collect::<Result<_>>()?;
        self.consume(rows);
        Ok(Some(parts))
    }

    /// Gives the next parts of the process's own data set to its replicas, in order.
    fn own_step(&mut self) -> Result<Option<PerReplica<E>>> {
        let local = self.share.local.len();
        while self.parts.len() < local {
            let rows = self.rows()?;
            if rows == 0 {
                break;
            }
            let parts = self.own_parts(rows).into_iter().filter(|part| !part.is_empty());
            let parts = parts.map(|part| self.part(part)).collect::<Result<Vec<E>>>()?;
            self.parts.extend(parts);
            self.consume(rows);
        }
        let count = self.parts.len().min(local);
        filled(self.parts.drain(..count).collect(), local)
    }

    /// Returns the parts of `rows` rows. Unless they are chunked, each process begins with the part
    /// sizes of its own replicas. So the parts of all processes make a full batch in the first
    /// step, and in each step if the processes have equal numbers of replicas.
    fn own_parts(&self, rows: usize) -> Vec<Range<usize>> {
        let Share { form, replicas, ref local, .. } = self.share;
        let full = if let Form::Packed(full) = form { full } else { rows };
        let mut counts: Vec<usize> = form.parts(full, replicas).iter().map(Range::len).collect();
        if form != Form::Chunked {
            counts.rotate_left(local.start);
        }
        let mut end = 0;
        let parts = counts.into_iter().map(|count| {
            let start = end;
            end = rows.min(start + count);
            start..end
        });
        parts.collect()
    }

    /// Returns the number of rows of the next step, over all replicas.
    fn rows(&mut self) -> Result<usize> {
        match self.share.form {
            Form::Packed(rows) => Ok(self.fill(rows)?.min(rows)),
            _ => self.fill(1),
        }
    }

    /// Reads batches until `wanted` rows are pending. Returns the number of pending rows, less than
    /// `wanted` only at the end.
    fn fill(&mut self, wanted: usize) -> Result<usize> {
        let mut rows = self.pending.iter().map(|batch| batch.left.len()).sum();
        while rows < wanted
            && let Some(element) = self.elements.next()
        {
            let batch = Batch::new(element?)?;
            // A batch without rows would be a step without rows.
            if !batch.left.is_empty() {
                rows = batch.left.len().saturating_add(rows);
                self.pending.push_back(batch);
            }
        }
        Ok(rows)
    }

    /// Returns the pending rows in `part`.
    fn part(&self, part: Range<usize>) -> Result<E> {
        let first = &self.pending[0];
        let mut pieces: Vec<(&Batch<E>, Range<usize>)> = Vec::new();
        let mut start = 0;
        for batch in &self.pending {
            // Saturated: no part begins beyond that number.
            let end = batch.left.len().saturating_add(start);
            let (from, to) = (part.start.max(start), part.end.min(end));
            if from < to {
                pieces.push((batch, from - start + batch.left.start..to - start + batch.left.start));
            }
            start = end;
        }
        if pieces.is_empty() {
            pieces.push((first, 0..0));
        }
        let unlike =
            |path: &nest::Path| Error::invalid(CALL, path.to_string(), "batches of one structure", "different ones");
        if let Some((path, _)) = pieces.iter().find_map(|(batch, _)| batch.leaves.get(first.leaves.len())) {
            return Err(unlike(path));
        }
        let leaf = |(place, (path, _)): (usize, &(nest::Path, Tensor))| {
            let tensors = pieces.iter().map(|(batch, rows)| match batch.leaves.get(place) {
                Some((other, tensor)) if other == path => tensor.rows(rows.clone()),
                _ => Err(unlike(path)),
            });
            let tensor = join(path, tensors.collect::<Result<_>>()?)?;
            Ok(Leaf { path: path.clone(), value: Value::Dense(tensor) })
        };
        let leaves = first.leaves.iter().enumerate().map(leaf).collect::<Result<_>>()?;
        nest::put(first.empty.clone(), leaves).map_err(|error| error.of_call(CALL))
    }

    /// Removes the first `rows` pending rows.
    fn consume(&mut self, mut rows: usize) {
        while let Some(batch) = self.pending.front_mut() {
            let taken = rows.min(batch.left.len());
            batch.left.start += taken;
            rows -= taken;
            if !batch.left.is_empty() {
                break;
            }
            self.pending.pop_front();
        }
    }
}

impl<E: Nest + Clone> Iterator for Steps<E> {
    type Item = Result<PerReplica<E>>;

    fn next(&mut self) -> Option<Result<PerReplica<E>>> {
        self.step().transpose()
    }
}

/// A batch, split into its tensors.
struct Batch<E> {
    /// The nest without its tensors.
    empty: E,
    leaves: Vec<(nest::Path, Tensor)>,
    /// The rows not given to a replica yet.
    left: Range<usize>,
}

impl<E: Nest> Batch<E> {
    fn new(mut element: E) -> Result<Batch<E>> {
        let mut leaves = Vec::new();
        for mut leaf in nest::take(&mut element) {
            let tensor = std::mem::take(leaf.dense(CALL)?);
            leaves.push((leaf.path, tensor));
        }
        let mut rows = None;
        for (path, tensor) in &leaves {
            let Some(&own) = tensor.shape().first() else { return Err(not_batched(path, &tensor.spec())) };
            if *rows.get_or_insert(own) != own {
                let expected = format!("{} rows, as the first tensor has", rows.unwrap_or(own));
                return Err(Error::invalid(CALL, path.to_string(), expected, own.to_string()));
            }
        }
        // An element without a tensor would be skipped like a batch without rows, possibly without
        // end.
        let Some(rows) = rows else { return Err(not_batched(&nest::Path::default(), "no tensor")) };
        Ok(Batch { empty: element, leaves, left: 0..rows })
    }
}

const CALL: &str = "Strategy::distribute_dataset";

/// The error for an element that cannot be divided among replicas.
pub(crate) fn not_batched(path: &nest::Path, found: &str) -> Error {
    Error::invalid(CALL, path.to_string(), "batches, with rows to divide among replicas (see Dataset::batch)", found)
}

/// Concatenates the rows of all tensors, at least one.
fn join(path: &nest::Path, mut tensors: Vec<Tensor>) -> Result<Tensor> {
    let first = &tensors[0];
    if tensors.len() == 1 {
        return Ok(tensors.swap_remove(0));
    }
    let dtype: DType = first.dtype();
    let unlike = |tensor: &&Tensor| tensor.dtype() != dtype || tensor.shape()[1..] != first.shape()[1..];
    if let Some(other) = tensors.iter().find(unlike) {
        let expected = format!("rows as in the batch before, {}", first.spec());
        return Err(Error::invalid(CALL, path.to_string(), expected, other.spec()));
    }
    let mut shape = first.shape().to_vec();
    shape[0] = tensors.iter().map(|tensor| tensor.shape()[0]).sum();
    let parts: Vec<HostBuf<'_>> = tensors.iter().map(Tensor::host).collect::<Result<_>>()?;
    Tensor::from_memory(shape, HostMemory::concat(dtype, &parts))
}

/// Gives one element to each replica. If there are too few, the last replicas get an element
/// without rows. Returns `None` without elements.
fn filled<E: Nest + Clone>(mut step: Vec<E>, replicas: usize) -> Result<Option<PerReplica<E>>> {
    let Some(first) = step.first() else { return Ok(None) };
    if step.len() < replicas {
        let nothing = without_rows(first.clone())?;
        step.resize(replicas, nothing);
    }
    Ok(Some(PerReplica::new(step)))
}

/// Returns the element without rows in its tensors. A scalar becomes an empty vector.
pub(super) fn without_rows<E: Nest>(mut element: E) -> Result<E> {
    let nothing = |tensor: &Tensor| match tensor.rank() {
        0 => Ok(Tensor::zeros(tensor.dtype(), [0])),
        _ => tensor.rows(0..0),
    };
    let mut leaves = nest::take(&mut element);
    for leaf in &mut leaves {
        leaf.value = match &leaf.value {
            Value::Dense(tensor) => Value::Dense(nothing(tensor)?),
            Value::Sparse(slices) => Value::Sparse(slices.none()?),
        };
    }
    nest::put(element, leaves).map_err(|error| error.of_call(CALL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{Dataset, from_fn};

    /// The steps of batches with these numbers of rows; row values count from 0.
    fn steps(sizes: &'static [usize], form: Form, replicas: usize) -> Vec<Vec<Vec<i32>>> {
        steps_of(sizes, whole(form, replicas))
    }

    /// The share of a process with all replicas.
    fn whole(form: Form, replicas: usize) -> Share {
        Share { form, replicas, local: 0..replicas, own: false }
    }

    fn steps_of(sizes: &'static [usize], share: Share) -> Vec<Vec<Vec<i32>>> {
        let dataset = from_fn(move || {
            let mut next = 0..;
            sizes.iter().map(move |&size| Tensor::from(next.by_ref().take(size).collect::<Vec<i32>>()))
        });
        let rows = |tensor: Tensor| tensor.as_slice().unwrap().to_vec();
        let steps = Steps::new(dataset.iterate(0).unwrap(), share);
        steps.map(|step| step.unwrap().map(rows).into_values()).collect()
    }

    #[test]
    fn packed_rows_cross_the_borders_of_batches() {
        let packed = steps(&[4, 1, 0, 4, 2], Form::Packed(4), 2);
        assert_eq!(packed, [[vec![0, 1], vec![2, 3]], [vec![4, 5], vec![6, 7]], [vec![8, 9], vec![10]]]);
    }

    #[test]
    fn a_batch_without_rows_is_no_step() {
        for form in [Form::Chunked, Form::Balanced, Form::Packed(2)] {
            assert_eq!(steps(&[0, 2, 0], form, 2), [[vec![0], vec![1]]]);
        }
    }

    #[test]
    fn each_replica_gets_an_element() {
        assert_eq!(steps(&[2, 1, 1], Form::Each, 2), [[vec![0, 1], vec![2]], [vec![3], vec![]]]);
    }

    #[test]
    fn a_process_with_its_own_data_set_deals_all_of_it() {
        let steps = |form, local| steps_of(&[4, 4], Share { form, replicas: 3, local, own: true });
        // The two processes have 3 and 1 rows in the first step: a full batch. Then, with unequal
        // numbers of replicas, 3 and 2, and 2 and 1.
        assert_eq!(steps(Form::Packed(4), 0..2), [[vec![0, 1], vec![2]], [vec![3], vec![4, 5]], [vec![6], vec![7]]]);
        assert_eq!(
            steps(Form::Packed(4), 2..3),
            [[vec![0]], [vec![1, 2]], [vec![3]], [vec![4]], [vec![5, 6]], [vec![7]]]
        );
        assert_eq!(steps(Form::Chunked, 1..2), [[vec![0, 1]], [vec![2, 3]], [vec![4, 5]], [vec![6, 7]]]);
        assert_eq!(
            steps(Form::Balanced, 1..2),
            [[vec![0]], [vec![1]], [vec![2, 3]], [vec![4]], [vec![5]], [vec![6, 7]]]
        );
    }

    #[test]
    fn a_process_deals_its_replicas_their_parts_of_all_steps() {
        for form in [Form::Packed(4), Form::Chunked, Form::Balanced] {
            let all = steps(&[4, 1, 0, 4, 2], form, 3);
            for local in [0..1, 1..3, 0..3] {
                let share = Share { form, replicas: 3, local: local.clone(), own: false };
                let parts: Vec<_> = all.iter().map(|step| step[local.clone()].to_vec()).collect();
                assert_eq!(steps_of(&[4, 1, 0, 4, 2], share), parts);
            }
        }
    }

    #[test]
    fn an_element_without_rows_to_divide_is_refused() {
        let error = |element: Vec<Tensor>| {
            let dataset = from_fn(move || [element.clone(), element.clone()]);
            Steps::new(dataset.iterate(0).unwrap(), whole(Form::Chunked, 2)).next().unwrap().unwrap_err()
        };
        assert_eq!(argument(error(vec![Tensor::from(1)])), "value/0");
        assert_eq!(argument(error(vec![Tensor::from([1, 2]), Tensor::from([1])])), "value/1");
        assert_eq!(argument(error(Vec::new())), "value");
    }

    #[test]
    fn batches_of_unlike_rows_are_not_joined() {
        let dataset = from_fn(|| [Tensor::from([[1, 2]]), Tensor::from([[1, 2, 3]])]);
        let mut steps = Steps::new(dataset.iterate(0).unwrap(), whole(Form::Packed(2), 1));
        let error = steps.next().unwrap().unwrap_err();
        assert_eq!(crate::fields::found(&error), "i32[1, 3]");
    }

    #[test]
    fn batches_of_unlike_structures_are_not_joined() {
        let x = Tensor::from([1, 2]);
        for sizes in [[1, 2], [2, 1]] {
            let batches = sizes.map(|size| vec![x.clone(); size]);
            let dataset = from_fn(move || batches.clone());
            let mut steps = Steps::new(dataset.iterate(0).unwrap(), whole(Form::Packed(4), 2));
            assert_eq!(argument(steps.next().unwrap().unwrap_err()), "value/1", "{sizes:?}");
        }
    }

    /// Returns the argument that was refused.
    fn argument(error: Error) -> String {
        match error {
            Error::InvalidCall { argument, .. } => argument,
            error => panic!("{error}"),
        }
    }

    #[test]
    fn parts_share_the_memory_of_their_batch() {
        let batch = Tensor::from([1, 2, 3, 4]);
        let place = batch.as_slice::<i32>().unwrap().as_ptr_range();
        let dataset = from_fn(move || [batch.clone()]);
        for form in [Form::Chunked, Form::Balanced, Form::Packed(4)] {
            let step = Steps::new(dataset.iterate(0).unwrap(), whole(form, 3)).next().unwrap().unwrap();
            for part in step {
                let part = part.as_slice::<i32>().unwrap().as_ptr_range();
                assert!(place.start <= part.start && part.end <= place.end);
            }
        }
    }
}
