//! A thread that waits until other members of a group end or leave.

use super::{
    formed::{Formed, Gone, MemberLink},
    socket,
};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    process,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

/// Enough for the thread's own frames, and for a small `on_gone`.
const STACK_BYTES: usize = 256 << 10;

/// Watches the other members of a group until it is dropped.
///
/// It sees the end of a member in two ways: the system closes the link, and the pidfd of the member
/// becomes readable. The pidfd matters if a child of the member keeps the link open.
#[derive(Debug)]
pub struct Watch {
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// The id of the process that has the thread. A fork does not have it.
    owner: u32,
}

impl Watch {
    /// Starts the thread. The thread blocks in `poll` without a timeout. It calls `on_gone` once
    /// for each member that is gone, with the member's index, also for members that are gone
    /// already. `on_gone` must neither panic nor wait.
    ///
    /// # Errors
    /// The system's error if there is no thread or descriptor.
    pub fn start(formed: &Formed, on_gone: impl Fn(usize, Gone) + Send + 'static) -> io::Result<Watch> {
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let links = formed.links.clone();
        let until = Arc::clone(&end);
        let thread = thread::Builder::new().name("consonance-watch".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || watch(links, &until, on_gone))?;
        Ok(Watch { end, thread: Some(thread), owner: process::id() })
    }
}

impl Drop for Watch {
    /// Ends the thread and waits for its end. The wait is no longer than one call of `on_gone`.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if process::id() != self.owner {
            // A fork shares the descriptor with the process that has the thread, but has no thread
            // to end.
            std::mem::forget(thread);
            return;
        }
        let told = rustix::io::write(&*self.end, &1u64.to_ne_bytes());
        // The write fails if the program has closed descriptors that are not its own. Then the
        // thread goes on until the process ends.
        if told.is_ok() && thread.thread().id() != thread::current().id() {
            let _ = thread.join();
        }
    }
}

fn watch(links: Vec<MemberLink>, end: &OwnedFd, on_gone: impl Fn(usize, Gone)) {
    let mut here = Vec::with_capacity(links.len());
    for (member, link) in links {
        match link {
            Ok(link) => here.push((member, link)),
            Err(gone) => on_gone(member, gone),
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
            // Members send each other nothing while the group exists, so a packet means `Leave`.
            let how = if socket::has_packet(&link.socket) { Gone::Left } else { Gone::Ended };
            on_gone(member, how);
        }
    }
}
