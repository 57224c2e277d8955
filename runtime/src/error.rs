//! What can go wrong, whose fault it is, and whether the group still works.

use consonance_spec::{ReduceOp, UnknownReduceOp};
use std::{convert::Infallible, fmt, time::Duration};

/// The result of every call that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whatever error a replica's own code may return.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a call failed.
///
/// The caller's faults ([`InvalidCall`](Error::InvalidCall), [`WrongContext`](Error::WrongContext))
/// and the ranks' ([`Mismatch`](Error::Mismatch)) leave the group working, but for the former in an
/// [`overlap`](crate::ReplicaContext::overlap), and of a run or a merge function where there are
/// several workers. [`Left`](Error::Left), [`Timeout`](Error::Timeout) and
/// [`Aborted`](Error::Aborted) end it, on all ranks, as does the [`System`](Error::System) of a
/// collective; under a strategy that is the end of one [`run`](crate::Strategy::run), and the next
/// one starts anew.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An argument cannot be right, whatever the others called.
    InvalidCall {
        /// The call.
        call: &'static str,
        /// The argument, or the path of a leaf in it.
        argument: String,
        /// The replica whose argument it is, where there are several.
        replica: Option<usize>,
        /// What would have been right.
        expected: String,
        /// What it was.
        found: String,
    },
    /// The call is not allowed here: nested, or in the wrong context.
    WrongContext {
        /// The call.
        call: &'static str,
        /// Where it was made, and where it may be.
        problem: String,
    },
    /// The replicas did not call the same.
    Mismatch {
        /// What the replicas that agree have called.
        call: String,
        /// The first replica that differs from them.
        replica: usize,
        /// In which argument, or in which leaf of it.
        argument: String,
        /// What the others gave.
        expected: String,
        /// What this replica gave.
        found: String,
    },
    /// A replica returned, or gave up its communicator, while others waited for it in a collective.
    /// Of replicas that left because they were told of another one, that one is named.
    Left {
        /// What this replica called.
        call: String,
        /// The replica that left.
        replica: usize,
        /// What it called last, and its process if that is another one.
        last: String,
        /// Whether it is of another process, and makes no call of the group any more: see
        /// [`Error::is_loss`].
        lost: bool,
    },
    /// Replicas did not come before the deadline.
    Timeout {
        /// What this replica called.
        call: String,
        /// How long it waited.
        waited: Duration,
        /// Each replica that is missing, with what it called last.
        missing: Vec<(usize, String)>,
    },
    /// Another replica failed, or was missing at another one's deadline, and that ended the group.
    Aborted {
        /// What this replica called.
        call: String,
        /// The replica at fault: by its number in the group that was ended, which may be one that
        /// this one was [split](crate::Communicator::split) from.
        replica: usize,
        /// Why, and whether it was such a group.
        reason: String,
        /// Whether it has left with its process, or was lost with it: see [`Error::is_loss`].
        lost: bool,
        /// If it was lost with its process, or was missing at a deadline: what each replica of the
        /// group that was ended called last, as far as could be seen from here; where there are
        /// several processes, in any group.
        calls: Vec<(usize, String)>,
    },
    /// The processes of a cluster did not meet.
    Meeting {
        /// What this process wanted.
        call: &'static str,
        /// This process's task.
        task: String,
        /// What was in the way, with the tasks that are missing.
        problem: String,
    },
    /// A replica's code panicked.
    Panic {
        /// The replica.
        replica: usize,
        /// The panic's message.
        message: String,
    },
    /// A replica's code returned an error of its own.
    Replica {
        /// The replica.
        replica: usize,
        /// Its error.
        source: Box<Error>,
    },
    /// The text names no operation.
    UnknownReduceOp {
        /// The call; none, where the text is [parsed](ReduceOp) by itself.
        call: Option<&'static str>,
        /// The replica whose argument it is, where there are several.
        replica: Option<usize>,
        /// The text.
        source: UnknownReduceOp,
    },
    /// The operating system refused something. If it was memory or a thread for a collective, the
    /// group has ended.
    System {
        /// What was asked of it.
        what: String,
        /// Its own words.
        source: std::io::Error,
    },
    /// An error of the user's own code: see [`Error::other`].
    Other(BoxError),
}

impl Error {
    /// Wraps an error of the user's own, so that a replica's function can return it.
    ///
    /// ```
    /// use consonance::{Error, MirroredStrategy, PerReplica};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let result = strategy.run(|_| "12x".parse::<u32>().map_err(Error::other));
    /// assert!(result.unwrap_err().to_string().contains("replica 0: invalid digit"));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn other(error: impl Into<BoxError>) -> Error {
        Error::Other(error.into())
    }

    /// Whether a process of the group is gone, or a replica of it for good, so that no call of the
    /// group works any more. Who is left may [reform](crate::ProcessGroup::reform) it, and
    /// strategies have [the same](crate::MultiWorkerMirroredStrategy::reform).
    ///
    /// ```
    /// # use consonance::{MirroredStrategy, Error};
    /// # let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// # let train = || strategy.run(|_| Err::<(), _>(Error::other("no more data")));
    /// match train() {
    ///     Err(error) if error.is_loss() => println!("{error}: go on with the others"),
    ///     Err(error) => println!("{error}: the next run works"),
    ///     Ok(_) => println!("done"),
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn is_loss(&self) -> bool {
        matches!(self.root(), Error::Aborted { lost: true, .. } | Error::Left { lost: true, .. })
    }

    /// The error without the note of the replica that returned it.
    pub fn root(&self) -> &Error {
        match self {
            Error::Replica { source, .. } => source.root(),
            error => error,
        }
    }

    pub(crate) fn invalid(
        call: &'static str,
        argument: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Error {
        Error::InvalidCall {
            call,
            argument: argument.into(),
            replica: None,
            expected: expected.into(),
            found: found.into(),
        }
    }

    /// The same error once more, for all who wait for one call.
    pub(crate) fn duplicate(&self) -> Error {
        match self {
            Error::InvalidCall { call, argument, replica, expected, found } => Error::InvalidCall {
                call,
                argument: argument.clone(),
                replica: *replica,
                expected: expected.clone(),
                found: found.clone(),
            },
            Error::Mismatch { call, replica, argument, expected, found } => Error::Mismatch {
                call: call.clone(),
                replica: *replica,
                argument: argument.clone(),
                expected: expected.clone(),
                found: found.clone(),
            },
            Error::UnknownReduceOp { call, replica, source } => {
                Error::UnknownReduceOp { call: *call, replica: *replica, source: source.clone() }
            }
            Error::Left { call, replica, last, lost } => {
                Error::Left { call: call.clone(), replica: *replica, last: last.clone(), lost: *lost }
            }
            Error::Timeout { call, waited, missing } => {
                Error::Timeout { call: call.clone(), waited: *waited, missing: missing.clone() }
            }
            Error::Aborted { call, replica, reason, lost, calls } => Error::Aborted {
                call: call.clone(),
                replica: *replica,
                reason: reason.clone(),
                lost: *lost,
                calls: calls.clone(),
            },
            Error::System { what, source } => {
                let source = match source.raw_os_error() {
                    Some(code) => std::io::Error::from_raw_os_error(code),
                    None => std::io::Error::new(source.kind(), source.to_string()),
                };
                Error::System { what: what.clone(), source }
            }
            // No collective has another.
            error => Error::other(error.to_string()),
        }
    }

    /// The same error about `replica`'s argument.
    pub(crate) fn of_replica(mut self, id: usize) -> Error {
        if let Error::InvalidCall { replica, .. } | Error::UnknownReduceOp { replica, .. } = &mut self {
            *replica = Some(id);
        }
        self
    }

    /// The same error in `name`, if it is of an argument that does not know which call it is for.
    pub(crate) fn of_call(mut self, name: &'static str) -> Error {
        match &mut self {
            Error::UnknownReduceOp { call, .. } => *call = Some(name),
            Error::InvalidCall { call, .. } if *call == NEST => *call = name,
            _ => {}
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidCall { call, argument, replica, expected, found } => {
                write!(f, "{call}: {argument}")?;
                if let Some(replica) = replica {
                    write!(f, " of replica {replica}")?;
                }
                write!(f, ": expected {expected}, found {found}")
            }
            Error::WrongContext { call, problem } => write!(f, "{call}: {problem}"),
            Error::Mismatch { call, replica, argument, expected, found } => {
                write!(f, "{call}: mismatch in {argument} of replica {replica}: expected {expected}, found {found}")
            }
            Error::Left { call, replica, last, .. } => {
                write!(f, "{call}: replica {replica} left without making this call; {last}")
            }
            Error::Timeout { call, waited, missing } => {
                write!(f, "{call}: deadline of {waited:?} passed")?;
                missing.iter().try_for_each(|(replica, last)| write!(f, "; replica {replica} is missing: {last}"))
            }
            Error::Aborted { call, replica, reason, calls, .. } => {
                write!(f, "{call}: replica {replica} {reason}")?;
                calls.iter().try_for_each(|(replica, last)| write!(f, "; replica {replica}: {last}"))
            }
            Error::Meeting { call, task, problem } => write!(f, "{call}: {task}: {problem}"),
            Error::Panic { replica, message } => write!(f, "replica {replica} panicked: {message}"),
            Error::Replica { replica, source } => write!(f, "replica {replica}: {source}"),
            Error::UnknownReduceOp { call, replica, source } => {
                if let Some(call) = call {
                    write!(f, "{call}: op")?;
                    replica.iter().try_for_each(|replica| write!(f, " of replica {replica}"))?;
                    write!(f, ": ")?;
                }
                source.fmt(f)
            }
            Error::System { what, source } => write!(f, "{what}: {source}"),
            Error::Other(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Replica { source, .. } => Some(source),
            Error::UnknownReduceOp { source, .. } => Some(source),
            Error::System { source, .. } => Some(source),
            Error::Other(error) => error.source(),
            _ => None,
        }
    }
}

impl From<UnknownReduceOp> for Error {
    fn from(source: UnknownReduceOp) -> Self {
        Error::UnknownReduceOp { call: None, replica: None, source }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// An operation, or the text of one.
///
/// ```
/// # use consonance::{MirroredStrategy, Tensor};
/// # let strategy = MirroredStrategy::new(["cpu:0"])?;
/// # let losses = strategy.run(|_| Ok(Tensor::from(1.0f32)))?;
/// strategy.reduce("SUM", &losses, None)?;
/// let error = strategy.reduce("AVG", &losses, None).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "Strategy::reduce: op: \"AVG\" is not a reduce op; expected one of sum, mean, product, min, max, and, or, xor"
/// );
/// # Ok::<(), consonance::Error>(())
/// ```
pub trait IntoReduceOp {
    /// The operation.
    ///
    /// # Errors
    /// [`Error::UnknownReduceOp`] if the text names none.
    fn into_reduce_op(self) -> Result<ReduceOp>;
}

impl<O: TryInto<ReduceOp>> IntoReduceOp for O
where
    Error: From<O::Error>,
{
    fn into_reduce_op(self) -> Result<ReduceOp> {
        Ok(self.try_into()?)
    }
}

/// The operation that `call` was given.
pub(crate) fn op_of(call: &'static str, op: impl IntoReduceOp) -> Result<ReduceOp> {
    op.into_reduce_op().map_err(|error| error.of_call(call))
}

/// The call in errors of places for the leaves of a nest, which do not know the call that has a
/// result for them: see [`Error::of_call`].
pub(crate) const NEST: &str = "Nest";

/// All results, or the error that says most with its place: a replica's own before one that only
/// tells of another replica's.
pub(crate) fn all_or_worst<R>(results: Vec<Result<R>>) -> Result<Vec<R>, (usize, Error)> {
    let mut values = Vec::with_capacity(results.len());
    let mut worst: Option<(usize, Error)> = None;
    for (place, result) in results.into_iter().enumerate() {
        match result {
            Ok(value) => values.push(value),
            Err(error) => {
                if worst.as_ref().is_none_or(|(_, worst)| tells_of_another(worst) > tells_of_another(&error)) {
                    worst = Some((place, error));
                }
            }
        }
    }
    worst.map_or(Ok(values), Err)
}

/// How much an error is the consequence of another replica's.
fn tells_of_another(error: &Error) -> u8 {
    match error.root() {
        Error::Aborted { .. } => 3,
        Error::Left { .. } => 2,
        Error::Mismatch { .. } | Error::Timeout { .. } => 1,
        _ => 0,
    }
}
