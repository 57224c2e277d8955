//! Steps of processes that read each other's memory where it lies, with the help of the system.
//!
//! Whether the system allows it is tried once, when all ranks have arrived for the first time. A
//! rank that has nothing put up tells where its data lie; they are read there if every rank's
//! descriptor says that it can read those of all. All see the same descriptors, and so do the same.
//! If not all can, the data are put up late.
//!
//! # The races, by name
//!
//! * **Gone in the middle.** A rank's process is killed while others read its memory, and another
//!   process gets its number. With the data the system reads the group's name, which that process
//!   and none else has there, from the same memory: it was read from that process, or not at all.
//! * **Given up in the middle.** A rank that gives up says so before it returns to who may write
//!   its data. Who read them looks after that whether the group was ended, before it tells anybody
//!   what it made of them (`Endpoint::still_there`).
//! * **Read after return.** A rank whose data were read returns when all have *read* them.

use crate::{
    group::{
        endpoint::Endpoint,
        fault::Fault,
        staging::{BufferRef, PeerRead, Shown},
    },
    shm::records::CallDescriptor,
};

impl Endpoint {
    /// Whether the system reads this memory of this rank's own: not that of a device.
    pub(crate) fn is_read(&self, address: *const u8) -> bool {
        self.state.process(self.world.rank()).is_some_and(|process| process.has_ordinary(address))
    }

    /// Whether every rank can read the memory of all others, as the descriptors say.
    pub(crate) fn all_read(&self) -> bool {
        self.descriptors().all(|descriptor| BufferRef::read(descriptor.input()).reads)
    }

    /// Whether a rank shows what not all can read, so that it has to put it up after the arrival.
    /// Who could read does not try again then.
    pub(crate) fn is_late(&mut self) -> bool {
        let own =
            |descriptor: &CallDescriptor| matches!(BufferRef::read(descriptor.input()).place, Some(Shown::Own(_)));
        let is_late = !self.all_read() && self.descriptors().any(own);
        if is_late {
            self.staging.as_mut().expect("a endpoint with a staging").reach = PeerRead::No;
        }
        is_late
    }

    /// The result; if a process is not there any more, what those who watch it say of that.
    pub(crate) fn or_end(&self, result: Result<(), Fault>) -> Result<(), Fault> {
        match result {
            Err(Fault::Missing(gone)) => Err(self.wait_for_end(gone[0])),
            result => result,
        }
    }
}
