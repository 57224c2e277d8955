//! The words that processes say on their links, beside the wire.

/// The first byte of a farewell, of the answer to it, and of the word of a process that takes the
/// other one for cut off. A number follows each.
pub(super) const FAREWELL: u8 = b'B';
pub(super) const ANSWER: u8 = b'S';
pub(super) const CUT: u8 = b'C';

/// The first byte of the word of a process that goes on without the other one.
pub(super) const LEAVE_BEHIND: u8 = b'L';

/// The first byte of a question for the state of a process of the other one's host, whose number
/// follows, and of the answer.
pub(super) const ASK: u8 = b'Q';
pub(super) const STATE: u8 = b'A';

/// The first byte of a question for the time of the other one's clock, and of the answer, which the
/// time follows in nanoseconds.
pub(super) const ASK_TIME: u8 = b'T';
pub(super) const TIME: u8 = b't';

/// The size of each in bytes.
pub(super) const WORD: usize = 9;
