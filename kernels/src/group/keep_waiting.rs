//! What a wait asks now and then.

use std::{sync::Arc, time::Duration};

/// Whether a wait goes on.
pub type KeepWaiting = Arc<dyn Fn() -> bool + Send + Sync>;

/// How long a wait sleeps before it asks: a user who interrupts it does not notice the delay.
pub(super) const ASKS_EVERY: Duration = Duration::from_millis(100);
