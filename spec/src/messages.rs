//! The message of each receive.

/// A message that arrived at a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The rank that sent it.
    pub from: usize,
    /// Its tag.
    pub tag: u64,
}

/// A receive that a rank posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The rank whose message it takes; `None` for a message of any rank.
    pub from: Option<usize>,
    /// The tag of the message that it takes.
    pub tag: u64,
}

impl Receive {
    /// Returns whether the receive takes such a message.
    pub fn takes(&self, message: &Message) -> bool {
        self.tag == message.tag && self.from.is_none_or(|from| from == message.from)
    }
}

/// Returns for each receive, in the order in which they were posted, the position of the message
/// that it gets: the first that fits of those that no earlier receive got. `None` if no such
/// message arrived.
///
/// Messages of one sender arrive in the order in which it sent them. Messages of different senders
/// arrive in any order.
///
/// ```
/// use consonance_spec::messages::{Message, Receive, matches};
/// let arrived = [(1, 7), (2, 7), (1, 8), (1, 7)].map(|(from, tag)| Message { from, tag });
/// let posted = [(Some(1), 8), (None, 7), (Some(1), 7), (Some(1), 7)].map(|(from, tag)| Receive { from, tag });
/// assert_eq!(matches(&arrived, &posted), [Some(2), Some(0), Some(3), None]);
/// ```
pub fn matches(arrived: &[Message], receives: &[Receive]) -> Vec<Option<usize>> {
    let mut taken = vec![false; arrived.len()];
    let next = |receive: &Receive| {
        let place = (0..arrived.len()).find(|&place| !taken[place] && receive.takes(&arrived[place]))?;
        taken[place] = true;
        Some(place)
    };
    receives.iter().map(next).collect()
}
