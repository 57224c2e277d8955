//! Keepalive of connections: the system finds out that a host does not answer.

use rustix::net::sockopt;
use std::{io, net::TcpStream, time::Duration};

/// The time after which a host that does not answer is given up, at the least.
const SILENCE: Duration = Duration::from_secs(5);

/// Lets the system find out that a host does not answer.
pub(super) fn keep_alive(link: &TcpStream) -> io::Result<()> {
    let probe = SILENCE / 5;
    sockopt::set_socket_keepalive(link, true)?;
    sockopt::set_tcp_keepidle(link, probe)?;
    sockopt::set_tcp_keepintvl(link, probe)?;
    sockopt::set_tcp_keepcnt(link, 4)?;
    sockopt::set_tcp_user_timeout(link, SILENCE.as_millis() as u32)?;
    Ok(())
}
