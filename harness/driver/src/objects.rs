//! The objects of the driver that are alive, and what each call does before its own work.

use crate::{
    event::{Event, Record},
    machine::{Kernel, Machine, Program},
    pinned_memory::Pinned,
    plan::Plan,
    work::{Progress, Resources, Stream, Work},
};
use consonance_kernels::cuda::sys::{CUdevice, CUresult};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    env, fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

/// The environment variable with the [`Plan`] of a program that does not set one.
const VARIABLE: &str = "CONSONANCE_FAKE_DRIVER";

/// The first handle, and the distance between two.
const HANDLES: u64 = 0x10;

/// The handle of the first device's context, and the distance to the next.
const CONTEXTS: u64 = 0xc0_0000;

static STATE: Mutex<Option<Objects>> = Mutex::new(None);

thread_local! {
    /// The contexts that the thread has entered.
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The objects that are alive.
pub(crate) struct Objects {
    pub(crate) plan: Plan,
    calls: BTreeMap<&'static str, u64>,
    /// The work that was enqueued so far, and its bytes, by the device and the work's name.
    enqueued: BTreeMap<(usize, String), (u64, usize)>,
    /// The copies to the host so far.
    pub(crate) copies: u64,
    pub(crate) is_initialized: bool,
    /// The number of retains of each device's context.
    pub(crate) retained: BTreeMap<usize, u64>,
    last_handle: u64,
    pub(crate) machine: Machine,
    pub(crate) pinned: BTreeMap<usize, Pinned>,
    pub(crate) modules: BTreeMap<u64, Program>,
    pub(crate) kernels: BTreeMap<u64, (u64, Arc<Kernel>)>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) events: BTreeMap<u64, Event>,
    /// The misuse that a real driver would not forgive.
    pub(crate) misuse: Vec<String>,
    /// The error of work. A context with one is of no use anymore: every call returns it.
    pub(crate) fault: Option<(CUresult, String)>,
}

/// Calls a function of the driver: fails if the [`Plan`] says so, or does the work.
pub(crate) fn call(symbol: &'static str, work: impl FnOnce(&mut Objects) -> Result<(), CUresult>) -> CUresult {
    let mut guard = lock();
    let state = guard.get_or_insert_with(Objects::from_environment);
    let call = state.calls.entry(symbol).or_default();
    *call += 1;
    let call = *call;
    if let Some(fail) = state.plan.fail.iter().find(|fail| fail.symbol == symbol && fail.call == call) {
        return fail.code;
    }
    if let Some(pause) = state.plan.pause.iter().find(|pause| pause.symbol == symbol && pause.call == call) {
        let time = pause.time;
        // Other calls do not wait.
        drop(guard);
        thread::sleep(time);
        guard = lock();
    }
    let state = guard.get_or_insert_with(Objects::from_environment);
    // No panic crosses into C.
    match catch_unwind(AssertUnwindSafe(|| work(state))) {
        Ok(Ok(())) => CUresult::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            state.misuse.push(format!("{symbol} panicked"));
            CUresult::UNKNOWN
        }
    }
}

/// Begins again with this plan. Objects that are alive are forgotten.
pub(crate) fn configure(plan: Plan) {
    *lock() = Some(Objects::new(plan));
    ENTERED.with_borrow_mut(Vec::clear);
}

/// Returns what is alive, how often each function was called, misuse and the error of work: a line
/// each.
pub(crate) fn report() -> String {
    lock().get_or_insert_with(Objects::from_environment).to_string()
}

fn lock() -> MutexGuard<'static, Option<Objects>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Objects {
    fn new(plan: Plan) -> Objects {
        Objects {
            plan,
            calls: BTreeMap::new(),
            enqueued: BTreeMap::new(),
            copies: 0,
            is_initialized: false,
            retained: BTreeMap::new(),
            last_handle: 0,
            machine: Machine::default(),
            pinned: BTreeMap::new(),
            modules: BTreeMap::new(),
            kernels: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            misuse: Vec::new(),
            fault: None,
        }
    }

    fn from_environment() -> Objects {
        let text = env::var(VARIABLE).unwrap_or_default();
        let plan = text.parse();
        let mut state = Objects::new(plan.clone().unwrap_or_default());
        state.misuse.extend(plan.err().map(|why| format!("{VARIABLE}: {why}")));
        state
    }

    pub(crate) fn new_handle(&mut self) -> u64 {
        self.last_handle += HANDLES;
        self.last_handle
    }

    /// Returns the device whose context the thread has entered.
    ///
    /// # Errors
    /// If the driver is not started, the thread has entered no context, or earlier work failed.
    pub(crate) fn device(&mut self) -> Result<usize, CUresult> {
        if !self.is_initialized {
            return Err(CUresult::NOT_INITIALIZED);
        }
        let context = ENTERED.with_borrow(|entered| entered.last().copied()).ok_or(CUresult::INVALID_CONTEXT)?;
        match &self.fault {
            Some((code, _)) => Err(*code),
            None => Ok(((context - CONTEXTS) / HANDLES) as usize),
        }
    }

    /// Returns the device of this number.
    pub(crate) fn numbered(&self, device: CUdevice) -> Result<usize, CUresult> {
        if !self.is_initialized {
            return Err(CUresult::NOT_INITIALIZED);
        }
        usize::try_from(device).ok().filter(|&device| device < self.plan.devices).ok_or(CUresult::INVALID_DEVICE)
    }

    /// Returns the handle of a device's context.
    pub(crate) fn context_of(device: usize) -> u64 {
        CONTEXTS + device as u64 * HANDLES
    }

    pub(crate) fn push_context(&mut self, context: u64) -> Result<(), CUresult> {
        let is_retained = |(&device, &count): (&usize, &u64)| Objects::context_of(device) == context && count > 0;
        if !self.retained.iter().any(is_retained) {
            return self.misused("entered a context that is not retained", CUresult::INVALID_CONTEXT);
        }
        ENTERED.with_borrow_mut(|entered| entered.push(context));
        Ok(())
    }

    pub(crate) fn pop_context(&mut self) -> Result<u64, CUresult> {
        match ENTERED.with_borrow_mut(Vec::pop) {
            Some(context) => Ok(context),
            None => self.misused("left a context that was not entered", CUresult::INVALID_CONTEXT),
        }
    }

    pub(crate) fn enqueue(&mut self, stream: u64, work: Work) -> Result<(), CUresult> {
        let (device, delay) = (self.device()?, self.plan.delay);
        match self.streams.get_mut(&stream) {
            Some(stream) if stream.device == device => {
                if let Some((name, bytes)) = work.counted() {
                    let (count, all) = self.enqueued.entry((device, name)).or_default();
                    (*count, *all) = (*count + 1, *all + bytes);
                }
                stream.enqueue(work, delay);
                Ok(())
            }
            Some(_) => self.misused("enqueued work on a stream of another context", CUresult::INVALID_HANDLE),
            None => self.misused("enqueued work on a stream that is not alive", CUresult::INVALID_HANDLE),
        }
    }

    /// Returns whether the stream's work has ended, and goes on with it.
    pub(crate) fn query(&mut self, stream: u64) -> Result<bool, CUresult> {
        self.advance(stream, None)
    }

    /// Goes on with the stream's work, to the point `until`, and with what it waits for on other
    /// streams: no work is done earlier than it must. Returns whether all of it has ended.
    pub(crate) fn advance(&mut self, stream: u64, until: Option<&Record>) -> Result<bool, CUresult> {
        self.device()?;
        loop {
            let Some(object) = self.streams.get_mut(&stream) else {
                return self.misused("asked a stream that is not alive", CUresult::INVALID_HANDLE);
            };
            if self.plan.hang && object.has_work() {
                return Ok(false);
            }
            let mut place = Resources { machine: &mut self.machine, pinned: &self.pinned, seed: self.plan.seed };
            let progress = object.query(until, &mut place).map_err(|why| {
                self.fault = Some((CUresult::ILLEGAL_ADDRESS, why));
                CUresult::ILLEGAL_ADDRESS
            });
            match progress? {
                Progress::Done => return Ok(true),
                Progress::Early => return Ok(false),
                Progress::Waits(point) => {
                    // A stream that waits for this one waits for an earlier point.
                    self.advance(point.stream, Some(&point))?;
                    if point.time().is_none() {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Notes that a real driver would wait in this call, if a stream has work.
    pub(crate) fn expect_idle(&mut self, symbol: &str) {
        if self.streams.values().any(Stream::has_work) {
            self.misuse.push(format!("{symbol} would wait for a stream's work"));
        }
    }

    pub(crate) fn misused<T>(&mut self, what: &str, code: CUresult) -> Result<T, CUresult> {
        self.misuse.push(what.to_owned());
        Err(code)
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "contexts {}", self.retained.values().sum::<u64>())?;
        writeln!(f, "memory {}", self.machine.allocations())?;
        writeln!(f, "pinned {}", self.pinned.len())?;
        writeln!(f, "modules {}", self.modules.len())?;
        writeln!(f, "streams {}", self.streams.len())?;
        writeln!(f, "events {}", self.events.len())?;
        writeln!(f, "entered {}", ENTERED.with_borrow(Vec::len))?;
        self.calls.iter().try_for_each(|(symbol, count)| writeln!(f, "call {symbol} {count}"))?;
        let mut enqueued = self.enqueued.iter();
        enqueued.try_for_each(|((device, name), (count, bytes))| {
            writeln!(f, "enqueued cuda:{device} {name} {count} {bytes}")
        })?;
        self.misuse.iter().try_for_each(|misuse| writeln!(f, "misuse {misuse}"))?;
        self.fault.iter().try_for_each(|(_, why)| writeln!(f, "fault {}", why.replace('\n', " ")))
    }
}
