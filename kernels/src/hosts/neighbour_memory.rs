//! The memory that the processes of one host come to share, after all have met.
//!
//! Each process listens at a name on its host before it greets the others. Those that count
//! themselves to the same host (the *neighbours*) then find the name of the first of them, its
//! *hub*:
//!
//! 1. Each sends the hub the descriptor that wakes it.
//! 2. When all have come, the hub makes a segment. It sends one after the other the segment's
//!    descriptor, and those that wake the others.
//! 3. Each opens the segment, reads letters from now on, and says that it is *ready*. The hub waits
//!    for that before it turns to the next one: so what is on its way at a time is bounded by the
//!    words to one process, which fit in the buffer of a socket.
//! 4. When all are ready, the hub says *go*. Then letters are sent through the segment.
//!
//! A descriptor that arrives proves that both are on one host: the names are those of a network
//! namespace, and another one is another host, whatever its processes say of themselves.
//!
//! If a step fails, or takes longer than [`LIMIT`], letters take the wire. *The hub ends among its
//! words*: a process that has not heard *go* sends over the wire, and still reads what others send
//! through the segment. So two processes need not agree on the way: the sender chooses it, once for
//! all of its letters to a process.
//!
//! Only processes of the same user are heard.

use super::{Met, connection::STRANGERS, greeting::Greeting, neighbours::Neighbours};
use crate::{
    bootstrap::{
        packet::MAX_BYTES,
        socket::{self, Received},
    },
    group::Letters,
    shm::{GroupId, Segment, Shape},
};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};
use std::{
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// The limit on the time for all words. Processes that have met are all awake.
const LIMIT: Duration = Duration::from_secs(5);

/// The least staging of a segment: nobody uses it here.
const STAGING_BYTES: usize = 2 << 10;

/// The first byte of each word.
const COME: u8 = b'C';
const SEGMENT: u8 = b'S';
const WAKE: u8 = b'W';
const READY: u8 = b'R';
const GO: u8 = b'G';

/// The size of a word in bytes: a first byte, the number of a task, and a digest or a name.
const BYTES: usize = 25;

/// A process that listens for its neighbours.
pub struct Near {
    greeting: Greeting,
    listener: OwnedFd,
}

impl Near {
    /// Listens for the neighbours of the process that sends this greeting. `None` if it counts
    /// itself to no host, or the system refuses.
    pub fn open(greeting: &Greeting) -> Option<Near> {
        if greeting.near == 0 {
            return None;
        }
        let listener = socket::listen(&name(greeting)).ok()?;
        Some(Near { greeting: greeting.clone(), listener })
    }

    /// Begins to share memory with the neighbours among the processes that have met. `None` if
    /// there are none, or they cannot: then letters take the wire. Waits for at most 5 s, and no
    /// longer than until the deadline.
    pub fn join(self, met: &Met, deadline: Instant) -> Option<Neighbours> {
        let is_near = |task: &usize| met.greetings[*task].near == self.greeting.near;
        let tasks: Vec<usize> = (0..met.greetings.len()).filter(is_near).collect();
        let until = deadline.min(Instant::now() + LIMIT);
        match tasks[..] {
            [] | [_] => None,
            [hub, ..] if hub == met.own => self.lead(tasks, met, until),
            [hub, ..] => self.follow(tasks, &met.greetings[hub], until),
        }
    }

    /// Does what a hub does.
    fn lead(&self, tasks: Vec<usize>, met: &Met, until: Instant) -> Option<Neighbours> {
        let come = self.come(&tasks, met, until)?;
        let (wake, id) = (new_wake()?, GroupId::random().ok()?);
        let segment = Arc::new(Segment::create(Shape::new(tasks.len(), STAGING_BYTES).ok()?, id).ok()?);
        let letters = Letters::in_segment(&segment, 0).ok()?;
        for (place, (socket, _)) in come.iter().enumerate() {
            say(socket, SEGMENT, 0, id.to_bytes(), Some(segment.file()))?;
            say(socket, WAKE, tasks[0], [0; 16], Some(wake.as_fd()))?;
            let others = come.iter().zip(&tasks[1..]).enumerate().filter(|(other, _)| *other != place);
            for (_, ((_, wake), task)) in others {
                say(socket, WAKE, *task, [0; 16], Some(wake.as_fd()))?;
            }
            hear(socket, READY, until)?;
        }
        // From now on neighbours may send through the segment.
        let (sockets, others): (Vec<OwnedFd>, Vec<OwnedFd>) = come.into_iter().unzip();
        sockets.iter().for_each(|socket| _ = say(socket, GO, 0, [0; 16], None));
        let wakes = [wake].into_iter().chain(others).collect();
        Some(Neighbours::new(tasks, 0, letters, wakes, true))
    }

    /// Waits until all neighbours of a hub have come. Returns the connection of each, and the
    /// descriptor that wakes it. `None` also if one ends.
    fn come(&self, tasks: &[usize], met: &Met, until: Instant) -> Option<Vec<(OwnedFd, OwnedFd)>> {
        let links: Vec<&TcpStream> = tasks[1..].iter().filter_map(|&task| met.links.get(task)?.as_ref()).collect();
        let mut come: Vec<Option<(OwnedFd, OwnedFd)>> = tasks[1..].iter().map(|_| None).collect();
        let mut strangers: Vec<OwnedFd> = Vec::new();
        while come.iter().any(Option::is_none) {
            let listener = Some(self.listener.as_fd()).filter(|_| strangers.len() < STRANGERS);
            wait(listener.into_iter().chain(strangers.iter().map(AsFd::as_fd)), &links, until)?;
            while strangers.len() < STRANGERS
                && let Some(socket) = socket::accept(&self.listener).ok()?
            {
                strangers.extend(Some(socket).filter(is_ours));
            }
            let mut silent = Vec::new();
            for socket in strangers {
                match read(&socket) {
                    Heard::Nothing => silent.push(socket),
                    Heard::Word { kind: COME, task, bytes, descriptor: Some(wake) }
                        if bytes == self.greeting.digest.to_le_bytes() =>
                    {
                        if let Some(place) = tasks[1..].iter().position(|&one| one == task) {
                            come[place] = Some((socket, wake));
                        }
                    }
                    Heard::Word { .. } | Heard::Nonsense => {}
                }
            }
            strangers = silent;
        }
        come.into_iter().collect()
    }

    /// Does what the other neighbours do.
    fn follow(&self, tasks: Vec<usize>, hub: &Greeting, until: Instant) -> Option<Neighbours> {
        let place = tasks.iter().position(|&task| task == self.greeting.task)?;
        let socket = socket::connect(&name(hub)).ok()?.filter(is_ours)?;
        let wake = new_wake()?;
        say(&socket, COME, self.greeting.task, self.greeting.digest.to_le_bytes(), Some(wake.as_fd()))?;
        let (_, id, file) = hear(&socket, SEGMENT, until)?;
        let mut wakes: Vec<Option<OwnedFd>> = tasks.iter().map(|_| None).collect();
        wakes[place] = Some(wake);
        while wakes.iter().any(Option::is_none) {
            let (task, _, wake) = hear(&socket, WAKE, until)?;
            let place = tasks.iter().position(|&one| one == task)?;
            // One that comes again would be waited for without an end.
            if wakes[place].replace(wake?).is_some() {
                return None;
            }
        }
        let shape = Shape::new(tasks.len(), STAGING_BYTES).ok()?;
        let segment = Arc::new(Segment::open(file?, GroupId::from_bytes(id), shape).ok()?);
        let letters = Letters::in_segment(&segment, place).ok()?;
        say(&socket, READY, 0, [0; 16], None)?;
        let goes = hear(&socket, GO, until).is_some();
        Some(Neighbours::new(tasks, place, letters, wakes.into_iter().flatten().collect(), goes))
    }
}

#[cfg(test)]
impl Near {
    pub(super) fn name_for_test(&self) -> String {
        name(&self.greeting)
    }
}

/// Returns the name at which the process that sends this greeting listens.
fn name(Greeting { digest, near, task, pid, .. }: &Greeting) -> String {
    format!("consonance near {digest:032x} {near:016x} {task} {pid}")
}

/// Returns a new descriptor that is readable after a write to it.
fn new_wake() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()
}

/// Whether a process of this user is at the other end.
fn is_ours(socket: &OwnedFd) -> bool {
    socket::peer(socket).is_ok_and(|peer| peer.uid == socket::user())
}

/// Waits until one of these can be read. `None` at the deadline, and if one of the links ends.
fn wait<'d>(descriptors: impl Iterator<Item = BorrowedFd<'d>>, links: &'d [&TcpStream], until: Instant) -> Option<()> {
    let mut polled: Vec<PollFd<'_>> =
        links.iter().map(|link| PollFd::from_borrowed_fd(link.as_fd(), PollFlags::RDHUP)).collect();
    polled.extend(descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    loop {
        let rest = until.checked_duration_since(Instant::now())?;
        match poll(&mut polled, Some(&Timespec::try_from(rest).ok()?)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return polled[..links.len()].iter().all(|link| link.revents().is_empty()).then_some(()),
            Err(_) => return None,
        }
    }
}

/// Says a word, with a descriptor if there is one.
fn say(to: &OwnedFd, kind: u8, task: usize, bytes: [u8; 16], descriptor: Option<BorrowedFd<'_>>) -> Option<()> {
    let mut word = [kind; BYTES];
    word[1..9].copy_from_slice(&(task as u64).to_le_bytes());
    word[9..].copy_from_slice(&bytes);
    socket::send(to, &word, descriptor).ok()?.then_some(())
}

enum Heard {
    Nothing,
    Word {
        kind: u8,
        task: usize,
        bytes: [u8; 16],
        descriptor: Option<OwnedFd>,
    },
    /// The end, or anything else.
    Nonsense,
}

/// Reads a word, if one has come.
fn read(socket: &OwnedFd) -> Heard {
    let mut bytes = vec![0; MAX_BYTES];
    match socket::receive(socket, &mut bytes) {
        Received::Nothing => Heard::Nothing,
        Received::Bytes(BYTES, mut descriptors) if descriptors.len() <= 1 => Heard::Word {
            kind: bytes[0],
            task: u64::from_le_bytes(bytes[1..9].try_into().expect("eight bytes")) as usize,
            bytes: bytes[9..BYTES].try_into().expect("sixteen bytes"),
            descriptor: descriptors.pop(),
        },
        _ => Heard::Nonsense,
    }
}

/// Waits for a word of this kind. `None` at the deadline, and for anything else.
fn hear(socket: &OwnedFd, kind: u8, until: Instant) -> Option<(usize, [u8; 16], Option<OwnedFd>)> {
    loop {
        match read(socket) {
            Heard::Nothing => wait([socket.as_fd()].into_iter(), &[], until)?,
            Heard::Word { kind: said, task, bytes, descriptor } if said == kind => {
                return Some((task, bytes, descriptor));
            }
            Heard::Word { .. } | Heard::Nonsense => return None,
        }
    }
}
