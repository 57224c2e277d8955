//! Declarations of UCX's functions and structs, and how the functions are found in its library.
//!
//! Checked against the headers: a C program printed the sizes and offsets of all fields here, and
//! the constants, with the headers of 1.13.1, 1.20.1 and 1.22.0. They are the same in all three. Of
//! the structs, `ucp_params_t` has more fields at its end since 1.20, and `ucp_request_param_t`
//! since 1.22. The mask says which fields count, so a field that is not in it is never read.
//! Structs that may grow have [`Reserved`] words at their end here, so that a library that copies
//! its own, longer struct reads memory of ours.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A status. In C it is an enum that is packed into one byte.
#[allow(non_camel_case_types, reason = "the name in UCX's headers")]
pub(super) type ucs_status_t = i8;
/// A request, or a status in the last 100 addresses; null for success.
#[allow(non_camel_case_types, reason = "the name in UCX's headers")]
pub(super) type ucs_status_ptr_t = *mut c_void;

/// The call succeeded.
pub(super) const OK: ucs_status_t = 0;
/// The system has too little memory.
pub(super) const NO_MEMORY: ucs_status_t = -4;
/// An argument is outside its range.
pub(super) const INVALID_PARAM: ucs_status_t = -5;
/// There is something to do first.
pub(super) const BUSY: ucs_status_t = -15;
/// The operation was canceled: its endpoint was closed or lost.
pub(super) const CANCELED: ucs_status_t = -16;
/// The peer closed the connection.
pub(super) const CONNECTION_RESET: ucs_status_t = -25;
/// The peer does not answer.
pub(super) const ENDPOINT_TIMEOUT: ucs_status_t = -80;
/// The least status.
pub(super) const LAST: ucs_status_t = -100;

/// The version of the headers that these declarations follow, and the oldest library.
pub(super) const VERSION: [c_uint; 2] = [1, 13];

/// Words for fields that later versions add.
pub(super) type Reserved = [u64; 8];

/// Parameters of a context.
#[repr(C)]
pub(super) struct Params {
    pub(super) field_mask: u64,
    pub(super) features: u64,
    pub(super) request_size: usize,
    pub(super) request_init: *mut c_void,
    pub(super) request_cleanup: *mut c_void,
    pub(super) tag_sender_mask: u64,
    pub(super) mt_workers_shared: c_int,
    pub(super) estimated_num_eps: usize,
    pub(super) estimated_num_ppn: usize,
    pub(super) name: *const c_char,
    pub(super) reserved: Reserved,
}

/// The field `features`.
pub(super) const PARAM_FEATURES: u64 = 1 << 0;
/// A descriptor to sleep on.
pub(super) const FEATURE_WAKEUP: u64 = 1 << 4;
/// Active messages.
pub(super) const FEATURE_AM: u64 = 1 << 6;

/// Parameters of a worker.
#[repr(C)]
pub(super) struct WorkerParams {
    pub(super) field_mask: u64,
    pub(super) thread_mode: c_int,
    pub(super) cpu_mask: [u64; 16],
    pub(super) events: c_uint,
    pub(super) user_data: *mut c_void,
    pub(super) event_fd: c_int,
    pub(super) flags: u64,
    pub(super) name: *const c_char,
    pub(super) am_alignment: usize,
    pub(super) client_id: u64,
    pub(super) reserved: Reserved,
}

/// The field `thread_mode`.
pub(super) const WORKER_THREAD_MODE: u64 = 1 << 0;
/// One thread at a time.
pub(super) const THREAD_MODE_SERIALIZED: c_int = 1;

/// An address of a socket. Not used.
#[repr(C)]
pub(super) struct SockAddr {
    pub(super) address: *const c_void,
    pub(super) bytes: u32,
}

/// Parameters of an endpoint.
#[repr(C)]
pub(super) struct EndpointParams {
    pub(super) field_mask: u64,
    pub(super) address: *const c_void,
    pub(super) err_mode: c_int,
    pub(super) err_handler: Option<ErrorCallback>,
    pub(super) err_argument: *mut c_void,
    pub(super) user_data: *mut c_void,
    pub(super) flags: c_uint,
    pub(super) sockaddr: SockAddr,
    pub(super) conn_request: *mut c_void,
    pub(super) name: *const c_char,
    pub(super) local_sockaddr: SockAddr,
    pub(super) reserved: Reserved,
}

/// The fields `address`, `err_mode` and `err_handler` with `err_argument`.
pub(super) const ENDPOINT_FIELDS: u64 = 1 << 0 | 1 << 1 | 1 << 2;
/// An error of a peer is reported, and ends its endpoint alone.
pub(super) const ERR_HANDLING_MODE_PEER: c_int = 1;
/// Closes an endpoint without its peer.
pub(super) const CLOSE_FORCE: u32 = 1 << 0;

/// A handler of active messages.
#[repr(C)]
pub(super) struct HandlerParams {
    pub(super) field_mask: u64,
    pub(super) id: c_uint,
    pub(super) flags: u32,
    pub(super) callback: Option<ArrivalCallback>,
    pub(super) argument: *mut c_void,
    pub(super) reserved: Reserved,
}

/// The fields `id`, `callback` and `argument`.
pub(super) const HANDLER_FIELDS: u64 = 1 << 0 | 1 << 2 | 1 << 3;

/// UCX's words about a message that arrives.
#[repr(C)]
pub(super) struct ArrivalParams {
    pub(super) attributes: u64,
    pub(super) reply_endpoint: *mut c_void,
}

/// The data are still at the sender.
pub(super) const ARRIVAL_RENDEZVOUS: u64 = 1 << 17;

/// Parameters of an operation.
#[repr(C)]
pub(super) struct RequestParams {
    pub(super) mask: u32,
    pub(super) flags: u32,
    pub(super) request: *mut c_void,
    pub(super) callback: Completion,
    pub(super) datatype: u64,
    pub(super) user_data: *mut c_void,
    pub(super) reply_buffer: *mut c_void,
    pub(super) memory_type: c_int,
    pub(super) received: *mut usize,
    pub(super) memory_handle: *mut c_void,
    pub(super) reserved: Reserved,
}

/// The field `callback`.
pub(super) const OPERATION_CALLBACK: u32 = 1 << 1;
/// The field `user_data`.
pub(super) const OPERATION_USER_DATA: u32 = 1 << 2;
/// The field `flags`.
pub(super) const OPERATION_FLAGS: u32 = 1 << 4;
/// The field `memory_type`. Zero is the memory of the host.
pub(super) const OPERATION_MEMORY_TYPE: u32 = 1 << 6;

/// Is called when an active message arrives: argument, head and its bytes, data and their bytes.
pub(super) type ArrivalCallback =
    unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void, usize, *const ArrivalParams) -> ucs_status_t;
/// Is called when a send is complete: request, status, user data.
pub(super) type SentCallback = unsafe extern "C" fn(*mut c_void, ucs_status_t, *mut c_void);
/// Is called when a receive is complete: request, status, bytes, user data.
pub(super) type ReceivedCallback = unsafe extern "C" fn(*mut c_void, ucs_status_t, usize, *mut c_void);
/// Is called when an endpoint has an error: argument, endpoint, status.
pub(super) type ErrorCallback = unsafe extern "C" fn(*mut c_void, *mut c_void, ucs_status_t);

/// The callback of an operation. Which of the two it is follows from the operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Completion {
    /// Of a send.
    pub(super) sent: Option<SentCallback>,
    /// Of a receive.
    pub(super) received: Option<ReceivedCallback>,
}

functions! {
    version = ucp_get_version(major: *mut c_uint, minor: *mut c_uint, release: *mut c_uint);
    status_string = ucs_status_string(status: ucs_status_t) -> *const c_char;
    config_read = ucp_config_read(
        prefix: *const c_char, file: *const c_char, config: *mut *mut c_void
    ) -> ucs_status_t;
    config_modify = ucp_config_modify(config: *mut c_void, name: *const c_char, value: *const c_char) -> ucs_status_t;
    config_release = ucp_config_release(config: *mut c_void);
    init = ucp_init_version(
        major: c_uint, minor: c_uint, params: *const Params, config: *const c_void, context: *mut *mut c_void
    ) -> ucs_status_t;
    cleanup = ucp_cleanup(context: *mut c_void);
    print_context = ucp_context_print_info(context: *mut c_void, stream: *mut libc::FILE);
    worker_create = ucp_worker_create(
        context: *mut c_void, params: *const WorkerParams, worker: *mut *mut c_void
    ) -> ucs_status_t;
    worker_destroy = ucp_worker_destroy(worker: *mut c_void);
    worker_address = ucp_worker_get_address(
        worker: *mut c_void, address: *mut *mut c_void, bytes: *mut usize
    ) -> ucs_status_t;
    release_address = ucp_worker_release_address(worker: *mut c_void, address: *mut c_void);
    worker_descriptor = ucp_worker_get_efd(worker: *mut c_void, descriptor: *mut c_int) -> ucs_status_t;
    worker_arm = ucp_worker_arm(worker: *mut c_void) -> ucs_status_t;
    worker_signal = ucp_worker_signal(worker: *mut c_void) -> ucs_status_t;
    worker_progress = ucp_worker_progress(worker: *mut c_void) -> c_uint;
    set_handler = ucp_worker_set_am_recv_handler(worker: *mut c_void, params: *const HandlerParams) -> ucs_status_t;
    endpoint_create = ucp_ep_create(
        worker: *mut c_void, params: *const EndpointParams, endpoint: *mut *mut c_void
    ) -> ucs_status_t;
    endpoint_close = ucp_ep_close_nbx(endpoint: *mut c_void, params: *const RequestParams) -> ucs_status_ptr_t;
    send = ucp_am_send_nbx(
        endpoint: *mut c_void, id: c_uint, head: *const c_void, head_bytes: usize, data: *const c_void, count: usize,
        params: *const RequestParams
    ) -> ucs_status_ptr_t;
    receive = ucp_am_recv_data_nbx(
        worker: *mut c_void, descriptor: *mut c_void, buffer: *mut c_void, count: usize, params: *const RequestParams
    ) -> ucs_status_ptr_t;
    request_status = ucp_request_check_status(request: *mut c_void) -> ucs_status_t;
    request_free = ucp_request_free(request: *mut c_void);
}

macro_rules! zeroed {
    ($($name:ident)*) => {$(
        impl Default for $name {
            fn default() -> $name {
                // SAFETY: all fields are numbers, pointers and optional functions, for which zeros
                // are a value.
                unsafe { std::mem::zeroed() }
            }
        }
    )*};
}

zeroed! { Params WorkerParams EndpointParams HandlerParams RequestParams }

/// The sizes and offsets that the C program printed, without the reserved words.
const _: () = {
    use std::mem::{offset_of, size_of};
    const RESERVED: usize = size_of::<Reserved>();
    assert!(size_of::<Params>() - RESERVED == 80 && offset_of!(Params, name) == 72);
    assert!(offset_of!(Params, mt_workers_shared) == 48 && offset_of!(Params, estimated_num_eps) == 56);
    assert!(size_of::<WorkerParams>() - RESERVED == 200 && offset_of!(WorkerParams, cpu_mask) == 16);
    assert!(offset_of!(WorkerParams, events) == 144 && offset_of!(WorkerParams, flags) == 168);
    assert!(size_of::<EndpointParams>() - RESERVED == 104 && offset_of!(EndpointParams, err_mode) == 16);
    assert!(offset_of!(EndpointParams, err_handler) == 24 && offset_of!(EndpointParams, err_argument) == 32);
    assert!(offset_of!(EndpointParams, sockaddr) == 56 && offset_of!(EndpointParams, local_sockaddr) == 88);
    assert!(size_of::<HandlerParams>() - RESERVED == 32 && offset_of!(HandlerParams, callback) == 16);
    assert!(size_of::<ArrivalParams>() == 16 && offset_of!(ArrivalParams, reply_endpoint) == 8);
    assert!(size_of::<RequestParams>() - RESERVED == 72 && offset_of!(RequestParams, callback) == 16);
    assert!(offset_of!(RequestParams, user_data) == 32 && offset_of!(RequestParams, memory_type) == 48);
    assert!(offset_of!(RequestParams, received) == 56 && offset_of!(RequestParams, memory_handle) == 64);
};
