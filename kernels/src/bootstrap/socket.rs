//! Packet sockets between processes of one host and one user. They never block, and `exec` closes
//! them.

use super::packet::MAX_BYTES;
use rustix::{
    io::Errno,
    net::{
        self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    },
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// The number of connections that may wait at a listener until they are accepted: the limit that
/// the system has by default.
const BACKLOG: i32 = 4096;

/// The number of descriptors that are received with one packet. The system closes further ones.
const DESCRIPTORS: usize = 4;

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The id of the process that connected, or that began to listen. `None` if it is in another
    /// PID namespace.
    pub(super) pid: Option<u32>,
    /// The id of its user.
    pub(crate) uid: u32,
}

/// The result of reading from a connection.
pub(crate) enum Received {
    /// The size of a packet in bytes, and its descriptors.
    Bytes(usize, Vec<OwnedFd>),
    /// A packet that is too long or has too many descriptors for this protocol.
    TooLarge,
    /// A packet whose descriptor could not be received: this process has reached its limit of open
    /// descriptors.
    NoDescriptor,
    /// No packet now.
    Nothing,
    /// The other end is closed, and all packets have been read.
    Closed,
}

/// Listens at an abstract name. The name is not in the file system, and is free again when the
/// socket is closed.
pub(crate) fn listen(name: &str) -> io::Result<OwnedFd> {
    let socket = show(name)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Takes an abstract name, for others to see.
pub(super) fn show(name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// Connects to a name. Returns `None` if no process listens there, or too many connections wait to
/// be accepted.
pub(crate) fn connect(name: &str) -> io::Result<Option<OwnedFd>> {
    let socket = socket()?;
    match net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::CONNREFUSED | Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Accepts the next pending connection of a listener. Returns `None` if there is none.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    loop {
        match net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::CONNABORTED | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends one packet, with a descriptor if there is one. Returns false if the other end does not
/// take the packet now.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<bool> {
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is space for one descriptor");
    }
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => return Ok(true),
            Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives one packet into `bytes`, which has [`MAX_BYTES`] bytes.
pub(crate) fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> Received {
    debug_assert_eq!(bytes.len(), MAX_BYTES);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Ok(received) => break received,
            // The other end was closed before it had read every packet. The packets that it has
            // sent follow this error.
            Err(Errno::CONNRESET | Errno::INTR) => {}
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::Closed,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) && descriptors.len() < DESCRIPTORS {
        return Received::NoDescriptor;
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Received::TooLarge;
    }
    match received.bytes {
        0 => Received::Closed,
        count => Received::Bytes(count, descriptors),
    }
}

/// Returns whether a packet is waiting to be received.
pub(super) fn has_packet(socket: &OwnedFd) -> bool {
    loop {
        match net::recv(socket, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(Errno::CONNRESET | Errno::INTR) => {}
            result => return result.is_ok_and(|(count, _)| count > 0),
        }
    }
}

/// Returns the process at the other end, as the system reports it.
pub(crate) fn peer(socket: &OwnedFd) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // rustix has a call for this, but its process id cannot be 0. The id of a process in another
    // PID namespace is 0. SAFETY: `credentials` is valid for `bytes` bytes, and any bytes that are
    // written make a `ucred`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { pid: u32::try_from(credentials.pid).ok().filter(|&pid| pid > 0), uid: credentials.uid })
}

/// Returns a descriptor that can be polled for the end of a process (a pidfd). `None` if the system
/// has none.
///
/// # Errors
/// The process no longer exists.
pub(super) fn life(pid: u32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(life) => Ok(Some(life)),
        Err(Errno::SRCH) => Err(Errno::SRCH.into()),
        Err(_) => Ok(None),
    }
}

/// Returns the id of the user whose processes may meet this one.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// The descriptors of a link between two processes: the socket and, if there is one, the pidfd of
/// the other process.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: OwnedFd,
    pub(super) life: Option<OwnedFd>,
    pub(super) pid: Option<u32>,
}

impl Link {
    /// Makes a link over a socket.
    ///
    /// # Errors
    /// The system's error, or an error if the other process has ended.
    pub(super) fn new(socket: OwnedFd, peer: Peer) -> io::Result<Link> {
        let life = peer.pid.map(life).transpose()?.flatten();
        Ok(Link { socket, life, pid: peer.pid })
    }

    /// Returns the descriptors to poll. The socket is the first.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(self.socket.as_fd()), self.life.as_ref().map(AsFd::as_fd)].into_iter().flatten()
    }
}
