//! How a call is executed or started.

use crate::{
    array::{Array, Loans},
    failure::{Bad, exception},
    request::Request,
    types, waiting,
};
use consonance::{
    Communicator, Error, Mailbox, Queue, ReduceOp, Result, World,
    raw::{Buf, BufMut, Kind},
};
use consonance_c::{Job, codes::Type};
use pyo3::{
    prelude::*,
    types::{PyDelta, PyList},
};
use std::{
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

/// A communicator that was not closed.
pub(crate) struct Open {
    pub(crate) queue: Queue,
    mailbox: OnceLock<Mailbox>,
    /// The last request that was started: a call that blocks waits for it first, so that Ctrl-C is
    /// heard meanwhile.
    last: Mutex<Option<consonance::Request>>,
    /// The timeout of a call without one.
    timeout: Mutex<Duration>,
}

/// A time in seconds, or a `timedelta`.
pub(crate) struct Timeout(pub(crate) Duration);

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Timeout> {
        if object.is_instance_of::<PyDelta>() {
            return object.extract().map(Timeout);
        }
        let seconds: f64 = object.extract()?;
        let invalid = || format!("timeout: expected seconds above 0, at most a day, found {seconds}");
        let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
        timeout.map(Timeout).ok_or_else(|| pyo3::exceptions::PyValueError::new_err(invalid()))
    }
}

/// How a call is made.
pub(crate) struct Mode {
    pub(crate) call: &'static str,
    pub(crate) kind: Kind,
    pub(crate) starts: bool,
    pub(crate) timeout: Option<Timeout>,
}

impl Open {
    pub(crate) fn new(mut communicator: Communicator) -> Open {
        communicator.keep_waiting(waiting::keep_waiting());
        let timeout = Mutex::new(communicator.timeout());
        Open { queue: Queue::new(communicator), mailbox: OnceLock::new(), last: Mutex::new(None), timeout }
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
        result.map_err(|error| waiting::raised().unwrap_or_else(|| exception(py, &error)))
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

    /// Executes the collectives that `jobs` makes, or starts them. If their arguments are wrong,
    /// tells the other ranks. Returns `result`, or the request for it.
    pub(crate) fn call(
        &self,
        py: Python<'_>,
        mode: Mode,
        result: Option<&Bound<'_, PyAny>>,
        jobs: impl FnOnce(&mut Loans) -> Result<Vec<Job>, Bad>,
    ) -> PyResult<Py<PyAny>> {
        let Mode { call, kind, starts, timeout } = mode;
        let mut loans = Loans::new(starts);
        let result = result.map_or_else(|| py.None(), |result| result.clone().unbind());
        let jobs = match jobs(&mut loans) {
            Ok(jobs) => jobs,
            Err(bad) => {
                let why = bad.error(call);
                if starts {
                    self.start(timeout, move |communicator| communicator.refuse(kind, &why));
                } else {
                    self.with(py, timeout, |communicator| communicator.refuse(kind, &why))?;
                }
                return Err(bad.exception(py, call));
            }
        };
        let work = move |communicator: &mut Communicator| {
            jobs.into_iter().try_for_each(|job| job.execute(communicator))?;
            loans.give_back();
            Ok(())
        };
        if starts {
            return Ok(Request::new(self.start(timeout, work), Some(result)).into_pyobject(py)?.into_any().unbind());
        }
        self.with(py, timeout, work)?;
        Ok(result)
    }

    /// Returns the mailbox.
    pub(crate) fn mailbox(&self, py: Python<'_>) -> PyResult<&Mailbox> {
        if self.mailbox.get().is_none() {
            let mailbox = self.with(py, None, Communicator::mailbox)?;
            // Another thread may have been faster: all mailboxes of a communicator are the same.
            let _ = self.mailbox.set(mailbox);
        }
        Ok(self.mailbox.get().expect("set above"))
    }

    /// Starts a message, and unless the caller waits itself, waits for it.
    pub(crate) fn message(
        &self,
        py: Python<'_>,
        starts: bool,
        argument: &Bound<'_, PyAny>,
        start: impl FnOnce(&Mailbox, &mut Loans) -> Result<consonance::Request, Bad>,
        call: &'static str,
    ) -> PyResult<Py<PyAny>> {
        let mailbox = self.mailbox(py)?;
        // The request owns the array, also if a signal ends the wait for it.
        let mut loans = Loans::new(true);
        loans.keep(argument);
        let request = start(mailbox, &mut loans).map_err(|bad| bad.exception(py, call))?;
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

/// Returns the operation of this name on a type.
pub(crate) fn operation(op: &str, of: Type) -> Result<ReduceOp, Bad> {
    let named: Result<ReduceOp, _> = op.parse();
    let expected = "one of sum, mean, product, min, max, and, or, xor";
    let named = named.map_err(|_| Bad::value("op", expected, format!("{op:?}")))?;
    types::operation(of, named)
        .map_err(|expected| Bad::value("op", expected, format!("{op} of {}", of.name.to_lowercase())))
}

/// The arrays of a call: the input, unless it is in place, and the output.
pub(crate) struct Pair {
    pub(crate) send: Option<Buf<'static>>,
    pub(crate) recv: BufMut<'static>,
    pub(crate) of: Type,
    /// The number of elements of each array of a list.
    pub(crate) sent: Vec<usize>,
    pub(crate) received: Vec<usize>,
}

/// Returns the view of an array, or of a list of arrays with the number of elements of each.
pub(crate) fn array(
    loans: &mut Loans,
    object: &Bound<'_, PyAny>,
    argument: &'static str,
) -> Result<(Array, Vec<usize>), Bad> {
    loans.keep(object);
    if let Ok(list) = object.cast::<PyList>() {
        let arrays = list.iter().map(|item| Array::of(&item, argument)).collect::<Result<_, _>>()?;
        return Array::listed(arrays, argument);
    }
    Ok((Array::of(object, argument)?, Vec::new()))
}

/// Returns the counts that a caller gave, or else those of a list, unless they are even.
pub(crate) fn counts_of(given: Option<Vec<usize>>, listed: Vec<usize>) -> Option<Vec<usize>> {
    let is_even = listed.windows(2).all(|pair| pair[0] == pair[1]);
    given.or(Some(listed).filter(|_| !is_even))
}

/// Lends `data` and `out`, which may be the same. Without `out` the call is in place.
pub(crate) fn pair(loans: &mut Loans, data: &Bound<'_, PyAny>, out: Option<&Bound<'_, PyAny>>) -> Result<Pair, Bad> {
    let (input, sent) = array(loans, data, "data")?;
    let of = input.of_type();
    let Some(out) = out else {
        return Ok(Pair { send: None, recv: loans.in_place(input, "data")?, of, received: sent.clone(), sent });
    };
    let (output, received) = array(loans, out, "out")?;
    same_type(of, "out", &output)?;
    if input.is(&output) {
        return Ok(Pair { send: None, recv: loans.in_place(output, "out")?, of, sent, received });
    }
    let send = loans.input(input, Some(&output));
    Ok(Pair { send: Some(send), recv: loans.output(output, "out")?, of, sent, received })
}

/// Does what [`pair`] does for an all-gather, which is in place, too, if `data` is this rank's even
/// block of `out`.
pub(crate) fn gathered(
    loans: &mut Loans,
    world: World,
    data: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
) -> Result<Pair, Bad> {
    if let Some(out) = out.filter(|out| !out.is_instance_of::<PyList>() && !data.is_instance_of::<PyList>())
        && Array::of(data, "data")?.is_block(&Array::of(out, "out")?, world)
    {
        return pair(loans, out, None);
    }
    pair(loans, data, out)
}

/// Lends an array that is read.
pub(crate) fn input(loans: &mut Loans, data: &Bound<'_, PyAny>) -> Result<(Buf<'static>, Type), Bad> {
    let (array, _) = array(loans, data, "data")?;
    let of = array.of_type();
    Ok((loans.input(array, None), of))
}

/// Lends an array that is written.
pub(crate) fn output(
    loans: &mut Loans,
    out: &Bound<'_, PyAny>,
    argument: &'static str,
) -> Result<(BufMut<'static>, Type), Bad> {
    let (array, _) = array(loans, out, argument)?;
    let of = array.of_type();
    Ok((loans.output(array, argument)?, of))
}

/// Checks that `array` has elements of this type.
pub(crate) fn same_type(of: Type, argument: &'static str, array: &Array) -> Result<(), Bad> {
    let name = |of: Type| of.name.to_lowercase();
    match array.of_type() == of {
        true => Ok(()),
        false => Err(Bad::value(argument, format!("elements of {}, as in data", name(of)), name(array.of_type()))),
    }
}

/// Returns a rank of the group.
pub(crate) fn rank(world: World, argument: &'static str, rank: isize) -> Result<usize, Bad> {
    let found = usize::try_from(rank).ok().filter(|&rank| rank < world.size());
    found.ok_or_else(|| Bad::value(argument, format!("a rank below {}", world.size()), rank.to_string()))
}

/// Returns counts of elements in parts of this type.
pub(crate) fn counts(
    world: World,
    argument: &'static str,
    counts: Option<Vec<usize>>,
    of: Type,
) -> Result<Vec<usize>, Bad> {
    let Some(counts) = counts else { return Ok(Vec::new()) };
    if counts.len() != world.size() {
        return Err(Bad::value(
            argument,
            format!("a count for each of {} ranks", world.size()),
            counts.len().to_string(),
        ));
    }
    let parts = counts.iter().map(|count| count.checked_mul(of.parts)).collect::<Option<Vec<usize>>>();
    parts.ok_or_else(|| Bad::value(argument, "counts that fit the address space", "more"))
}

/// The error of a communicator that was closed.
pub(crate) fn closed() -> Error {
    Error::WrongContext { call: "Communicator", problem: "it was closed".to_owned() }
}
