//! Accumulators, to which ranks with several contributions add them before a reduction.

use crate::{
    buffers::Check,
    codes::Type,
    collectives::reduction,
    comm::{Comm, run, write},
    handles::Table,
    leaves::Leaves,
};
use consonance::{Communicator, Result, World, raw::Kind};
use std::ffi::{c_int, c_void};

/// The handle of an accumulator.
pub type Accumulator = u64;

/// The object behind a handle of an accumulator.
pub(crate) struct Held {
    pub(crate) leaves: Leaves,
    comm: Comm,
    world: World,
}

pub(crate) static ACCUMULATORS: Table<Held> = Table::new(3, "accumulator");

/// Returns the communicator of an accumulator, for the details of its error.
fn comm_of(sum: Accumulator) -> Comm {
    ACCUMULATORS.get(sum).map_or(0, |held| held.comm)
}

/// Returns the type of a leaf and its number of parts.
pub(crate) fn of_leaf(check: Check, leaves: &Leaves, count: usize, dtype: c_int) -> Result<(Type, usize)> {
    let (of, own) = (check.dtype(dtype)?, leaves.of_type());
    if of != own {
        return Err(check.invalid("dtype", format!("{}, as the accumulator has", own.name), of.name));
    }
    Ok((of, check.times("count", count, of.parts)?))
}

functions! {
    /// Makes room for leaves `start..end` of the `of` leaves of all ranks.
    fn cons_accumulator_init(
        comm: Comm, count: usize, dtype: c_int, op: c_int, start: usize, end: usize, of: usize,
        sum: *mut Accumulator,
    ) of comm; {
        run(comm, "cons_accumulator_init", Kind::AllReduce, |check| {
            check.pointer("sum", sum)?;
            let (dtype, op, count) = reduction(check, count, dtype, op)?;
            Ok(move |communicator: &mut Communicator| {
                let leaves = Leaves::new(communicator, (dtype, op), count, start..end, of)?;
                // SAFETY: the pointer is valid.
                unsafe { sum.write(ACCUMULATORS.add(Held { leaves, comm, world: check.world })) };
                Ok(())
            })
        })
    }

    /// Adds the next leaf.
    fn cons_accumulator_add(
        sum: Accumulator, leaf: *const c_void, count: usize, dtype: c_int,
    ) of comm_of(sum); {
        let held = ACCUMULATORS.get(sum)?;
        let check = Check { call: "cons_accumulator_add", world: held.world, gpu: None };
        let (of, count) = of_leaf(check, &held.leaves, count, dtype)?;
        // SAFETY: the caller lends the memory until the call has ended.
        let leaf = unsafe { check.input("leaf", leaf, count, of)? };
        Ok(held.leaves.add(leaf)?)
    }

    /// Writes the number of leaves that were added since the last call.
    fn cons_accumulator_added(sum: Accumulator, added: *mut usize) of comm_of(sum); {
        // SAFETY: the pointer is null or valid.
        unsafe { write("added", added, ACCUMULATORS.get(sum)?.leaves.added()) }
    }

    /// Drops the leaves that were added.
    fn cons_accumulator_clear(sum: Accumulator) of comm_of(sum); {
        ACCUMULATORS.get(sum)?.leaves.clear();
        Ok(())
    }

    /// Frees the handle.
    fn cons_accumulator_free(sum: Accumulator) of comm_of(sum); {
        ACCUMULATORS.remove(sum).map(drop)
    }
}
