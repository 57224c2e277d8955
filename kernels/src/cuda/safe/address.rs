//! Addresses of other libraries' memory: what the driver has there.

use super::context::{Context, Own, Shared};
use crate::cuda::{
    result::DriverError,
    sys::{CUdeviceptr, CUresult, pointer_attribute as attribute},
};
use std::{ffi::c_void, fmt};

/// The thing at an address where a device was expected to have memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No memory that the driver knows.
    Nothing,
    /// Memory that was dropped.
    Dropped,
    /// Fewer bytes.
    Bytes(u64),
    /// Memory of the host.
    Host,
    /// Memory of the device with this number.
    Device(i32),
    /// The driver did not tell.
    Error(DriverError),
}

/// Properties of an address, as the driver tells them.
#[derive(Default)]
struct Attributes {
    kind: u32,
    device: i32,
    start: u64,
    bytes: usize,
}

impl Context {
    /// Checks that the context's device has this many bytes from an address on: memory that is
    /// alive, or that another library has allocated.
    ///
    /// # Errors
    /// What there is.
    pub fn expect_memory(&self, address: u64, bytes: u64) -> Result<(), Found> {
        self.find(&self.lock(), address, bytes)
    }

    /// Does what [`expect_memory`](Context::expect_memory) does, while nothing can be freed.
    pub(super) fn find(&self, shared: &Shared, address: CUdeviceptr, bytes: u64) -> Result<(), Found> {
        match shared.own_memory_at(address) {
            Some(Own::Alive(left)) if left >= bytes => Ok(()),
            // Memory of another library may begin where this one ends.
            Some(Own::Alive(0)) | None => self.find_foreign(address, bytes),
            Some(Own::Alive(left)) => Err(Found::Bytes(left)),
            Some(Own::Dropped) => Err(Found::Dropped),
        }
    }

    /// Finds memory of other libraries, which may be of several allocations that follow each other.
    fn find_foreign(&self, address: CUdeviceptr, bytes: u64) -> Result<(), Found> {
        let mut known = 0;
        loop {
            let at = address.checked_add(known).ok_or(Found::Bytes(known))?;
            let attributes = self.attributes(at).map_err(Found::Error)?;
            let left = attributes.start.saturating_add(attributes.bytes as u64).saturating_sub(at);
            match attributes.kind {
                attribute::DEVICE if attributes.device != self.device().ordinal() as i32 => {
                    return Err(if known == 0 { Found::Device(attributes.device) } else { Found::Bytes(known) });
                }
                attribute::DEVICE if left > 0 => known = known.saturating_add(left),
                attribute::HOST if known == 0 => return Err(Found::Host),
                _ => return Err(if known == 0 { Found::Nothing } else { Found::Bytes(known) }),
            }
            if known >= bytes {
                return Ok(());
            }
        }
    }

    fn attributes(&self, address: CUdeviceptr) -> Result<Attributes, DriverError> {
        let mut found = Attributes::default();
        let mut names =
            [attribute::MEMORY_TYPE, attribute::DEVICE_ORDINAL, attribute::RANGE_START, attribute::RANGE_BYTES];
        let mut values: [*mut c_void; 4] = [
            (&raw mut found.kind).cast(),
            (&raw mut found.device).cast(),
            (&raw mut found.start).cast(),
            (&raw mut found.bytes).cast(),
        ];
        let _entered = self.enter()?;
        // SAFETY: there are as many names as values, each a place of the attribute's type.
        let asked = unsafe { self.functions().pointer_attributes(4, names.as_mut_ptr(), values.as_mut_ptr(), address) };
        match asked {
            // Drivers say so of an address that they do not know, too.
            Err(error) if [CUresult::INVALID_VALUE, CUresult::INVALID_CONTEXT].contains(&error.code) => {
                Ok(Attributes::default())
            }
            asked => asked.map(|()| found),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::Nothing => f.write_str("no memory that the driver knows"),
            Found::Dropped => f.write_str("memory that was dropped"),
            Found::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Found::Host => f.write_str("memory of the host"),
            Found::Device(device) => write!(f, "memory of cuda:{device}"),
            Found::Error(error) => error.fmt(f),
        }
    }
}
