//! How the processes of one job on one host meet, agree who takes part, and notice who is gone.
//!
//! Each process opens a [`Meeting`]: it listens at an abstract name made of its user, the digest of
//! the job and its task. [`Meeting::form`] makes a group with the others who call it, and passes on
//! the descriptor of what they share. [`Watch`] reports members that end or leave. If that happens,
//! whoever is left calls [`Meeting::form`] again.
//!
//! Files: `message.rs` is what is said, as bytes, and `formation.rs` the protocol without sockets;
//! `meeting.rs` has the sockets around it, made in `socket.rs`. `formed.rs`, `watch.rs` and
//! `error.rs` are what their names say.
//!
//! # The protocol
//!
//! **Links.** Two processes have one link, a connection that carries packets: the one of the higher
//! task makes it, at its first call of `form`, and it stays until one of them ends. While both
//! live, it stands; so *a link that is closed is a process that has ended*. On it a process says
//! `Hello`, which counts its attempts to form a group. An attempt ends with a group, with an error
//! (`Leave`), or when the process begins a new one.
//!
//! **States** of a process, and who moves them:
//!
//! ```text
//!            form                    Propose from the leader
//!   apart ───────────► present ─────────────────────────────────► bound ──► joined
//!     ▲                 │  ▲   or, as the leader, its own proposal  │  Commit; the leader: all have accepted
//!     └─────────────────┘  └────────────────────────────────────────┘
//!       error: Leave          a new attempt: the proposer is gone or gave up; the proposer: a member is gone or gave up
//! ```
//!
//! **Leader** is, among those present, the lowest task of the highest generation; everyone judges
//! by what it has heard, and tells the one it takes for the leader whenever what it knows changes.
//! The leader proposes a group as soon as
//!
//! * everyone is present whom anybody present knows alive; and in a new job, where nobody was in a
//!   group yet, every task;
//! * they have all heard from each other, so that there is a link for each pair;
//! * all tasks are there, or it has waited long enough for replacements.
//!
//! A new process is never the leader where a member of a group is present.
//!
//! **Two rounds.** Who accepts a proposal is *bound*: it knows from then on that its members may
//! have joined. It counts their attempts as used up and the members as alive, so it forms no group
//! without them unless they say `Hello` again or end. The leader commits when all are bound. Hence:
//! *if one has joined a group, all its members are bound to it or have been*. So there are never
//! two groups that both have all their members, and no two of one number.
//!
//! **Races, by name.**
//!
//! * *The leader ends among its commits.* Those who got one have joined, and see at once that a
//!   member has ended. The others begin a new attempt. They do not count those who joined as
//!   present, and wait for them because they are alive. These call `form` again, have the highest
//!   generation, and lead.
//! * *The leader ends among its proposals.* Nobody has joined. Those who are bound begin a new
//!   attempt, which tells everyone.
//! * *A member gives up when the leader commits.* The leader has joined; the member's `Leave` or
//!   its end tells its [`Watch`].
//! * *A replacement comes while the old process is not known to have ended.* Links are counted by a
//!   random number of the process. A member that knows another process of a task than the proposer
//!   does not accept, but begins a new attempt.
//! * *Two leaders.* For a moment two may judge differently. If each waits for the other to accept,
//!   the lesser gives way.
//!
//! **After joining** a process says nothing to the members of its group, and reads what they said
//! before. Whatever one hears from a member then means that it has left.
//!
//! **Whom to trust.** Processes of the same user, as the system names it, and none else. What they
//! say is checked in `message.rs`. Each message shows the job's digest first, in every version:
//! whoever does not is a stranger, and its link is closed, as is one on which something else comes.
//! Only who has shown the digest is refused as a process of another build.

mod options;
mod meeting;
pub mod formation;
pub mod message;
mod socket;
mod formed;
mod watch;
mod error;
#[cfg(test)]
mod tests;

pub use error::{Absent, MeetingError};
pub use formed::{Formed, Gone, Member};
pub use meeting::{Meeting, Waiting};
pub use message::Group;
pub use options::MeetingOptions;
pub use watch::Watch;
