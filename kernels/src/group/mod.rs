//! Meetings of ranks, and memory that they share: the protocol under every collective of one host.
//!
//! # The protocol
//!
//! A *step* is one call of all ranks of a group. Each rank has a record that it alone writes
//! (`shm/records.rs`).
//!
//! 1. **Arrive.** The rank writes its descriptor (fingerprint of the call, sizes, a payload, the
//!    address of its memory), then the call's sequence number, and wakes the ranks that sleep on
//!    it. It waits until every descriptor has that sequence number.
//! 2. **Agree.** Every rank compares every peer's descriptor with its own. If any two differ, each
//!    rank differs from one of them, so all reach the same verdict: no rank touches any memory, and
//!    all of them report [`Fault::Mismatch`].
//! 3. **Work.** The kind of step defines the state of each element of the shared memory in this
//!    phase: *published* (nobody writes it, all may read it: [`Step::published`]) or *private*
//!    to one rank ([`Step::divided`]: block `r` of all buffers belongs to rank `r`). The kind
//!    is part of what ranks compare, so they cannot disagree on it.
//! 4. **Depart.** A rank that shared memory waits until every rank has announced that it is done. A
//!    rank that shared nothing does not wait.
//!
//! If small data go one way between processes, ranks do not meet: a giver of data waits for no
//! rank, and a taker only for the giver. Each arrives, as above, and agrees with the
//! others at its next step at the latest. See `meeting.rs`.
//!
//! A rank changes its own state only: *away* → *arrived* (1) → *inside* a chunk of others' memory
//! (3) → *done* (4) → away.
//!
//! Ranks of different processes follow the same protocol, but cannot read each other's buffers:
//! they copy their data into memory that all of them map, a window at a time. See
//! `staging/mod.rs`.
//!
//! An abort ends a *generation* of the group. The ranks may then begin the next
//! ([`Endpoint::renew`]): each publishes the number of the generation that it enters, and writes
//! nothing else before all ranks have entered it.
//!
//! # The races, by name
//!
//! * **Early next call.** A fast rank arrives at the next call while a slow one still reads this
//!   call's descriptor: each rank has four descriptors and uses them in turn. A rank that has not
//!   waited for all in this call does so in the next, before it returns.
//! * **Sleep against signal.** A sleeper announces itself, fences and checks its condition once
//!   more; a rank that publishes fences and then checks for sleepers. One of the two sees the
//!   other. See `sync/wait.rs`.
//! * **Leave against enter.** A rank that gives up (deadline, abort, panic) must not return while
//!   others are in its memory. It sets the abort word and then waits until no rank is inside. A
//!   rank that enters sets *inside*, fences and then checks the abort word, once a chunk. One of
//!   the two sees the other, so the wait is bounded by the time of a chunk. A rank of another
//!   process may be stopped in the middle of a chunk, be dead, or write false values: after 20 ms
//!   the rank that gives up replaces the pages that the other could still write. For threads of its
//!   own process the rank reads words that no other process can write (`shm/local.rs`).
//! * **Return against wait.** A rank that leaves for good announces it. A rank that waits for it
//!   checks its descriptor once more and then reports [`Fault::Left`]. No rank begins to work in
//!   that step, because the missing descriptor will never come.
//! * **Leave against report.** A rank that was told that another rank left may leave or end the
//!   group in turn before the others have checked. It first notes the rank that it was told of
//!   ([`Witness::blame`]), and the others follow these notes.
//! * **Area claimed twice.** Groups that processes split off begin in areas that earlier groups
//!   have left. The owner word of an area counts its groups, so a claim that expects an outdated
//!   word fails.

mod slot_swap;
pub mod plan;
mod end;
mod backing;
mod state;
mod chains;
mod member;
mod waiter;
mod scratch;
mod post;
mod posted_call;
mod call_context;
mod meeting;
mod staging;
mod payloads;
mod peers;
mod mail;
mod participant;
mod sharing;
mod transport;
mod step;
mod measured;
mod endpoint;
#[cfg(all(test, target_os = "linux"))]
mod corrupt_peer;
#[cfg(all(test, target_os = "linux"))]
mod said_gpus;

pub use end::{Abort, Aborter, End, Fault, LastCall, Reason, Witness};
pub use endpoint::Endpoint;
pub use mail::{Deadline, Envelope, Finish, Letters, Mail, MailFault, Unreadable};
pub use participant::LARGE_BYTES;
pub use payloads::Payloads;
pub use peers::{PeerBuffers, Rows};
pub use posted_call::PostedCall;
pub use step::Step;
pub use transport::{Holdings, Last, OwnHoldings};
pub use waiter::KeepWaiting;
