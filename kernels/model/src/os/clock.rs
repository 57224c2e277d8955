//! In the model no time passes.

use std::time::Duration;

pub(crate) fn now() -> Duration {
    Duration::ZERO
}
