//! Bootstrap: the processes of one job on one host find each other, agree on a group, and notice
//! when a member ends.
//!
//! Each process opens a [`Meeting`]: a listener at an abstract socket name. The name consists of
//! the user, the digest of the job and the task. [`Meeting::form`] forms a group with the other
//! processes that call it, and passes on the descriptor of the segment that they share. [`Watch`]
//! reports members that end or leave. The remaining members then call [`Meeting::form`] again.
//!
//! Files: `packet.rs` encodes the packets. `formation/` is the protocol without sockets.
//! `meeting.rs` runs the protocol over the sockets that `socket.rs` makes, and `strangers.rs` over
//! those of processes that have not said who they are. `other_jobs.rs` finds processes that wait
//! for another job. `formed_group.rs`, `watch.rs` and `error.rs` contain what their names say.
//!
//! # The protocol
//!
//! **Links.** Two processes share one link, a connection that carries packets. The process of the
//! higher task connects, in its first call of `form`. The link stays open until one of the two
//! processes ends, so *a closed link means that the process has ended*. A process sends `Hello`
//! over the link. The packet contains the number of its attempt to form a group. An attempt ends
//! with a group, with an error (`Leave`), or when the process begins a new attempt. A process that
//! gives a file to the others sends a descriptor of it with each `Hello`.
//!
//! **States** of a process, and the events that change them:
//!
//! ```text
//!          form              Propose from the leader
//!  apart ───────► present ────────────────────────────────► prepared ─────► joined
//!    ▲              │  ▲     or, as the leader,                │     Commit;
//!    └──────────────┘  │     its own proposal                  │     the leader: all have accepted
//!      error: Leave    └───────────────────────────────────────┘
//!                        a new attempt: the proposer has ended or given up;
//!                        for the proposer: a member has ended or given up
//! ```
//!
//! **The leader** is the lowest task of the highest generation among the processes that are
//! present. Each process determines the leader from the packets that it has received. It sends
//! that leader a new `Hello` whenever its own knowledge changes. The leader proposes a group as
//! soon as
//!
//! * every task that any present process knows to be alive is present; in a new job, in which no
//!   process has been in a group yet, every task is present;
//! * these processes have all received a `Hello` from each other, so each pair has a link;
//! * all tasks are present, or the leader has waited long enough for replacements.
//!
//! A new process is never the leader while a member of an earlier group is present.
//!
//! **Two rounds** (a two-phase commit). A process that accepts a proposal is *prepared*: it must
//! assume that the other members may have joined. It counts their attempts as used up and the
//! members as alive. It therefore forms no group without a member unless that member says `Hello`
//! again or ends. The leader commits when all members are prepared. Hence: *if one process has
//! joined a group, all members are prepared for it or have been*. So two groups that both have all
//! their members never exist at the same time, and no two groups have the same number.
//!
//! **Races, by name.**
//!
//! * *The leader ends among its commits.* The members that received a commit have joined, and see
//!   at once that the leader has ended. The other members begin a new attempt. They do not count
//!   the joined members as present, and wait for them because they are alive. The joined members
//!   call `form` again; they have the highest generation, so one of them leads.
//! * *The leader ends among its proposals.* No member has joined. The prepared members begin a new
//!   attempt, and tell every process.
//! * *A member gives up when the leader commits.* The leader has joined. The member's `Leave`, or
//!   its end, tells the leader's [`Watch`].
//! * *A replacement arrives before the end of the old process is known.* A random number of the
//!   process identifies a link. If a member knows another process of a task than the proposer does,
//!   it does not accept the proposal, but begins a new attempt.
//! * *Two leaders.* For a moment two processes may determine different leaders. If two proposers
//!   wait for each other to accept, the lesser one gives way.
//!
//! **After joining** a process sends nothing to the members of its group, and reads what they sent
//! before. Any later packet from a member therefore means that the member has left.
//!
//! **Trust.** A process trusts only processes of its own user, as the system reports the user.
//! `packet.rs` checks their packets. In every version a packet begins with the magic number and
//! the job's digest. A process that does not send them is a stranger, and its link is closed. A
//! link that carries any other garbage is closed, too. The digest is no secret, so a process that
//! connects must also listen at the name of its task. Only such a process is refused, as one of
//! another build or size, which is an error; any other costs nothing but its own connection.

mod options;
mod other_jobs;
mod meeting;
mod strangers;
pub mod formation;
pub mod packet;
pub(crate) mod socket;
mod formed_group;
mod watch;
mod error;
#[cfg(test)]
mod tests;

pub use error::{Absent, MeetingError};
pub use formed_group::{Formed, Gone, Member};
pub use meeting::Meeting;
pub use options::{MeetingOptions, Waiting};
pub use packet::Group;
pub use watch::Watch;
