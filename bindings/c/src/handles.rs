//! Tables of handles.

use crate::{codes, failure::Failure};
use consonance::raw::Origin;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// The process that uses the library.
static ORIGIN: OnceLock<Origin> = OnceLock::new();

/// Whether this process is a fork of the one that uses the library.
pub(crate) fn forked() -> bool {
    ORIGIN.get_or_init(Origin::here).forked()
}

/// Values by handle. A handle has the kind of its table, the number of its slot, and how often the
/// slot was used before.
pub(crate) struct Table<T> {
    kind: u64,
    name: &'static str,
    slots: RwLock<Slots<T>>,
}

struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

struct Slot<T> {
    uses: u64,
    value: Option<Arc<T>>,
}

/// Bits of a handle for the number of the slot, counted from 1, and for its uses.
const INDEX_BITS: u32 = 28;
const USES_BITS: u32 = 28;

impl<T> Table<T> {
    pub(crate) const fn new(kind: u64, name: &'static str) -> Table<T> {
        Table { kind, name, slots: RwLock::new(Slots { slots: Vec::new(), free: Vec::new() }) }
    }

    /// Adds a value and returns its handle.
    pub(crate) fn add(&self, value: T) -> u64 {
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = table.free.pop().unwrap_or(table.slots.len());
        if index == table.slots.len() {
            table.slots.push(Slot { uses: 0, value: None });
        }
        let slot = &mut table.slots[index];
        slot.value = Some(Arc::new(value));
        self.handle(index, slot.uses)
    }

    fn handle(&self, index: usize, uses: u64) -> u64 {
        self.kind << (INDEX_BITS + USES_BITS) | uses << INDEX_BITS | (index as u64 + 1)
    }

    /// Returns the index in a handle.
    fn index(handle: u64) -> Option<usize> {
        ((handle & ((1 << INDEX_BITS) - 1)) as usize).checked_sub(1)
    }

    /// Returns the value of a handle.
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let table = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let slot = Self::index(handle).and_then(|index| Some((index, table.slots.get(index)?)));
        let value = slot.filter(|(index, slot)| self.handle(*index, slot.uses) == handle);
        value.and_then(|(_, slot)| slot.value.clone()).ok_or_else(|| self.freed(handle))
    }

    /// Frees a handle and returns its value.
    pub(crate) fn remove(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let Slots { slots, free } = &mut *table;
        let slot = Self::index(handle).and_then(|index| Some((index, slots.get_mut(index)?)));
        let Some((index, slot)) = slot.filter(|(index, slot)| self.handle(*index, slot.uses) == handle) else {
            return Err(self.freed(handle));
        };
        let value = slot.value.take().ok_or_else(|| self.freed(handle))?;
        slot.uses += 1;
        // A slot whose uses no longer fit a handle is not used again.
        if slot.uses < 1 << USES_BITS {
            free.push(index);
        }
        Ok(value)
    }

    #[cold]
    fn freed(&self, handle: u64) -> Failure {
        match handle {
            0 => Failure::new(codes::CONS_ERR_ARGUMENT, format!("{}: expected a handle, found 0", self.name)),
            _ => Failure::new(
                codes::CONS_ERR_FREED,
                format!("{}: handle {handle:#x} was freed or never made", self.name),
            ),
        }
    }
}
