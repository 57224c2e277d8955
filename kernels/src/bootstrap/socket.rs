//! Sockets that carry packets between processes of one host and one user. They never block and are
//! closed by `exec`.

use super::message::MAX_BYTES;
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

/// More connections than this wait at a listener only while nobody accepts them: the system's own
/// limit.
const BACKLOG: i32 = 4096;

/// How many descriptors of one packet are looked at. The system closes further ones.
const DESCRIPTORS: usize = 4;

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// The process that connected, or that began to listen. Nothing if it is in another namespace
    /// of processes.
    pub(super) pid: Option<u32>,
    /// Its user.
    pub(super) uid: u32,
}

/// What a connection has.
pub(super) enum Packet {
    /// A packet of so many bytes, with these descriptors.
    Bytes(usize, Vec<OwnedFd>),
    /// A packet that is none of ours: too long, or with too many descriptors.
    TooLarge,
    /// A packet with a descriptor for which this process has no place: it may have no more of them
    /// open.
    NoDescriptor,
    /// Nothing now.
    Nothing,
    /// Nothing any more: the other end is closed.
    Closed,
}

/// Listens at an abstract name, which the file system does not know and which ends with the socket.
pub(super) fn listen(name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a name. Nothing if nobody listens there, or too many wait to be accepted.
pub(super) fn connect(name: &str) -> io::Result<Option<OwnedFd>> {
    let socket = socket()?;
    match net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::CONNREFUSED | Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The next connection that waits at a listener.
pub(super) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    loop {
        match net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::CONNABORTED | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends one packet, with a descriptor if there is one. False if the other end does not take it
/// now.
pub(super) fn send(socket: &OwnedFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<bool> {
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

/// Receives one packet into `bytes`, of which there are [`MAX_BYTES`].
pub(super) fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> Packet {
    debug_assert_eq!(bytes.len(), MAX_BYTES);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Ok(received) => break received,
            // The other end was closed before it had read all that it was sent. What it has sent
            // comes after this.
            Err(Errno::CONNRESET | Errno::INTR) => {}
            Err(Errno::AGAIN) => return Packet::Nothing,
            Err(_) => return Packet::Closed,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) && descriptors.len() < DESCRIPTORS {
        return Packet::NoDescriptor;
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Packet::TooLarge;
    }
    match received.bytes {
        0 => Packet::Closed,
        count => Packet::Bytes(count, descriptors),
    }
}

/// Whether there is a packet that has not been received.
pub(super) fn has_packet(socket: &OwnedFd) -> bool {
    loop {
        match net::recv(socket, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(Errno::CONNRESET | Errno::INTR) => {}
            result => return result.is_ok_and(|(count, _)| count > 0),
        }
    }
}

/// Who is at the other end, as the system knows it.
pub(super) fn peer(socket: &OwnedFd) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // rustix has a call for this, but its process number cannot be 0, as that of a process in
    // another namespace is. SAFETY: `credentials` is valid for `bytes` bytes, and any that are
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

/// A descriptor that can be polled for the end of a process. Nothing where the system has none.
///
/// # Errors
/// If there is no such process any more.
pub(super) fn life(pid: u32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(life) => Ok(Some(life)),
        Err(Errno::SRCH) => Err(Errno::SRCH.into()),
        Err(_) => Ok(None),
    }
}

/// The user whose processes may meet this one.
pub(super) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Descriptors of a link between two processes: the socket, and where there is one the other
/// process's life.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: OwnedFd,
    pub(super) life: Option<OwnedFd>,
    pub(super) pid: Option<u32>,
}

impl Link {
    /// The link over a socket.
    ///
    /// # Errors
    /// The system's; one if the other process has ended.
    pub(super) fn new(socket: OwnedFd, peer: Peer) -> io::Result<Link> {
        let life = peer.pid.map(life).transpose()?.flatten();
        Ok(Link { socket, life, pid: peer.pid })
    }

    /// What there is to poll: the socket first.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(self.socket.as_fd()), self.life.as_ref().map(AsFd::as_fd)].into_iter().flatten()
    }
}
