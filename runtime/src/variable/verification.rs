//! Checks on request: all workers assign the same value.

use super::Variable;
use crate::{IndexedSlices, Result, Tensor, VariableSynchronization};
use consonance_kernels::digest::mix;
use consonance_spec::Kind;

impl Variable {
    /// Returns what was checked. If the options ask for it, compares the operand of an assignment
    /// outside of replicas with those of the other workers first. All workers get the same error if
    /// one differs, or if one was refused.
    pub(super) fn verified<T: Operand>(&self, update: Kind, checked: Result<T>) -> Result<T> {
        let is_copied = self.synchronization() == VariableSynchronization::OnWrite;
        if !is_copied || !self.strategy().options().verifies() || self.strategy().workers().is_none() {
            return checked;
        }
        let operand = self.strategy().or_refuse(update, checked)?;
        let text = format!("{} for variable {}, {}", operand.words(), self.0.number, self.spec());
        self.strategy().agree(update, ("value", &text))?;
        Ok(operand)
    }
}

/// The operand of an assignment.
pub(super) trait Operand {
    /// Returns words that differ if operands differ.
    fn words(&self) -> String;
}

impl Operand for Tensor {
    fn words(&self) -> String {
        const SHOWN: usize = 8;
        let value = if self.count() <= SHOWN { self.to_string() } else { self.spec() };
        let on_host = self.to_host().ok();
        let words = on_host.as_ref().and_then(|tensor| tensor.host().ok()).map_or(0, |host| {
            let bytes = host.as_bytes();
            let word = |chunk: &[u8]| chunk.iter().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
            bytes.chunks(size_of::<u64>()).map(word).fold(bytes.len() as u64, mix)
        });
        format!("{value} with digest {words:016x}")
    }
}

impl Operand for IndexedSlices {
    fn words(&self) -> String {
        format!("rows {} at {}", self.values().words(), self.indices().words())
    }
}
