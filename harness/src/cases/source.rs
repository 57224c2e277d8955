//! Choices made from bytes.

/// Bytes from which a case is made: the same bytes make the same choices, and where they end every
/// choice is the first, which is the simplest. So a shorter input is a simpler case, which is what
/// shrinking wants.
#[derive(Clone, Debug)]
pub struct Source<'b>(&'b [u8]);

impl<'b> Source<'b> {
    /// Choices made from `bytes`.
    pub fn new(bytes: &'b [u8]) -> Source<'b> {
        Source(bytes)
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&byte, rest)) => {
                self.0 = rest;
                byte
            }
            None => 0,
        }
    }

    /// Whether all bytes have been taken.
    pub fn has_ended(&self) -> bool {
        self.0.is_empty()
    }

    /// A number below `limit`, which is at most 256.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    /// Yes once in `period` times; never where bytes have ended.
    pub fn once_in(&mut self, period: usize) -> bool {
        self.below(period) == period - 1
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A seed of elements.
    pub fn seed(&mut self) -> u64 {
        u64::from_le_bytes([self.byte(), self.byte(), 0, 0, 0, 0, 0, 0])
    }
}
