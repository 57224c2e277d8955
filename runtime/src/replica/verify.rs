//! Checks on request: no replica contributes a NaN to a reduction.

use crate::{
    CommunicationOptions, Error, ReplicaContext, Result,
    comm::{agreement::Agreement, call::Call},
    value::nest::{Leaf, Path, Value},
};
use consonance_kernels::{digest::digest, memory::HostBuf};
use consonance_spec::{DType, Kind, for_each_dtype};

/// What replicas compare if some verify and others do not.
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
        let has_nan = |leaf: &Leaf| match &leaf.value {
            // Elements of a device are not read.
            Value::Dense(tensor) => tensor.host().is_ok_and(has_nan),
            Value::Sparse(slices) => slices.values().host().is_ok_and(has_nan),
        };
        let path = |place: usize| leaves.get(place).map_or_else(Path::default, |leaf| leaf.path.clone());
        self.compare_nan(call, kind, leaves.iter().position(has_nan), path)
    }

    /// Does [`refuse_nan`](ReplicaContext::refuse_nan) on a slice.
    pub(crate) fn refuse_nan_in(&self, call: &'static str, kind: Kind, data: HostBuf<'_>) -> Result<()> {
        if !self.strategy().options().verifies() {
            return Ok(());
        }
        self.compare_nan(call, kind, Some(0).filter(|_| has_nan(data)), |_| Path::default())
    }

    fn compare_nan(
        &self,
        call: &'static str,
        kind: Kind,
        own: Option<usize>,
        path: impl Fn(usize) -> Path,
    ) -> Result<()> {
        let own = own.map_or(0, |place| place as u64 + 1);
        let mut all = vec![0u64; self.num_replicas_in_sync()];
        let (send, own) = ([own], all.as_mut_slice().into());
        let describe = || vec![("verify".to_owned(), VERIFIES.to_owned())];
        let agreement = Agreement { call: Some(kind), digest: digest("verify"), describe: &describe };
        self.call_with(Call::AllGather { send: Some(send.as_slice().into()), recv: own, counts: None }, &agreement)?;
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
}

/// Returns whether an element is NaN.
fn has_nan(data: HostBuf<'_>) -> bool {
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
