//! Bytes that remember which of them were written.

/// The reason why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    OutOfBounds,
    Uninitialised,
}

/// The state of a byte.
const UNWRITTEN: u8 = 0;
const WRITTEN: u8 = 1;
const OUTSIDE: u8 = 2;

/// Bytes, and what each one is.
#[derive(Default)]
pub(crate) struct Region {
    data: Vec<u8>,
    states: Vec<u8>,
    /// Whether bytes between the variables are outside.
    has_gaps: bool,
}

impl Region {
    /// Returns bytes that nobody has written.
    pub(crate) fn new(bytes: usize) -> Region {
        Region { data: vec![0; bytes], states: vec![UNWRITTEN; bytes], has_gaps: false }
    }

    /// Forgets all, and makes only the bytes of `variables` (offset, bytes) accessible.
    pub(crate) fn reset(&mut self, bytes: usize, variables: &[(u32, u32)]) {
        self.data.clear();
        self.data.resize(bytes, 0);
        self.states.clear();
        self.states.resize(bytes, OUTSIDE);
        self.has_gaps = true;
        for (offset, bytes) in variables {
            self.states[*offset as usize..][..*bytes as usize].fill(UNWRITTEN);
        }
    }

    /// Returns the bytes from `offset` on, all of which were written.
    pub(crate) fn read(&self, offset: u64, bytes: usize) -> Result<&[u8], Refusal> {
        let range = self.range(offset, bytes)?;
        // A loop without an exit is a few vector instructions.
        let is_written = self.states[range.clone()].iter().fold(true, |all, state| all & (*state == WRITTEN));
        if is_written {
            return Ok(&self.data[range]);
        }
        let is_outside = self.states[range].contains(&OUTSIDE);
        Err(if is_outside { Refusal::OutOfBounds } else { Refusal::Uninitialised })
    }

    /// Returns the bytes from `offset` on, to be written.
    pub(crate) fn write(&mut self, offset: u64, bytes: usize) -> Result<&mut [u8], Refusal> {
        let range = self.range(offset, bytes)?;
        if self.has_gaps && self.states[range.clone()].contains(&OUTSIDE) {
            return Err(Refusal::OutOfBounds);
        }
        self.states[range.clone()].fill(WRITTEN);
        Ok(&mut self.data[range])
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len()
    }

    fn range(&self, offset: u64, bytes: usize) -> Result<std::ops::Range<usize>, Refusal> {
        let start = usize::try_from(offset).ok().filter(|start| *start <= self.data.len());
        let start = start.ok_or(Refusal::OutOfBounds)?;
        if self.data.len() - start < bytes {
            return Err(Refusal::OutOfBounds);
        }
        Ok(start..start + bytes)
    }
}
