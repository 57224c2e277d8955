//! Connections between processes of several hosts.

use std::{
    io::{self, ErrorKind, Read},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// The limit on the time of a connection attempt, and of the first words. A process of the job
/// answers at once.
pub(super) const ANSWER: Duration = Duration::from_secs(3);

/// The limit on the connections to one listener that have not said what they are for.
pub(super) const STRANGERS: usize = 64;

/// Listens at `address`, `host:port`; `others` are the addresses of the other processes.
///
/// # Errors
/// The reason in words, after "listens at".
pub(super) fn listen<'a>(
    address: &str,
    mut others: impl Iterator<Item = &'a str>,
    deadline: Instant,
) -> Result<TcpListener, String> {
    let at = |problem: String| format!("listens at {address}: {problem}");
    let mut all = addresses(address, deadline).map_err(|why| at(format!("the address is unknown: {why}")))?;
    let is_number = |address: &str| address.parse::<SocketAddr>().is_ok() || address.starts_with("localhost:");
    if all.iter().any(|address| address.port() == 0) {
        return Err(at("port 0 is none that the others could know".to_owned()));
    }
    let is_loopback = |address: &SocketAddr| address.ip().is_loopback();
    let others_elsewhere = others.any(|other| {
        !other.starts_with("localhost:") && !other.parse::<SocketAddr>().is_ok_and(|other| is_loopback(&other))
    });
    if others_elsewhere && all.iter().all(is_loopback) {
        if is_number(address) {
            return Err(at("this address is one of this host alone, and others are on other hosts".to_owned()));
        }
        // Many hosts give their own name an address of the loopback in their list of hosts.
        all.iter_mut().for_each(|address| {
            *address = match address {
                SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], address.port())),
                SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], address.port())),
            };
        });
    }
    TcpListener::bind(&all[..]).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => at("another process has this address".to_owned()),
        ErrorKind::AddrNotAvailable => at("this host does not have this address".to_owned()),
        _ => at(error.to_string()),
    })
}

/// Looks an address up. The system may ask a network for the name, and wait for longer than this
/// process should.
fn addresses(address: &str, deadline: Instant) -> Result<Vec<SocketAddr>, String> {
    let (sender, look_up) = mpsc::channel();
    let address = address.to_owned();
    spawn(move || _ = sender.send(address.to_socket_addrs()))?;
    match look_up.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Ok(all)) => Ok(all.collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer of the system".to_owned()),
    }
}

/// Connects to an address.
///
/// # Errors
/// What was seen, in words.
pub(super) fn dial(address: SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect_timeout(&address, ANSWER).map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => format!("nobody listens at {address}"),
        ErrorKind::TimedOut => format!("no answer from {address}"),
        _ => format!("{address}: {error}"),
    })?;
    // A connection from a port to itself, which the system makes if nobody listens there.
    match stream.local_addr().is_ok_and(|local| local == address) {
        true => Err(format!("nobody listens at {address}")),
        false => Ok(stream),
    }
}

/// Runs `work` on a thread of its own.
pub(super) fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = thread::Builder::new().name("consonance-meet".to_owned()).spawn(work);
    thread.map(drop).map_err(|error| format!("no thread for a connection: {error}"))
}

/// Reads until a time. A stranger that sends a byte now and then keeps no thread longer.
pub(super) struct Timed<'s> {
    pub(super) stream: &'s TcpStream,
    pub(super) until: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        // The limit of a socket may pass some milliseconds early: systems count it in ticks.
        loop {
            let rest = self.until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(rest))?;
            match self.stream.read(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

/// Whether the other end of a link, which does not block, is closed.
pub(super) fn is_closed(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}
