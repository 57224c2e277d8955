//! Which worker the errors of other workers name.
//!
//! A worker that fails takes others with it, and these may end before it does: after a panic it
//! unwinds, and the others are told at once. So the order of their ends does not tell whose fault
//! it was. The library knows: each error names a process. A worker writes that process's id into a
//! pipe of the launcher, which [`VARIABLE`] names, before its program gets the error. Thus what an
//! ended worker has written is there when its end is seen.

use rustix::fs::{OFlags, fcntl_setfl};
use std::{
    collections::HashMap,
    io::{self, PipeReader, PipeWriter, Read},
    os::fd::AsRawFd,
    process,
};

/// The variable with the path to which a worker writes a line for each process that an error names:
/// its own id and the id of that process.
pub(super) use consonance_kernels::os::launcher::CULPRITS as VARIABLE;

/// The pipe, and what was read from it.
pub(super) struct Culprits {
    reader: PipeReader,
    /// Workers open it by its number.
    writer: PipeWriter,
    /// The beginning of a line that has not been read to its end.
    rest: String,
    /// For a process, the process that its latest error names.
    named: HashMap<i32, i32>,
}

impl Culprits {
    pub(super) fn new() -> io::Result<Culprits> {
        let (reader, writer) = io::pipe()?;
        fcntl_setfl(&reader, OFlags::NONBLOCK)?;
        Ok(Culprits { reader, writer, rest: String::new(), named: HashMap::new() })
    }

    /// Returns the value of [`VARIABLE`].
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", process::id(), self.writer.as_raw_fd())
    }

    /// Returns the process whose fault it is that this one failed, if an error said so: the one
    /// that it named, or whom that one named in turn.
    pub(super) fn of(&mut self, process: i32) -> Option<i32> {
        self.read();
        let chain = std::iter::successors(self.named.get(&process), |next| self.named.get(next));
        // Two processes may name each other.
        chain.copied().take(self.named.len()).take_while(|&next| next != process).last()
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        // Ends when the pipe is empty.
        while let Ok(count @ 1..) = self.reader.read(&mut bytes) {
            self.rest.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        let end = self.rest.rfind('\n').map_or(0, |end| end + 1);
        for line in self.rest.drain(..end).collect::<String>().lines() {
            // A program may write anything here.
            let mut ids = line.split(' ').map_while(|id| id.parse().ok());
            if let (Some(process), Some(culprit)) = (ids.next(), ids.next()) {
                self.named.insert(process, culprit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_first_of_a_chain_is_at_fault() {
        let mut culprits = Culprits::new().expect("a pipe");
        assert_eq!(culprits.of(1), None);
        culprits.writer.write_all(b"1 2\nnonsense\n5 6\n6 5\n2 ").expect("room");
        assert_eq!([1, 2, 5].map(|process| culprits.of(process)), [Some(2), None, Some(6)]);
        culprits.writer.write_all(b"3\n1 2 4\n").expect("room");
        assert_eq!([1, 2, 3].map(|process| culprits.of(process)), [Some(3), Some(3), None]);
    }
}
