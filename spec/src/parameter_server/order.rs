//! The order in which effects of closures commit, and the closures that an error cancels.

use std::num::NonZeroUsize;

/// The order in which effects of closures commit, and what closures read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// A closure reads the newest values. Its effects commit when it ends.
    #[default]
    Arrival,
    /// Closures are in windows, in the order in which they were scheduled. Those of a window read
    /// what the window before left. When all of them have ended, their effects commit, in the order
    /// in which the closures were scheduled. Then the next window begins.
    Scheduled {
        /// The closures of a window. A `join` ends a window that has fewer.
        window: NonZeroUsize,
    },
}

/// The time at which a closure's changes of variables take effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Updates {
    /// The end of the closure: all of them once, or none.
    #[default]
    AtEnd,
    /// The moment at which the closure makes the change, as in TensorFlow. Changes of an attempt
    /// that fails or is lost stay, and another attempt repeats them. Only in [`Order::Arrival`].
    AtOnce,
}

/// The fate of the closures that have not begun when one fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// They are cancelled. In [`Order::Scheduled`] those of the same window have begun: the later
    /// windows are cancelled, up to the `join` that returns the error.
    #[default]
    Cancel,
    /// They run.
    Continue,
}
