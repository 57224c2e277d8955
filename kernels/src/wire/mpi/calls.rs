//! Calls MPI under its lock. This is the only place where a status becomes a [`Result`].

use super::sys::{Constants, FailureAck, Functions, Handle, OK, Status, TEXT};
use crate::wire::WireError;
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    mem,
};

/// The functions and constants of a library, which is never unloaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    pub(super) functions: Functions,
    pub(super) constants: Constants,
    pub(super) failure_ack: Option<FailureAck>,
}

/// A message that MPI reads or writes, in parts if MPI counts no further.
///
/// Invariant: MPI uses the memory of `buffer` until there is no request. The memory is neither
/// moved nor freed before: a flight that is dropped earlier leaves it to MPI for ever.
#[derive(Debug)]
pub(super) struct Flight {
    requests: Vec<Request>,
    buffer: Vec<u8>,
    /// The number of bytes that MPI writes.
    incoming: usize,
    /// The peer to which it goes, or from which it comes.
    pub(super) peer: usize,
    /// The rank of that.
    pub(super) rank: c_int,
}

#[derive(Debug)]
struct Request {
    handle: Handle,
    /// The number of bytes that come.
    bytes: Option<usize>,
}

impl Flight {
    /// Returns the bytes that came, or were sent. MPI must be done with them.
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        assert!(self.requests.is_empty(), "a message that MPI uses");
        mem::take(&mut self.buffer)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            mem::forget(mem::take(&mut self.buffer));
        }
    }
}

/// A message that has arrived, or begins to.
pub(super) struct Incoming {
    message: Handle,
    /// The rank of the sender.
    pub(super) rank: c_int,
    /// The number of bytes.
    pub(super) bytes: usize,
}

/// Calls one at a time, each of which returns at once. The caller has the lock of the process, and
/// MPI runs.
impl Calls {
    /// Returns a text that MPI writes.
    fn text(write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> Option<String> {
        let (mut text, mut bytes) = ([0; TEXT], 0);
        let status = write(text.as_mut_ptr().cast(), &mut bytes);
        text[TEXT - 1] = 0;
        let text = CStr::from_bytes_until_nul(&text).ok().filter(|_| status == OK)?;
        Some(text.to_string_lossy().trim().to_owned())
    }

    /// Returns the version of the library in its own words. MPI need not run.
    pub(super) fn library_version(&self) -> String {
        // SAFETY: the room is that of the longest text. May be called at any time.
        Calls::text(|text, bytes| unsafe { (self.functions.library_version)(text, bytes) }).unwrap_or_default()
    }

    /// Returns the result that a status says.
    pub(super) fn check(&self, function: &'static str, status: c_int) -> Result<(), WireError> {
        if status == OK {
            return Ok(());
        }
        // SAFETY: takes any status. The room is that of the longest text.
        let text = Calls::text(|text, bytes| unsafe { (self.functions.error_string)(status, text, bytes) });
        let text = text.unwrap_or_else(|| format!("status {status}"));
        Err(WireError::Library { function, status, text })
    }

    /// Whether MPI was initialized. It need not run.
    pub(super) fn is_initialized(&self) -> bool {
        let mut initialized = 0;
        // SAFETY: writes a number. May be called at any time, by any thread.
        unsafe { (self.functions.initialized)(&mut initialized) };
        initialized != 0
    }

    /// Whether MPI was finalized. It need not run.
    pub(super) fn is_finalized(&self) -> bool {
        let mut finalized = 0;
        // SAFETY: writes a number. May be called at any time, by any thread.
        unsafe { (self.functions.finalized)(&mut finalized) };
        finalized != 0
    }

    /// Begins to send the bytes to a rank, at most `part` of them in a message of MPI.
    pub(super) fn send(
        &self,
        peer: usize,
        rank: c_int,
        tag: c_int,
        bytes: Vec<u8>,
        part: usize,
    ) -> Result<Flight, WireError> {
        let Constants { world, byte, no_request, .. } = self.constants;
        let mut flight = Flight { requests: Vec::with_capacity(1), buffer: bytes, incoming: 0, peer, rank };
        for (start, count) in parts(flight.buffer.len(), part) {
            let (data, mut request) = (flight.buffer[start..].as_ptr().cast::<c_void>(), no_request);
            // SAFETY: the bytes stay where they are by the invariant of `Flight`. Writes a handle.
            let status = unsafe { (self.functions.send)(data, count, byte, rank, tag, world, &mut request) };
            self.started("MPI_Isend", status, request, None, &mut flight)?;
        }
        Ok(flight)
    }

    /// Looks for a message with this tag.
    pub(super) fn probe(&self, tag: c_int) -> Result<Option<Incoming>, WireError> {
        let Constants { world, any_source, source, .. } = self.constants;
        let (mut found, mut message, mut status) = (0, 0, Status::default());
        let mut probe =
            // SAFETY: writes a number, a handle and a status.
            || unsafe { (self.functions.probe)(any_source, tag, world, &mut found, &mut message, &mut status) };
        let mut result = probe();
        if result != OK
            && let Some(acknowledge) = self.failure_ack
        {
            // A process of the world has ended. The links say which it is.
            // SAFETY: takes a communicator.
            unsafe { acknowledge(world) };
            result = probe();
        }
        self.check("MPI_Improbe", result)?;
        if found == 0 {
            return Ok(None);
        }
        // One that MPI cannot count is not ours.
        let Some(bytes) = self.count(&status)? else { return Ok(None) };
        Ok(Some(Incoming { message, rank: status.0[source], bytes }))
    }

    /// Returns the number of bytes of a message; none if MPI cannot count them.
    fn count(&self, status: &Status) -> Result<Option<usize>, WireError> {
        let mut count = 0;
        // SAFETY: MPI wrote the status. Writes a number.
        let counted = unsafe { (self.functions.count)(status, self.constants.byte, &mut count) };
        self.check("MPI_Get_count", counted).map(|()| usize::try_from(count).ok())
    }

    /// Begins to receive a message. The buffer is empty, with room for it.
    pub(super) fn receive(&self, peer: usize, incoming: Incoming, buffer: Vec<u8>) -> Result<Flight, WireError> {
        let Incoming { mut message, rank, bytes } = incoming;
        assert!(buffer.is_empty() && buffer.capacity() >= bytes, "room for {bytes} bytes");
        let Constants { byte, no_request, .. } = self.constants;
        let mut flight = Flight { requests: Vec::with_capacity(1), buffer, incoming: bytes, peer, rank };
        let (data, mut request) = (flight.buffer.as_mut_ptr().cast::<c_void>(), no_request);
        // SAFETY: the buffer has room for all bytes of the message, and stays where it is by the
        // invariant of `Flight`. Writes two handles.
        let status = unsafe { (self.functions.receive)(data, bytes as c_int, byte, &mut message, &mut request) };
        self.started("MPI_Imrecv", status, request, Some(bytes), &mut flight)?;
        Ok(flight)
    }

    /// Begins to receive the next bytes with this tag from a rank, which sends as many, at most
    /// `part` in a message of MPI. The buffer is empty, with room for them.
    pub(super) fn receive_from(
        &self,
        peer: usize,
        rank: c_int,
        tag: c_int,
        bytes: usize,
        part: usize,
        buffer: Vec<u8>,
    ) -> Result<Flight, WireError> {
        assert!(buffer.is_empty() && buffer.capacity() >= bytes, "room for {bytes} bytes");
        let Constants { world, byte, no_request, .. } = self.constants;
        let mut flight = Flight { requests: Vec::with_capacity(1), buffer, incoming: bytes, peer, rank };
        for (start, count) in parts(bytes, part) {
            let (data, mut request) = (flight.buffer.as_mut_ptr().wrapping_add(start), no_request);
            let status =
                // SAFETY: the buffer has room for as many bytes, and stays where it is by the
                // invariant of `Flight`. Writes a handle.
                unsafe { (self.functions.receive_from)(data.cast(), count, byte, rank, tag, world, &mut request) };
            self.started("MPI_Irecv", status, request, Some(count as usize), &mut flight)?;
        }
        Ok(flight)
    }

    fn started(
        &self,
        function: &'static str,
        status: c_int,
        handle: Handle,
        bytes: Option<usize>,
        flight: &mut Flight,
    ) -> Result<(), WireError> {
        // Without a request there is nothing that MPI would use later.
        if status == OK || handle != self.constants.no_request {
            flight.requests.push(Request { handle, bytes });
        }
        self.check(function, status)
    }

    /// Whether MPI is done with a message.
    ///
    /// # Errors
    /// MPI's, after which the message has failed.
    pub(super) fn test(&self, flight: &mut Flight) -> Result<bool, WireError> {
        while let Some(Request { handle, bytes }) = flight.requests.last_mut() {
            let (mut is_done, mut status) = (0, Status::default());
            // SAFETY: the request was started. Writes a handle, a number and a status.
            let result = unsafe { (self.functions.test)(handle, &mut is_done, &mut status) };
            if result == OK && is_done == 0 {
                return Ok(false);
            }
            let expected = *bytes;
            if result == OK || *handle == self.constants.no_request {
                flight.requests.pop();
            }
            self.check("MPI_Test", result)?;
            if let Some(expected) = expected
                && self.count(&status)? != Some(expected)
            {
                let text = format!("it is not the message of {expected} bytes that was announced");
                return Err(WireError::Library { function: "MPI_Test", status: OK, text });
            }
        }
        if flight.buffer.len() < flight.incoming {
            // SAFETY: MPI has written as many bytes, which were counted, into the buffer, which has
            // room for them.
            unsafe { flight.buffer.set_len(flight.incoming) };
        }
        Ok(true)
    }
}

/// Returns the place and the size of each part of so many bytes. There is at least one.
fn parts(bytes: usize, part: usize) -> impl Iterator<Item = (usize, c_int)> {
    let count = bytes.div_ceil(part).max(1);
    (0..count).map(move |place| (place * part, (bytes - place * part).min(part) as c_int))
}
