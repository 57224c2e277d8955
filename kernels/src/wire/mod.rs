//! Messages between processes of several hosts. A foreign library carries them, which is loaded at
//! run time, so that programs build and run where there is none: its absence is a value,
//! [`Absent`].
//!
//! A [`Medium`] is what such a library does for us, and there is one for each [`Kind`]: `ucx`, and
//! `mpi` beside it, for networks that belong to MPI. All processes of a group need the same.
//!
//! A message is a *head* of [`HEAD`] bytes and a *body* of any size. It arrives whole. Messages of
//! one sender arrive in any order, since short ones and long ones take other ways through the
//! library: a sender that needs an order writes a number into the head.
//!
//! # Who does what
//!
//! The library does nothing by itself. One thread repeats this, without an end:
//!
//! 1. It calls [`Medium::progress`], and [`Medium::fault`] until there is none.
//! 2. It calls [`Medium::arm`]. On `false` it begins again.
//! 3. It sleeps until [`Medium::descriptor`] is readable, at most [`Medium::nap`]. UCX has a
//!    descriptor and no limit on the sleep. MPI has no descriptor: the sleep is a nap.
//!
//! Other threads may send and connect meanwhile.
//!
//! # Faults
//!
//! An endpoint whose peer ended, or cannot be reached, has a fault: [`Medium::fault`] returns it
//! once, and [`Medium::send`] refuses from then on. Some have none: a peer without an endpoint
//! here, even if it sends, a process that is stopped, and with MPI mostly a process that has ended.
//! So processes also have another way to learn of an end, and tell the wire: [`Medium::part`].
//!
//! Closing an endpoint, or dropping the wire, takes back what the library and the system have not
//! delivered. So processes that part must agree first that all messages have arrived.
//!
//! # Limits
//!
//! A child that `fork` made has none of its parent's wires: every call is an error there. The
//! length of a body that comes piece by piece is taken from the message: it is refused if the
//! system has not the memory.

#[macro_use]
mod functions;
mod absence;
mod error;
mod hooks;
mod signals;
mod ucx;
mod mpi;

pub use absence::Absent;
pub use error::WireError;
pub use mpi::{mpis_here, world_of_mpi};
pub use ucx::places_of_ucx;

use std::{fmt, ops::Deref, os::fd::BorrowedFd, time::Duration};

/// The number of bytes of the head of a message.
pub const HEAD: usize = 96;

/// The head of every message: the caller's bytes.
pub type Head = [u8; HEAD];

/// The number that [`Medium::fault`] gives for a peer if the library does not say which it is.
pub const UNKNOWN_PEER: usize = usize::MAX;

/// A message that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The head, as it was sent.
    pub head: Head,
    /// The body, as it was sent.
    pub body: Vec<u8>,
}

/// The libraries that carry messages, the preferred one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// UCX (`libucp.so.0`).
    Ucx,
    /// The MPI of the launcher that started this process.
    Mpi,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 2] = [Kind::Ucx, Kind::Mpi];

    /// Returns the name of the kind, as the variable `CONSONANCE_WIRE` has it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ucx => "ucx",
            Kind::Mpi => "mpi",
        }
    }
}

/// A library's way to carry messages. The module documentation says which thread does what.
pub trait Medium: fmt::Debug + Send + Sync {
    /// Returns the kind of the library.
    fn kind(&self) -> Kind;

    /// Returns the name and version of the library, as far as all processes need the same.
    fn name(&self) -> String;

    /// Returns the version of the library.
    fn version(&self) -> [u32; 3];

    /// Returns the path or name by which the library was loaded.
    fn library(&self) -> &str;

    /// Returns the transports that the library may use, each with its device, such as `tcp/eth0`;
    /// none if it does not tell.
    ///
    /// # Errors
    /// If this is a forked child, or the system has no memory.
    fn transports(&self) -> Result<Vec<String>, WireError>;

    /// Returns the address of this wire, for the other processes.
    fn address(&self) -> &[u8];

    /// Makes an endpoint for a peer, by the address of the peer's wire. The number is the caller's
    /// choice. Returns before the peer is reached: a peer that cannot be is a fault later.
    ///
    /// # Errors
    /// If there is such an endpoint, the bytes are no address, the peer has another version of the
    /// library, or the library fails.
    fn connect(&self, peer: usize, address: &[u8]) -> Result<(), WireError>;

    /// Sends a message to a peer. Returns at once. The body is kept until the library is done with
    /// it. Any thread may send.
    ///
    /// # Errors
    /// If there is no such endpoint, it is lost, or the library fails.
    fn send(&self, peer: usize, head: Head, body: Vec<u8>) -> Result<(), WireError>;

    /// Lets the library work until it has nothing to do now. Returns what arrived, in order of
    /// arrival. A forked child gets nothing.
    fn progress(&self) -> Vec<Arrived>;

    /// Prepares for sleep. On `false` there is something now, or may be soon: call
    /// [`progress`](Medium::progress) and [`fault`](Medium::fault).
    ///
    /// # Errors
    /// If this is a forked child, or the library fails.
    fn arm(&self) -> Result<bool, WireError>;

    /// Returns the descriptor to sleep on, after [`arm`](Medium::arm). It becomes readable when
    /// there is something to do. It is for `poll` alone.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the limit on the sleep, after [`arm`](Medium::arm), if there is one.
    fn nap(&self) -> Option<Duration>;

    /// Takes the oldest fault: the number of the peer, or [`UNKNOWN_PEER`], and the library's
    /// words. An endpoint has one.
    fn fault(&self) -> Option<(usize, String)>;

    /// Returns the number of sends that are not complete. A complete one may still be on its way.
    fn pending(&self) -> usize;

    /// Takes note that a peer receives no more: `has_failed` if it did not take its leave. Sends to
    /// it are not [`pending`](Medium::pending) any more.
    fn part(&self, peer: usize, has_failed: bool);
}

/// One process's access to a network: it sends messages to peers that are connected, and receives
/// messages. The module documentation says which thread does what.
///
/// ```
/// use consonance_kernels::wire::{HEAD, Wire};
///
/// match Wire::open(None) {
///     Ok(wire) => {
///         // The number of a peer is ours. This one is the wire itself.
///         wire.connect(0, &wire.address().to_vec())?;
///         wire.send(0, [7; HEAD], vec![1, 2, 3])?;
///         let arrived = loop {
///             if let Some(arrived) = wire.progress().pop() {
///                 break arrived;
///             }
///         };
///         assert_eq!((arrived.head, arrived.body), ([7; HEAD], vec![1, 2, 3]));
///     }
///     // Says where each library was looked for, and how to install it.
///     Err(absent) => println!("{absent}"),
/// }
/// # Ok::<(), consonance_kernels::wire::WireError>(())
/// ```
#[derive(Debug)]
pub struct Wire(Box<dyn Medium>);

impl Wire {
    /// Opens a wire of UCX, which needs no launcher. The interface is the name of a network
    /// interface, as `UCX_NET_DEVICES` has it.
    ///
    /// # Errors
    /// Where the library was looked for, and what was found there.
    pub fn open(interface: Option<&str>) -> Result<Wire, Absent> {
        Wire::open_first(&[Kind::Ucx], interface, Duration::ZERO)
    }

    /// Opens a wire of the first of these kinds that can be opened here. The limit is that on the
    /// start of an MPI, which waits for the other processes of its launcher, and may end a process
    /// that is none of them: see [`world_of_mpi`].
    ///
    /// # Errors
    /// Where the libraries were looked for, and what was found there.
    pub fn open_first(kinds: &[Kind], interface: Option<&str>, limit: Duration) -> Result<Wire, Absent> {
        let mut absent = Absent { kinds: Vec::new(), looked: Vec::new() };
        for kind in kinds {
            let opened: Result<Box<dyn Medium>, Absent> = match kind {
                Kind::Ucx => ucx::Wire::open(interface).map(|wire| Box::new(wire) as _),
                Kind::Mpi => mpi::Wire::open(limit).map(|wire| Box::new(wire) as _),
            };
            match opened {
                Ok(wire) => return Ok(Wire(wire)),
                Err(reason) => {
                    absent.kinds.extend(reason.kinds);
                    absent.looked.extend(reason.looked);
                }
            }
        }
        Err(absent)
    }

    /// Makes a wire of a medium of its own. For tests.
    #[doc(hidden)]
    pub fn of(medium: Box<dyn Medium>) -> Wire {
        Wire(medium)
    }
}

impl Deref for Wire {
    type Target = dyn Medium;

    fn deref(&self) -> &(dyn Medium + 'static) {
        &*self.0
    }
}
