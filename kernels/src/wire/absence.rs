//! The reason why there is no wire.

use super::Kind;
use std::{error, fmt};

/// The reason why there is no wire: what was looked for, where, and what was found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The kinds of wires that were looked for.
    pub kinds: Vec<Kind>,
    /// Each place, and in words what was found there.
    pub looked: Vec<(String, String)>,
}

impl Absent {
    /// The commands that install UCX, for users.
    pub const REMEDY: &str = "\"apt install libucx0\", \"dnf install ucx\" or \"pip install mpich\" installs UCX, and \
                              CONSONANCE_UCX names the file libucp.so.0 of another place";
}

/// Returns what is missing, and how to have it.
fn words(kind: &Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Ucx => ("no UCX 1.13 or newer", Absent::REMEDY),
        Kind::Mpi => (
            "no MPI of the launcher of this process",
            "an MPI works under its own launcher, such as mpirun, and CONSONANCE_MPI names the file libmpi.so of \
             another place",
        ),
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (missing, remedies): (Vec<_>, Vec<_>) = self.kinds.iter().map(words).unzip();
        write!(f, "there is {}, which carries messages between hosts", missing.join(", and "))?;
        for (place, found) in &self.looked {
            write!(f, "; {place}: {found}")?;
        }
        remedies.iter().try_for_each(|remedy| write!(f, "; {remedy}"))
    }
}

impl error::Error for Absent {}
