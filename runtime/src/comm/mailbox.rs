//! Messages with tags.

use crate::{
    Error, Result,
    comm::{
        kept_thread::KeptThread,
        options,
        promise::Promise,
        request::Request,
        tagged_messages::{FinishMessage, MessageFault, Tag, TaggedMessages},
    },
};
use consonance_kernels::{
    group::Envelope,
    memory::{Buf, BufMut, HostBuf, HostBufMut},
    sync::fork::Origin,
};
use consonance_spec::World;
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

/// An element type of the caller for [messages](Mailbox::of_type), as complex numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageType {
    /// Its name in errors.
    pub name: &'static str,
    /// The number of elements of a buffer that make one element of this type.
    pub elements: usize,
}

/// One rank's mailbox: messages with tags to and from any rank of a group, from any thread, in both
/// directions at once and beside the group's collectives. A
/// [`Communicator`](crate::Communicator::mailbox) gives it.
///
/// A receive takes the first message from its rank, or from any rank, that has its tag. Messages
/// between two ranks with the same tag are received in the order in which they were sent. A message
/// that comes before its receive is kept in the receiver's memory. So ranks that send to each other
/// first both go on, if each then receives.
///
/// A send of up to 4 KiB ends when the data are copied. A longer send ends when the receiver's
/// process has taken the data, which happens while it is in a call of its mailbox or has started
/// one that is open.
///
/// A timeout ends its request only: the group and all other requests go on.
///
/// ```
/// use consonance::Communicator;
/// let mut ranks = Communicator::threads(2);
/// let [first, second] = [0, 1].map(|rank| ranks[rank].mailbox());
/// let (first, second) = (first?, second?);
/// first.send([1.5f32, 2.5].as_slice(), 1, 7, None)?;
/// let mut data = [0f32; 2];
/// assert_eq!(second.recv(data.as_mut_slice(), None, 7, None)?, 0, "from any rank: it was rank 0");
/// assert_eq!(data, [1.5, 2.5]);
/// # Ok::<(), consonance::Error>(())
/// ```
///
/// # Errors
/// Of each request, [`send`](Mailbox::send) and [`recv`](Mailbox::recv) return the error, and
/// [`Request::wait`] that of a request that was started:
/// * [`Error::InvalidCall`] for a rank that is not in the group, a buffer that is not in host
///   memory, elements that are not whole ones [of the type](Mailbox::of_type), or a timeout that is
///   zero or longer than a day.
/// * [`Error::Mismatch`] if a message has another element type or number of elements than its
///   receive. Both ranks get it. If the send has ended by then, its
///   rank gets it in its next call with the receiving rank. Of several it gets one in each call: at
///   least the first 15 since its last call with that rank. The data of the receive are
///   unspecified.
/// * [`Error::Timeout`] at the deadline. It names the rank that did not send or receive; all other
///   ranks for a receive from any rank. If that rank waits for another one in turn, it names the
///   rank at the end of that chain. The data of the receive are unspecified.
/// * [`Error::Left`], [`Error::Aborted`] as for a collective. A message that was sent before its
///   rank left can still be received.
/// * [`Error::WrongContext`] in a child made by `fork`.
pub struct Mailbox {
    messages: Arc<dyn TaggedMessages>,
    types: &'static [MessageType],
    /// The place of the type of the messages in `types`.
    own: Option<u8>,
    timeout: Duration,
    progress: Arc<ProgressOwner>,
}

impl Mailbox {
    /// Makes a mailbox on `messages`, for an [engine](crate::raw::Engine::mailbox). `timeout` is
    /// that of requests without one of their own.
    ///
    /// ```
    /// # use consonance::{Mailbox, raw::TaggedMessages};
    /// # use std::{sync::Arc, time::Duration};
    /// fn over(messages: Arc<dyn TaggedMessages>) -> Mailbox {
    ///     Mailbox::new(messages, Duration::from_secs(60))
    /// }
    /// ```
    pub fn new(messages: Arc<dyn TaggedMessages>, timeout: Duration) -> Mailbox {
        let progress = Progress { work: Mutex::default(), messages: messages.clone(), origin: Origin::here() };
        let progress = Arc::new(ProgressOwner(Arc::new(progress)));
        Mailbox { messages, types: &[], own: None, timeout, progress }
    }

    /// Returns this mailbox for messages of the type `types[own]`, which the caller stores in
    /// elements of its buffers; for `None`, of the element type of the buffers. Only a receive of
    /// the same type takes such a message, and it takes no other. Ranks use the same `types`, which
    /// also name the types of others in errors.
    ///
    /// ```
    /// use consonance::{Communicator, Error, MessageType};
    /// const TYPES: &[MessageType] = &[MessageType { name: "c64", elements: 2 }];
    /// let mut group = Communicator::threads(1);
    /// let [plain, complex] = { let alone = group[0].mailbox()?; [None, Some(0)].map(|own| alone.of_type(TYPES, own)) };
    /// let (sent, mut received) = ([1.5f32, 2.5], [0f32; 2]);
    /// complex.send(sent.as_slice(), 0, 3, None)?;
    /// complex.recv(received.as_mut_slice(), None, 3, None)?;
    /// assert_eq!(received, sent);
    /// complex.send(sent.as_slice(), 0, 3, None)?;
    /// let error = plain.recv(received.as_mut_slice(), None, 3, None).unwrap_err();
    /// assert!(matches!(error, Error::Mismatch { found, .. } if found == "c64"));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    ///
    /// # Panics
    /// If `types` has no such place or more than 255 types, or one of no elements.
    pub fn of_type(&self, types: &'static [MessageType], own: Option<usize>) -> Mailbox {
        assert!(types.len() <= 255 && types.iter().all(|of| of.elements > 0), "{types:?}");
        let own = own.map(|own| {
            assert!(own < types.len(), "type {own} of {}", types.len());
            own as u8
        });
        let Mailbox { messages, types: _, own: _, timeout, progress } = self;
        Mailbox { messages: messages.clone(), types, own, timeout: *timeout, progress: progress.clone() }
    }

    /// Returns this mailbox once more.
    pub(crate) fn duplicate(&self) -> Mailbox {
        self.of_type(self.types, self.own.map(usize::from))
    }

    /// The number of the type of the messages.
    fn label(&self) -> u8 {
        self.own.map_or(0, |own| own + 1)
    }

    fn tag(&self, tag: u64) -> Tag {
        Tag { tag, label: self.label() }
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.messages.world()
    }

    /// Sends `data` to rank `to`, and waits until the send has ended. `timeout` is that of the
    /// communicator by default.
    ///
    /// # Errors
    /// See [`Mailbox`].
    pub fn send<'a>(&self, data: impl Into<Buf<'a>>, to: usize, tag: u64, timeout: Option<Duration>) -> Result<()> {
        let data = host(SEND, data.into().host())?;
        let limit = self.check(SEND, data.count(), ("to", Some(to)), timeout)?;
        let result = self.messages.send(data, to, self.tag(tag), limit);
        // The receiver is told that a message is withdrawn.
        if let Err(MessageFault::Late { .. }) = result
            && self.messages.is_busy()
        {
            self.progress.0.carry();
        }
        result.map(drop).map_err(|fault| error((Some(&*self.messages), self.types), SEND, fault, limit))
    }

    /// Receives a message with this tag from rank `from`, or from any other rank, and waits until
    /// it has come. Returns the rank that sent it. `timeout` is that of the communicator by
    /// default.
    ///
    /// # Errors
    /// See [`Mailbox`].
    pub fn recv<'a>(
        &self,
        data: impl Into<BufMut<'a>>,
        from: Option<usize>,
        tag: u64,
        timeout: Option<Duration>,
    ) -> Result<usize> {
        let data = host(RECV, data.into().host())?;
        let limit = self.check(RECV, data.count(), ("from", from), timeout)?;
        let result = self.messages.recv(data, from, self.tag(tag), limit);
        result.map_err(|fault| error((Some(&*self.messages), self.types), RECV, fault, limit))
    }

    /// Starts a [`send`](Mailbox::send). A thread of this process carries on with it.
    ///
    /// ```
    /// use consonance::{Communicator, raw::{Buf, BufMut}};
    /// let alone = Communicator::threads(1).remove(0).mailbox()?;
    /// # let mut group = Communicator::threads(1);
    /// # let alone = group[0].mailbox()?;
    /// let (sent, received): (&'static [u8], &'static mut [u8]) = (&[1, 2], vec![0; 2].leak());
    /// let request = alone.start_recv(received.into(), Some(0), 3, None);
    /// assert!(!request.is_finished());
    /// alone.start_send(sent.into(), 0, 3, None);
    /// request.wait(None)?;
    /// assert_eq!(request.source(), Some(0));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn start_send(&self, data: Buf<'static>, to: usize, tag: u64, timeout: Option<Duration>) -> Request {
        let checked = host(SEND, data.host()).and_then(|data: HostBuf<'static>| {
            let limit = self.check(SEND, data.count(), ("to", Some(to)), timeout)?;
            Ok((data, limit))
        });
        self.start((SEND, Some(to)), checked, |data, limit, finish| {
            self.messages.start_send(data, to, self.tag(tag), limit, finish);
        })
    }

    /// Starts a [`recv`](Mailbox::recv). A thread of this process carries on with it.
    /// [`Request::source`] returns the rank that sent the message.
    pub fn start_recv(
        &self,
        data: BufMut<'static>,
        from: Option<usize>,
        tag: u64,
        timeout: Option<Duration>,
    ) -> Request {
        let checked = host(RECV, data.host()).and_then(|data: HostBufMut<'static>| {
            let limit = self.check(RECV, data.count(), ("from", from), timeout)?;
            Ok((data, limit))
        });
        self.start((RECV, from), checked, |data, limit, finish| {
            self.messages.start_recv(data, from, self.tag(tag), limit, finish);
        })
    }

    fn start<B>(
        &self,
        (call, peer): (&'static str, Option<usize>),
        checked: Result<(B, Duration)>,
        start: impl FnOnce(B, Duration, FinishMessage),
    ) -> Request {
        let (promise, request) = Request::new(Some((self.messages.clone(), peer)));
        match checked {
            Err(error) => promise.keep(Err(error)),
            Ok((data, limit)) => {
                // An open request does not keep its mailbox.
                let (messages, types) = (Arc::downgrade(&self.messages), self.types);
                let finish = move |promise: Promise<Option<usize>>, result: Result<usize, MessageFault>| {
                    let source = (call == RECV).then_some(());
                    let result = result.map(|rank| source.map(|()| rank));
                    let messages = messages.upgrade();
                    let result = result.map_err(|fault| error((messages.as_deref(), types), call, fault, limit));
                    // The waiting thread may let the rank leave next, which this one must not do.
                    drop(messages);
                    promise.keep(result);
                };
                start(data, limit, Box::new(move |result| finish(promise, result)));
                if !request.is_finished() {
                    self.progress.0.carry();
                }
            }
        }
        request
    }

    /// Checks the number of elements and a rank, and returns the timeout of a request.
    fn check(
        &self,
        call: &'static str,
        count: usize,
        (argument, rank): (&str, Option<usize>),
        timeout: Option<Duration>,
    ) -> Result<Duration> {
        if let Some(MessageType { name, elements }) = of_label(self.types, self.label())
            && !count.is_multiple_of(*elements)
        {
            let expected = format!("a multiple of {elements} elements, for {name}");
            return Err(Error::invalid(call, "data", expected, count.to_string()));
        }
        let size = self.world().size();
        if let Some(rank) = rank.filter(|&rank| rank >= size) {
            return Err(Error::invalid(call, argument, format!("a rank below {size}"), rank.to_string()));
        }
        timeout.map_or(Ok(self.timeout), |timeout| options::check_timeout(call, timeout))
    }
}

pub(super) const SEND: &str = "Mailbox::send";
pub(super) const RECV: &str = "Mailbox::recv";

fn host<B>(call: &'static str, data: Option<B>) -> Result<B> {
    data.ok_or_else(|| Error::invalid(call, "data", "host memory", "memory of a device"))
}

/// Returns the type with this label; `None` for element types of buffers.
fn of_label(types: &[MessageType], label: u8) -> Option<&MessageType> {
    types.get(usize::from(label).checked_sub(1)?)
}

/// Makes the error of a request of a mailbox with these types.
fn error(
    (messages, types): (Option<&dyn TaggedMessages>, &[MessageType]),
    call: &'static str,
    fault: MessageFault,
    waited: Duration,
) -> Error {
    // Blames nobody to the launcher: the group works on, and a program may wait again.
    let missing = |ranks: Vec<usize>, awaited: &[usize], what: &str| {
        let last = |rank| {
            let held_up: Vec<String> = awaited.iter().map(|rank| format!("replica {rank}")).collect();
            let what = match awaited.contains(&rank) {
                true => what.to_owned(),
                false => format!("{} waits for it", held_up.join(", ")),
            };
            messages
                .and_then(|messages| messages.describe(rank))
                .map_or(what.clone(), |process| format!("{what}; {process}"))
        };
        let missing = ranks.into_iter().map(|rank| (rank, last(rank))).collect();
        Error::Timeout { call: call.to_owned(), waited, missing }
    };
    match fault {
        MessageFault::Unlike { from, to, sent, expected } => {
            let has_dtype = (sent.dtype, sent.label) != (expected.dtype, expected.label);
            let what = |Envelope { dtype, label, bytes, .. }: Envelope| match (has_dtype, of_label(types, label)) {
                (true, Some(of)) if sent.label != expected.label => of.name.to_owned(),
                (true, None) if label > 0 => format!("type {} of the caller", label - 1),
                (true, _) => dtype.to_string(),
                (false, of) => (bytes / (dtype.size() * of.map_or(1, |of| of.elements))).to_string(),
            };
            let argument = format!("the {} of a message to replica {to}", if has_dtype { "dtype" } else { "count" });
            messages.inspect(|messages| messages.blame(from));
            Error::Mismatch {
                call: call.to_owned(),
                replica: from,
                argument,
                expected: what(expected),
                found: what(sent),
            }
        }
        MessageFault::Late { awaited, missing: ranks } if call == SEND => {
            missing(ranks, &awaited, "it has not received the message")
        }
        MessageFault::Late { awaited, missing: ranks } => missing(ranks, &awaited, "it has sent no such message"),
        MessageFault::Withdrawn(from) => missing(vec![from], &[from], "it gave up in the middle of the message"),
        MessageFault::Error(error) => error,
    }
}

/// Carries on with requests for which nobody waits.
struct Progress {
    work: Mutex<Work>,
    messages: Arc<dyn TaggedMessages>,
    origin: Origin,
}

#[derive(Default)]
struct Work {
    /// The thread, once there was an open request.
    thread: Option<KeptThread>,
    is_running: bool,
    is_closed: bool,
    /// Disconnected when the thread, which has this id, has let go of the messages.
    let_go: Option<(mpsc::Receiver<()>, Arc<OnceLock<ThreadId>>)>,
}

/// The time that the thread sleeps at most while requests are open: it ends those that are
/// late.
const TICK: Duration = Duration::from_millis(100);

/// The time that the thread stays ready after the last request. To wake it costs more than a
/// short message.
const LINGER: Duration = Duration::from_secs(1);

impl Progress {
    /// Lets the thread carry on with an open request.
    fn carry(self: &Arc<Progress>) {
        let mut work = self.work();
        if work.is_running {
            return;
        }
        if work.thread.is_none() {
            work.thread = KeptThread::start("mailbox").ok();
        }
        // Without the thread a request goes on in the calls of this mailbox.
        if let Some(thread) = &work.thread {
            let (progress, id) = (self.clone(), Arc::new(OnceLock::new()));
            let (goes_on, let_go) = mpsc::channel();
            let of_thread = id.clone();
            thread.run(move || {
                let _ = of_thread.set(thread::current().id());
                progress.run();
                drop(progress);
                drop::<mpsc::Sender<()>>(goes_on);
            });
            (work.is_running, work.let_go) = (true, Some((let_go, id)));
        }
    }

    /// Carries on until no request has been open for a while.
    fn run(&self) {
        loop {
            let mut last_busy = Instant::now();
            while self.messages.is_busy() || (last_busy.elapsed() < LINGER && !self.work().is_closed) {
                self.messages.rest(Instant::now() + TICK);
                if self.messages.is_busy() {
                    last_busy = Instant::now();
                }
            }
            let mut work = self.work();
            if !self.messages.is_busy() {
                work.is_running = false;
                return;
            }
        }
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A progress thread that ends when no mailbox is left that employs it.
struct ProgressOwner(Arc<Progress>);

impl Drop for ProgressOwner {
    fn drop(&mut self) {
        let ProgressOwner(progress) = self;
        // A fork has no such thread.
        if !progress.origin.forked() {
            let let_go = {
                let mut work = progress.work();
                work.is_closed = true;
                work.let_go.take()
            };
            progress.messages.wake();
            // The rank leaves when nobody has its messages any more. It must not leave on that
            // thread, which ends with the process, unless requests are open.
            let other = |id: &OnceLock<ThreadId>| id.get() != Some(&thread::current().id());
            if let Some((let_go, _)) = let_go.filter(|(_, id)| other(id) && !progress.messages.is_busy()) {
                let _ = let_go.recv_timeout(LINGER);
            }
        }
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("world", &self.world()).finish_non_exhaustive()
    }
}
