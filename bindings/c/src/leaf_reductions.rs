//! The reductions of leaves. Each blocks, and has a twin that starts it.

use crate::{
    accumulators::{ACCUMULATORS, Accumulator, of_leaf},
    buffers::Check,
    codes::Type,
    collectives::{In, same, start},
    comm::{Comm, run},
    failure::Failure,
    job::Job,
    leaves::Leaves,
    requests::Handle,
};
use consonance::{
    Error, Result,
    raw::{Buf, BufMut, Call, Kind},
};
use std::ffi::{c_int, c_void};

type Ends = (Option<Buf<'static>>, BufMut<'static>);

/// Returns the buffers of a rank's last leaf, unless the call is in place, and of the result.
///
/// # Safety
/// The memory is lent until the call has ended.
unsafe fn ends(
    check: Check,
    (last, count): (In, usize),
    (recv, received): (*mut c_void, usize),
    of: Type,
) -> Result<Ends> {
    // SAFETY: the caller's promise. In place the whole leaf is there.
    unsafe {
        if same(last, recv) {
            return Ok((None, check.in_place("recv", recv, count, of)?));
        }
        Ok((Some(check.input("last", last, count, of)?), check.output("recv", recv, received, of)?))
    }
}

/// Makes a call on leaves, or starts it for a request. If its arguments are wrong, tells the other
/// ranks.
///
/// # Safety
/// `request` is null or valid for writes.
unsafe fn make(
    (comm, sum): (Comm, Accumulator),
    call: &'static str,
    kind: Kind,
    request: Option<*mut Handle>,
    job: impl FnOnce(Check, &Leaves) -> Result<Job>,
) -> Result<(), Failure> {
    let held = ACCUMULATORS.get(sum);
    let work = |check: Check| match &held {
        Ok(held) => Ok(job(check, &held.leaves)?.with_leaves(&held.leaves).into_work()),
        Err(Failure(freed)) => Err(Error::other(freed.text.clone())),
    };
    let done = match request {
        None => run(comm, call, kind, work),
        // SAFETY: the caller's promise.
        Some(request) => unsafe { start(comm, call, kind, request, work) },
    };
    done.map_err(|failure| held.err().unwrap_or(failure))
}

/// Declares a reduction of leaves and its twin. The body makes the job of checked arguments.
macro_rules! reductions {
    ($(
        $(#[$doc:meta])*
        $name:ident, $twin:ident: $kind:ident ($($arg:ident: $type:ty),*) |$check:ident, $leaves:ident| $body:block
    )*) => {
        functions! {
            $(
                $(#[$doc])*
                fn $name(comm: Comm, sum: Accumulator $(, $arg: $type)*) of comm; {
                    let job = |$check: Check, $leaves: &Leaves| -> Result<Job> { $body };
                    // SAFETY: there is no request.
                    unsafe { make((comm, sum), stringify!($name), Kind::$kind, None, job) }
                }

                #[doc = concat!("Starts [`", stringify!($name), "`].")]
                fn $twin(comm: Comm, sum: Accumulator $(, $arg: $type)*, request: *mut Handle) of comm; {
                    let job = |$check: Check, $leaves: &Leaves| -> Result<Job> { $body };
                    // SAFETY: the pointer is null or valid.
                    unsafe { make((comm, sum), stringify!($twin), Kind::$kind, Some(request), job) }
                }
            )*
        }
    };
}

reductions! {
    /// Combines the leaves of all ranks on all ranks.
    cons_all_reduce_accumulated, cons_iall_reduce_accumulated: AllReduce
    (last: *const c_void, recv: *mut c_void, count: usize, dtype: c_int) |check, leaves| {
        let (of, count) = of_leaf(check, leaves, count, dtype)?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (send, recv) = unsafe { ends(check, (last, count), (recv, count), of)? };
        Ok(Job::new(Call::AllReduce { op: leaves.op(), send, recv }, of))
    }

    /// Combines the leaves of all ranks on the root.
    cons_reduce_accumulated, cons_ireduce_accumulated: Reduce
    (last: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int) |check, leaves| {
        let (of, count) = of_leaf(check, leaves, count, dtype)?;
        let (op, root) = (leaves.op(), check.rank("root", root)?);
        // SAFETY: the caller lends the memory until the call has ended.
        let (send, recv) = unsafe {
            if check.world.rank() == root {
                let (send, recv) = ends(check, (last, count), (recv, count), of)?;
                (send, Some(recv))
            } else {
                (Some(check.input("last", last, count, of)?), None)
            }
        };
        Ok(Job::new(Call::Reduce { op, send, recv, root }, of))
    }

    /// Combines the leaves of all ranks and gives each rank `count` elements.
    cons_reduce_scatter_accumulated, cons_ireduce_scatter_accumulated: ReduceScatter
    (last: *const c_void, recv: *mut c_void, count: usize, dtype: c_int) |check, leaves| {
        let (of, count) = of_leaf(check, leaves, count, dtype)?;
        let all = check.times("count", count, check.world.size())?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (send, recv) = unsafe { ends(check, (last, all), (recv, count), of)? };
        Ok(Job::new(Call::ReduceScatter { op: leaves.op(), send, recv }, of))
    }
}
