//! The views that this process has of segments. It may open the file of a segment several times. A
//! rank has one endpoint all the same, so all views of a segment have the same private state.

use super::{group_id::GroupId, layout::Area, local::Locals};
use crate::sync::fork::PerProcess;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// The private state of the areas of one segment.
#[derive(Default)]
pub(super) struct AreaLocals(Mutex<HashMap<Area, Weak<Locals>>>);

/// The identity of a segment: the device and the inode of its file, and its group. The
/// system may give the number of an inode twice.
type Identity = ((u64, u64), GroupId);

/// The segments of which this process has a view.
static VIEWED: PerProcess<Mutex<HashMap<Identity, Weak<AreaLocals>>>> = PerProcess::new(Mutex::default);

impl AreaLocals {
    /// Returns the private state of a segment, which all its views in this process share.
    pub(super) fn of(segment: Identity) -> Arc<AreaLocals> {
        shared(&mut VIEWED.get().lock().unwrap_or_else(PoisonError::into_inner), segment, AreaLocals::default)
    }

    /// Returns the private state of an area with `ranks` ranks. All its users at a time share it.
    pub(super) fn in_area(&self, area: Area, ranks: usize) -> Arc<Locals> {
        shared(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), area, || Locals::new(ranks))
    }
}

/// Returns the value of a key while somebody has it, else a new one.
fn shared<K: Eq + std::hash::Hash, V>(all: &mut HashMap<K, Weak<V>>, key: K, new: impl FnOnce() -> V) -> Arc<V> {
    if let Some(value) = all.get(&key).and_then(Weak::upgrade) {
        return value;
    }
    let value = Arc::new(new());
    all.retain(|_, other| other.strong_count() > 0);
    all.insert(key, Arc::downgrade(&value));
    value
}
