//! The place where UCX's callbacks write, and the messages that UCX holds.
//!
//! A callback runs only inside a call of UCX, on the thread that makes it, so only under the wire's
//! lock. No borrow of a cell here is held over a call of UCX, but those of the callback itself.

use super::sys::{
    ARRIVAL_RENDEZVOUS, ArrivalParams, CANCELED, CONNECTION_RESET, Completion, ENDPOINT_TIMEOUT, Functions,
    INVALID_PARAM, NO_MEMORY, OK, OPERATION_CALLBACK, OPERATION_MEMORY_TYPE, OPERATION_USER_DATA, RequestParams,
    ucs_status_t,
};
use crate::{
    os::available,
    wire::{Arrived, HEAD, Head, UNKNOWN_PEER},
};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    ffi::c_void,
    panic::{self, AssertUnwindSafe},
    process, ptr,
    ptr::NonNull,
    rc::Rc,
    slice,
};

/// A peer, as long as its endpoint may call back.
pub(super) struct Peer {
    pub(super) number: usize,
    /// UCX's first status of its endpoint that is an error.
    pub(super) lost: Cell<Option<ucs_status_t>>,
    inbox: *const Inbox,
}

/// A message that UCX holds: UCX reads it, or writes its body.
pub(super) struct Flight {
    /// The place in the list of such messages.
    at: Cell<usize>,
    inbox: *const Inbox,
    /// To whom the message goes; none if it comes.
    peer: Option<Rc<Peer>>,
    pub(super) head: Head,
    /// Bytes to send; or room for the bytes that come.
    pub(super) body: Vec<u8>,
}

/// Messages that UCX holds, each on the heap. What is left in the list when it is dropped is freed.
#[derive(Default)]
pub(super) struct Flights(RefCell<Vec<NonNull<Flight>>>);

impl Flights {
    fn add(&self, flight: Flight) -> NonNull<Flight> {
        let mut all = self.0.borrow_mut();
        flight.at.set(all.len());
        let flight = NonNull::from(Box::leak(Box::new(flight)));
        all.push(flight);
        flight
    }

    /// Takes a message out of the list.
    ///
    /// # Safety
    /// The message is in the list. UCX does not use it any more.
    unsafe fn take(&self, flight: NonNull<Flight>) -> Box<Flight> {
        let mut all = self.0.borrow_mut();
        // SAFETY: what is in the list was not freed. Only this thread uses it, see the top.
        let at = unsafe { flight.as_ref() }.at.get();
        let taken = all.swap_remove(at);
        assert_eq!(taken, flight, "the place of a message in the list of messages");
        if let Some(moved) = all.get(at) {
            // SAFETY: as above.
            unsafe { moved.as_ref() }.at.set(at);
        }
        // SAFETY: `add` leaked a box, and the list had it once.
        unsafe { Box::from_raw(flight.as_ptr()) }
    }

    pub(super) fn count(&self) -> usize {
        self.0.borrow().len()
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        for flight in self.0.get_mut().drain(..) {
            // SAFETY: `add` leaked a box. The worker was destroyed before the lists, so that UCX
            // does not use it.
            drop(unsafe { Box::from_raw(flight.as_ptr()) });
        }
    }
}

/// The place where callbacks write.
pub(super) struct Inbox {
    pub(super) functions: Functions,
    /// The worker, for the callback that begins to receive.
    pub(super) worker: Cell<*mut c_void>,
    pub(super) arrived: RefCell<Vec<Arrived>>,
    pub(super) faults: RefCell<VecDeque<(usize, String)>>,
    /// Whether a peer was lost since somebody looked.
    pub(super) has_lost: Cell<bool>,
    pub(super) sends: Flights,
    receives: Flights,
}

impl Inbox {
    pub(super) fn new(functions: Functions) -> Inbox {
        Inbox {
            functions,
            worker: Cell::new(ptr::null_mut()),
            arrived: RefCell::default(),
            faults: RefCell::default(),
            has_lost: Cell::new(false),
            sends: Flights::default(),
            receives: Flights::default(),
        }
    }

    pub(super) fn peer(&self, number: usize) -> Rc<Peer> {
        Rc::new(Peer { number, lost: Cell::new(None), inbox: self })
    }

    /// Adds a message that is going to be sent.
    pub(super) fn outgoing(&self, peer: Rc<Peer>, head: Head, body: Vec<u8>) -> NonNull<Flight> {
        self.sends.add(Flight { at: Cell::new(0), inbox: self, peer: Some(peer), head, body })
    }

    /// Whether there is something that nobody has taken.
    pub(super) fn is_empty(&self) -> bool {
        self.arrived.borrow().is_empty() && self.faults.borrow().is_empty()
    }

    fn fault(&self, peer: usize, why: String) {
        self.faults.borrow_mut().push_back((peer, why));
    }

    /// Remembers that an endpoint is lost, and its first error.
    pub(super) fn lose(&self, peer: &Peer, status: ucs_status_t) {
        if peer.lost.get().is_none() {
            peer.lost.set(Some(status));
            self.has_lost.set(true);
            self.fault(peer.number, self.functions.text(status));
        }
    }

    /// Takes a message whose data UCX has here.
    fn eager(&self, head: Head, data: &[u8]) {
        let mut body = Vec::new();
        if body.try_reserve_exact(data.len()).is_err() {
            return self.fault(UNKNOWN_PEER, format!("there is no memory for {} bytes that arrived", data.len()));
        }
        body.extend_from_slice(data);
        self.arrived.borrow_mut().push(Arrived { head, body });
    }

    /// Begins to receive a message whose data are at the sender. Returns the status for UCX.
    ///
    /// # Safety
    /// `descriptor` is that of the message that arrives, of `bytes` bytes.
    unsafe fn rendezvous(&self, head: Head, descriptor: *mut c_void, bytes: usize) -> ucs_status_t {
        let Some(body) = available::room(bytes) else {
            self.fault(UNKNOWN_PEER, format!("there is no memory for a message of {bytes} bytes"));
            // UCX tells the sender.
            return NO_MEMORY;
        };
        let mut flight = self.receives.add(Flight { at: Cell::new(0), inbox: self, peer: None, head, body });
        // SAFETY: the message was made above, and nobody else uses it yet.
        let buffer = unsafe { flight.as_mut() }.body.as_mut_ptr();
        let params = RequestParams {
            mask: OPERATION_CALLBACK | OPERATION_USER_DATA | OPERATION_MEMORY_TYPE,
            callback: Completion { received: Some(on_received) },
            user_data: flight.as_ptr().cast(),
            ..RequestParams::default()
        };
        // SAFETY: the worker lives. The buffer has room for `bytes` bytes, the size of the message.
        // It is freed after UCX has called back, or after the worker was destroyed.
        let started = unsafe { (self.functions.receive)(self.worker.get(), descriptor, buffer.cast(), bytes, &params) };
        match self.functions.request("ucp_am_recv_data_nbx", started) {
            Ok(Some(_)) => {}
            // SAFETY: the receive is complete or did not begin, so UCX uses neither the message nor
            // calls back.
            immediate => unsafe { self.land(flight, immediate.map(|_| bytes).map_err(|error| error.to_string())) },
        }
        OK
    }

    /// Hands a received message on, or the reason why it did not arrive.
    ///
    /// # Safety
    /// The message is in `receives`. UCX does not use it any more, and wrote as many bytes of its
    /// body as `received` says.
    unsafe fn land(&self, flight: NonNull<Flight>, received: Result<usize, String>) {
        // SAFETY: by the caller's promise.
        let Flight { head, mut body, .. } = *unsafe { self.receives.take(flight) };
        match received {
            Ok(bytes) => {
                assert!(bytes <= body.capacity(), "{bytes} bytes received into {}", body.capacity());
                // SAFETY: UCX wrote them, and they fit.
                unsafe { body.set_len(bytes) };
                self.arrived.borrow_mut().push(Arrived { head, body });
            }
            Err(why) => self.fault(UNKNOWN_PEER, format!("a message was not received: {why}")),
        }
    }
}

/// Runs a callback. A panic here is a broken invariant of memory that UCX uses, and must not cross
/// into C.
fn guarded<R>(callback: impl FnOnce() -> R) -> R {
    panic::catch_unwind(AssertUnwindSafe(callback)).unwrap_or_else(|_| process::abort())
}

/// UCX's callback for a message that arrives.
pub(super) unsafe extern "C" fn on_arrival(
    argument: *mut c_void,
    head: *const c_void,
    head_bytes: usize,
    data: *mut c_void,
    bytes: usize,
    params: *const ArrivalParams,
) -> ucs_status_t {
    guarded(|| {
        // SAFETY: the argument is the inbox, which lives longer than the worker.
        let inbox = unsafe { &*argument.cast::<Inbox>() };
        // SAFETY: UCX passes its parameters.
        let is_rendezvous = unsafe { &*params }.attributes & ARRIVAL_RENDEZVOUS != 0;
        if head.is_null() || head_bytes != HEAD {
            inbox.fault(UNKNOWN_PEER, format!("a message arrived with a head of {head_bytes} bytes, not {HEAD}"));
            // Only the answer for data that are still at the sender may be an error.
            return if is_rendezvous { INVALID_PARAM } else { OK };
        }
        // SAFETY: the head has as many bytes. Bytes have no alignment.
        let head = unsafe { head.cast::<Head>().read() };
        if is_rendezvous {
            // SAFETY: UCX passes the descriptor and the size.
            return unsafe { inbox.rendezvous(head, data, bytes) };
        }
        let data = match bytes {
            0 => &[],
            // SAFETY: UCX passes as many bytes, which stay until the callback returns.
            _ => unsafe { slice::from_raw_parts(data.cast::<u8>(), bytes) },
        };
        inbox.eager(head, data);
        OK
    })
}

unsafe extern "C" fn on_received(request: *mut c_void, status: ucs_status_t, bytes: usize, user_data: *mut c_void) {
    guarded(|| {
        let flight = NonNull::new(user_data.cast::<Flight>()).expect("the message that was passed");
        // SAFETY: the message is in the list until it is taken. The inbox lives longer.
        let inbox = unsafe { &*flight.as_ref().inbox };
        match status {
            // SAFETY: UCX calls back once, when the receive is complete.
            OK => unsafe { inbox.land(flight, Ok(bytes)) },
            // The endpoint was closed or lost. If it is lost, its own callback says so.
            // SAFETY: as above.
            CANCELED | CONNECTION_RESET | ENDPOINT_TIMEOUT => drop(unsafe { inbox.receives.take(flight) }),
            // SAFETY: as above.
            _ => unsafe { inbox.land(flight, Err(inbox.functions.text(status))) },
        }
        // SAFETY: the request is complete. A callback may free it.
        unsafe { (inbox.functions.request_free)(request) };
    });
}

/// UCX's callback for a send that is complete.
pub(super) unsafe extern "C" fn on_sent(request: *mut c_void, status: ucs_status_t, user_data: *mut c_void) {
    guarded(|| {
        let flight = NonNull::new(user_data.cast::<Flight>()).expect("the message that was passed");
        // SAFETY: the message is in the list until it is taken. The inbox lives longer.
        let inbox = unsafe { &*flight.as_ref().inbox };
        // SAFETY: UCX calls back once, when the send is complete.
        let flight = unsafe { inbox.take_sent(flight) };
        if let Some(peer) = &flight.peer
            && !matches!(status, OK | CANCELED)
        {
            inbox.lose(peer, status);
        }
        // SAFETY: the request is complete. A callback may free it.
        unsafe { (inbox.functions.request_free)(request) };
    });
}

/// UCX's callback for an endpoint that has an error.
pub(super) unsafe extern "C" fn on_error(argument: *mut c_void, _endpoint: *mut c_void, status: ucs_status_t) {
    guarded(|| {
        // SAFETY: the argument is a peer, which lives longer than the worker.
        let peer = unsafe { &*argument.cast::<Peer>() };
        // SAFETY: the inbox lives longer than the worker.
        unsafe { &*peer.inbox }.lose(peer, status);
    });
}

impl Inbox {
    /// Takes a message that is sent, or that UCX refused.
    ///
    /// # Safety
    /// The message is in `sends`. UCX does not use it any more.
    pub(super) unsafe fn take_sent(&self, flight: NonNull<Flight>) -> Box<Flight> {
        // SAFETY: by the caller's promise.
        unsafe { self.sends.take(flight) }
    }
}
