//! The reason why there is no wire.

use std::{error, fmt};

/// The reason why there is no wire: where UCX was looked for, and what was found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// Each place, and in words what was found there.
    pub looked: Vec<(String, String)>,
}

impl Absent {
    /// The commands that install UCX, for users.
    pub const REMEDY: &str = "\"apt install libucx0\", \"dnf install ucx\" or \"pip install mpich\" installs it, and \
                              CONSONANCE_UCX names the file libucp.so.0 of another place";
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no UCX 1.13 or newer, which carries messages between hosts")?;
        for (place, found) in &self.looked {
            write!(f, "; {place}: {found}")?;
        }
        write!(f, "; {}", Absent::REMEDY)
    }
}

impl error::Error for Absent {}
