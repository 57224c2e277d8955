//! The name of a group of processes.

use rustix::rand::{GetRandomFlags, getrandom};
use std::{fmt, io};

/// The name of one group of processes: 16 random bytes, which no other group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub(super) [u8; 16]);

impl GroupId {
    /// Returns a new name that no other group has.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn random() -> io::Result<GroupId> {
        let mut bytes = [0; 16];
        // The system returns a request this small whole, or fails.
        rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
        Ok(GroupId(bytes))
    }

    /// Returns the name with these bytes, which a peer sent.
    pub const fn from_bytes(bytes: [u8; 16]) -> GroupId {
        GroupId(bytes)
    }

    /// Returns the bytes, to send them to a peer.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

/// Writes 32 hexadecimal digits.
impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
