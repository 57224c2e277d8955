//! Scenarios of letters between processes that form no group.

use crate::{
    fault,
    group::Letters,
    scenario::{DEATH, messages::RINGS},
    shm::{Segment, ring::CELL_BYTES},
    sync::{
        atomics::{AtomicU32, Ordering},
        wait::WakeEvent,
    },
};
use std::{sync::Arc, time::Duration};

/// The events on which two processes sleep.
#[derive(Default)]
struct Events {
    of: [WakeEvent; 2],
    /// 1 when the other process has ended.
    has_ended: AtomicU32,
}

impl Events {
    fn wake(&self, process: usize) {
        self.of[process].signal(true);
    }
}

struct Process {
    own: usize,
    letters: Letters,
    events: Arc<Events>,
    taken: Vec<(Vec<u8>, Vec<u8>)>,
}

fn processes() -> [Process; 2] {
    let (segment, events) = (Arc::new(Segment::new(RINGS)), Arc::<Events>::default());
    [0, 1].map(|own| {
        let letters = Letters::in_segment(&segment, own).expect("the model has memory");
        Process { own, letters, events: events.clone(), taken: Vec::new() }
    })
}

/// Returns the head and the body of letter `number`. The second one takes two cells.
fn letter(number: usize) -> (Vec<u8>, Vec<u8>) {
    (vec![number as u8; 8], vec![10 + number as u8; [16, CELL_BYTES, 0][number % 3]])
}

impl Process {
    fn send(&self, number: usize) {
        let (head, body) = letter(number);
        let wake = |process| self.events.wake(process);
        self.letters.send(1 - self.own, &head, body, wake).expect("there is a ring");
    }

    /// Does what the thread of a process does, until `done`.
    fn go_on(&mut self, done: impl Fn(&Process) -> bool) {
        loop {
            let seen = self.events.of[self.own].count();
            let (letters, taken, events) = (&self.letters, &mut self.taken, &self.events);
            let take = |head, body| {
                taken.push((head, body));
                true
            };
            let advanced = letters.advance(1 - self.own, take, |process| events.wake(process));
            advanced.expect("the other one is correct");
            if done(self) {
                return;
            }
            if self.letters.may_sleep() {
                self.events.of[self.own].sleep(seen, Duration::MAX, true);
            }
            self.letters.awake();
        }
    }

    fn has(&self, count: usize) -> bool {
        assert_eq!(self.taken, (0..self.taken.len()).map(letter).collect::<Vec<_>>());
        self.taken.len() >= count && self.letters.pending() == 0
    }
}

/// One process sends more than the ring takes, and gets an answer.
pub(super) fn letters() {
    let [mut first, mut second] = processes();
    let other = loom::thread::spawn(move || {
        second.go_on(|process| process.has(2));
        second.send(0);
        second
    });
    first.send(0);
    first.send(1);
    first.go_on(|process| process.has(1));
    drop(other.join().unwrap());
}

/// The number of operations of a process in [`letters_and_death`], plus one.
pub(super) const LETTER_DEATHS: u32 = 60;

/// A process dies at any operation while it sends. The other one has the first letters or none.
pub(super) fn letters_and_death() {
    let [mut mortal, mut other] = processes();
    let events = mortal.events.clone();
    let dies = loom::thread::spawn(move || {
        fault::die_after(DEATH.get(), || {
            mortal.send(0);
            mortal.send(1);
            mortal.go_on(|process| process.has(0));
        })
    });
    let survives = loom::thread::spawn(move || {
        // Of two read-modify-write operations the later one reads what the earlier one wrote.
        other.go_on(|process| process.has(2) || process.events.has_ended.fetch_add(0, Ordering::Relaxed) == 1);
        other
    });
    let died = dies.join().unwrap();
    assert!(!died || DEATH.get() < LETTER_DEATHS, "there are more operations before which it may die");
    events.has_ended.fetch_add(1, Ordering::Relaxed);
    events.wake(1);
    drop(survives.join().unwrap());
}
