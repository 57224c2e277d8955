//! Letters between processes that share a segment and form no group: those of one host, in a group
//! of several hosts.
//!
//! A letter is a head and a body of any size. It lies in one or several cells of the ring to its
//! receiver. The first cell has the head, and the body, too, if both fit. The next cells have the
//! body. Letters arrive in the order in which they were sent.
//!
//! A sender waits for no other process. It keeps what finds no room, and writes that when cells
//! were taken. So one thread of each process repeats this, without an end:
//!
//! 1. It calls [`Letters::advance`] for all others.
//! 2. It calls [`Letters::may_sleep`]. On `false` it begins again.
//! 3. It sleeps until another process wakes it, and calls [`Letters::awake`].
//!
//! The caller chooses what it sleeps on: the functions here get a function that wakes a process.
//!
//! No process waits for another one here, or holds a lock that another one takes. So one that ends
//! or is stopped in the middle of a letter harms no other: its last letter never comes.
//!
//! **Letter against sleep.** A sleeper sets *awaits mail*, fences and looks once more. A process
//! that has written or taken cells fences and then reads *awaits mail*. One of the two sees the
//! other.

use super::ring::{self, Envelope, Part, Reader, Writer};
use crate::{
    group::backing::Backing,
    os::available,
    shm::{
        Segment,
        records::Generation,
        ring::{Cell, RingEnds},
    },
    sync::{
        atomics::{Ordering, fence},
        plain::AtomicUsize,
    },
};
use consonance_spec::DType;
use std::{
    collections::VecDeque,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
};

/// The only generation: these processes renew nothing together.
const GENERATION: Generation = Generation(0);

/// The letters of a process from and to the others.
pub struct Letters {
    own: usize,
    backing: Backing,
    /// The cells of a ring that are used, and the bytes of each.
    cells: usize,
    most: usize,
    senders: Box<[Mutex<Sender>]>,
    receivers: Box<[Mutex<Receiver>]>,
    /// The number of letters that wait for cells.
    pending: AtomicUsize,
}

/// The letters to a process.
struct Sender {
    writer: Writer,
    ring: Ring,
    /// The letters that wait for cells, each a head and a body.
    queue: VecDeque<(Vec<u8>, Vec<u8>)>,
    /// The bytes of the first body that are written; `None` if its head is not.
    begun: Option<usize>,
}

/// The state of a ring for its writer.
#[derive(PartialEq, Eq)]
enum Ring {
    Unused,
    Open,
    /// The system had no memory for it.
    Closed,
    /// Nobody reads it any more.
    Over,
}

/// The letters from a process.
struct Receiver {
    reader: Reader,
    is_open: bool,
    /// Whether no more letters are read.
    is_over: bool,
    /// The head and the body of the letter that comes, and the bytes that are missing.
    begun: Option<(Vec<u8>, Vec<u8>, usize)>,
}

/// The reason why the letters of a process cannot be read.
#[derive(Debug)]
pub enum Unreadable {
    /// It wrote values that no correct process writes.
    Corrupt,
    /// The system gave no memory.
    Memory,
}

impl Letters {
    /// Prepares the letters of process `own` of those that have a rank each in the segment.
    ///
    /// # Errors
    /// The system's, when it has no memory.
    pub fn in_segment(segment: &Arc<Segment>, own: usize) -> io::Result<Letters> {
        let (size, tuning) = (segment.shape().ranks(), segment.tuning());
        let backing = Backing::segment(segment.clone(), segment.root(), size);
        backing.reserve_ring_ends(own)?;
        let sender =
            || Sender { writer: Writer::new(GENERATION), ring: Ring::Unused, queue: VecDeque::new(), begun: None };
        let receiver = || Receiver { reader: Reader::new(GENERATION), is_open: false, is_over: false, begun: None };
        Ok(Letters {
            own,
            backing,
            cells: tuning.mail_cells,
            most: tuning.mail_cell_bytes,
            senders: (0..size).map(|_| Mutex::new(sender())).collect(),
            receivers: (0..size).map(|_| Mutex::new(receiver())).collect(),
            pending: AtomicUsize::new(0),
        })
    }

    fn peers(&self) -> impl Iterator<Item = usize> {
        (0..self.senders.len()).filter(|&peer| peer != self.own)
    }

    pub(super) fn ring(&self, from: usize, to: usize) -> (&RingEnds, &[Cell]) {
        let (ends, cells) = self.backing.ring(from, to);
        (ends, &cells[..self.cells.min(cells.len())])
    }

    fn sender(&self, to: usize) -> MutexGuard<'_, Sender> {
        self.senders[to].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receiver(&self, from: usize) -> MutexGuard<'_, Receiver> {
        self.receivers[from].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a letter. Returns at once. Any thread may send. A letter to a process that [has
    /// parted](Letters::part) goes nowhere.
    ///
    /// # Errors
    /// The body, if the system had no memory for a ring to that process. There never is one then.
    ///
    /// # Panics
    /// If the head does not fit in a cell.
    pub fn send(&self, to: usize, head: &[u8], body: Vec<u8>, wake: impl Fn(usize)) -> Result<(), Vec<u8>> {
        assert!(head.len() <= self.most, "a head of {} bytes", head.len());
        let mut sender = self.sender(to);
        if sender.ring == Ring::Unused {
            let reserved = self.backing.reserve_ring_ends(to).and_then(|()| self.backing.reserve_ring(self.own, to));
            sender.ring = if reserved.is_ok() { Ring::Open } else { Ring::Closed };
            if reserved.is_ok() {
                // Relaxed: the reader reserves the cells, too.
                self.ring(self.own, to).0.writer.opened.store(GENERATION.mark(), Ordering::Relaxed);
            }
        }
        match sender.ring {
            Ring::Closed => return Err(body),
            Ring::Over => return Ok(()),
            Ring::Unused | Ring::Open => {}
        }
        let before = sender.queue.len();
        sender.queue.push_back((head.to_vec(), body));
        let wrote = sender.write(self.ring(self.own, to), self.most);
        self.count(before, sender.queue.len());
        drop(sender);
        if wrote {
            self.tell(to, wake);
        }
        Ok(())
    }

    /// Writes what waits for a process, and takes what has come from it, in part if that is much.
    /// Waits for no other thread's copies. `take` says whether a letter is one that a correct
    /// process sends.
    ///
    /// # Errors
    /// The reason why the rest cannot be read, once.
    pub fn advance(
        &self,
        peer: usize,
        mut take: impl FnMut(Vec<u8>, Vec<u8>) -> bool,
        wake: impl Fn(usize),
    ) -> Result<(), Unreadable> {
        // Another thread that has the lock writes. What it leaves is seen before the next sleep.
        if let Some(mut sender) = try_lock(&self.senders[peer]) {
            let before = sender.queue.len();
            let wrote = sender.write(self.ring(self.own, peer), self.most);
            self.count(before, sender.queue.len());
            drop(sender);
            if wrote {
                self.tell(peer, &wake);
            }
        }
        let mut receiver = self.receiver(peer);
        let taken = self.take(&mut receiver, peer, &mut take, wake);
        receiver.is_over |= taken.is_err();
        taken
    }

    /// Takes what has come from a process.
    fn take(
        &self,
        receiver: &mut Receiver,
        from: usize,
        take: &mut impl FnMut(Vec<u8>, Vec<u8>) -> bool,
        wake: impl Fn(usize),
    ) -> Result<(), Unreadable> {
        if receiver.is_over || !self.open(receiver, from)? {
            return Ok(());
        }
        let (ends, cells) = self.ring(from, self.own);
        // The other one may write a half while this one takes the other half.
        let half = cells.len().div_ceil(2);
        for _ in 0..4 {
            let taken = receiver.take((ends, cells), (half, self.most), take)?;
            if taken > 0 {
                self.tell(from, &wake);
            }
            if taken < half {
                break;
            }
        }
        Ok(())
    }

    /// Opens the ring from a process. Returns false if that one has not begun to send.
    fn open(&self, receiver: &mut Receiver, from: usize) -> Result<bool, Unreadable> {
        if !receiver.is_open && self.has_opened(from) {
            self.backing.reserve_ring(from, self.own).map_err(|_| Unreadable::Memory)?;
            receiver.is_open = true;
        }
        Ok(receiver.is_open)
    }

    fn has_opened(&self, from: usize) -> bool {
        // Relaxed: this process reserves the cells itself.
        self.backing.ring(from, self.own).0.writer.opened.load(Ordering::Relaxed) == GENERATION.mark()
    }

    /// Wakes a process that sleeps, after cells were written or taken.
    fn tell(&self, peer: usize, wake: impl Fn(usize)) {
        // SYNC POINT letter: pairs with the fence in `may_sleep`.
        fence(Ordering::SeqCst);
        if self.backing.records()[peer].sleeper.awaits_mail.load(Ordering::Relaxed) != 0 {
            wake(peer);
        }
    }

    /// Prepares for sleep. On `true` others wake this process when there is something to do. On
    /// `false` there is something now.
    pub fn may_sleep(&self) -> bool {
        self.backing.records()[self.own].sleeper.awaits_mail.store(1, Ordering::Relaxed);
        // SYNC POINT letter: pairs with the fence in `tell`.
        fence(Ordering::SeqCst);
        !self.peers().any(|peer| self.has_work(peer))
    }

    /// Says that this process does not sleep.
    pub fn awake(&self) {
        self.backing.records()[self.own].sleeper.awaits_mail.store(0, Ordering::Relaxed);
    }

    fn has_work(&self, peer: usize) -> bool {
        let (ends, cells) = self.ring(self.own, peer);
        // Another thread that has the lock may leave something to do.
        let Some(mut sender) = try_lock(&self.senders[peer]) else { return true };
        if !sender.queue.is_empty() && sender.writer.has_credit(ends, cells) {
            return true;
        }
        drop(sender);
        let Some(receiver) = try_lock(&self.receivers[peer]) else { return true };
        match receiver.is_open {
            _ if receiver.is_over => false,
            true => receiver.reader.look(self.ring(peer, self.own).1).is_some(),
            false => self.has_opened(peer),
        }
    }

    /// Returns the number of letters that have not found room.
    pub fn pending(&self) -> usize {
        // Relaxed: a number alone.
        self.pending.load(Ordering::Relaxed)
    }

    /// Counts the letters that wait: those to one process were as many `before` as now are `left`.
    fn count(&self, before: usize, left: usize) {
        if before != left {
            // Wraps where letters have left.
            self.pending.fetch_add(left.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Takes note that a process has ended. What waits for it, or is sent to it later, goes
    /// nowhere.
    pub fn part(&self, peer: usize) {
        self.receiver(peer).is_over = true;
        let mut sender = self.sender(peer);
        (sender.ring, sender.begun) = (Ring::Over, None);
        self.count(sender.queue.len(), 0);
        sender.queue = VecDeque::new();
    }
}

impl Sender {
    /// Writes as many cells as there are credits for, but no more than a ring has: its reader may
    /// take them as fast as this writes. Returns whether it wrote any.
    fn write(&mut self, (ends, cells): (&RingEnds, &[Cell]), most: usize) -> bool {
        let mut wrote = 0;
        while let Some((head, body)) = self.queue.front()
            && wrote < cells.len()
            && self.writer.has_credit(ends, cells)
        {
            wrote += 1;
            let bytes = head.len() + body.len();
            let envelope = Envelope { dtype: DType::U8, label: 0, bytes, tag: head.len() as u64 };
            let written = match self.begun {
                None if bytes <= most => {
                    self.writer.put(cells, Part::First, 0, envelope, &[&head[..], body].concat());
                    body.len()
                }
                None => {
                    self.writer.put(cells, Part::First, 0, envelope, head);
                    0
                }
                Some(at) => {
                    let end = body.len().min(at + most);
                    self.writer.put(cells, Part::Next, 0, envelope, &body[at..end]);
                    end
                }
            };
            self.begun = Some(written);
            if written == body.len() {
                self.begun = None;
                self.queue.pop_front();
            }
        }
        wrote > 0
    }
}

impl Receiver {
    /// Takes at most `limit` cells, of which each has at most `most` bytes. Returns their number.
    fn take(
        &mut self,
        (ends, cells): (&RingEnds, &[Cell]),
        (limit, most): (usize, usize),
        take: &mut impl FnMut(Vec<u8>, Vec<u8>) -> bool,
    ) -> Result<usize, Unreadable> {
        for taken in 0..limit {
            let Some(cell) = self.reader.look(cells) else { return Ok(taken) };
            let (part, _, envelope) = ring::header(cell).ok_or(Unreadable::Corrupt)?;
            match (part, &mut self.begun) {
                (Part::First, None) => {
                    let bytes = usize::try_from(envelope.tag).map_err(|_| Unreadable::Corrupt)?;
                    if bytes > most || bytes > envelope.bytes {
                        return Err(Unreadable::Corrupt);
                    }
                    let is_short = envelope.bytes <= most;
                    let first = if is_short { envelope.bytes } else { bytes };
                    let mut head = room(first)?;
                    copy_out(cell, &mut head, first)?;
                    let body = if is_short { head.split_off(bytes) } else { room(envelope.bytes - bytes)? };
                    let missing = envelope.bytes - bytes - body.len();
                    self.begun = Some((head, body, missing));
                }
                (Part::Next, Some((_, body, missing))) => {
                    let bytes = most.min(*missing);
                    copy_out(cell, body, bytes)?;
                    *missing -= bytes;
                }
                _ => return Err(Unreadable::Corrupt),
            }
            self.reader.take(ends);
            if let Some((head, body, _)) = self.begun.take_if(|(.., missing)| *missing == 0)
                && !take(head, body)
            {
                return Err(Unreadable::Corrupt);
            }
        }
        Ok(limit)
    }
}

/// Appends the first `bytes` bytes of a cell, which has as many.
fn copy_out(cell: &Cell, to: &mut Vec<u8>, bytes: usize) -> Result<(), Unreadable> {
    to.try_reserve_exact(bytes).map_err(|_| Unreadable::Memory)?;
    // SAFETY: the bytes are reserved, and initialized by the copy. The callers take no more than a
    // cell has, and the cell has been written and not yet taken.
    unsafe {
        ring::copy_out(cell, to.as_mut_ptr().add(to.len()), bytes);
        to.set_len(to.len() + bytes);
    }
    Ok(())
}

fn room(bytes: usize) -> Result<Vec<u8>, Unreadable> {
    available::room(bytes).ok_or(Unreadable::Memory)
}

/// Takes a lock, unless another thread has it now.
fn try_lock<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match lock.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
impl Letters {
    /// The number of cells that were written to a process.
    pub(super) fn written_for_test(&self, to: usize) -> u64 {
        Generation::number_of(self.sender(to).writer.written())
    }

    /// Holds the lock that a thread has while it writes to a process.
    pub(super) fn lock_for_test(&self, to: usize) -> impl Drop + '_ {
        self.sender(to)
    }
}

impl fmt::Debug for Letters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Letters").field("own", &self.own).finish_non_exhaustive()
    }
}
