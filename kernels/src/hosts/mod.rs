//! Groups of processes on several hosts: how the processes meet, and the network between them.
//!
//! **Meeting.** Each process listens at the address of its own task and connects to the tasks
//! before it, so each two processes have a *link*, a TCP connection. Each sends its [`Greeting`]
//! over it, which has the address of its [wire](crate::wire). A process is *ready* when all others
//! have greeted it, and says so. When all are ready, the group is formed. Bytes that are no
//! greeting, or one of another job, cost only their own connection.
//!
//! **Replacements.** Processes that are left after a loss may wait for others in the places of the
//! lost ones, and meet with them as all did at first: see `replacement_meeting.rs`.
//!
//! **Neighbours.** Those of one host then begin to share memory, if they can: see
//! `neighbour_memory.rs`.
//!
//! **Gate.** A process that takes part in several meetings of two listens once for all of them: see
//! `gate.rs`.
//!
//! **Table.** Processes that know one address and their ranks listen at any port, and ask for the
//! table of all addresses there. See [`look_up`].
//!
//! **Network.** Data travel over the wire, and between neighbours through memory. A link carries
//! questions for the states of processes and for the time (`clocks.rs`), and the end of its own:
//! the *farewell* of one that leaves, with the number of messages that it has sent to the other,
//! and the answer that all of these have arrived. A link that closes without a farewell means that
//! the process has ended, or that its host does not answer, as the system's keepalive finds out.
//! Before it begins a group without another process, a process tells that one.
//!
//! **Trust.** The digest of a job is no secret: it keeps jobs apart, and attackers are kept away by
//! a private network.

mod clocks;
mod delivery;
mod connection;
mod gate;
mod greeting;
mod keep_alive;
mod meeting;
mod neighbours;
mod neighbour_memory;
mod network;
mod not_met;
mod replacement_meeting;
mod wire_connections;
mod senders;
mod shared_network;
mod states;
mod table;
mod turns;
mod word;

pub use gate::Gate;
pub use greeting::{Greeting, Heard};
pub use meeting::{Host, Met, meet, meet_at, meet_at_gate};
pub use neighbour_memory::Near;
pub use neighbours::Neighbours;
pub use network::Network;
pub use not_met::NotMet;
pub use replacement_meeting::Preparing;
pub use shared_network::{HEAD, Head, News};
pub use states::{near, place, places};
pub use table::{Claim, MOST, Serving, listen_anywhere, listen_at, look_up, serve};

#[cfg(test)]
mod tests;
