//! How ranks meet and share memory: the protocol under every collective of one host.
//!
//! # The protocol
//!
//! A *step* is one call of all ranks of a group. Each rank has a line that it alone writes
//! (`shm/records.rs`).
//!
//! 1. **Arrive.** The rank writes its descriptor (fingerprint of the call, sizes, a payload or the
//!    address of its memory), then the call's number, and wakes those who sleep for it. It waits
//!    until every descriptor has that number.
//! 2. **Agree.** Every rank compares every peer's descriptor with what it wrote in its own. If any
//!    two differ, each rank differs from one of them, so all come to the same verdict: no rank
//!    touches any memory, and all of them report [`Fault::Mismatch`].
//! 3. **Work.** The kind of step says what each element of the shared memory is in this phase:
//!    *published* (nobody writes it, all may read it: [`Endpoint::published`]) or *private* to one
//!    rank ([`Endpoint::divided`]: block `r` of all buffers belongs to rank `r`). The kind is part
//!    of what ranks compare, so they cannot disagree on it.
//! 4. **Depart.** A rank that shared memory waits until every rank has said that it is done. One
//!    that shared nothing goes on.
//!
//! A rank moves its own state only: *away* → *arrived* (1) → *inside* a chunk of others' memory (3)
//! → *done* (4) → away.
//!
//! Ranks of different processes do the same, but cannot read each other's buffers: they put their
//! data up in memory that all of them map, a window at a time. `transport/windows.rs` tells how.
//!
//! An abort ends a *generation* of the group. The ranks may then begin the next
//! ([`Endpoint::renew`]): each says which generation it is in, and writes nothing else before all
//! have come.
//!
//! # The races, by name
//!
//! * **Early next call.** A fast rank arrives at the next call while a slow one still reads this
//!   call's descriptor: descriptors alternate.
//! * **Sleep against ring.** See `sync/wait.rs`: a sleeper announces itself, fences and looks once
//!   more; who publishes fences and then looks for sleepers. One of the two sees the other.
//! * **Leave against enter.** A rank that gives up (deadline, abort, panic) must not return while
//!   others are in its memory. It sets the abort word and then waits until no rank is inside; a
//!   rank says *inside*, fences and then looks at the abort word, once a chunk. One of the two sees
//!   the other, so the wait is bounded by the time of a chunk. A rank of another process may be
//!   stopped in the middle of a chunk, dead, or say what it likes: after 20 ms the rank that gives
//!   up puts other pages in the place of those that the other could still write. Of threads of its
//!   own process the rank looks at words that no other process can write (`shm/local.rs`).
//! * **Return against wait.** A rank that leaves for good says so; who waits for it looks once more
//!   at its descriptor and then reports [`Fault::Left`]. Nobody begins to work in that step,
//!   because the missing descriptor will never come.
//! * **Leave against tell.** Who is told that a rank left may leave or end the group in turn before
//!   the others have looked. It notes first of whom it was told ([`Endpoint::blame`]), and the
//!   others follow the notes.
//! * **CallContext claimed twice.** Groups that processes split off begin in places that others
//!   have left. A place's word counts its groups, so that who claims it by a word that is out of
//!   date fails.

pub mod tuning;
mod slot_swap;
pub mod plan;
mod abort;
mod fault;
mod end;
mod backing;
mod state;
mod aborter;
mod post;
mod scratch;
mod staging;
mod call_context;
mod payloads;
mod peers;
mod endpoint;
mod waiting;
mod renewal;
mod arrival;
mod transport;
mod calls;
mod subgroup;
mod alloc;
#[cfg(all(test, target_os = "linux"))]
mod lies;

pub use abort::{Abort, Reason};
pub use aborter::Aborter;
pub use end::{End, LastCall};
pub use endpoint::Endpoint;
pub use fault::Fault;
pub use payloads::Payloads;
pub use peers::{PeerBuffers, Rows};
