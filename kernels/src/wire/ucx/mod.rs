//! Messages by UCX, which has a transport for each kind of network. It needs no launcher. There are
//! three floors:
//!
//! * `sys` declares UCX's functions and loads them.
//! * `result` calls them. Every status of UCX becomes a [`Result`] there.
//! * `library`, `worker` and `inbox` have what other code uses: a [`Wire`].
//!
//! Every call of UCX is made under one lock. UCX does nothing by itself: messages leave, arrive and
//! complete only inside [`Medium::progress`](super::Medium::progress), with the exception of short
//! ones, which [`Medium::send`](super::Medium::send) hands to the system at once. What other
//! threads leave to do makes the descriptor readable.
//!
//! Peers are trusted as far as UCX trusts them: it does not check what arrives on its sockets.

mod sys;
mod result;
mod library;
mod address;
mod exit;
mod inbox;
mod transports;
mod worker;
#[cfg(test)]
mod tests;

pub use library::places_of_ucx;
pub(super) use worker::Wire;
