//! Reduce-scatters of parts that differ in size: a reduce of each part.

use crate::{
    buffers::Check,
    collectives::{In, reduction, same, start},
    comm::{Comm, run},
    job::Job,
    requests::Handle,
};
use consonance::{
    Communicator, Result,
    raw::{Call, Kind},
};
use std::ffi::{c_int, c_void};

/// Makes the jobs of all parts.
///
/// # Safety
/// `counts` is null or has a count for each rank. The memory is lent until the call has ended.
unsafe fn jobs(
    check: Check,
    (send, recv): (In, *mut c_void),
    counts: *const usize,
    dtype: c_int,
    op: c_int,
) -> Result<impl FnOnce(&mut Communicator) -> Result<()> + Send + 'static> {
    let (of, op, _) = reduction(check, 0, dtype, op)?;
    // SAFETY: the caller's promise.
    let counts = unsafe { check.counts("counts", counts, of)? };
    check.total("counts", &counts)?;
    let mut jobs = Vec::with_capacity(counts.len());
    let mut offset = 0;
    for (root, &count) in counts.iter().enumerate() {
        let part = if send.is_null() { send } else { send.wrapping_byte_add(offset * of.dtype.size()) };
        // SAFETY: the caller's promise. In place the part is in memory that is written.
        let (send, recv) = unsafe {
            match (check.world.rank() == root, same(send, recv)) {
                (false, _) => (Some(check.input("send", part, count, of)?), None),
                (true, true) => (None, Some(check.in_place("recv", part.cast_mut(), count, of)?)),
                (true, false) => {
                    (Some(check.input("send", part, count, of)?), Some(check.output("recv", recv, count, of)?))
                }
            }
        };
        jobs.push(Job::new(Call::Reduce { op, send, recv, root }, of));
        offset += count;
    }
    Ok(Job::in_turn(jobs))
}

functions! {
    /// Combines all ranks' data and gives each rank `r` `counts[r]` elements.
    fn cons_reduce_scatter_v(
        comm: Comm, send: *const c_void, recv: *mut c_void, counts: *const usize, dtype: c_int, op: c_int,
    ) of comm; {
        // SAFETY: the caller lends the memory until the call has ended.
        let jobs = |check| unsafe { jobs(check, (send, recv), counts, dtype, op) };
        run(comm, "cons_reduce_scatter_v", Kind::Reduce, jobs)
    }

    /// Starts [`cons_reduce_scatter_v`].
    fn cons_ireduce_scatter_v(
        comm: Comm, send: *const c_void, recv: *mut c_void, counts: *const usize, dtype: c_int, op: c_int,
        request: *mut Handle,
    ) of comm; {
        // SAFETY: the caller lends the memory until the request has ended.
        let jobs = |check| unsafe { jobs(check, (send, recv), counts, dtype, op) };
        // SAFETY: the pointer is null or valid.
        unsafe { start(comm, "cons_ireduce_scatter_v", Kind::Reduce, request, jobs) }
    }
}
