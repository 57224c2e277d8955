//! The comparison of the replicas' parameters.

use crate::{
    Axes, DType, Error, Nest, ReplicaContext, Result, Tensor,
    comm::{agreement::Agreement, call::Call},
    kind,
    value::nest::{self, Leaf, NestSignature, Value},
};
use consonance_kernels::{digest::mix, memory::HostMemory};

/// Checks that all replicas have the same parameters, bit for bit: call it before the first step,
/// and after a restore. Replicas exchange digests of 64 bits. If these differ, they narrow down the
/// first element that does by further exchanges.
///
/// # Errors
/// [`Error::Mismatch`] on every replica, if one differs. It names the first replica that differs
/// from most, and the path of its first tensor that does, with both values of the first element
/// that differs. [`Error::InvalidCall`] if a tensor cannot be copied to the host;
/// otherwise as [`barrier`](ReplicaContext::barrier).
///
/// ```
/// use consonance::{MirroredStrategy, Tensor, training};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2"])?;
/// let error = strategy
///     .run(|replica| {
///         let bias = if replica.replica_id_in_sync_group() == 1 { 0.5f32 } else { 0.0 };
///         training::compare_parameters(replica, &[Tensor::from([1.0f32]), Tensor::from([bias])])
///     })
///     .unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "training::compare_parameters: mismatch in value/1 of replica 1: expected f32[1] with 0 at [0], found 0.5"
/// );
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn compare_parameters<N: Nest + Clone>(replica: &ReplicaContext<'_>, parameters: &N) -> Result<()> {
    let kind = kind::COMPARE_PARAMETERS;
    replica.require(kind.name())?;
    let leaves = nest::take(&mut parameters.clone());
    let digests: Result<Vec<u64>> = leaves.iter().map(digest_of).collect();
    let digests = replica.or_refuse(kind, digests)?;
    let signature = NestSignature::new(&leaves, &Axes::default());
    let digest = digests.iter().fold(signature.digest(), |digest, &leaf| mix(digest, leaf));
    let describe = || {
        let words =
            |((path, spec), digest): ((String, String), &u64)| (path, format!("{spec} with bits {digest:016x}"));
        signature.lines().into_iter().zip(&digests).map(words).collect()
    };
    let met = replica.meet(kind, &Agreement { call: Some(kind), digest, describe: &describe });
    met.map_err(|error| match &error {
        // All replicas made this call, and go on together.
        Error::Mismatch { argument, .. } if argument.starts_with("value") => {
            let found = first_difference(replica, &leaves, signature.digest(), &digests);
            found.ok().flatten().unwrap_or(error)
        }
        _ => error,
    })
}

/// The number of blocks into which the replicas divide a range of elements at once, to find the one
/// that differs.
const BLOCKS: usize = 256;

/// Returns the mismatch of the first element that differs. `None` if that is in no tensor's
/// elements: structures or shapes differ, or the rows of `IndexedSlices`. All replicas make the
/// same exchanges, since they decide by what all of them gave.
fn first_difference(
    replica: &ReplicaContext<'_>,
    leaves: &[Leaf],
    signature: u64,
    digests: &[u64],
) -> Result<Option<Error>> {
    let signatures = exchange(replica, &[signature])?;
    if signatures.iter().any(|other| *other != signatures[0]) {
        return Ok(None);
    }
    let all = exchange(replica, digests)?;
    let votes = |row: &Vec<u64>| all.iter().filter(|other| *other == row).count();
    // The lowest of those with most votes, as in every mismatch.
    let most = (0..all.len()).rev().max_by_key(|&id| votes(&all[id])).unwrap_or(0);
    let differs = |rows: &[Vec<u64>], other: usize| rows[most].iter().zip(&rows[other]).position(|(a, b)| a != b);
    let Some(other) = (0..all.len()).find(|&id| all[id] != all[most]) else { return Ok(None) };
    let Some(Leaf { path, value: Value::Dense(tensor) }) = differs(&all, other).map(|place| &leaves[place]) else {
        return Ok(None);
    };
    let host = tensor.to_host()?;
    let (bytes, size) = (host.host()?.as_bytes(), tensor.dtype().size());
    let mut range = 0..tensor.count();
    while range.len() > 1 {
        let block = range.len().div_ceil(BLOCKS);
        let own: Vec<u64> =
            bytes[range.start * size..range.end * size].chunks(block * size).map(digest_of_bytes).collect();
        let Some(place) = differs(&exchange(replica, &own)?, other) else { return Ok(None) };
        let start = range.start + place * block;
        range = start..range.end.min(start + block);
    }
    let own = &bytes[range.start * size..range.end * size];
    let mut word = [0; 8];
    word[..size].copy_from_slice(own);
    let words = exchange(replica, &[u64::from_le_bytes(word)])?;
    let text = |id: usize| element_text(tensor.dtype(), &words[id][0].to_le_bytes()[..size]);
    let (mut expected, mut found) = (text(most), text(other));
    if expected == found {
        // Not a number, of other bits.
        let bits = |text: String, id: usize| format!("{text} of bits {:0width$x}", words[id][0], width = 2 * size);
        (expected, found) = (bits(expected, most), bits(found, other));
    }
    let expected = format!("{} with {expected} at {:?}", tensor.spec(), position(tensor.shape(), range.start));
    let (call, argument) = (kind::COMPARE_PARAMETERS.to_string(), path.to_string());
    Ok(Some(Error::Mismatch { call, replica: other, argument, expected, found }))
}

/// Gathers the words of every replica, which all have the same number of them.
fn exchange(replica: &ReplicaContext<'_>, own: &[u64]) -> Result<Vec<Vec<u64>>> {
    let mut all = vec![0u64; own.len() * replica.num_replicas_in_sync()];
    let agreement = Agreement { call: Some(kind::COMPARE_PARAMETERS), ..Agreement::NONE };
    let (send, recv) = (Some(own.into()), all.as_mut_slice().into());
    replica.call_with(Call::AllGather { send, recv, counts: None }, &agreement)?;
    Ok(all.chunks(own.len()).map(<[u64]>::to_vec).collect())
}

/// Returns an element as text.
fn element_text(dtype: DType, bytes: &[u8]) -> String {
    let mut memory = HostMemory::zeroed(dtype, 1);
    memory.as_buf_mut().copy_from_bytes(bytes);
    format!("{:#}", Tensor::of_all(memory, Vec::new()))
}

/// Returns the position along each axis of the element at a place in row-major order.
fn position(shape: &[usize], mut place: usize) -> Vec<usize> {
    let along = |&size: &usize| {
        let along = place % size;
        place /= size;
        along
    };
    let mut position: Vec<usize> = shape.iter().rev().map(along).collect();
    position.reverse();
    position
}

/// Returns 64 bits that differ if the bits of the leaves differ, but for one chance in 2^64.
fn digest_of(leaf: &Leaf) -> Result<u64> {
    match &leaf.value {
        Value::Dense(tensor) => digest_of_tensor(tensor),
        Value::Sparse(slices) => Ok(mix(digest_of_tensor(&slices.indices)?, digest_of_tensor(&slices.values)?)),
    }
}

fn digest_of_tensor(tensor: &Tensor) -> Result<u64> {
    let tensor = tensor.to_host()?;
    Ok(mix(digest_of_bytes(tensor.host()?.as_bytes()), tensor.count() as u64))
}

fn digest_of_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|&word| u64::from_le_bytes(word));
    words.fold(bytes.len() as u64, mix)
}
