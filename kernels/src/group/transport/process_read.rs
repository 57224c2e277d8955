//! Steps of processes that read each other's memory in place, by a system call.
//!
//! Each rank tests once whether the system allows this, when all ranks have arrived for the first
//! time. A rank that has staged nothing passes the address of its data. The others read them there
//! if every rank's descriptor announces that it can read the memory of all others. All ranks see
//! the same descriptors, and so choose the same. If not all can read, the data are staged late.
//!
//! # The races, by name
//!
//! * **Gone in the middle.** A rank's process is killed while others read its memory, and another
//!   process gets its id. With the data the system reads the group's name from the same memory. No
//!   other process has the name at that address, so the data came from that process, or the read
//!   fails.
//! * **Given up in the middle.** A rank that gives up ends the group before it returns to code that
//!   may write its data. A rank that read them checks afterwards whether the group was ended,
//!   before it passes on any result (`Endpoint::still_there`).
//! * **Read after return.** A rank whose data were read in place returns when all have *read* them.

use crate::{
    group::{
        end::abort::Fault,
        endpoint::Endpoint,
        staging::{BufferRef, PeerRead, Shown},
    },
    shm::records::CallDescriptor,
};

impl Endpoint {
    /// Whether the system can read this memory of this rank's own process. It cannot read the
    /// memory of a device.
    pub(crate) fn is_read(&self, address: *const u8) -> bool {
        self.state.process(self.world.rank()).is_some_and(|process| process.has_ordinary(address))
    }

    /// Whether every rank can read the memory of all others, according to their descriptors.
    pub(crate) fn all_read(&self) -> bool {
        self.descriptors().all(|descriptor| BufferRef::read(descriptor.input()).reads)
    }

    /// Whether a rank passes an address that not all can read, so that it has to stage the data
    /// after the arrival. A rank that could read does not use the protocol again then.
    pub(crate) fn is_late(&mut self) -> bool {
        let own =
            |descriptor: &CallDescriptor| matches!(BufferRef::read(descriptor.input()).place, Some(Shown::Own(_)));
        let is_late = !self.all_read() && self.descriptors().any(own);
        if is_late {
            self.staging.as_mut().expect("an endpoint with a staging").reach = PeerRead::No;
        }
        is_late
    }

    /// Returns `result`. If a process is gone, waits for its watcher to end the group, and returns
    /// that end.
    pub(crate) fn or_end(&self, result: Result<(), Fault>) -> Result<(), Fault> {
        match result {
            Err(Fault::Missing(gone)) => Err(self.wait_for_end(gone[0])),
            result => result,
        }
    }
}
