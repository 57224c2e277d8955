//! Checks on request: no replica contributes a NaN to a reduction.

use crate::{
    CommunicationOptions, Communicator, Error, ReplicaContext, Result,
    comm::{agreement::Agreement, call::Call},
    value::nest::{Leaf, Path, Value},
};
use consonance_kernels::{digest::digest, memory::HostBuf};
use consonance_spec::{DType, Kind, for_each_dtype};

/// The value that replicas compare if some verify and others do not.
const VERIFIES: &str = "true";

impl ReplicaContext<'_> {
    /// Refuses a reduction of `leaves` to which a replica contributes a NaN, if the options ask for
    /// it. All replicas get the same error. They exchange the first leaf that has one.
    pub(crate) fn refuse_nan(
        &self,
        call: &'static str,
        kind: Kind,
        leaves: &[Leaf],
        options: &CommunicationOptions,
    ) -> Result<()> {
        if !options.verifies() {
            return Ok(());
        }
        refuse_nan(call, &mut self.configured(), kind, leaves, first_nan(leaves))
    }

    /// Does [`refuse_nan`](ReplicaContext::refuse_nan) where more contributions than `leaves` may
    /// have a NaN: `own` is the place of the first leaf that has one.
    pub(super) fn refuse_nan_at(
        &self,
        call: &'static str,
        kind: Kind,
        leaves: &[Leaf],
        options: &CommunicationOptions,
        own: impl FnOnce() -> Option<usize>,
    ) -> Result<()> {
        if !options.verifies() {
            return Ok(());
        }
        refuse_nan(call, &mut self.configured(), kind, leaves, own())
    }

    /// Does [`refuse_nan`](ReplicaContext::refuse_nan) on a slice.
    pub(crate) fn refuse_nan_in(&self, call: &'static str, kind: Kind, data: HostBuf<'_>) -> Result<()> {
        if !self.strategy().options().verifies() {
            return Ok(());
        }
        let own = Some(0).filter(|_| any_nan(data));
        compare_nan(call, &mut self.configured(), kind, own, |_| Path::default())
    }
}

/// Refuses a reduction of `leaves` to which a rank contributes a NaN: `own` is the place of the
/// first leaf for which this rank does. All ranks get the same error.
pub(super) fn refuse_nan(
    call: &'static str,
    communicator: &mut Communicator,
    kind: Kind,
    leaves: &[Leaf],
    own: Option<usize>,
) -> Result<()> {
    compare_nan(call, communicator, kind, own, |place| path_of(leaves, place))
}

/// Returns the place of the first leaf that has a NaN.
pub(super) fn first_nan(leaves: &[Leaf]) -> Option<usize> {
    leaves.iter().position(has_nan)
}

/// Returns whether a leaf has a NaN.
pub(super) fn has_nan(leaf: &Leaf) -> bool {
    match &leaf.value {
        // Elements of a device are not read.
        Value::Dense(tensor) => tensor.host().is_ok_and(any_nan),
        Value::Sparse(slices) => slices.values().host().is_ok_and(any_nan),
    }
}

fn path_of(leaves: &[Leaf], place: usize) -> Path {
    leaves.get(place).map_or_else(Path::default, |leaf| leaf.path.clone())
}

/// Exchanges the place of each rank's first leaf that has a NaN.
fn compare_nan(
    call: &'static str,
    communicator: &mut Communicator,
    kind: Kind,
    own: Option<usize>,
    path: impl Fn(usize) -> Path,
) -> Result<()> {
    let send = [own.map_or(0, |place| place as u64 + 1)];
    let mut all = vec![0u64; communicator.size()];
    let describe = || vec![("verify".to_owned(), VERIFIES.to_owned())];
    let agreement = Agreement { call: Some(kind), digest: digest("verify"), describe: &describe };
    let (send, recv) = (Some(send.as_slice().into()), all.as_mut_slice().into());
    communicator.execute(Call::AllGather { send, recv, counts: None }, &agreement)?;
    match all.iter().position(|&place| place > 0) {
        None => Ok(()),
        Some(replica) => {
            // The replicas have not compared their structures yet: the leaf may not be there.
            let path = path(all[replica] as usize - 1).to_string();
            let expected = "no NaN (see CommunicationOptions::verify)";
            Err(Error::invalid(call, path, expected, "NaN").of_replica(replica))
        }
    }
}

/// Returns whether an element is NaN.
fn any_nan(data: HostBuf<'_>) -> bool {
    macro_rules! any {
        (Float $type:ty) => {
            data.as_slice::<$type>().is_some_and(|elements| elements.iter().any(|element| element.is_nan()))
        };
        ($other:ident $type:ty) => {
            false
        };
    }
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
            match data.dtype() {
                $(DType::$variant => any!($class $type),)*
            }
        };
    }
    for_each_dtype!(by_dtype)
}
