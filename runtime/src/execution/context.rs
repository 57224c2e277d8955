//! The context of a thread: outside all strategies, in a strategy's scope, or in a replica.

use super::builder::DEFAULT;
use crate::{Error, Result, Strategy};
use std::cell::RefCell;

/// A strategy scope or replica function that encloses the running code.
#[derive(Clone)]
struct Surrounding {
    strategy: Strategy,
    /// The replica in a replica context; `None` in a cross-replica context.
    replica: Option<usize>,
}

thread_local! {
    static SURROUNDINGS: RefCell<Vec<Surrounding>> = const { RefCell::new(Vec::new()) };
}

/// Returns the strategy whose scope, replica function or merge function this thread runs. Outside
/// of these, returns the [default strategy](Strategy::default_strategy). TensorFlow's
/// `get_strategy`.
///
/// ```
/// use consonance::{MirroredStrategy, current_strategy};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// assert_eq!(current_strategy().num_replicas_in_sync(), 1);
/// assert_eq!(strategy.scope(|| Ok(current_strategy().num_replicas_in_sync()))?, 2);
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn current_strategy() -> Strategy {
    innermost(|strategy, _| strategy.clone()).unwrap_or_else(Strategy::default_strategy)
}

impl Strategy {
    /// Returns the strategy that is in effect outside all others: one replica on the calling
    /// thread.
    pub fn default_strategy() -> Strategy {
        DEFAULT.clone()
    }

    /// Returns whether this is the [default strategy](Strategy::default_strategy).
    pub(crate) fn is_default(&self) -> bool {
        *self == *DEFAULT
    }

    /// Runs `body` with this strategy as the [current one](crate::current_strategy) of this thread,
    /// in the cross-replica context. The scope of the same strategy may be nested. As in
    /// TensorFlow, the scope of the [default strategy](Strategy::default_strategy) changes nothing:
    /// `body` stays in that strategy's replica context.
    ///
    /// # Errors
    /// The error of `body`, unchanged. [`Error::WrongContext`] in a replica, or in another
    /// strategy's scope: `body` does not run.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, current_strategy, in_cross_replica_context};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let inside = strategy.scope(|| Ok((current_strategy() == *strategy, in_cross_replica_context())))?;
    /// assert_eq!(inside, (true, true));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn scope<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        require_cross_replica("Strategy::scope", self)?;
        if self.is_default() { body() } else { within(self, None, body) }
    }
}

/// Returns whether [`current_strategy`] is not the default strategy.
pub fn has_strategy() -> bool {
    innermost(|strategy, _| !strategy.is_default()).unwrap_or(false)
}

/// Returns whether this thread is in the scope of a strategy other than the
/// [default](Strategy::default_strategy), or in a merge function.
pub fn in_cross_replica_context() -> bool {
    innermost(|_, replica| replica.is_none()).unwrap_or(false)
}

/// Returns whether this thread runs a replica's function. Outside all strategies it counts as
/// replica 0 of the default strategy.
pub fn in_replica_context() -> bool {
    innermost(|_, replica| replica.is_some()).unwrap_or(true)
}

/// Returns the replica, of any strategy, whose function this thread runs.
pub(crate) fn replica() -> Option<usize> {
    innermost(|_, replica| replica).flatten()
}

/// Returns the replica of `strategy` whose function this thread runs.
pub(crate) fn replica_of(strategy: &Strategy) -> Option<usize> {
    innermost(|current, replica| replica.filter(|_| current == strategy)).flatten()
}

fn innermost<R>(look: impl FnOnce(&Strategy, Option<usize>) -> R) -> Option<R> {
    SURROUNDINGS.with_borrow(|all| all.last().map(|inner| look(&inner.strategy, inner.replica)))
}

/// Runs `body` in `strategy`'s cross-replica context, or in the context of its `replica`.
pub(crate) fn within<R>(strategy: &Strategy, replica: Option<usize>, body: impl FnOnce() -> R) -> R {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            SURROUNDINGS.with_borrow_mut(|all| all.pop());
        }
    }
    SURROUNDINGS.with_borrow_mut(|all| all.push(Surrounding { strategy: strategy.clone(), replica }));
    let _leave = Leave;
    body()
}

/// Checks that `call` is made outside replicas and not in the scope of another strategy.
pub(crate) fn require_cross_replica(call: &'static str, strategy: &Strategy) -> Result<()> {
    innermost(|current, replica| match replica {
        Some(replica) => {
            let instead = match call {
                "Strategy::run" | "Strategy::run_with" => "runs do not nest: call the function itself",
                _ => "it is of the cross-replica context: see merge_call",
            };
            Err(Error::WrongContext { call, problem: format!("called in replica {replica}, but {instead}") })
        }
        None if current != strategy => {
            let (own, other) = (strategy.to_string(), current.to_string());
            // Two strategies of the same devices print the same.
            let other = if own == other { "made by another call of `new`".to_owned() } else { other };
            let problem =
                format!("called on {own} in the scope of another strategy, {other}: strategies do not mix, clones do");
            Err(Error::WrongContext { call, problem })
        }
        None => Ok(()),
    })
    .unwrap_or(Ok(()))
}

/// Checks that `call` is made on the thread, and inside the function, of replica `id` of
/// `strategy`.
pub(crate) fn require_replica(call: &'static str, strategy: &Strategy, id: usize) -> Result<()> {
    let here = innermost(|current, replica| current == strategy && replica == Some(id)).unwrap_or(false);
    if here {
        return Ok(());
    }
    let problem = format!("called on replica {id} outside its function, for example in a merge function");
    Err(Error::WrongContext { call, problem })
}
