//! Messages between processes of several hosts, by UCX, which has a transport for each kind of
//! network. The library is loaded at run time, so that programs build and run where there is none:
//! its absence is a value, [`Absent`].
//!
//! There are three floors:
//!
//! * `sys` declares UCX's functions and loads them.
//! * `result` calls them. Every status of UCX becomes a [`Result`] there.
//! * `library`, `worker` and `inbox` have what other code uses: a [`Wire`].
//!
//! A message is a *head* of [`HEAD`] bytes and a *body* of any size. It arrives whole. Messages of
//! one sender arrive in any order, since short ones and long ones take other ways through UCX: a
//! sender that needs an order writes a number into the head.
//!
//! # Who does what
//!
//! Every call of UCX is made under one lock. UCX does nothing by itself: messages leave, arrive and
//! complete only inside [`Wire::progress`], with the exception of short ones, which [`Wire::send`]
//! hands to the system at once. So one thread repeats this, without an end:
//!
//! 1. It calls [`Wire::progress`], and [`Wire::fault`] until there is none.
//! 2. It calls [`Wire::arm`]. On `false` it begins again.
//! 3. It sleeps until [`Wire::descriptor`] is readable.
//!
//! Other threads may send and connect meanwhile: what they leave to do makes the
//! descriptor readable.
//!
//! # Faults
//!
//! An endpoint whose peer ended, or cannot be reached, has a fault: [`Wire::fault`] returns it
//! once, and [`Wire::send`] refuses from then on. Two things have none: a peer without an endpoint
//! here, even if it sends, and a process that is stopped.
//!
//! Closing an endpoint, or dropping the wire, takes back what UCX and the system have not
//! delivered. So processes that part must agree first that all messages have arrived.
//!
//! # Limits
//!
//! A child that `fork` made has none of its parent's wires: every call is an error there. Peers are
//! trusted as far as UCX trusts them: it does not check what arrives on its sockets. The length of
//! a body that comes piece by piece is taken from the message: it is refused if the system has not
//! the memory.

mod sys;
mod result;
mod absent;
mod hooks;
mod signals;
mod library;
mod address;
mod inbox;
mod transports;
mod worker;
#[cfg(test)]
mod tests;

pub use absent::Absent;
pub use library::places_of_ucx;
pub use result::WireError;
pub use worker::Wire;

/// The number of bytes of the head of a message.
pub const HEAD: usize = 96;

/// The head of every message: the caller's bytes.
pub type Head = [u8; HEAD];

/// The number that [`Wire::fault`] gives for a peer if UCX does not say which it is.
pub const UNKNOWN_PEER: usize = usize::MAX;

/// A message that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The head, as it was sent.
    pub head: Head,
    /// The body, as it was sent.
    pub body: Vec<u8>,
}
