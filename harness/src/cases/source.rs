//! Choices made from bytes.

/// Bytes from which a case is made. The same bytes make the same choices. After the last byte every
/// choice is the first, which is the simplest. So a shorter input is a simpler case, as shrinking
/// requires.
#[derive(Clone, Debug)]
pub struct Source<'b>(&'b [u8]);

impl<'b> Source<'b> {
    /// Returns the choices that `bytes` make.
    pub fn new(bytes: &'b [u8]) -> Source<'b> {
        Source(bytes)
    }

    /// Returns the next byte; 0 after the last byte.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&byte, rest)) => {
                self.0 = rest;
                byte
            }
            None => 0,
        }
    }

    /// Returns whether all bytes have been taken.
    pub fn has_ended(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a number below `limit`, which is at most 256.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    /// Returns true once in `period` times, and never after the last byte if `period` is above 1.
    pub fn once_in(&mut self, period: usize) -> bool {
        self.below(period) == period - 1
    }

    /// Returns one of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns a seed for elements.
    pub fn seed(&mut self) -> u64 {
        u64::from_le_bytes([self.byte(), self.byte(), 0, 0, 0, 0, 0, 0])
    }
}
