//! Loads and stores of a warp.

use super::{
    failure::{AccessFailure, Failure, Party},
    machine::Machine,
    warp::{Warp, lanes},
};
use crate::{
    fault::FaultKind,
    memory_map::{self, CALL_PARAMETERS},
    parse::Space,
    program::Access,
};

/// The bytes of the largest vector.
const LARGEST: usize = 64;

impl Warp {
    /// Executes a load.
    pub(crate) fn load(
        &mut self,
        access: &Access,
        step: usize,
        active: u32,
        machine: &mut Machine<'_>,
    ) -> Result<(), Failure> {
        let bytes = access.bytes as usize;
        let total = bytes * access.elements.len();
        let base = self.planes[access.base as usize];
        let stamp = self.stamp(step, machine)?;
        let (shift, mask) = (64 - access.bytes * 8, u64::MAX >> (64 - access.register_bits));
        for lane in lanes(active) {
            let address = base[lane].wrapping_add_signed(access.offset);
            let failed = |failure| failed(failure, step, lane, address, total);
            let place = resolve(access.space, address);
            check_alignment(address, total).map_err(failed)?;
            let data = match place.0 {
                Space::Local => {
                    let place =
                        self.local_place(place.1, total, machine).map_err(failed)? + self.local_start(lane, machine);
                    self.local.read(place, total).map_err(|refusal| failed(refusal.into()))?
                }
                _ => machine.read(place, total, stamp + lane as u32, access.is_read_only).map_err(failed)?,
            };
            for (element, data) in access.elements.iter().zip(data.chunks_exact(bytes)) {
                let Some(register) = element else { continue };
                let mut whole = [0; 8];
                whole[..bytes].copy_from_slice(data);
                let value = u64::from_le_bytes(whole);
                let value = if access.is_signed { (((value << shift) as i64) >> shift) as u64 } else { value };
                self.planes[*register as usize][lane] = value & mask;
            }
        }
        Ok(())
    }

    /// Executes a store.
    pub(crate) fn store(
        &mut self,
        access: &Access,
        step: usize,
        active: u32,
        machine: &mut Machine<'_>,
    ) -> Result<(), Failure> {
        let bytes = access.bytes as usize;
        let total = bytes * access.elements.len();
        let base = self.planes[access.base as usize];
        let stamp = self.stamp(step, machine)?;
        let mut data = [0; LARGEST];
        for lane in lanes(active) {
            let address = base[lane].wrapping_add_signed(access.offset);
            let failed = |failure| failed(failure, step, lane, address, total);
            for (element, data) in access.elements.iter().zip(data.chunks_exact_mut(bytes)) {
                let register = element.expect("each element of a store has a register");
                data.copy_from_slice(&self.planes[register as usize][lane].to_le_bytes()[..bytes]);
            }
            let place = resolve(access.space, address);
            check_alignment(address, total).map_err(failed)?;
            let to = match place.0 {
                Space::Local => {
                    let place =
                        self.local_place(place.1, total, machine).map_err(failed)? + self.local_start(lane, machine);
                    self.local.write(place, total).map_err(|refusal| failed(refusal.into()))?
                }
                _ => machine.write(place, total, stamp + lane as u32).map_err(failed)?,
            };
            to.copy_from_slice(&data[..total]);
        }
        Ok(())
    }

    /// Returns an offset in the local memory of a thread, if all bytes are in it.
    fn local_place(&self, offset: u64, bytes: usize, machine: &Machine<'_>) -> Result<u64, AccessFailure> {
        let end = offset.checked_add(bytes as u64);
        match end {
            Some(end) if end <= machine.program.local_bytes.into() => Ok(offset),
            _ => Err(FaultKind::OutOfBounds.into()),
        }
    }

    fn local_start(&self, lane: usize, machine: &Machine<'_>) -> u64 {
        lane as u64 * u64::from(machine.program.local_bytes)
    }
}

/// Returns the space and address that an access is to. The parameters of calls are local memory.
fn resolve(space: Space, address: u64) -> (Space, u64) {
    let (space, address) = match space {
        Space::Generic => memory_map::space_of(address),
        _ => (space, address),
    };
    match space {
        Space::Parameter if address >= CALL_PARAMETERS => (Space::Local, address - CALL_PARAMETERS),
        _ => (space, address),
    }
}

fn check_alignment(address: u64, bytes: usize) -> Result<(), AccessFailure> {
    if address.is_multiple_of(bytes as u64) { Ok(()) } else { Err(FaultKind::Misaligned.into()) }
}

fn failed(failure: AccessFailure, step: usize, lane: usize, address: u64, bytes: usize) -> Failure {
    let what = format!("an access of {bytes} bytes");
    let new = |kind| Failure::new(kind, step, lane as u32, what).at(address);
    match failure {
        AccessFailure::Refused(kind) => new(kind),
        AccessFailure::Race(stamp) => new(FaultKind::Race).with(Party::Access(stamp)),
        AccessFailure::ReadOnly(stamp) => new(FaultKind::ReadOnly).with(Party::Access(stamp)),
    }
}
