//! Messages with tags.

use crate::{
    buffers::Check,
    comm::{COMMS, Comm, CommObject, write},
    failure::Failure,
    requests::{self, Handle},
};
use std::ffi::{c_int, c_void};

/// The source of a receive from any rank.
const ANY: c_int = -1;

fn check(shared: &CommObject, call: &'static str) -> Check {
    shared.check(call)
}

fn source(check: Check, from: c_int) -> Result<Option<usize>, Failure> {
    if from == ANY { Ok(None) } else { Ok(Some(check.rank("from", from)?)) }
}

functions! {
    /// Sends a message, and waits until the send has ended.
    fn cons_send(comm: Comm, data: *const c_void, count: usize, dtype: c_int, to: c_int, tag: u64) of comm; {
        let shared = COMMS.get(comm)?;
        let check = check(&shared, "cons_send");
        let of = check.dtype(dtype)?;
        // SAFETY: the caller lends the memory until the function returns.
        let data = unsafe { check.input("data", data, check.times("count", count, of.parts)?, of)? };
        Ok(shared.mailbox(of)?.send(data, check.rank("to", to)?, tag, shared.timeout())?)
    }

    /// Receives a message, and waits until it has come.
    fn cons_recv(
        comm: Comm, data: *mut c_void, count: usize, dtype: c_int, from: c_int, tag: u64, source: *mut c_int,
    ) of comm; {
        let shared = COMMS.get(comm)?;
        let check = check(&shared, "cons_recv");
        let of = check.dtype(dtype)?;
        // SAFETY: the caller lends the memory until the function returns.
        let data = unsafe { check.output("data", data, check.times("count", count, of.parts)?, of)? };
        let sender = shared.mailbox(of)?.recv(data, self::source(check, from)?, tag, shared.timeout())?;
        // SAFETY: the pointer is null or valid.
        if source.is_null() { Ok(()) } else { unsafe { write("source", source, sender as c_int) } }
    }

    /// Starts a send.
    fn cons_isend(
        comm: Comm, data: *const c_void, count: usize, dtype: c_int, to: c_int, tag: u64, request: *mut Handle,
    ) of comm; {
        let shared = COMMS.get(comm)?;
        let check = check(&shared, "cons_isend");
        let of = check.dtype(dtype)?;
        check.pointer("request", request)?;
        // SAFETY: the caller lends the memory until the request has ended.
        let data = unsafe { check.input("data", data, check.times("count", count, of.parts)?, of)? };
        let started = shared.mailbox(of)?.start_send(data, check.rank("to", to)?, tag, shared.timeout());
        // SAFETY: the pointer is valid.
        unsafe { requests::give(request, comm, started) }
    }

    /// Starts a receive.
    fn cons_irecv(
        comm: Comm, data: *mut c_void, count: usize, dtype: c_int, from: c_int, tag: u64, request: *mut Handle,
    ) of comm; {
        let shared = COMMS.get(comm)?;
        let check = check(&shared, "cons_irecv");
        let of = check.dtype(dtype)?;
        check.pointer("request", request)?;
        // SAFETY: the caller lends the memory until the request has ended.
        let data = unsafe { check.output("data", data, check.times("count", count, of.parts)?, of)? };
        let started = shared.mailbox(of)?.start_recv(data, source(check, from)?, tag, shared.timeout());
        // SAFETY: the pointer is valid.
        unsafe { requests::give(request, comm, started) }
    }
}
