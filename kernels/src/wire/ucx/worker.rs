//! A wire: a context and a worker of UCX, and the endpoints of its peers.

use super::{
    address, exit,
    inbox::{Inbox, Peer, on_arrival, on_error, on_sent},
    library::Library,
    sys::{
        BUSY, CANCELED, CLOSE_FORCE, Completion, ENDPOINT_FIELDS, ERR_HANDLING_MODE_PEER, EndpointParams, FEATURE_AM,
        FEATURE_WAKEUP, Functions, HANDLER_FIELDS, HandlerParams, OK, OPERATION_CALLBACK, OPERATION_FLAGS,
        OPERATION_MEMORY_TYPE, OPERATION_USER_DATA, PARAM_FEATURES, Params, RequestParams, THREAD_MODE_SERIALIZED,
        VERSION, WORKER_THREAD_MODE, WorkerParams,
    },
    transports,
};
use crate::{
    sync::fork::Origin,
    wire::{Absent, Arrived, HEAD, Head, Kind, Medium, WireError, signals},
};
use std::{
    collections::HashMap,
    env,
    ffi::{CString, c_void},
    fmt, mem,
    mem::ManuallyDrop,
    os::fd::BorrowedFd,
    ptr,
    ptr::NonNull,
    rc::Rc,
    slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The transports, unless `UCX_TLS` is set: all but shared memory and GPUs. A name that this UCX
/// does not know is ignored.
const TRANSPORTS: &str = "^sm,cuda,rocm,ze";

/// The size of the pieces into which UCX divides data on TCP: a message of 256 KiB with its heads
/// is one, and so is not copied again to be put together.
const SEGMENT: &str = "272K";

/// The maximum number of rounds of UCX in one [`Medium::progress`], so that a peer that sends
/// without an end does not keep the lock.
const ROUNDS: usize = 256;

/// The time that dropping a wire lets UCX end what was closed.
const CLOSING: Duration = Duration::from_millis(200);

/// The number of our only active message.
const MESSAGE: u32 = 0;

/// A wire of UCX.
pub(in crate::wire) struct Wire {
    library: Library,
    origin: Origin,
    address: Vec<u8>,
    descriptor: i32,
    /// Dropped by hand: not in a forked child.
    state: ManuallyDrop<Arc<Mutex<WorkerState>>>,
}

/// All that is used under the lock.
struct WorkerState {
    functions: Functions,
    context: *mut c_void,
    worker: *mut c_void,
    endpoints: HashMap<usize, Endpoint>,
    /// Requests of endpoints that are being closed.
    closing: Vec<NonNull<c_void>>,
    /// Whether a thread may sleep on the descriptor.
    is_armed: bool,
    /// Whether there is work since the last progress, or left by it.
    has_work: bool,
    /// The peers of all endpoints that there were: an endpoint that is being closed may call back.
    peers: Vec<Rc<Peer>>,
    /// Dropped last: UCX's callbacks write into it.
    inbox: Box<Inbox>,
}

// SAFETY: the pointers are UCX's, which lets any thread use them, one at a time. All owners of the
// reference counts, and all that the cells are reached by, are in this value or in callbacks of
// UCX, which run on the thread that calls UCX with this value.
unsafe impl Send for WorkerState {}

struct Endpoint {
    /// UCX's; none if it was lost, and closed.
    handle: Option<NonNull<c_void>>,
    peer: Rc<Peer>,
}

impl Wire {
    /// Loads UCX and opens a wire. The interface is the name of a network interface, as
    /// `UCX_NET_DEVICES` has it; without one, UCX chooses. Variables `UCX_*` that the user set take
    /// precedence.
    ///
    /// # Errors
    /// Where UCX was looked for, and what was found there.
    pub(in crate::wire) fn open(interface: Option<&str>) -> Result<Wire, Absent> {
        let library = Library::load()?;
        let ended =
            || Absent { kinds: vec![Kind::Ucx], looked: vec![(library.name.clone(), "the process ends".to_owned())] };
        let _opening = exit::opening().ok_or_else(ended)?;
        // UCX loads its transports when it makes a context.
        let kept = signals::keep();
        let opened = WorkerState::open(library.functions, interface);
        drop(kept);
        let refused = |error: WireError| Absent {
            kinds: vec![Kind::Ucx],
            looked: vec![(library.name.clone(), format!("it is UCX {}, but {error}", words(library.version)))],
        };
        let mut state = opened.map_err(refused)?;
        let (address, descriptor) = state.names().map_err(refused)?;
        let address = address::seal(library.version, &address);
        let state = Arc::new(Mutex::new(state));
        exit::note(state.clone());
        Ok(Wire { library, origin: Origin::here(), address, descriptor, state: ManuallyDrop::new(state) })
    }

    /// Takes the lock, but not in a forked child, where another thread may have held it, nor while
    /// the process ends.
    fn lock(&self) -> Result<MutexGuard<'_, WorkerState>, WireError> {
        if self.origin.forked() {
            return Err(WireError::Forked);
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if exit::ends() { Err(WireError::Ended) } else { Ok(state) }
    }
}

impl Medium for Wire {
    fn kind(&self) -> Kind {
        Kind::Ucx
    }

    /// Only processes with the same minor version understand each other.
    fn name(&self) -> String {
        let [major, minor, _] = self.library.version;
        format!("UCX {major}.{minor}")
    }

    fn version(&self) -> [u32; 3] {
        self.library.version
    }

    fn library(&self) -> &str {
        &self.library.name
    }

    fn transports(&self) -> Result<Vec<String>, WireError> {
        let state = self.lock()?;
        // SAFETY: the context lives as long as the state, and this thread has the lock.
        Ok(unsafe { transports::of(&state.functions, state.context) })
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn connect(&self, peer: usize, address: &[u8]) -> Result<(), WireError> {
        let mut state = self.lock()?;
        if state.endpoints.contains_key(&peer) {
            return Err(WireError::Connected { peer });
        }
        let address = address::open(self.library.version, address)?;
        state.connect(peer, &address)
    }

    fn send(&self, peer: usize, head: Head, body: Vec<u8>) -> Result<(), WireError> {
        self.lock()?.send(peer, head, body)
    }

    fn progress(&self) -> Vec<Arrived> {
        let Ok(mut state) = self.lock() else {
            return Vec::new();
        };
        state.progress();
        state.inbox.arrived.take()
    }

    fn arm(&self) -> Result<bool, WireError> {
        self.lock()?.arm()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is the worker's, which lives as long as this.
        Some(unsafe { BorrowedFd::borrow_raw(self.descriptor) })
    }

    fn nap(&self) -> Option<Duration> {
        None
    }

    fn fault(&self) -> Option<(usize, String)> {
        self.lock().ok()?.inbox.faults.borrow_mut().pop_front()
    }

    fn pending(&self) -> usize {
        self.lock().map_or(0, |state| state.inbox.sends.count())
    }

    /// UCX ends the sends to a peer that is gone. The endpoint stays until the wire is dropped: UCX
    /// 1.13 ends the process if one is closed while its connection is made.
    fn part(&self, _peer: usize, _has_failed: bool) {}
}

impl Drop for Wire {
    fn drop(&mut self) {
        let ended = self.lock().map(|mut state| state.end());
        if ended.is_ok() {
            // SAFETY: once, and nobody uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.state) };
        }
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({}, UCX {})", self.library.name, words(self.library.version))
    }
}

impl WorkerState {
    fn open(functions: Functions, interface: Option<&str>) -> Result<WorkerState, WireError> {
        let mut state = WorkerState {
            functions,
            context: ptr::null_mut(),
            worker: ptr::null_mut(),
            endpoints: HashMap::new(),
            closing: Vec::new(),
            is_armed: false,
            has_work: true,
            peers: Vec::new(),
            inbox: Box::new(Inbox::new(functions)),
        };
        let mut config = ptr::null_mut();
        // SAFETY: reads the variables `UCX_*`, and writes a pointer.
        let read = unsafe { (functions.config_read)(ptr::null(), ptr::null(), &mut config) };
        functions.check("ucp_config_read", read)?;
        let settings = [
            ("TLS", Some(TRANSPORTS)),
            ("NET_DEVICES", interface),
            // UCX 1.13 ends the process if a peer's connection closes while data that it does not
            // copy are on their way.
            ("ZCOPY_THRESH", Some("inf")),
            ("RNDV_THRESH", Some("inf")),
            // A segment is a system call on each side. UCX divides data into 8 KiB by default.
            ("TCP_TX_SEG_SIZE", Some(SEGMENT)),
            ("TCP_RX_SEG_SIZE", Some(SEGMENT)),
            // The caller has the errors as values. What UCX says of them goes to its standard
            // output.
            ("LOG_LEVEL", Some("fatal")),
        ];
        let configured = settings.iter().try_for_each(|(name, value)| match value {
            Some(value) if env::var_os(format!("UCX_{name}")).is_none() => {
                let [name, value] = [name, value].map(|text| CString::new(*text).unwrap_or_default());
                // SAFETY: the configuration was read above. The texts end with a zero.
                let status = unsafe { (functions.config_modify)(config, name.as_ptr(), value.as_ptr()) };
                functions.check("ucp_config_modify", status)
            }
            _ => Ok(()),
        });
        let params = Params { field_mask: PARAM_FEATURES, features: FEATURE_AM | FEATURE_WAKEUP, ..Params::default() };
        let started = configured.and_then(|()| {
            let [major, minor] = VERSION;
            // SAFETY: the parameters are set as the mask says. Writes a pointer.
            let status = unsafe { (functions.init)(major, minor, &params, config, &mut state.context) };
            functions.check("ucp_init", status)
        });
        // SAFETY: nobody uses the configuration any more.
        unsafe { (functions.config_release)(config) };
        started?;
        let params = WorkerParams {
            field_mask: WORKER_THREAD_MODE,
            thread_mode: THREAD_MODE_SERIALIZED,
            ..WorkerParams::default()
        };
        // SAFETY: the context was made above. Writes a pointer.
        let status = unsafe { (functions.worker_create)(state.context, &params, &mut state.worker) };
        functions.check("ucp_worker_create", status)?;
        state.inbox.worker.set(state.worker);
        let params = HandlerParams {
            field_mask: HANDLER_FIELDS,
            id: MESSAGE,
            callback: Some(on_arrival),
            argument: ptr::from_ref(&*state.inbox).cast_mut().cast(),
            ..HandlerParams::default()
        };
        // SAFETY: the worker was made above. The inbox is on the heap, and dropped after the
        // worker.
        functions.check("ucp_worker_set_am_recv_handler", unsafe { (functions.set_handler)(state.worker, &params) })?;
        Ok(state)
    }

    /// Returns the worker's address and descriptor.
    fn names(&mut self) -> Result<(Vec<u8>, i32), WireError> {
        let (mut address, mut bytes, mut descriptor) = (ptr::null_mut(), 0, -1);
        // SAFETY: writes a pointer and a number.
        let status = unsafe { (self.functions.worker_address)(self.worker, &mut address, &mut bytes) };
        self.functions.check("ucp_worker_get_address", status)?;
        // SAFETY: UCX has as many bytes there until they are released.
        let copy = unsafe { slice::from_raw_parts(address.cast::<u8>(), bytes) }.to_vec();
        // SAFETY: once, and the bytes were copied.
        unsafe { (self.functions.release_address)(self.worker, address) };
        // SAFETY: writes a number.
        let status = unsafe { (self.functions.worker_descriptor)(self.worker, &mut descriptor) };
        self.functions.check("ucp_worker_get_efd", status)?;
        Ok((copy, descriptor))
    }

    fn connect(&mut self, number: usize, address: &[u8]) -> Result<(), WireError> {
        let peer = self.inbox.peer(number);
        self.peers.push(Rc::clone(&peer));
        let params = EndpointParams {
            field_mask: ENDPOINT_FIELDS,
            address: address.as_ptr().cast(),
            err_mode: ERR_HANDLING_MODE_PEER,
            err_handler: Some(on_error),
            err_argument: Rc::as_ptr(&peer).cast_mut().cast(),
            ..EndpointParams::default()
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the bytes are what UCX gave for an address, by the digest in it. The peer is kept
        // until the worker is destroyed.
        let status = unsafe { (self.functions.endpoint_create)(self.worker, &params, &mut handle) };
        self.functions.check("ucp_ep_create", status)?;
        self.endpoints.insert(number, Endpoint { handle: NonNull::new(handle), peer });
        self.wake();
        Ok(())
    }

    fn send(&mut self, number: usize, head: Head, body: Vec<u8>) -> Result<(), WireError> {
        let Some(Endpoint { handle, peer }) = self.endpoints.get(&number) else {
            return Err(WireError::NotConnected { peer: number });
        };
        let (Some(handle), None) = (handle, peer.lost.get()) else {
            let why = self.functions.text(peer.lost.get().unwrap_or(CANCELED));
            return Err(WireError::Lost { peer: number, why });
        };
        let flight = self.inbox.outgoing(Rc::clone(peer), head, body);
        let params = RequestParams {
            mask: OPERATION_CALLBACK | OPERATION_USER_DATA | OPERATION_MEMORY_TYPE,
            callback: Completion { sent: Some(on_sent) },
            user_data: flight.as_ptr().cast(),
            ..RequestParams::default()
        };
        // SAFETY: the endpoint is open. Head and body stay where they are until UCX calls back,
        // says that it is done, or the worker is destroyed. This thread has the lock, so nobody
        // frees the message meanwhile but the callback, and `started` tells whether it may have
        // run.
        let started = unsafe {
            let (head, body) = (&raw const (*flight.as_ptr()).head, &(*flight.as_ptr()).body);
            let (data, bytes) = (body.as_ptr(), body.len());
            (self.functions.send)(handle.as_ptr(), MESSAGE, head.cast(), HEAD, data.cast(), bytes, &params)
        };
        let request = self.functions.request("ucp_am_send_nbx", started);
        match request {
            // A thread that sleeps has to go on with it.
            Ok(Some(_)) => self.wake(),
            // SAFETY: UCX is done with it or refused it, and calls back in neither case.
            _ => drop(unsafe { self.inbox.take_sent(flight) }),
        }
        request.map(|_| ())
    }

    fn progress(&mut self) {
        (self.is_armed, self.has_work) = (false, false);
        // SAFETY: the worker lives, and only this thread uses it.
        let work = || unsafe { (self.functions.worker_progress)(self.worker) };
        if (0..ROUNDS).all(|_| work() != 0) {
            self.has_work = true;
        }
        self.close_lost();
        let functions = self.functions;
        self.closing.retain(|request| {
            // SAFETY: the request was not freed.
            let is_done = unsafe { (functions.request_status)(request.as_ptr()) } <= OK;
            if is_done {
                // SAFETY: it is complete, and leaves the list.
                unsafe { (functions.request_free)(request.as_ptr()) };
            }
            !is_done
        });
    }

    /// Closes endpoints that had an error, so that UCX ends what they hold. They stay in the table,
    /// as lost ones.
    fn close_lost(&mut self) {
        if !self.inbox.has_lost.take() {
            return;
        }
        let lost = self.endpoints.values_mut().filter(|endpoint| endpoint.peer.lost.get().is_some());
        let handles: Vec<_> = lost.filter_map(|endpoint| endpoint.handle.take()).collect();
        for handle in handles {
            self.close(handle);
            self.has_work = true;
        }
    }

    fn arm(&mut self) -> Result<bool, WireError> {
        if self.has_work || !self.inbox.is_empty() {
            return Ok(false);
        }
        // SAFETY: the worker lives.
        match unsafe { (self.functions.worker_arm)(self.worker) } {
            BUSY => Ok(false),
            status => {
                self.functions.check("ucp_worker_arm", status)?;
                self.is_armed = true;
                Ok(true)
            }
        }
    }

    /// Makes the descriptor readable if a thread may sleep on it.
    fn wake(&mut self) {
        self.has_work = true;
        if mem::take(&mut self.is_armed) {
            // SAFETY: the worker lives. It cannot fail but for a descriptor that is full, which is
            // readable.
            unsafe { (self.functions.worker_signal)(self.worker) };
        }
    }

    /// Closes an endpoint with force. What it holds ends at once or in later rounds of UCX.
    fn close(&mut self, handle: NonNull<c_void>) {
        let params = RequestParams { mask: OPERATION_FLAGS, flags: CLOSE_FORCE, ..RequestParams::default() };
        // SAFETY: the endpoint is open, and nobody uses it afterwards: it is in no table.
        let closed = unsafe { (self.functions.endpoint_close)(handle.as_ptr(), &params) };
        // An error means that there is nothing to close.
        if let Ok(Some(request)) = self.functions.request("ucp_ep_close_nbx", closed) {
            self.closing.push(request);
        }
    }
}

impl WorkerState {
    /// Ends what is on its way, and destroys the worker. UCX answers a message for an endpoint that
    /// is closed on a new one, and ends the process if the peer has ended then: without need, no
    /// endpoint is closed before.
    fn end(&mut self) {
        if self.inbox.sends.count() > 0 {
            for handle in mem::take(&mut self.endpoints).into_values().filter_map(|endpoint| endpoint.handle) {
                self.close(handle);
            }
        }
        let until = Instant::now() + CLOSING;
        while !(self.worker.is_null() || self.closing.is_empty() && self.inbox.sends.count() == 0)
            && Instant::now() < until
        {
            self.progress();
        }
        if !self.worker.is_null() {
            // SAFETY: nobody uses it afterwards. It closes the endpoints, and calls back into the
            // inbox, which is dropped later, and into peers, which are, too. It waits for nobody.
            unsafe { (self.functions.worker_destroy)(mem::replace(&mut self.worker, ptr::null_mut())) };
        }
        if !self.context.is_null() {
            // SAFETY: its only worker is destroyed.
            unsafe { (self.functions.cleanup)(mem::replace(&mut self.context, ptr::null_mut())) };
        }
    }
}

impl Drop for WorkerState {
    fn drop(&mut self) {
        self.end();
    }
}

fn words([major, minor, release]: [u32; 3]) -> String {
    format!("{major}.{minor}.{release}")
}
