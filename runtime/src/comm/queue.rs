//! Calls on one communicator from any thread, in turn.

use crate::{
    Communicator, Error, Mailbox, Request, Result,
    comm::{agreement::Agreement, call::Call, engine::AbortHandle, kept_thread::KeptThread, options},
    panics,
};
use consonance_kernels::{
    group::{KeepWaiting, Reason},
    sync::fork::Origin,
};
use consonance_spec::World;
use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// A communicator that any thread may use. Calls are executed one at a time, in the order in which
/// they were made. Every rank of the group makes the same calls in the same order, as always: where
/// several threads of a rank make calls, the program ensures that order.
///
/// A thread of the queue executes the calls that were [started](Queue::start). There is none before
/// the first of them.
///
/// If the queue is dropped, the calls that were started are executed first, each at most until its
/// timeout.
///
/// ```
/// use consonance::{Communicator, Queue, ReduceOp, raw::Call};
/// let sums = std::thread::scope(|scope| {
///     let ranks = Communicator::threads(2).into_iter().map(Queue::new).enumerate().map(|(rank, queue)| {
///         scope.spawn(move || {
///             let mut data = [rank as f32, 1.0];
///             let recv = data.as_mut_slice().into();
///             queue.run(Call::AllReduce { op: ReduceOp::Sum, send: None, recv }, None).map(|()| data)
///         })
///     });
///     ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(sums, [[1.0, 2.0]; 2]);
/// # Ok::<(), consonance::Error>(())
/// ```
pub struct Queue(Arc<Shared>);

struct Shared {
    world: World,
    origin: Origin,
    aborter: AbortHandle,
    /// Made with the queue: it could be made later only in a turn, and messages wait for no call.
    mailbox: Result<Mailbox>,
    /// The function that is asked while a thread waits for its turn.
    asks: Option<KeepWaiting>,
    /// The timeout of a call without one.
    timeout: Duration,
    turns: Mutex<Turns>,
    changed: Condvar,
}

struct Turns {
    /// `None` while a thread executes a call.
    communicator: Option<Communicator>,
    /// The number of the next call that is made, and of the next that is executed.
    next: u64,
    now: u64,
    /// The thread that executes the calls that were started.
    thread: Option<KeptThread>,
}

/// The time that a thread waits for its turn before it asks whether to go on.
const ASKS_EVERY: Duration = Duration::from_millis(100);

impl Queue {
    /// Makes a queue for the calls on `communicator`.
    pub fn new(mut communicator: Communicator) -> Queue {
        let mailbox = communicator.mailbox();
        let (world, aborter) = (communicator.world(), communicator.abort_handle());
        let (timeout, asks) = (communicator.timeout(), communicator.asks.clone());
        let turns = Turns { communicator: Some(communicator), next: 0, now: 0, thread: None };
        let (turns, changed) = (Mutex::new(turns), Condvar::new());
        Queue(Arc::new(Shared { world, origin: Origin::here(), aborter, mailbox, asks, timeout, turns, changed }))
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.0.world
    }

    /// Returns a handle that aborts the group from any thread, also during a call.
    pub fn abort_handle(&self) -> AbortHandle {
        self.0.aborter.clone()
    }

    /// Returns the [mailbox](Communicator::mailbox) of this rank. Waits for no call of the queue.
    ///
    /// # Errors
    /// As [`Communicator::mailbox`], when the queue was made.
    pub fn mailbox(&self) -> Result<Mailbox> {
        self.0.mailbox.as_ref().map(Mailbox::duplicate).map_err(Error::clone)
    }

    /// Executes `call` on this thread when the calls before it are done. `timeout` is that of the
    /// communicator by default; it does not include the time of the calls before.
    ///
    /// # Errors
    /// As [`Communicator::execute`]; [`Error::WrongContext`] in a child made by `fork`.
    pub fn run(&self, call: Call<'_>, timeout: Option<Duration>) -> Result<()> {
        self.with(timeout, |communicator| communicator.execute(call, &Agreement::NONE))
    }

    /// Starts calls, which another thread executes one after the other when the calls before them
    /// are done. The request ends with the last of them, or with the first that fails. `timeout` is
    /// that of each call.
    pub fn start(&self, calls: Vec<Call<'static>>, timeout: Option<Duration>) -> Request {
        self.start_with(timeout, |communicator| {
            communicator.as_one(|rank| calls.into_iter().try_for_each(|call| rank.execute(call, &Agreement::NONE)))
        })
    }

    /// Starts `work`, which another thread calls with the communicator when the calls before are
    /// done: the twin of [`with`](Queue::with). The request has its result.
    pub fn start_with(
        &self,
        timeout: Option<Duration>,
        work: impl FnOnce(&mut Communicator) -> Result<()> + Send + 'static,
    ) -> Request {
        let (promise, request) = Request::new(None);
        match self.begin(timeout) {
            Err(error) => promise.keep(Err(error)),
            Ok((mut turns, timeout)) => {
                let (shared, turn) = (self.0.clone(), turns.take_number());
                let replica = shared.world.rank();
                let thread = turns.thread.as_ref().expect("there since the first call was begun");
                thread.run(move || {
                    let take_turn = || {
                        shared.take_turn(shared.lock(), turn, |communicator| {
                            communicator.limit(timeout);
                            communicator.complete(work)
                        })
                    };
                    let done = panics::catch(take_turn);
                    let result = done.unwrap_or_else(|message| Err(Error::Panic { replica, message }));
                    // Before a thread that waits for the request goes on: if that frees the queue,
                    // its rank leaves there, not on this thread, which ends with the process.
                    drop(shared);
                    promise.keep(result.map(|()| None));
                });
            }
        }
        request
    }

    /// Begins to start a call: checks it, and starts the thread for it.
    fn begin(&self, timeout: Option<Duration>) -> Result<(MutexGuard<'_, Turns>, Duration)> {
        self.0.check_origin()?;
        let (timeout, mut turns) = (self.0.timeout(timeout)?, self.0.lock());
        if turns.thread.is_none() {
            let thread = KeptThread::start("queue");
            turns.thread = Some(thread.map_err(|source| Error::system("start a thread for calls", source))?);
        }
        Ok((turns, timeout))
    }

    /// Calls `with` with the communicator, on this thread, when the calls before are done: for
    /// [`split`](Communicator::split), [`alloc`](Communicator::alloc) and others that are no
    /// [`Call`]. `timeout` is that of a call in it.
    ///
    /// # Errors
    /// Those of `with`; [`Error::WrongContext`] in a child made by `fork`.
    pub fn with<R>(&self, timeout: Option<Duration>, with: impl FnOnce(&mut Communicator) -> Result<R>) -> Result<R> {
        self.0.check_origin()?;
        let timeout = self.0.timeout(timeout)?;
        let mut turns = self.0.lock();
        let turn = turns.take_number();
        self.0.take_turn(turns, turn, |communicator| {
            communicator.limit(timeout);
            with(communicator)
        })
    }
}

impl Shared {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that this process is no fork: there a lock may be held for ever.
    #[inline]
    fn check_origin(&self) -> Result<()> {
        if self.origin.forked() {
            let problem = "a call in a process made by fork after the queue was made".to_owned();
            return Err(Error::WrongContext { call: "Queue", problem });
        }
        Ok(())
    }

    #[inline]
    fn timeout(&self, timeout: Option<Duration>) -> Result<Duration> {
        timeout.map_or(Ok(self.timeout), |timeout| options::check_timeout("Queue", timeout))
    }

    /// Waits for a turn, and calls `with` in it, without the lock. A panic of it aborts the group,
    /// as does the answer that this thread shall not wait: then the calls before it end, and it
    /// fails.
    fn take_turn<'s, R>(
        &'s self,
        mut turns: MutexGuard<'s, Turns>,
        turn: u64,
        with: impl FnOnce(&mut Communicator) -> R,
    ) -> R {
        let mut asks = self.asks.as_ref();
        while turns.now != turn {
            let Some(ask) = asks else {
                turns = self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waited = self.changed.wait_timeout(turns, ASKS_EVERY).unwrap_or_else(PoisonError::into_inner);
            turns = waited.0;
            if turns.now != turn && waited.1.timed_out() {
                drop(turns);
                if !ask() {
                    self.aborter.abort(Reason::Failure);
                    asks = None;
                }
                turns = self.lock();
            }
        }
        let communicator = turns.communicator.take().expect("there between two turns");
        drop(turns);
        let mut turn = Turn { shared: self, communicator: Some(communicator) };
        with(turn.communicator.as_mut().expect("there until the turn ends"))
    }
}

impl Turns {
    /// Returns the turn of the next call that is made.
    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

/// A turn on the communicator. Its end gives the communicator back.
struct Turn<'s> {
    shared: &'s Shared,
    communicator: Option<Communicator>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.aborter.abort(Reason::Panic);
        }
        let mut turns = self.shared.lock();
        turns.communicator = self.communicator.take();
        turns.now += 1;
        let others_wait = turns.now != turns.next;
        drop(turns);
        if others_wait {
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.0.origin.forked() {
            // It ends after the calls that were started.
            self.0.lock().thread = None;
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("world", &self.world()).finish_non_exhaustive()
    }
}
