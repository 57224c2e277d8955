//! The first words of a process on a link, and their bytes.

use crate::digest::digest;
use std::io::{self, Read, Write};

/// The first bytes on every link, in every version.
const MAGIC: [u8; 16] = *b"consonance hosts";

/// The digest of what all processes of a group must have in common: the version of this crate and
/// the way of numbers in memory, which contributions have on the wire.
pub(super) const BUILD: u64 =
    digest(concat!(env!("CARGO_PKG_VERSION"), " 5 ", env!("CARGO_PKG_NAME"))) ^ cfg!(target_endian = "big") as u64;

/// The bytes of a greeting that name its job, which every version sends first.
pub(super) const JOB_BYTES: usize = MAGIC.len() + size_of::<u128>();

/// Returns the digest of the job that the first bytes on a link name. `None` for other bytes.
pub(super) fn job_of(first: &[u8; JOB_BYTES]) -> Option<u128> {
    let (magic, job) = first.split_at(MAGIC.len());
    (*magic == MAGIC).then(|| u128::from_le_bytes(job.try_into().expect("the rest")))
}

/// The first words of a process on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The digest of the job. Only processes with the same digest meet.
    pub digest: u128,
    /// The index of its task.
    pub task: usize,
    /// The number of tasks that it counts.
    pub tasks: usize,
    /// The number of its replicas.
    pub replicas: usize,
    /// Its process id, on its host.
    pub pid: u32,
    /// The digest of the place where process ids are its own: processes of the same place see each
    /// other's states.
    pub place: u64,
    /// The digest of the host whose memory it may share; 0 if it shares none. Processes with the
    /// same number try.
    pub near: u64,
    /// The number of the generation that it forms; 0 for a process that has been in none.
    pub generation: u64,
    /// The name of its host.
    pub host: String,
    /// The name of its wire, with the version.
    pub wire: String,
    /// The address of its wire.
    pub address: Vec<u8>,
}

/// The first words on a link, as this process understands them.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A greeting.
    Greeting(Greeting),
    /// A process of the same job with another build.
    OtherBuild(usize),
    /// Anything else.
    Nonsense,
}

impl Greeting {
    /// The limit on each text and on the address, in bytes. The rest is not written.
    pub const MOST: usize = 4096;

    /// Writes the greeting.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.digest.to_le_bytes());
        bytes.extend((self.task as u64).to_le_bytes());
        bytes.extend(BUILD.to_le_bytes());
        let Greeting { pid, place, near, generation, .. } = *self;
        for number in [self.tasks as u64, self.replicas as u64, pid.into(), place, near, generation] {
            bytes.extend(number.to_le_bytes());
        }
        for text in [self.host.as_bytes(), self.wire.as_bytes(), &self.address] {
            let text = &text[..text.len().min(Greeting::MOST)];
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text);
        }
        to.write_all(&bytes)
    }

    /// Reads a greeting of the job with this digest.
    ///
    /// # Errors
    /// The system's, also if the bytes end before the greeting does.
    pub fn read(mut from: impl Read, digest: u128) -> io::Result<Heard> {
        let (mut magic, mut job) = ([0; 16], [0; 16]);
        from.read_exact(&mut magic)?;
        if magic != MAGIC {
            return Ok(Heard::Nonsense);
        }
        from.read_exact(&mut job)?;
        if u128::from_le_bytes(job) != digest {
            return Ok(Heard::Nonsense);
        }
        let task = number(&mut from)? as usize;
        if number(&mut from)? != BUILD {
            return Ok(Heard::OtherBuild(task));
        }
        let [tasks, replicas, pid, place, near, generation] = {
            let mut next = || number(&mut from);
            [next()?, next()?, next()?, next()?, next()?, next()?]
        };
        let mut texts = [const { Vec::new() }; 3];
        for text in &mut texts {
            let length = number(&mut from)?;
            if length > Greeting::MOST as u64 {
                return Ok(Heard::Nonsense);
            }
            text.resize(length as usize, 0);
            from.read_exact(text)?;
        }
        let [host, wire, address] = texts;
        let [host, wire] = [host, wire].map(|text| String::from_utf8_lossy(&text).into_owned());
        let (tasks, replicas, pid) = (tasks as usize, replicas as usize, pid as u32);
        Ok(Heard::Greeting(Greeting {
            digest,
            task,
            tasks,
            replicas,
            pid,
            place,
            near,
            generation,
            host,
            wire,
            address,
        }))
    }
}

fn number(mut from: impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        let (host, wire, address) = ("one".to_owned(), "UCX 1.13.1".to_owned(), vec![7; 110]);
        let (digest, near, generation) = (0xabc, 6, 4);
        Greeting { digest, task: 1, tasks: 3, replicas: 2, pid: 77, place: 5, near, generation, host, wire, address }
    }

    #[test]
    fn a_greeting_is_read_back_and_all_else_is_none() {
        let mut bytes = Vec::new();
        greeting().write(&mut bytes).expect("memory takes all");
        let heard = |bytes: &[u8]| Greeting::read(bytes, 0xabc);
        assert!(matches!(heard(&bytes), Ok(Heard::Greeting(read)) if read == greeting()));
        assert!(matches!(Greeting::read(&bytes[..], 0xabd), Ok(Heard::Nonsense)), "another job");
        for cut in 0..bytes.len() {
            assert!(heard(&bytes[..cut]).is_err(), "{cut} of {} bytes", bytes.len());
        }
        bytes[40] ^= 1;
        assert!(matches!(heard(&bytes), Ok(Heard::OtherBuild(1))));
        bytes[0] ^= 1;
        assert!(matches!(heard(&bytes), Ok(Heard::Nonsense)));
    }

    #[test]
    fn no_length_of_a_stranger_decides_an_allocation() {
        let mut bytes = Vec::new();
        greeting().write(&mut bytes).expect("memory takes all");
        bytes.truncate(96);
        bytes.extend(u64::MAX.to_le_bytes());
        assert!(matches!(Greeting::read(&bytes[..], 0xabc), Ok(Heard::Nonsense)));
    }
}
