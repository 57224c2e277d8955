//! The comparison of the replicas' parameters.

use crate::{
    Axes, Nest, ReplicaContext, Result, Tensor,
    comm::agreement::Agreement,
    kind,
    value::nest::{self, Leaf, NestSignature, Value},
};
use consonance_kernels::digest::mix;

/// Checks that all replicas have the same parameters, bit for bit: call it before the first step,
/// and after a restore. Replicas exchange digests of 64 bits.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) on every replica, if one differs. It names the first
/// replica that differs from most, and the path of its first tensor that does.
/// [`Error::InvalidCall`](crate::Error::InvalidCall) if a tensor cannot be copied to the host;
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
/// let text = error.to_string();
/// assert!(text.starts_with("training::compare_parameters: mismatch in value/1 of replica 1: expected f32[1] with"));
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
    replica.meet(kind, &Agreement { call: Some(kind), digest, describe: &describe })
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
    let (words, rest) = tensor.host()?.as_bytes().as_chunks();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|&word| u64::from_le_bytes(word));
    Ok(words.fold(tensor.count() as u64, mix))
}
