//! Errors: the reason, whose fault it is, and whether the group still works.

use consonance_spec::{DType, ReduceOp, UnknownReduceOp};
use std::{convert::Infallible, error::Error as StdError, fmt, io, iter, sync::Arc, time::Duration};

/// The result of every call that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error that a replica's own code may return.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The reason why a call failed.
///
/// Both `{}` and `{:?}` print it as a sentence, so a `main` that returns it tells the reason.
/// `{:#}` and `{:?}` add the [sources](StdError::source) that the sentence does not contain. The
/// fields are for programs.
///
/// `?` converts the errors of the standard library, texts and [`BoxError`] to it and, with the
/// feature `anyhow`, `anyhow::Error`. So a replica's function can use `?` on all of them. Other
/// errors convert by [`Error::other`], or by an `impl From<MyError> for consonance::Error`.
///
/// * The caller's faults ([`InvalidCall`](Error::InvalidCall),
///   [`WrongContext`](Error::WrongContext)) leave the group working. Exceptions: in an
///   [`overlap`](crate::ReplicaContext::overlap), and in a run or a merge function of a strategy
///   with several workers, they abort the group.
/// * The ranks' fault ([`Mismatch`](Error::Mismatch)) leaves the group working.
/// * [`Left`](Error::Left), [`Timeout`](Error::Timeout), [`Aborted`](Error::Aborted), and a
///   collective's [`System`](Error::System), abort the group on all ranks. Under a strategy this
///   ends one [`run`](crate::Strategy::run), and the next run starts anew.
///
/// ```
/// use consonance::{Error, MirroredStrategy};
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let error = strategy.run(|_| Ok("12x".parse::<u32>()?)).unwrap_err();
/// assert_eq!(format!("{error:?}"), "replica 0: invalid digit found in string");
/// assert!(matches!(error, Error::Replica { replica: 0, .. }));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid, whatever the other replicas called.
    InvalidCall {
        /// The call.
        call: &'static str,
        /// The argument, or the path of a leaf in it.
        argument: String,
        /// The replica whose argument it is, if there are several.
        replica: Option<usize>,
        /// A valid value.
        expected: String,
        /// The value that was passed.
        found: String,
    },
    /// The call is not allowed here: nested, or in the wrong context.
    WrongContext {
        /// The call.
        call: &'static str,
        /// The context of the call, and the context in which it is allowed.
        problem: String,
    },
    /// The replicas did not make the same call. A rank that gave or took up to 4 KiB and went on
    /// may get this error from its
    /// [next call](crate::guide::errors#replicas-that-make-different-calls).
    Mismatch {
        /// The call of the replicas that agree.
        call: String,
        /// The first replica that differs from them.
        replica: usize,
        /// The argument in which it differs, or the path of a leaf in it.
        argument: String,
        /// The value of the others.
        expected: String,
        /// The value of this replica.
        found: String,
    },
    /// A replica returned, or dropped its communicator, while others waited for it in a collective.
    /// If replicas left because of another replica, the error names that one.
    Left {
        /// The call of this replica.
        call: String,
        /// The replica that left.
        replica: usize,
        /// The last call of that replica, and its process if it is lost with it.
        last: String,
        /// Whether the replica is of another process and will make no call of the group again: see
        /// [`Error::is_loss`].
        lost: bool,
    },
    /// Replicas did not come before the deadline.
    Timeout {
        /// The call of this replica.
        call: String,
        /// The timeout.
        waited: Duration,
        /// Each missing replica, with its last call.
        missing: Vec<(usize, String)>,
    },
    /// The group was aborted: another replica failed, or missed the deadline of another one.
    Aborted {
        /// The call of this replica.
        call: String,
        /// The replica at fault, by its number in the group that was aborted. That may be a group
        /// that this one was [split](crate::Communicator::split) from.
        replica: usize,
        /// The reason, and whether it was such a group.
        reason: String,
        /// Whether the replica left with its process, or was lost with it: see [`Error::is_loss`].
        lost: bool,
        /// The last call of each replica of the aborted group, if the replica at fault was lost
        /// with its process or missed a deadline. Only calls that this process could see; with
        /// several processes, calls in any group.
        calls: Vec<(usize, String)>,
    },
    /// The processes of a cluster did not form a group.
    Meeting {
        /// The call of this process.
        call: &'static str,
        /// This process's task.
        task: String,
        /// The reason, with the missing tasks.
        problem: String,
        /// The missing tasks: those that did not come before the deadline. In a group
        /// [by an id](crate::ProcessGroup::with_id) a task is a rank.
        missing: Vec<usize>,
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
        /// The call; `None` if the text was [parsed](ReduceOp) on its own.
        call: Option<&'static str>,
        /// The replica whose argument it is, if there are several.
        replica: Option<usize>,
        /// The text.
        source: UnknownReduceOp,
    },
    /// The operating system refused a request. If it was for memory or a thread of a collective,
    /// the group was aborted.
    System {
        /// The request.
        what: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// Closures of a [`ClusterCoordinator`](crate::ClusterCoordinator) failed.
    Closures {
        /// The call that returns their failures.
        call: &'static str,
        /// The failures, in the order in which they came.
        failures: Vec<ClosureFailure>,
    },
    /// An error of user code: see [`Error::other`].
    Other(Arc<dyn StdError + Send + Sync>),
}

/// The failure of a closure of a [`ClusterCoordinator`](crate::ClusterCoordinator). The closure
/// has left no effect.
#[derive(Clone, Debug)]
pub struct ClosureFailure {
    /// The name of the function.
    pub function: Arc<str>,
    /// The number of the closure, in the order in which they were scheduled.
    pub number: u64,
    /// The number of the worker that ran it.
    pub worker: usize,
    /// The closure's error: [`Error::Panic`] if it panicked, [`Error::Timeout`] if it did not end.
    pub error: Error,
}

/// Prints the failure as one sentence.
impl fmt::Display for ClosureFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClosureFailure { function, number, worker, error } = self;
        write!(f, "closure {number} of {function:?} on worker {worker}: {error}")
    }
}

impl Error {
    /// Wraps an error of user code, so that a replica's function can return it.
    ///
    /// An error that is used often can convert by itself:
    ///
    /// ```
    /// use consonance::{Error, MirroredStrategy};
    /// # #[derive(Debug)]
    /// struct NoMoreData;
    /// # impl std::fmt::Display for NoMoreData {
    /// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "no more data") }
    /// # }
    /// # impl std::error::Error for NoMoreData {}
    /// impl From<NoMoreData> for Error {
    ///     fn from(error: NoMoreData) -> Error {
    ///         Error::other(error)
    ///     }
    /// }
    ///
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let result = strategy.run(|_| Ok(Err::<(), _>(NoMoreData)?));
    /// assert_eq!(result.unwrap_err().to_string(), "replica 0: no more data");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn other(error: impl Into<BoxError>) -> Error {
        Error::Other(error.into().into())
    }

    /// Makes the error of a request that the operating system refused, for an
    /// [`Engine`](crate::raw::Engine).
    ///
    /// ```
    /// # use consonance::Error;
    /// let error = Error::system("connect", std::io::ErrorKind::ConnectionRefused);
    /// assert_eq!(error.to_string(), "connect: connection refused");
    /// ```
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::System { what: what.into(), source: Arc::new(source.into()) }
    }

    /// Returns whether a process of the group is gone, or a replica for good, so that no call of
    /// the group can work again. The remaining processes can [reform](crate::ProcessGroup::reform)
    /// the group; strategies have [the same method](crate::MultiWorkerMirroredStrategy::reform).
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

    /// Returns the error without what was wrapped around it: [`Replica`](Error::Replica), and
    /// errors of user code that have an error of this library as a [source](StdError::source).
    ///
    /// ```
    /// use consonance::{Error, MirroredStrategy};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let error = strategy.run(|replica| replica.all_reduce("avg", 1.0f32)).unwrap_err();
    /// assert!(matches!(error.root(), Error::UnknownReduceOp { replica: Some(0), .. }));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn root(&self) -> &Error {
        match self {
            Error::Replica { source, .. } => source.root(),
            Error::Other(error) => {
                chain(Some(&**error)).find_map(|error| error.downcast_ref::<Error>()).map_or(self, Error::root)
            }
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

    /// Makes the error of elements for which the system has no memory.
    pub(crate) fn no_memory(dtype: DType, count: usize) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::system(format!("allocate {count} elements of {dtype}"), source)
    }

    /// Adds the replica whose argument is invalid.
    pub(crate) fn of_replica(mut self, id: usize) -> Error {
        if let Error::InvalidCall { replica, .. } | Error::UnknownReduceOp { replica, .. } = &mut self {
            *replica = Some(id);
        }
        self
    }

    /// Replaces the number of a contribution by that of its owner.
    pub(crate) fn of_contribution(mut self, owner: impl Fn(usize) -> usize) -> Error {
        match &mut self {
            Error::InvalidCall { replica, .. } | Error::UnknownReduceOp { replica, .. } => {
                *replica = replica.map(owner);
            }
            Error::Mismatch { replica, .. } => *replica = owner(*replica),
            _ => {}
        }
        self
    }

    /// Replaces the call of an error of an argument.
    pub(crate) fn of_call_named(mut self, name: &'static str) -> Error {
        if let Error::InvalidCall { call, .. } = &mut self {
            *call = name;
        }
        self
    }

    /// Sets the call of an error of an argument that did not know its call.
    pub(crate) fn of_call(mut self, name: &'static str) -> Error {
        match &mut self {
            Error::UnknownReduceOp { call, .. } => *call = Some(name),
            Error::InvalidCall { call, .. } if *call == NEST => *call = name,
            _ => {}
        }
        self
    }
}

/// An error as one sentence.
struct Sentence<'e>(&'e Error);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
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
            Error::Meeting { call, task, problem, .. } => write!(f, "{call}: {task}: {problem}"),
            Error::Panic { replica, message } => write!(f, "replica {replica} panicked: {message}"),
            Error::Replica { replica, source } => write!(f, "replica {replica}: {source}"),
            Error::Closures { call, failures } => {
                write!(f, "{call}: ")?;
                failures
                    .iter()
                    .enumerate()
                    .try_for_each(|(place, failure)| write!(f, "{}{failure}", if place > 0 { "; " } else { "" }))
            }
            Error::UnknownReduceOp { call, replica, source } => {
                if let Some(call) = call {
                    write!(f, "{call}: op")?;
                    replica.iter().try_for_each(|replica| write!(f, " of replica {replica}"))?;
                    write!(f, ": ")?;
                }
                write!(f, "{source}")
            }
            Error::System { what, source } => write!(f, "{what}: {source}"),
            Error::Other(error) => write!(f, "{error}"),
        }
    }
}

/// Returns an error, its source, the source of that, and so on.
fn chain<'e>(first: Option<&'e (dyn StdError + 'static)>) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    let mut next = first;
    iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// Prints a sentence. `{:#}` adds the sources that the sentence does not contain.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Sentence(self))?;
        if f.alternate() {
            let mut text = Sentence(self).to_string();
            for source in chain(self.source()).map(|source| source.to_string()) {
                // Some errors print their source themselves.
                if !text.ends_with(&source) {
                    write!(f, ": {source}")?;
                    text = source;
                }
            }
        }
        Ok(())
    }
}

/// Prints the same as `{:#}`, for a `main` that returns the error, and for `unwrap`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

/// The sources that the sentence does not contain: a chain of sources prints each once.
impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Replica { source, .. } => source.source(),
            Error::System { source, .. } => source.source(),
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

/// A reduction operation, or its name as text.
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
    /// Converts to the operation.
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

/// Converts the operation argument of `call`.
pub(crate) fn op_of(call: &'static str, op: impl IntoReduceOp) -> Result<ReduceOp> {
    op.into_reduce_op().map_err(|error| error.of_call(call))
}

/// Returns what an error expects in place of an operation that is not defined on `dtype`.
pub(crate) fn operation_on(dtype: DType, path: &str) -> String {
    let defined = ReduceOp::ALL.iter().filter(|op| op.result(dtype).is_some()).map(|op| op.name());
    let place = if path.is_empty() { String::new() } else { format!(" ({path})") };
    format!("an operation on {dtype}{place}: {}", defined.collect::<Vec<_>>().join(", "))
}

/// The placeholder for the call in errors of a nest's leaves, which do not know their call: see
/// [`Error::of_call`].
pub(crate) const NEST: &str = "Nest";
