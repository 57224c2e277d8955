//! The first numbers of messages, which name the sender and its network.

use super::greeting::Greeting;
use crate::digest::digest;

/// The bits of a sender in the first number of a message.
const SENDER_BITS: u32 = 16;

/// Returns the first numbers of messages to each process, and of those from it: the sender, and a
/// digest of both greetings. A process that waits for others may get messages of a network that it
/// never entered, by a process that has left it since.
pub(super) fn senders(own: usize, greetings: &[Greeting]) -> Vec<[u64; 2]> {
    let pair = |other: usize| {
        let digest = digest(&format!("{:?} {:?}", greetings[own.min(other)], greetings[own.max(other)]));
        [own, other].map(|sender| digest << SENDER_BITS | sender as u64)
    };
    (0..greetings.len()).map(pair).collect()
}

/// Returns the sender of a message by its first number, which may be any.
pub(super) fn sender(number: u64) -> usize {
    (number & ((1 << SENDER_BITS) - 1)) as usize
}
