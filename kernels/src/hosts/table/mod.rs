//! The table of a group's addresses, for processes that know one address and their ranks.
//!
//! One process [serves](serve) the table. Each process, that one too, [asks](look_up) for it over a
//! connection: its *claim* says its rank, and the port at which it listens. When all ranks have
//! asked, each gets the addresses of all, and the service ends. Until then it tells each, at once
//! and each second, of the ranks that are missing. A connection that closes before takes its claim
//! back.

mod question;
mod service;

pub use question::look_up;
pub use service::{Serving, listen_anywhere, listen_at, serve};

use super::greeting::BUILD;
use std::time::Duration;

/// The limit on the processes of a group on several hosts: each two have a connection.
pub const MOST: usize = 256;

/// The first bytes of a claim, in every version.
const MAGIC: [u8; 16] = *b"consonance table";

/// The claim of a process to a rank of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The digest of the group. Only processes with the same digest get the same table.
    pub digest: u128,
    /// The rank that the process claims.
    pub rank: usize,
    /// The number of the group's processes.
    pub size: usize,
    /// The process's id, on its host.
    pub pid: u32,
    /// The name of its host.
    pub host: String,
    /// The port at which it listens, at all addresses of its host.
    pub port: u16,
}

impl Claim {
    /// The bytes of a claim.
    pub const BYTES: usize = MAGIC.len() + 16 + 5 * 8 + Claim::NAME;

    /// The limit on the name of a host, in bytes: more is cut.
    pub const NAME: usize = 64;

    /// Returns the claim as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.digest.to_le_bytes());
        for word in [BUILD, self.rank as u64, self.size as u64, self.pid.into(), self.port.into()] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.host.bytes().take(Claim::NAME));
        bytes.resize(Claim::BYTES, 0);
        bytes
    }

    /// Reads the claim of a process of the same build to a rank of the group with this digest.
    ///
    /// # Errors
    /// The answer to others, in words; `None` for those that are no processes of the group.
    pub fn read(bytes: &[u8; Claim::BYTES], digest: u128) -> Result<Claim, Option<String>> {
        let word = |at: usize| u64::from_le_bytes(bytes[32 + 8 * at..][..8].try_into().expect("8 bytes"));
        if bytes[..16] != MAGIC || bytes[16..32] != digest.to_le_bytes() {
            return Err(None);
        }
        if word(0) != BUILD {
            let why = "the process that has the table runs another build of the program";
            return Err(Some(why.to_owned()));
        }
        let host = String::from_utf8_lossy(&bytes[Claim::BYTES - Claim::NAME..]).trim_end_matches('\0').to_owned();
        let [rank, size] = [word(1), word(2)].map(|word| usize::try_from(word).unwrap_or(usize::MAX));
        if size > MOST {
            return Err(Some(format!("a group on several hosts has at most {MOST} processes, not {size}")));
        }
        if rank >= size {
            return Err(Some(format!("rank {rank} is not below the size, {size}")));
        }
        Ok(Claim { digest, rank, size, pid: word(3) as u32, host, port: word(4) as u16 })
    }

    fn process(&self) -> String {
        format!("process {} on {}", self.pid, self.host)
    }
}

/// The words of the service.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Word {
    /// The ranks that are missing.
    Missing = b'M',
    /// The addresses, by rank.
    Table = b'T',
    /// The reason why the process gets none.
    Refusal = b'R',
}

/// The time between two attempts to reach the table.
const AGAIN: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests;
