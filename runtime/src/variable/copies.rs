//! The copies of a variable that is synchronised on writing, one for each memory of its strategy's
//! devices, and the component of a replica, in the memory of its device.
//!
//! A change computes the new value once, in one memory, and copies it to the others. So the copies
//! have the same bits, those of a NaN, too. They are replaced together after all that can fail.

use super::{Place, Variable};
use crate::{Result, Tensor, execution::context};
use consonance_kernels::memory::Space;

impl Variable {
    /// Changes the value of every copy. If only the host has one, this writes it in place, and what
    /// `change` wrote before an error stays. Else an error leaves all copies as they were.
    ///
    /// # Errors
    /// Those of `change`; [`Error::Timeout`](crate::Error::Timeout) and
    /// [`Error::WrongContext`](crate::Error::WrongContext) if an update has the value;
    /// [`Error::System`](crate::Error::System) if a device has no memory, or cannot be read or
    /// written.
    pub(super) fn change<R>(&self, call: &'static str, change: impl FnOnce(&mut Tensor) -> Result<R>) -> Result<R> {
        if self.is_on_host() {
            return change(&mut *self.0.places[0].write(call, self.strategy())?);
        }
        let mut copies = self.write_all(call)?;
        // This shares the elements, so that `change` does not write them in place.
        let mut value = copies[0].clone();
        let result = change(&mut value)?;
        let spaces = copies.iter().map(|copy| copy.space());
        let values = spaces.map(|space| value.clone().into_space(call, space)).collect::<Result<Vec<_>>>()?;
        copies.iter_mut().zip(values).for_each(|(copy, value)| **copy = value);
        Ok(result)
    }

    /// Returns the copy in this memory. If there is none, the first one.
    pub(super) fn copy_in(&self, space: Space) -> &Place {
        self.0.places.iter().find(|place| place.space() == space).unwrap_or(&self.0.places[0])
    }

    /// Returns the memory of the reader: in a replica of the variable's strategy that of its
    /// device, else the host's.
    pub(super) fn reader_space(&self) -> Space {
        let first = self.strategy().local_replicas().start;
        let device = |replica: usize| self.strategy().worker_devices()[replica - first];
        context::replica_of(self.strategy()).map_or(Space::Host, |replica| device(replica).space())
    }
}

/// Changes a component, whose new value lies in the same memory. If that is the host's, this writes
/// it in place, and what `change` wrote before an error stays. Else an error leaves it as it was.
///
/// # Errors
/// Those of `change`; [`Error::System`](crate::Error::System) if a device has no memory, or cannot
/// be written.
pub(super) fn change_component<R>(
    call: &'static str,
    component: &mut Tensor,
    change: impl FnOnce(&mut Tensor) -> Result<R>,
) -> Result<R> {
    let space = component.space();
    if space == Space::Host {
        return change(component);
    }
    // This shares the elements, so that `change` does not write them in place.
    let mut value = component.clone();
    let result = change(&mut value)?;
    *component = value.into_space(call, space)?;
    Ok(result)
}
