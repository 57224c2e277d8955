//! The execution of a call: at once, or started.

use crate::{
    arguments::{Given, input, output, rank},
    array::Loans,
    failure::{Bad, exception},
    jobs::Plan,
    pool::Pool,
    request::Request,
    timeout::{self, Timeout},
    types::OTHERS,
    waiting,
};
use consonance::{
    Communicator, Device, Error, MessageType, ProcessGroupBuilder, Queue, Result, World,
    raw::{Kind, Origin},
};
use consonance_c::{Mailboxes, codes::messages};
use pyo3::prelude::*;
use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

/// A communicator that was not closed.
pub(crate) struct Open {
    pub(crate) queue: Queue,
    mailboxes: OnceLock<Mailboxes>,
    /// The last request that was started: a call that blocks waits for it first, so that Ctrl-C is
    /// heard meanwhile.
    last: Mutex<Option<consonance::Request>>,
    /// The timeout of a call without one.
    timeout: Mutex<Duration>,
    pub(crate) pool: Arc<Pool>,
    /// The process that has the group.
    pub(crate) origin: Origin,
}

/// The mode of a call.
pub(crate) struct Mode {
    pub(crate) call: &'static str,
    pub(crate) kind: Kind,
    pub(crate) starts: bool,
    pub(crate) timeout: Option<Given<Timeout>>,
}

impl Open {
    pub(crate) fn new(mut communicator: Communicator) -> Open {
        communicator.keep_waiting(waiting::keep_waiting());
        let timeout = Mutex::new(communicator.timeout());
        Open {
            queue: Queue::new(communicator),
            mailboxes: OnceLock::new(),
            last: Mutex::new(None),
            timeout,
            pool: Arc::default(),
            origin: Origin::here(),
        }
    }

    /// Joins the other processes of a group, on a device.
    pub(crate) fn join(
        py: Python<'_>,
        group: impl FnOnce() -> Result<ProcessGroupBuilder> + Send + 'static,
        device: Option<String>,
        timeout: Option<Timeout>,
        join_timeout: Option<Timeout>,
    ) -> PyResult<Open> {
        let joined = waiting::apart(py, move || {
            // A device that does not exist is an error before others wait for this process.
            let device = device.as_deref().map(str::parse::<Device>).transpose()?;
            let joined = timeout::join(group()?, timeout, join_timeout)?;
            match device {
                Some(device) => joined.on_device(device),
                None => Ok(joined),
            }
        });
        joined?.map(Open::new).map_err(|error| exception(py, &error))
    }

    pub(crate) fn world(&self) -> World {
        self.queue.world()
    }

    /// Returns the timeout of a call without one.
    pub(crate) fn timeout(&self) -> Duration {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the timeout of calls without one.
    pub(crate) fn set_timeout(&self, Timeout(timeout): Timeout) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    /// Returns the timeout of a call.
    pub(crate) fn limit(&self, timeout: Option<Timeout>) -> Option<Duration> {
        Some(timeout.map_or_else(|| self.timeout(), |Timeout(limit)| limit))
    }

    /// Waits for the calls that were started.
    fn wait_for_last(&self, py: Python<'_>) -> PyResult<()> {
        waiting::check_origin(py, self.origin, "Communicator")?;
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(last) = last.filter(|last| !last.is_finished()) {
            // Its error is of no interest to another call.
            if let Err(raised) = waiting::wait(py, &last, None) {
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
                return Err(raised);
            }
        }
        Ok(())
    }

    /// Calls `with` with the communicator, without the interpreter's lock.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<Timeout>,
        with: impl FnOnce(&mut Communicator) -> Result<R> + Send,
    ) -> PyResult<R> {
        self.wait_for_last(py)?;
        let result = py.detach(|| self.queue.with(self.limit(timeout), with));
        // A handler may also raise while the call completes.
        match waiting::raised() {
            Some(raised) => Err(raised),
            None => result.map_err(|error| exception(py, &error)),
        }
    }

    /// Tells the other ranks that an argument of a call that blocks is wrong. Returns the exception
    /// for this rank.
    pub(crate) fn refuse(
        &self,
        py: Python<'_>,
        (call, kind): (&'static str, Kind),
        timeout: Option<Timeout>,
        bad: Bad,
    ) -> PyErr {
        let why = bad.error(call);
        match self.with(py, timeout, |communicator| communicator.refuse(kind, &why)) {
            Ok(()) => bad.exception(py, call),
            Err(raised) => raised,
        }
    }

    fn start(
        &self,
        timeout: Option<Timeout>,
        work: impl FnOnce(&mut Communicator) -> Result<()> + Send + 'static,
    ) -> consonance::Request {
        let request = self.queue.start_with(self.limit(timeout), work);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(request.clone());
        request
    }

    /// Executes the collectives that `plan` makes, or starts them. If their arguments are wrong,
    /// tells the other ranks. Returns the result, or the request for it.
    pub(crate) fn call(
        &self,
        py: Python<'_>,
        mode: Mode,
        plan: impl FnOnce(&mut Loans) -> Result<Plan, Bad>,
    ) -> PyResult<Py<PyAny>> {
        let Mode { call, kind, starts, timeout } = mode;
        let mut loans = Loans::new(starts);
        let (timeout, checked) = timeout::given(timeout);
        let Plan { jobs, outcome } = match checked.and_then(|()| plan(&mut loans)) {
            Ok(plan) => plan,
            Err(bad) if starts => {
                let why = bad.error(call);
                self.start(timeout, move |communicator| communicator.refuse(kind, &why));
                return Err(bad.exception(py, call));
            }
            Err(bad) => return Err(self.refuse(py, (call, kind), timeout, bad)),
        };
        let work = move |communicator: &mut Communicator| {
            let done = communicator.as_one(|rank| jobs.into_iter().try_for_each(|job| job.execute(rank)));
            // Also after an error: the GPU uses the arrays until then.
            let finished = if loans.are_on_device() { communicator.synchronize() } else { Ok(()) };
            done.and(finished)?;
            loans.give_back();
            Ok(())
        };
        if starts {
            return Ok(Request::new(self.start(timeout, work), outcome).into_pyobject(py)?.into_any().unbind());
        }
        self.with(py, timeout, work)?;
        outcome.map_or_else(|| Ok(py.None()), |outcome| outcome.give(py))
    }

    /// Splits the group. If an argument is wrong, tells the other ranks.
    pub(crate) fn split(
        &self,
        py: Python<'_>,
        color: Option<Given<u32>>,
        key: Given<i32>,
        timeout: Option<Given<Timeout>>,
    ) -> PyResult<Option<Open>> {
        let (timeout, checked) = timeout::given(timeout);
        let arguments = checked.and_then(|()| {
            let color = color.map(|color| color.get("color", "a number from 0 to 4294967295, or None"));
            Ok((color.transpose()?, key.get("key", "a number of 32 bits with a sign")?))
        });
        let (color, key) = match arguments {
            Ok(arguments) => arguments,
            Err(bad) => return Err(self.refuse(py, ("split", Kind::Split), timeout, bad)),
        };
        let part = self.with(py, timeout, |communicator| communicator.split(color, key))?.map(Open::new);
        // `timeout` is that of this call only.
        part.iter().for_each(|part| part.set_timeout(Timeout(self.timeout())));
        Ok(part)
    }

    /// Returns the mailboxes.
    fn mailboxes(&self, py: Python<'_>) -> PyResult<&Mailboxes> {
        if self.mailboxes.get().is_none() {
            // Without a turn: calls that were started may wait for another rank's message.
            let mailbox = self.queue.mailbox().map_err(|error| exception(py, &error))?;
            // Another thread may have been faster: all mailboxes of a communicator are the same.
            static MESSAGES: [MessageType; OTHERS.len()] = messages(OTHERS);
            let _ = self.mailboxes.set(Mailboxes::new(&mailbox, &OTHERS, &MESSAGES));
        }
        Ok(self.mailboxes.get().expect("set above"))
    }

    /// Sends a message with a tag, or starts it.
    pub(crate) fn send(
        &self,
        py: Python<'_>,
        starts: bool,
        data: &Bound<'_, PyAny>,
        (to, tag): (isize, u64),
        timeout: Option<Timeout>,
    ) -> PyResult<Py<PyAny>> {
        let start = |mailboxes: &Mailboxes, loans: &mut Loans| {
            let to = rank(self.world(), "to", to)?;
            let (data, of) = input(loans, data, None)?;
            Ok(mailboxes.of(of).start_send(data, to, tag, self.limit(timeout)))
        };
        self.message(py, starts, data, start, "send")
    }

    /// Receives a message with a tag, or starts to.
    pub(crate) fn recv(
        &self,
        py: Python<'_>,
        starts: bool,
        data: &Bound<'_, PyAny>,
        (source, tag): (Option<isize>, u64),
        timeout: Option<Timeout>,
    ) -> PyResult<Py<PyAny>> {
        let start = |mailboxes: &Mailboxes, loans: &mut Loans| {
            let from = source.map(|source| rank(self.world(), "source", source)).transpose()?;
            let (data, of) = output(loans, data, "data")?;
            Ok(mailboxes.of(of).start_recv(data, from, tag, self.limit(timeout)))
        };
        self.message(py, starts, data, start, "recv")
    }

    /// Starts a message, and unless the caller waits itself, waits for it.
    fn message(
        &self,
        py: Python<'_>,
        starts: bool,
        argument: &Bound<'_, PyAny>,
        start: impl FnOnce(&Mailboxes, &mut Loans) -> Result<consonance::Request, Bad>,
        call: &'static str,
    ) -> PyResult<Py<PyAny>> {
        let mailboxes = self.mailboxes(py)?;
        // The request owns the array, also if a signal ends the wait for it.
        let mut loans = Loans::new(true);
        loans.keep(argument);
        let request = start(mailboxes, &mut loans).map_err(|bad| bad.exception(py, call))?;
        request.on_finish(move |result| {
            if result.is_ok() {
                loans.give_back();
            }
        });
        if starts {
            return Ok(Request::new(request, None).into_pyobject(py)?.into_any().unbind());
        }
        waiting::wait(py, &request, None)?.map_err(|error| exception(py, &error))?;
        Ok(request.source().into_pyobject(py)?.unbind())
    }
}

/// The error of a communicator that was closed.
pub(crate) fn closed() -> Error {
    Error::WrongContext { call: "Communicator", problem: "it was closed".to_owned() }
}
