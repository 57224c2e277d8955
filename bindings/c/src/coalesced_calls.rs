//! All-reduces of several buffers in one call.

use crate::{
    buffers::Check,
    collectives::{reduction, start},
    comm::{Comm, run},
    job::Job,
    requests::Handle,
};
use consonance::{
    Communicator, Result,
    raw::{Call, Kind},
};
use std::ffi::{c_int, c_void};

/// Makes the jobs of several buffers, in place.
///
/// # Safety
/// `data` and `counts` are null or have `buffers` values each. The memory is lent until the call
/// has ended.
unsafe fn jobs(
    check: Check,
    (data, counts, buffers): (*const *mut c_void, *const usize, usize),
    dtype: c_int,
    op: c_int,
) -> Result<impl FnOnce(&mut Communicator) -> Result<()> + Send + 'static> {
    if buffers > 0 && (data.is_null() || counts.is_null()) {
        return Err(check.invalid("data and counts", "pointers to as many values as buffers", "null"));
    }
    let job = |index: usize| {
        // SAFETY: the caller's promise.
        let (data, count) = unsafe { (data.add(index).read(), counts.add(index).read()) };
        let (of, op, count) = reduction(check, count, dtype, op)?;
        // SAFETY: the caller's promise.
        let recv = unsafe { check.in_place("data", data, count, of)? };
        Ok(Job::new(Call::AllReduce { op, send: None, recv }, of))
    };
    let jobs: Vec<Job> = (0..buffers).map(job).collect::<Result<_>>()?;
    Ok(Job::in_turn(jobs))
}

functions! {
    /// Combines all ranks' data in several buffers, in place, on all ranks.
    fn cons_all_reduce_coalesced(
        comm: Comm, data: *const *mut c_void, counts: *const usize, buffers: usize, dtype: c_int, op: c_int,
    ) of comm; {
        // SAFETY: the caller lends the memory until the call has ended.
        let jobs = |check| unsafe { jobs(check, (data, counts, buffers), dtype, op) };
        run(comm, "cons_all_reduce_coalesced", Kind::AllReduce, jobs)
    }

    /// Starts [`cons_all_reduce_coalesced`].
    fn cons_iall_reduce_coalesced(
        comm: Comm, data: *const *mut c_void, counts: *const usize, buffers: usize, dtype: c_int, op: c_int,
        request: *mut Handle,
    ) of comm; {
        // SAFETY: the caller lends the memory until the request has ended.
        let jobs = |check| unsafe { jobs(check, (data, counts, buffers), dtype, op) };
        // SAFETY: the pointer is null or valid.
        unsafe { start(comm, "cons_iall_reduce_coalesced", Kind::AllReduce, request, jobs) }
    }
}
