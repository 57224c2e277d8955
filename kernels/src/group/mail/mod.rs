//! Messages with tags between two ranks of a group, in any order, beside its collectives.
//!
//! # The protocol
//!
//! There is a [ring](crate::shm::ring) for each ordered pair of ranks. A message is one or several
//! cells: the first has the message's envelope (element
//! type, label, size, tag). The reader matches each
//! message with the first receive that was posted for its sender and tag. A message that comes
//! before its receive is kept in the reader's own memory. So a sender waits for credits only while
//! its reader makes no call of the mailbox, and two ranks that send to each other first both go on.
//!
//! 1. **Write.** The writer fills cells while it has credits, in the order of its sends. A send of
//!    up to 4 KiB ends here.
//! 2. **Take.** The reader copies each cell out and publishes how many it has read.
//! 3. **End.** A longer send ends when its last cell is read. A receive ends when its last cell is
//!    copied.
//!
//! A message of another size, element type or label than its receive expects ends both with
//! [`MailFault::Unlike`]. The reader tells the writer of each (`refusals.rs`). A send that has
//! ended by then hears of it at a later call with that reader, one at a call. A send that waits for
//! credits ends at once, and a cell follows that withdraws the rest.
//!
//! A deadline ends its request, not the group. If the message is written in part, a cell follows
//! that withdraws it.
//!
//! Every thread that [waits](Mail::wait) for a request advances all requests of its rank. It polls,
//! then sleeps on the rank's event. A peer that writes or takes cells signals the event if
//! *awaits mail* is set.
//!
//! # The races, by name
//!
//! * **Message against sleep.** A sleeper sets *awaits mail*, fences and advances once more; a peer
//!   that has written or taken cells fences and then reads *awaits mail*. One of the two sees the
//!   other.
//! * **Overwritten cell.** A cell is written again when its reader has released its count.
//! * **Overwritten refusal.** The place of a refusal is written again when a cell has come that
//!   says that the writer has heard of it.
//! * **Old messages, new generation.** The numbers of cells begin at the base of the generation. A
//!   rank closes its mailbox before it enters the next generation.

mod ring;
mod refusals;
mod request;
mod outgoing;
mod incoming;
mod mailbox;
mod letters;
#[cfg(test)]
mod tests;
#[cfg(all(test, target_os = "linux"))]
mod letters_tests;

pub use letters::{Letters, Unreadable};
pub use mailbox::Mail;
pub use request::{Deadline, Finish, MailFault};
pub use ring::Envelope;
