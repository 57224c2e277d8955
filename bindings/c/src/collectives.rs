//! Collectives: each blocks, and has a twin that starts it.

use crate::{
    buffers::Check,
    codes::Type,
    comm::{COMMS, Comm, run},
    failure::Failure,
    job::Job,
    requests::{self, Handle},
};
use consonance::{
    Communicator, Error, ReduceOp, Result,
    raw::{Call, Kind},
};
use std::ffi::{c_int, c_void};

/// Starts the work of a collective. If its arguments are wrong, tells the other ranks later.
///
/// # Safety
/// `request` is null or valid for writes.
pub(crate) unsafe fn start<W: FnOnce(&mut Communicator) -> Result<()> + Send + 'static>(
    comm: Comm,
    call: &'static str,
    kind: Kind,
    request: *mut Handle,
    work: impl FnOnce(Check) -> Result<W>,
) -> Result<(), Failure> {
    let shared = COMMS.get(comm)?;
    let (check, order) = (shared.check(call), shared.order());
    match check.pointer("request", request).and_then(|()| work(check)) {
        Ok(work) => {
            let work = move |communicator: &mut Communicator| order.make(communicator, work);
            let started = shared.queue.start_with(shared.timeout(), work);
            // SAFETY: the caller's promise.
            unsafe { requests::give(request, comm, started) }
        }
        Err(error) => {
            let why = Error::other(error.to_string());
            shared.queue.start_with(shared.timeout(), move |communicator| communicator.refuse(kind, &why));
            Err(error.into())
        }
    }
}

/// Declares a collective and its twin. The body makes the job of checked arguments.
macro_rules! collectives {
    ($(
        $(#[$doc:meta])*
        $name:ident, $twin:ident: $kind:ident ($($arg:ident: $type:ty),*) |$check:ident| $body:block
    )*) => {
        functions! {
            $(
                $(#[$doc])*
                fn $name(comm: Comm $(, $arg: $type)*) of comm; {
                    let job = |$check: Check| -> Result<Job> { $body };
                    run(comm, stringify!($name), Kind::$kind, |check| Ok(job(check)?.into_work()))
                }

                #[doc = concat!("Starts [`", stringify!($name), "`].")]
                fn $twin(comm: Comm $(, $arg: $type)*, request: *mut Handle) of comm; {
                    let job = |$check: Check| -> Result<Job> { $body };
                    // SAFETY: the pointer is null or valid.
                    unsafe { start(comm, stringify!($twin), Kind::$kind, request, |check| Ok(job(check)?.into_work())) }
                }
            )*
        }
    };
}

pub(crate) type In = *const c_void;

/// Returns whether this call is in place.
pub(crate) fn same(send: In, recv: *mut c_void) -> bool {
    std::ptr::eq(send, recv)
}

/// The buffers of a reduction of `count` elements: the input unless in place, and the output.
type Buffers = (Option<consonance::raw::Buf<'static>>, consonance::raw::BufMut<'static>);

/// # Safety
/// The memory is lent until the call has ended.
#[inline(always)]
unsafe fn buffers(
    check: Check,
    (send, sent): (In, usize),
    (recv, received): (*mut c_void, usize),
    of: Type,
) -> Result<Buffers> {
    // SAFETY: the caller's promise. In place the larger of the two counts is there.
    unsafe {
        if same(send, recv) {
            return Ok((None, check.in_place("recv", recv, sent.max(received), of)?));
        }
        Ok((Some(check.input("send", send, sent, of)?), check.output("recv", recv, received, of)?))
    }
}

/// Returns the type, the operation and the count of a reduction.
#[inline(always)]
pub(crate) fn reduction(check: Check, count: usize, dtype: c_int, op: c_int) -> Result<(Type, ReduceOp, usize)> {
    let of = check.dtype(dtype)?;
    Ok((of, check.op(op, of)?, check.times("count", count, of.parts)?))
}

collectives! {
    /// Combines all ranks' data on all ranks.
    cons_all_reduce, cons_iall_reduce: AllReduce
    (send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int) |check| {
        let (of, op, count) = reduction(check, count, dtype, op)?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (send, recv) = unsafe { buffers(check, (send, count), (recv, count), of)? };
        Ok(Job::new(Call::AllReduce { op, send, recv }, of))
    }

    /// Combines all ranks' data on all ranks, exactly.
    cons_all_reduce_exact, cons_iall_reduce_exact: AllReduce
    (send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int) |check| {
        let (of, op, count) = reduction(check, count, dtype, op)?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (send, recv) = unsafe { buffers(check, (send, count), (recv, count), of)? };
        Ok(Job::new(Call::AllReduce { op, send, recv }, of).exact())
    }

    /// Combines all ranks' data on the root.
    cons_reduce, cons_ireduce: Reduce
    (send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, root: c_int) |check| {
        let (of, op, count) = reduction(check, count, dtype, op)?;
        let root = check.rank("root", root)?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (send, recv) = unsafe {
            if check.world.rank() == root {
                let (send, recv) = buffers(check, (send, count), (recv, count), of)?;
                (send, Some(recv))
            } else {
                (Some(check.input("send", send, count, of)?), None)
            }
        };
        Ok(Job::new(Call::Reduce { op, send, recv, root }, of))
    }

    /// Combines all ranks' data and gives each rank `count` elements.
    cons_reduce_scatter, cons_ireduce_scatter: ReduceScatter
    (send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int) |check| {
        let (of, op, count) = reduction(check, count, dtype, op)?;
        let all = check.times("count", count, check.world.size())?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (send, recv) = unsafe { buffers(check, (send, all), (recv, count), of)? };
        Ok(Job::new(Call::ReduceScatter { op, send, recv }, of))
    }

    /// Copies the root's data to all ranks.
    cons_broadcast, cons_ibroadcast: Broadcast
    (data: *mut c_void, count: usize, dtype: c_int, root: c_int) |check| {
        let of = check.dtype(dtype)?;
        let (root, count) = (check.rank("root", root)?, check.times("count", count, of.parts)?);
        // SAFETY: the caller lends the memory until the call has ended.
        let data = unsafe {
            match check.world.rank() == root {
                true => check.in_place("data", data, count, of)?,
                false => check.output("data", data, count, of)?,
            }
        };
        Ok(Job::new(Call::Broadcast { data, root }, of))
    }

    /// Concatenates `count` elements of each rank on all ranks.
    cons_all_gather, cons_iall_gather: AllGather
    (send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int) |check| {
        let of = check.dtype(dtype)?;
        let count = check.times("count", count, of.parts)?;
        let all = check.times("count", count, check.world.size())?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (send, recv) = unsafe { buffers(check, (send, count), (recv, all), of)? };
        Ok(Job::new(Call::AllGather { send, recv, counts: None }, of))
    }

    /// Concatenates `counts[r]` elements of each rank `r` on all ranks.
    cons_all_gather_v, cons_iall_gather_v: AllGather
    (send: *const c_void, recv: *mut c_void, counts: *const usize, dtype: c_int) |check| {
        let of = check.dtype(dtype)?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (counts, send, recv) = unsafe {
            let counts = check.counts("counts", counts, of)?;
            let (own, all) = (counts[check.world.rank()], check.total("counts", &counts)?);
            let (send, recv) = buffers(check, (send, own), (recv, all), of)?;
            (counts, send, recv)
        };
        Ok(Job::new(Call::AllGather { send, recv, counts: None }, of).with_counts(counts))
    }

    /// Concatenates `count` elements of each rank on the root.
    cons_gather, cons_igather: Gather
    (send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int) |check| {
        let of = check.dtype(dtype)?;
        let (root, count) = (check.rank("root", root)?, check.times("count", count, of.parts)?);
        let all = check.times("count", count, check.world.size())?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (send, recv) = unsafe { gathered(check, (send, count), (recv, all), of, root)? };
        Ok(Job::new(Call::Gather { send, recv, counts: None, root }, of))
    }

    /// Concatenates `counts[r]` elements of each rank `r` on the root.
    cons_gather_v, cons_igather_v: Gather
    (send: *const c_void, recv: *mut c_void, counts: *const usize, dtype: c_int, root: c_int) |check| {
        let of = check.dtype(dtype)?;
        let root = check.rank("root", root)?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (counts, send, recv) = unsafe {
            let counts = check.counts("counts", counts, of)?;
            let (own, all) = (counts[check.world.rank()], check.total("counts", &counts)?);
            let (send, recv) = gathered(check, (send, own), (recv, all), of, root)?;
            (counts, send, recv)
        };
        Ok(Job::new(Call::Gather { send, recv, counts: None, root }, of).with_counts(counts))
    }

    /// Copies `count` elements of the root's data to each rank.
    cons_scatter, cons_iscatter: Scatter
    (send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int) |check| {
        let of = check.dtype(dtype)?;
        let (root, count) = (check.rank("root", root)?, check.times("count", count, of.parts)?);
        let all = check.times("count", count, check.world.size())?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (send, recv) = unsafe { scattered(check, (send, all), (recv, count), of, root)? };
        Ok(Job::new(Call::Scatter { send, recv, counts: None, root }, of))
    }

    /// Copies `counts[r]` elements of the root's data to each rank `r`.
    cons_scatter_v, cons_iscatter_v: Scatter
    (send: *const c_void, recv: *mut c_void, counts: *const usize, dtype: c_int, root: c_int) |check| {
        let of = check.dtype(dtype)?;
        let root = check.rank("root", root)?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (counts, send, recv) = unsafe {
            let counts = check.counts("counts", counts, of)?;
            let (own, all) = (counts[check.world.rank()], check.total("counts", &counts)?);
            let (send, recv) = scattered(check, (send, all), (recv, own), of, root)?;
            (counts, send, recv)
        };
        Ok(Job::new(Call::Scatter { send, recv, counts: None, root }, of).with_counts(counts))
    }

    /// Copies `count` elements from each rank to each rank.
    cons_all_to_all, cons_iall_to_all: AllToAll
    (send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int) |check| {
        let of = check.dtype(dtype)?;
        let count = check.times("count", count, of.parts)?;
        let all = check.times("count", count, check.world.size())?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (send, recv) = unsafe { buffers(check, (send, all), (recv, all), of)? };
        Ok(Job::new(Call::AllToAll { send, recv, counts: None }, of))
    }

    /// Copies `send_counts[r]` elements to each rank `r`, and `recv_counts[r]` from it.
    cons_all_to_all_v, cons_iall_to_all_v: AllToAll
    (
        send: *const c_void, send_counts: *const usize, recv: *mut c_void, recv_counts: *const usize, dtype: c_int
    ) |check| {
        let of = check.dtype(dtype)?;
        // SAFETY: the caller lends the memory until the call has ended.
        let (counts, recv_counts, send, recv) = unsafe {
            let counts = check.counts("send_counts", send_counts, of)?;
            let recv_counts = check.counts("recv_counts", recv_counts, of)?;
            let sent = check.total("send_counts", &counts)?;
            let received = check.total("recv_counts", &recv_counts)?;
            let (send, recv) = buffers(check, (send, sent), (recv, received), of)?;
            (counts, recv_counts, send, recv)
        };
        Ok(Job::new(Call::AllToAll { send, recv, counts: None }, of).with_counts(counts).with_recv_counts(recv_counts))
    }

    /// Waits for all ranks.
    cons_barrier, cons_ibarrier: Barrier () |_check| {
        Ok(Job::barrier())
    }
}

type Rooted = (Option<consonance::raw::Buf<'static>>, Option<consonance::raw::BufMut<'static>>);

/// # Safety
/// The memory is lent until the call has ended.
unsafe fn gathered(
    check: Check,
    (send, sent): (In, usize),
    (recv, received): (*mut c_void, usize),
    of: Type,
    root: usize,
) -> Result<Rooted> {
    // SAFETY: the caller's promise.
    unsafe {
        if check.world.rank() == root {
            let (send, recv) = buffers(check, (send, sent), (recv, received), of)?;
            return Ok((send, Some(recv)));
        }
        Ok((Some(check.input("send", send, sent, of)?), None))
    }
}

/// # Safety
/// The memory is lent until the call has ended.
unsafe fn scattered(
    check: Check,
    (send, sent): (In, usize),
    (recv, received): (*mut c_void, usize),
    of: Type,
    root: usize,
) -> Result<Rooted> {
    // SAFETY: the caller's promise.
    unsafe {
        if check.world.rank() != root {
            return Ok((None, Some(check.output("recv", recv, received, of)?)));
        }
        let recv = match same(send, recv) {
            true => None,
            false => Some(check.output("recv", recv, received, of)?),
        };
        Ok((Some(check.input("send", send, sent, of)?), recv))
    }
}
