//! Communicators.

use crate::{
    buffers::Check,
    codes::{self, Type},
    failure::Failure,
    gpu::{OnGpu, Order},
    handles::Table,
};
use consonance::{
    CommunicationOptions, Communicator, Device, Mailbox, MessageType, ProcessGroup, Queue, Result, UniqueId, World,
    raw::{Kind, Reason},
};
use std::{
    ffi::c_int,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The handle of a communicator.
pub type Comm = u64;

/// The object behind a handle of a communicator.
pub(crate) struct CommObject {
    pub(crate) queue: Queue,
    mailbox: OnceLock<Mailboxes>,
    /// The timeout of the next calls in milliseconds; 0 is that of the communicator.
    timeout_ms: AtomicU64,
    /// The GPU of this rank, with the stream of the next calls.
    pub(crate) gpu: Option<OnGpu>,
    /// The details of its last error.
    pub(crate) last: Mutex<Option<Failure>>,
}

pub(crate) static COMMS: Table<CommObject> = Table::new(1, "comm");

impl CommObject {
    pub(crate) fn new(communicator: Communicator, gpu: Option<OnGpu>) -> CommObject {
        let (queue, mailbox) = (Queue::new(communicator), OnceLock::new());
        CommObject { queue, mailbox, timeout_ms: AtomicU64::new(0), gpu, last: Mutex::default() }
    }

    /// Returns the check of the arguments of a call.
    #[inline(always)]
    pub(crate) fn check(&self, call: &'static str) -> Check {
        Check { call, world: self.world(), gpu: self.gpu.as_ref().map(|gpu| gpu.number) }
    }

    /// Returns the order of the next call.
    #[inline(always)]
    pub(crate) fn order(&self) -> Order {
        self.gpu.as_ref().map_or(Order::Host, OnGpu::order)
    }

    pub(crate) fn world(&self) -> World {
        self.queue.world()
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        // Relaxed: the number stands for itself.
        Some(self.timeout_ms.load(Ordering::Relaxed)).filter(|&ms| ms > 0).map(Duration::from_millis)
    }

    /// Returns the mailbox for messages of a type.
    pub(crate) fn mailbox(&self, of: Type) -> Result<&Mailbox> {
        if let Some(mailboxes) = self.mailbox.get() {
            return Ok(mailboxes.of(of));
        }
        let mailbox = self.queue.mailbox()?;
        static MESSAGES: [MessageType; codes::COMPLEX.len()] = codes::messages(codes::COMPLEX);
        Ok(self.mailbox.get_or_init(|| Mailboxes::new(&mailbox, &codes::COMPLEX, &MESSAGES)).of(of))
    }
}

/// Executes the work of a collective. If its arguments are wrong, tells the other ranks.
pub(crate) fn run<W: FnOnce(&mut Communicator) -> Result<()>>(
    comm: Comm,
    call: &'static str,
    kind: Kind,
    work: impl FnOnce(Check) -> Result<W>,
) -> Result<(), Failure> {
    let shared = COMMS.get(comm)?;
    // In the turn: work that leaves it would be copied several times.
    Ok(shared.queue.with(shared.timeout(), |communicator| match work(shared.check(call)) {
        Ok(work) => shared.order().make(communicator, work),
        Err(error) => {
            communicator.refuse(kind, &error)?;
            Err(error)
        }
    })?)
}

/// The mailbox of a communicator, for each type that is not plain.
pub struct Mailboxes {
    plain: Mailbox,
    others: Vec<(c_int, Mailbox)>,
}

impl Mailboxes {
    /// Makes the mailboxes of a communicator from one of them, for plain types and for these
    /// others, which are the same on all ranks.
    pub fn new(mailbox: &Mailbox, others: &[Type], messages: &'static [MessageType]) -> Mailboxes {
        let of = |own| mailbox.of_type(messages, own);
        let others = others.iter().enumerate().map(|(index, other)| (other.number, of(Some(index))));
        Mailboxes { plain: of(None), others: others.collect() }
    }

    /// Returns the mailbox for messages of a type.
    pub fn of(&self, of: Type) -> &Mailbox {
        let other = self.others.iter().find(|(number, _)| *number == of.number);
        other.map_or(&self.plain, |(_, mailbox)| mailbox)
    }
}

/// The id of a group.
#[repr(C)]
pub struct ConsId([u8; UniqueId::BYTES]);

/// The settings of a communicator. 0 is the default.
#[repr(C)]
pub struct ConsConfig {
    size: usize,
    timeout_ms: i64,
    join_timeout_ms: i64,
}

/// The layouts of these structs, for the test of the header.
pub(crate) const LAYOUTS: [&[(&str, usize)]; 2] =
    [layout!(ConsId, "cons_id", []), layout!(ConsConfig, "cons_config", [size, timeout_ms, join_timeout_ms])];

fn null(argument: &str) -> Failure {
    Failure::argument(argument, "a pointer", "null")
}

/// Writes to a pointer that C passed for a result.
///
/// # Safety
/// The pointer is null or valid for writes.
pub(crate) unsafe fn write<T>(argument: &str, to: *mut T, value: T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(null(argument));
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// Returns the timeout of this many milliseconds; `None` for 0.
pub(crate) fn timeout(argument: &'static str, ms: i64) -> Result<Option<Duration>, Failure> {
    let of = u64::try_from(ms).map_err(|_| Failure::argument(argument, "0 or more milliseconds", ms.to_string()));
    of.map(|ms| Some(Duration::from_millis(ms)).filter(|timeout| !timeout.is_zero()))
}

/// Returns the version of the ABI: a program that was built with another one does not work.
#[unsafe(no_mangle)]
pub extern "C" fn cons_abi_version() -> c_int {
    1
}

/// Joins the group with an id, on a GPU if there is one.
///
/// # Safety
/// The pointers are null or valid.
pub(crate) unsafe fn join(
    comm: *mut Comm,
    id: *const ConsId,
    size: c_int,
    rank: c_int,
    config: *const ConsConfig,
    gpu: Option<u32>,
) -> Result<(), Failure> {
    // SAFETY: the pointer is null or valid.
    let id = UniqueId::from_bytes(unsafe { id.as_ref() }.ok_or_else(|| null("id"))?.0)?;
    if comm.is_null() {
        return Err(null("comm"));
    }
    let number = |argument: &str, number: c_int| {
        usize::try_from(number).map_err(|_| Failure::argument(argument, "0 or more", number.to_string()))
    };
    let (size, rank) = (number("size", size)?, number("rank", rank)?);
    let mut group = ProcessGroup::with_id(&id, rank, size);
    // SAFETY: the pointer is null or valid for the size that the struct begins with.
    if let Some(bytes) = (!config.is_null()).then(|| unsafe { (&raw const (*config).size).read() }) {
        if bytes != size_of::<ConsConfig>() {
            let expected = format!("a struct of {} bytes", size_of::<ConsConfig>());
            return Err(Failure::argument("config", expected, bytes.to_string()));
        }
        // SAFETY: as above, and the size is right.
        let config = unsafe { &*config };
        if let Some(limit) = timeout("timeout_ms", config.timeout_ms)? {
            group = group.options(CommunicationOptions::new().timeout(limit)?);
        }
        if let Some(limit) = timeout("join_timeout_ms", config.join_timeout_ms)? {
            group = group.timeout(limit)?;
        }
    }
    let communicator = group.join()?.communicators().remove(0);
    let communicator = match gpu {
        Some(gpu) => communicator.on_device(Device::Cuda { gpu: gpu as usize, logical: 0 })?,
        None => communicator,
    };
    // SAFETY: the pointer is valid.
    unsafe { write("comm", comm, COMMS.add(CommObject::new(communicator, gpu.map(OnGpu::new)))) }
}

functions! {
    /// Makes an id for a group.
    fn cons_unique_id(id: *mut ConsId) of 0; {
        // SAFETY: the pointer is null or valid.
        unsafe { write("id", id, ConsId(*UniqueId::new()?.as_bytes())) }
    }

    /// Makes an id for a group of several hosts.
    fn cons_unique_id_across_hosts(id: *mut ConsId) of 0; {
        // SAFETY: the pointer is null or valid.
        unsafe { write("id", id, ConsId(*UniqueId::across_hosts()?.as_bytes())) }
    }

    /// Joins the group with this id.
    fn cons_comm_init(
        comm: *mut Comm, id: *const ConsId, size: c_int, rank: c_int, config: *const ConsConfig,
    ) of 0; {
        // SAFETY: the pointers are null or valid.
        unsafe { join(comm, id, size, rank, config, None) }
    }

    /// Splits the group. A negative color gives no communicator.
    fn cons_comm_split(comm: Comm, color: c_int, key: c_int, part: *mut Comm) of comm; {
        run(comm, "cons_comm_split", Kind::Split, |check| {
            check.pointer("part", part)?;
            let gpu = COMMS.get(comm).ok().and_then(|shared| shared.gpu.as_ref().map(|gpu| gpu.number));
            Ok(move |communicator: &mut Communicator| {
                let split = communicator.split(u32::try_from(color).ok(), key)?;
                let object = |split| CommObject::new(split, gpu.map(OnGpu::new));
                // SAFETY: the pointer is valid.
                unsafe { part.write(split.map_or(0, |split| COMMS.add(object(split)))) };
                Ok(())
            })
        })
    }

    /// Writes this rank.
    fn cons_comm_rank(comm: Comm, rank: *mut c_int) of comm; {
        // SAFETY: the pointer is null or valid.
        unsafe { write("rank", rank, COMMS.get(comm)?.world().rank() as c_int) }
    }

    /// Writes the number of ranks.
    fn cons_comm_size(comm: Comm, size: *mut c_int) of comm; {
        // SAFETY: the pointer is null or valid.
        unsafe { write("size", size, COMMS.get(comm)?.world().size() as c_int) }
    }

    /// Sets the timeout of the next calls.
    fn cons_comm_set_timeout(comm: Comm, timeout_ms: i64) of comm; {
        let shared = COMMS.get(comm)?;
        let limit = timeout("timeout_ms", timeout_ms)?;
        if limit.is_some_and(|limit| limit > Duration::from_secs(24 * 60 * 60)) {
            return Err(Failure::argument("timeout_ms", "at most a day", format!("{timeout_ms} ms")));
        }
        let ms = limit.map_or(0, |limit| limit.as_millis() as u64);
        shared.timeout_ms.store(ms, Ordering::Relaxed);
        Ok(())
    }

    /// Aborts the group, from any thread.
    fn cons_comm_abort(comm: Comm) of comm; {
        COMMS.get(comm)?.queue.abort_handle().abort(Reason::Failure);
        Ok(())
    }

    /// Writes whether the group was aborted.
    fn cons_comm_state(comm: Comm, aborted: *mut c_int) of comm; {
        // SAFETY: the pointer is null or valid.
        unsafe { write("aborted", aborted, COMMS.get(comm)?.queue.abort_handle().is_aborted().into()) }
    }

    /// Frees the handle.
    fn cons_comm_free(comm: Comm) of comm; {
        COMMS.remove(comm).map(drop)
    }
}
