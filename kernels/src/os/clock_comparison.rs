//! Comparisons of this host's clock with that of another one.
//!
//! A round trip asks the other host for its time between two looks at the own clock. The other host
//! has looked at its clock between the two. So the offset, which is that clock less the own one,
//! lies between `told - received` and `told - sent`, however unequal the ways there and back are.
//! Its middle is the estimate, and half the round trip is the error. Of several round trips the
//! shortest one counts.
//!
//! All values that come from another host fit in 64 bits, so sums of them do not overflow here.

/// A time or a span in nanoseconds.
pub type Nanoseconds = i128;

/// A round trip to the other host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trip {
    /// The own time before it.
    pub sent: Nanoseconds,
    /// The time that the other host told.
    pub told: Nanoseconds,
    /// The own time after it.
    pub received: Nanoseconds,
}

/// A comparison of the clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The own time of it.
    pub at: Nanoseconds,
    /// The other clock less the own one.
    pub offset: Nanoseconds,
    /// The limit on the error of the offset.
    pub error: Nanoseconds,
}

impl Comparison {
    /// The number of trips that a comparison takes.
    pub const TRIPS: usize = 16;

    /// Compares the clocks by the shortest of these trips. `None` if there is none.
    ///
    /// ```
    /// use consonance_kernels::os::clock_comparison::{Comparison, Trip};
    /// let slow = Trip { sent: 100, told: 5000, received: 900 };
    /// let fast = Trip { sent: 1000, told: 5100, received: 1200 };
    /// assert_eq!(Comparison::of(&[slow, fast]), Some(Comparison { at: 1100, offset: 4000, error: 100 }));
    /// ```
    pub fn of(trips: &[Trip]) -> Option<Comparison> {
        let &Trip { sent, told, received } = trips.iter().min_by_key(|trip| trip.received - trip.sent)?;
        let delay = received - sent;
        let at = sent + delay / 2;
        Some(Comparison { at, offset: told - at, error: delay - delay / 2 })
    }
}
