//! The question for a table.

use super::{AGAIN, Claim, Word};
use crate::{
    bootstrap::Waiting,
    hosts::{
        connection::{ANSWER, Timed, dial, spawn},
        not_met::NotMet,
    },
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// The limit on an answer, in bytes.
const ANSWERS: u64 = 64 << 10;

/// Asks for the table at the first of these addresses, `host:port`, that has it. Returns the
/// addresses of all ranks. `tell` reports the missing ranks, after 2 seconds and then every 10
/// seconds.
///
/// # Errors
/// The ranks that had not asked at the deadline, or the last that was seen of the table; a claim
/// that contradicts another one.
pub fn look_up(
    addresses: &[String],
    claim: &Claim,
    deadline: Instant,
    mut tell: impl FnMut(&Waiting),
) -> Result<Vec<String>, NotMet> {
    let begin = Instant::now();
    let mut report = Duration::from_secs(2);
    let (mut missing, mut seen) = (None::<Vec<usize>>, "no answer yet".to_owned());
    // The end of a connection says nothing of the service before another attempt has failed, too.
    let mut has_failed_since = false;
    let (news, heard) = mpsc::channel();
    let begin_attempt = |after: Duration| {
        let (addresses, claim, news) = (addresses.to_vec(), claim.clone(), news.clone());
        spawn(move || {
            thread::park_timeout(after);
            ask(&addresses, &claim, deadline, &news);
        })
        .map_err(NotMet::because)
    };
    begin_attempt(Duration::ZERO)?;
    loop {
        let now = Instant::now();
        if now >= deadline {
            let waited = begin.elapsed().as_secs();
            let problem = match &missing {
                None => format!("waited {waited} s for the table of addresses: {seen}"),
                Some(ranks) => {
                    let ranks = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                    format!("waited {waited} s; these ranks have not asked for the table of addresses: {ranks}")
                }
            };
            // The service is at rank 0, or at the maker of an id.
            return Err(NotMet { problem, missing: missing.unwrap_or_default() });
        }
        if begin.elapsed() >= report {
            report += Duration::from_secs(10);
            let missing = missing.clone().unwrap_or_else(|| vec![0]);
            tell(&Waiting { waited: begin.elapsed(), missing, elsewhere: Vec::new() });
        }
        let next = deadline.min(begin + report);
        match heard.recv_timeout(next.saturating_duration_since(now)) {
            // Numbers of another process are checked before they are used.
            Ok(Heard::Missing(ranks)) => {
                missing = Some(ranks.into_iter().filter(|&rank| rank < claim.size).collect());
                has_failed_since = false;
            }
            Ok(Heard::Table(table)) if table.len() == claim.size => return Ok(table),
            Ok(Heard::Table(table)) => {
                (missing, seen) = (None, format!("a table of {} addresses", table.len()));
                begin_attempt(AGAIN)?;
            }
            Ok(Heard::Refusal(why)) => return Err(NotMet::because(why)),
            // Attempts end at the deadline, too, which says nothing of the service.
            Ok(Heard::Failed(_)) if Instant::now() >= deadline => {}
            Ok(Heard::Failed(why)) => {
                missing = missing.filter(|_| !has_failed_since);
                (has_failed_since, seen) = (true, why);
                begin_attempt(AGAIN)?;
            }
            Err(_) => {}
        }
    }
}

/// The news of a thread that asks.
enum Heard {
    Missing(Vec<usize>),
    Table(Vec<String>),
    Refusal(String),
    /// The attempt has ended, and how.
    Failed(String),
}

/// Calls all addresses at a time, and asks at each that answers in turn, until one has answered as
/// a service does.
fn ask(addresses: &[String], claim: &Claim, deadline: Instant, news: &mpsc::Sender<Heard>) {
    let (connected, connections) = mpsc::channel();
    let mut last = "no answer yet".to_owned();
    for name in addresses {
        let (connected, name) = (connected.clone(), name.clone());
        let called = spawn(move || match name.to_socket_addrs() {
            Ok(all) => all.for_each(|address| _ = connected.send((address.to_string(), dial(address)))),
            Err(error) => _ = connected.send((name.clone(), Err(format!("the address {name} is unknown: {error}")))),
        });
        called.unwrap_or_else(|why| last = why);
    }
    drop(connected);
    while let Ok((address, connection)) = connections.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        let asked = connection.and_then(|stream| {
            listen(&stream, claim, deadline, news).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => format!("a process without a table of this group answers at {address}"),
                _ => format!("{address}: {error}"),
            })
        });
        match asked {
            Ok(()) => return,
            Err(why) => last = why,
        }
    }
    _ = news.send(Heard::Failed(last));
}

/// Claims the rank on a connection, and passes on the answers until the last one.
fn listen(stream: &TcpStream, claim: &Claim, deadline: Instant, news: &mpsc::Sender<Heard>) -> io::Result<()> {
    stream.set_write_timeout(Some(ANSWER))?;
    let mut to = stream;
    to.write_all(&claim.bytes())?;
    loop {
        // The service speaks each second; its host may have gone without a word.
        let until = deadline.min(Instant::now() + ANSWER);
        let mut from = Timed { stream, until };
        let (mut word, mut length) = ([0], [0; 8]);
        from.read_exact(&mut word)?;
        from.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > ANSWERS {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut text = vec![0; length as usize];
        from.read_exact(&mut text)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let (answer, is_last) = match word {
            [word] if word == Word::Missing as u8 => {
                (Heard::Missing(text.split(' ').filter_map(|rank| rank.parse().ok()).collect()), false)
            }
            [word] if word == Word::Table as u8 => (Heard::Table(text.split('\n').map(str::to_owned).collect()), true),
            [word] if word == Word::Refusal as u8 => (Heard::Refusal(text), true),
            _ => return Err(ErrorKind::UnexpectedEof.into()),
        };
        // The one that asked may have given up.
        if news.send(answer).is_err() || is_last {
            return Ok(());
        }
    }
}
