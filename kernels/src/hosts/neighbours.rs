//! The letters between processes of one host, through memory that they share.

use super::senders::sender;
use crate::{
    group::{Letters, Unreadable},
    wire::{Arrived, Head},
};
use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// The processes of the host of this one.
pub struct Neighbours {
    /// The task of each, in the order of their places in the segment.
    tasks: Vec<usize>,
    /// The place of this process.
    own: usize,
    letters: Letters,
    /// The descriptors that wake them.
    wakes: Vec<OwnedFd>,
    /// Whether all read what comes through the segment.
    goes: bool,
}

impl Neighbours {
    pub(super) fn new(tasks: Vec<usize>, own: usize, letters: Letters, wakes: Vec<OwnedFd>, goes: bool) -> Neighbours {
        Neighbours { tasks, own, letters, wakes, goes }
    }

    /// Returns the tasks of this host to which letters take no wire.
    pub fn tasks(&self) -> impl Iterator<Item = usize> {
        let others = self.tasks.iter().enumerate().filter(|(place, _)| self.goes && *place != self.own);
        others.map(|(_, &task)| task)
    }

    fn place(&self, task: usize) -> Option<usize> {
        self.tasks.iter().position(|&one| one == task).filter(|&place| place != self.own)
    }

    fn wake(&self, place: usize) {
        // It fails only if the descriptor is readable already.
        let _ = rustix::io::write(&self.wakes[place], &1u64.to_ne_bytes());
    }

    /// Sends a letter to a process. Returns at once. One to a process that has [parted](Self::part)
    /// goes nowhere.
    ///
    /// # Errors
    /// The body, if letters to that process take the wire.
    pub(super) fn send(&self, task: usize, head: &Head, body: Vec<u8>) -> Result<(), Vec<u8>> {
        match self.place(task).filter(|_| self.goes) {
            Some(place) => self.letters.send(place, head, body, |place| self.wake(place)),
            None => Err(body),
        }
    }

    /// Goes on with the letters that wait, and takes those that have arrived. Reports a process
    /// once if its letters cannot be read.
    pub(super) fn progress(&self, arrived: &mut Vec<Arrived>, mut fault: impl FnMut(usize, &str)) {
        for place in (0..self.tasks.len()).filter(|&place| place != self.own) {
            let task = self.tasks[place];
            let take = |head: Vec<u8>, body| {
                let head = Head::try_from(&head[..])
                    .ok()
                    .filter(|head| sender(u64::from_le_bytes(head[..8].try_into().expect("eight bytes"))) == task);
                head.map(|head| arrived.push(Arrived { head, body })).is_some()
            };
            match self.letters.advance(place, take, |place| self.wake(place)) {
                Err(Unreadable::Memory) => fault(task, "the system has no memory for its messages"),
                Err(Unreadable::Corrupt) => fault(task, "it writes nonsense into shared memory"),
                Ok(()) => {}
            }
        }
    }

    /// Prepares for sleep on the descriptor. On `false` there is something to do now.
    pub(super) fn may_sleep(&self) -> bool {
        self.letters.may_sleep()
    }

    /// Returns the descriptor to sleep on.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.wakes[self.own].as_fd()
    }

    /// Ends the sleep. The descriptor `is_readable` or not: reading one that is not may wait, since
    /// the neighbours that have it, too, choose how it is read.
    pub(super) fn awake(&self, is_readable: bool) {
        self.letters.awake();
        if is_readable {
            let _ = rustix::io::read(&self.wakes[self.own], &mut [0; 8]);
        }
    }

    /// Returns the number of letters that have not found room.
    pub(super) fn pending(&self) -> usize {
        self.letters.pending()
    }

    /// Takes note that a process reads no more.
    pub(super) fn part(&self, task: usize) {
        self.place(task).into_iter().for_each(|place| self.letters.part(place));
    }
}

#[cfg(test)]
impl Neighbours {
    pub(super) fn wakes_for_test(&self) -> &[OwnedFd] {
        &self.wakes
    }

    pub(super) fn letters_for_test(&self) -> &Letters {
        &self.letters
    }
}

impl fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Neighbours").field("tasks", &self.tasks).field("goes", &self.goes).finish_non_exhaustive()
    }
}
