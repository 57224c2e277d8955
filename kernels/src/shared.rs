//! The end of a step in which memory is shared: nobody leaves while others are in its memory.

use crate::{
    atomics::{Ordering, fence, yield_now},
    hub::{Abort, Reason},
    line::Round,
    plan::Access,
    ring::Outcome,
    step::{Fault, Seat},
};
use consonance_spec::Signature;
use std::{
    ops::Range,
    time::{Duration, Instant},
};

/// How long a rank that gives up waits for a rank of another process that is in its memory: longer than a chunk takes, but that
/// process may be stopped, or dead.
const GRACE: Duration = Duration::from_millis(20);

/// For how long the system may refuse to take memory back from a rank that is in it: it is short of memory, perhaps for a moment.
const LAST_GRACE: Duration = Duration::from_secs(10);

impl Seat {
    /// Arrives with memory that others may touch until the result departs, or is dropped; with `open` see [`Shared`].
    pub(crate) fn share(
        &mut self,
        signature: &Signature,
        access: Access,
        bytes: usize,
        input: *const u8,
        output: *mut u8,
        open: [Range<usize>; 2],
    ) -> Result<Shared<'_>, Fault> {
        let active = self.stage.is_some() || !(input.is_null() && output.is_null());
        let mut shared = Shared { seat: self, active, open };
        let arrived = shared.seat.arrive(signature, access, bytes, (&[], 0), (input, output), || ());
        if let Err(Fault::Mismatch | Fault::Left(_)) = arrived {
            // Nobody works in a step on which not all agree, or in which a card will never come.
            shared.active = false;
        }
        arrived.map(|()| shared)
    }

    /// Takes these parts of the heaps away from the ranks of other processes. Whether that was possible.
    fn close(&self, open: &[Range<usize>]) -> bool {
        let Some((segment, _)) = self.hub.segment() else { return false };
        open.iter().filter(|bytes| !bytes.is_empty()).all(|bytes| segment.detach(bytes.clone()).is_ok())
    }
}

/// From arrival to departure of a rank that may have shared memory. Dropped before the departure, it ends the group and waits
/// until nobody is in this rank's memory.
pub(crate) struct Shared<'s> {
    pub(crate) seat: &'s mut Seat,
    pub(crate) active: bool,
    /// The parts of the heaps in which ranks of other processes write in this step, and which are this rank's.
    pub(crate) open: [Range<usize>; 2],
}

impl Shared<'_> {
    /// Goes on without waiting for anybody.
    pub(crate) fn finish(mut self) {
        self.seat.note(Outcome::Done);
        self.active = false;
    }

    /// Says that this rank is done, and waits for the others if they may be in its memory.
    pub(crate) fn depart(mut self) -> Result<(), Fault> {
        let epoch = self.seat.epoch;
        // SYNC POINT departure: pairs below.
        self.seat.hub.lines()[self.seat.world.rank()].progress.done.store(epoch, Ordering::Release);
        self.seat.wake();
        if self.active {
            // SYNC POINT departure: pairs above.
            self.seat.wait_for_all(|line| Round::reached(line.progress.done.load(Ordering::Acquire), epoch))?;
            self.active = false;
        }
        self.seat.note(Outcome::Done);
        Ok(())
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        if !self.active {
            return;
        }
        self.seat.note(Outcome::Aborted);
        let Seat { hub, world, round, .. } = &*self.seat;
        hub.abort(*round, Abort { rank: world.rank(), reason: Reason::Failure });
        // SYNC POINT abort: pairs with the fence in `enter`.
        fence(Ordering::SeqCst);
        let begin = hub.segment().map(|_| Instant::now());
        // Threads of this process first, for as long as it takes: they go on, and would see the other pages, too.
        for is_local in [true, false] {
            for peer in world.peers().filter(|&peer| hub.is_local(peer) == is_local) {
                // SYNC POINT inside: pairs with `Inside::drop`.
                while hub.lines()[peer].progress.inside.load(Ordering::Acquire) != 0 {
                    // Those of other processes matter only where they write.
                    let is_open = self.open.iter().any(|bytes| !bytes.is_empty());
                    let waited = begin.map_or(Duration::ZERO, |begin| begin.elapsed());
                    let is_late = begin.is_some() && (!is_open || waited > GRACE);
                    if !is_local && is_late && self.seat.close(&self.open) {
                        return;
                    }
                    if !is_local && waited > LAST_GRACE {
                        // The other may go on at any time and write in memory that this process uses for something else by then.
                        let rank = world.rank();
                        eprintln!(
                            "consonance: rank {peer} is stopped in memory of rank {rank}, and it cannot be taken back"
                        );
                        std::process::abort();
                    }
                    yield_now();
                }
            }
        }
    }
}
