//! Threads that wait until other members of a group end or leave.

use super::{
    formed_group::{Formed, Gone, MemberLink},
    socket::{self, Link},
};
use crate::{
    os::process_state::{ProcessState, process_state},
    shm::{
        Segment,
        deaths::{Hold, MOST_WATCHED, await_deaths},
    },
    sync::{
        atomics::{AtomicU32, Ordering},
        futex::Sleepers,
    },
};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
};
use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    process,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Enough for a thread's own frames, and for a small `on_gone`.
const STACK_BYTES: usize = 256 << 10;

/// The number of times that a member reported dead is asked for its state, once a millisecond.
/// Between the signal that ends a process and the end of its first thread the system does not tell
/// for a moment.
const QUESTIONS: usize = 20;

/// Watches the other members of a group until it is dropped.
///
/// It sees the end of a member in three ways. The system closes the link, and the pidfd of the
/// member becomes readable. The pidfd matters if a child of the member keeps the link open. Both
/// come after the system has freed the member's memory. The system marks the member's word in the
/// segment before that, if the system can (`shm/life.rs`).
pub struct Watch {
    links: Option<JoinHandle<()>>,
    end: Arc<OwnedFd>,
    _lives: Option<Lives>,
    /// The id of the process that has the threads. A fork does not have them.
    owner: u32,
}

/// The thread that waits for words, and the word of this process.
struct Lives {
    thread: Option<JoinHandle<()>>,
    /// 0 until the thread should end.
    end: Arc<AtomicU32>,
    owner: u32,
    _hold: Hold,
}

/// A member that is watched by its word.
struct Living {
    member: usize,
    /// Its first rank.
    rank: usize,
    pid: u32,
    link: Arc<Link>,
}

/// State that the threads share: the members that they have reported, and the function to report
/// to.
struct Told<F>(Mutex<(Vec<usize>, F)>);

impl Watch {
    /// Starts the threads, which block without a timeout. They call `on_gone` once for each member
    /// that is gone, with the member's index, also for members that are gone already. `on_gone`
    /// must neither panic nor wait.
    ///
    /// `segment` is what the members share. Without it, or where the system does not mark words or
    /// wait for them, an end is seen when the memory of the process is free.
    ///
    /// # Errors
    /// The system's error if there is no thread or descriptor.
    pub fn start(
        formed: &Formed,
        segment: Option<&Arc<Segment>>,
        on_gone: impl Fn(usize, Gone) + Send + 'static,
    ) -> io::Result<Watch> {
        let told = Arc::new(Told(Mutex::new((Vec::new(), on_gone))));
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let lives = segment.and_then(|segment| Lives::start(formed, segment, &told).ok());
        let (links, until) = (formed.links.clone(), Arc::clone(&end));
        let thread = thread::Builder::new().name("consonance-watch".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || watch_links(links, &until, &told))?;
        Ok(Watch { links: Some(thread), end, _lives: lives, owner: process::id() })
    }
}

#[cfg(test)]
impl Watch {
    /// Whether the words of the members are watched, too.
    pub(super) fn watches_words(&self) -> bool {
        self._lives.is_some()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Drop for Watch {
    /// Ends the threads and waits for their end. The wait is no longer than a call of `on_gone` and
    /// the questions for the state of a member.
    fn drop(&mut self) {
        let told = |end: &OwnedFd| rustix::io::write(end, &1u64.to_ne_bytes()).is_ok();
        // The write fails if the program has closed descriptors that are not its own. Then the
        // thread goes on until the process ends.
        end(self.links.take(), self.owner, || told(&self.end));
    }
}

impl Drop for Lives {
    fn drop(&mut self) {
        end(self.thread.take(), self.owner, || {
            // Relaxed: the word stands for itself.
            self.end.store(1, Ordering::Relaxed);
            Sleepers::default().wake(&self.end, false);
            true
        });
    }
}

/// Ends a thread of the process `owner`, and waits for its end if `tell` could tell it.
fn end(thread: Option<JoinHandle<()>>, owner: u32, tell: impl FnOnce() -> bool) {
    let Some(thread) = thread else { return };
    if process::id() != owner {
        // A fork shares the descriptor with the process that has the thread, but has no thread to
        // end.
        std::mem::forget(thread);
        return;
    }
    if tell() && thread.thread().id() != thread::current().id() {
        let _ = thread.join();
    }
}

impl Lives {
    fn start<F>(formed: &Formed, segment: &Arc<Segment>, told: &Arc<Told<F>>) -> io::Result<Lives>
    where
        F: Fn(usize, Gone) + Send + 'static,
    {
        let mut next = 0;
        let first = |replicas: usize| {
            next += replicas;
            next - replicas
        };
        let first: Vec<usize> = formed.members.iter().map(|member| member.replicas).map(first).collect();
        let hold = Hold::new(segment, first[formed.me])?;
        let living = |(member, link): &MemberLink| {
            let link = link.as_ref().ok()?;
            Some(Living { member: *member, rank: first[*member], pid: link.pid?, link: link.clone() })
        };
        let mut living: Vec<Living> = formed.links.iter().filter_map(living).collect();
        // Of very many members each watches the next ones. The one that sees a death ends the group
        // for all.
        let after = living.iter().position(|one| one.member > formed.me).unwrap_or(0);
        living.rotate_left(after);
        living.truncate(MOST_WATCHED);
        let end = Arc::new(AtomicU32::new(0));
        let (until, segment, told) = (end.clone(), segment.clone(), told.clone());
        let thread = thread::Builder::new().name("consonance-lives".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || watch_lives(living, &segment, &until, &told))?;
        Ok(Lives { thread: Some(thread), end, owner: process::id(), _hold: hold })
    }
}

impl<F: Fn(usize, Gone)> Told<F> {
    /// Tells that a member is gone, unless that was told.
    fn tell(&self, member: usize, gone: Gone) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (members, on_gone) = &mut *told;
        if !members.contains(&member) {
            members.push(member);
            on_gone(member, gone);
        }
    }
}

/// Returns how the process went at the other end of a link that will carry no more packets.
fn how_gone(link: &Link) -> Gone {
    // Members send each other nothing while the group exists, so a packet means `Leave`.
    if socket::has_packet(&link.socket) { Gone::Left } else { Gone::Ended }
}

fn watch_lives<F: Fn(usize, Gone)>(mut living: Vec<Living>, segment: &Segment, end: &AtomicU32, told: &Told<F>) {
    while !living.is_empty() {
        let ranks: Vec<usize> = living.iter().map(|one| one.rank).collect();
        // Without such a call the links alone tell.
        let Ok(died) = await_deaths(segment, &ranks, end) else { return };
        if died.is_empty() {
            return;
        }
        let mut asked: Vec<Living> = died.into_iter().rev().map(|position| living.remove(position)).collect();
        // A peer can write the words. Of a member that lives, the link will tell.
        for question in 0..QUESTIONS {
            if question > 0 {
                thread::sleep(Duration::from_millis(1));
            }
            asked.retain(|one| {
                let lives = process_state(one.pid) != ProcessState::Gone;
                if !lives {
                    told.tell(one.member, how_gone(&one.link));
                }
                lives
            });
            // Relaxed: the word stands for itself.
            if asked.is_empty() || end.load(Ordering::Relaxed) != 0 {
                break;
            }
        }
    }
}

fn watch_links<F: Fn(usize, Gone)>(links: Vec<MemberLink>, end: &OwnedFd, told: &Told<F>) {
    let mut here = Vec::with_capacity(links.len());
    for (member, link) in links {
        match link {
            Ok(link) => here.push((member, link)),
            Err(gone) => told.tell(member, gone),
        }
    }
    loop {
        let mut members = Vec::new();
        let mut polled = vec![PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN)];
        for (index, (_, link)) in here.iter().enumerate() {
            for descriptor in link.descriptors() {
                members.push(index);
                polled.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
            }
        }
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            // The system has no memory for the call now. Try again, so that no end is missed.
            Err(_) => {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
        }
        if !polled[0].revents().is_empty() {
            return;
        }
        let mut gone: Vec<usize> =
            (members.iter().zip(&polled[1..])).filter(|(_, fd)| !fd.revents().is_empty()).map(|(&i, _)| i).collect();
        gone.dedup();
        drop(polled);
        for &index in gone.iter().rev() {
            let (member, link) = here.remove(index);
            told.tell(member, how_gone(&link));
        }
    }
}
