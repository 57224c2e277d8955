//! Steps that share memory: no rank leaves while others access its memory.

use super::{
    end::abort::{Fault, Reason},
    member::Member,
    participant::Participant,
    peers::PeerBuffers,
    plan::Path,
    post::Arrival,
    scratch::Addresses,
};
use crate::{
    shm::{call_log::Outcome, records::Generation},
    sync::atomics::{Ordering, fence, yield_now},
};
use consonance_spec::Signature;
use std::{
    ops::Range,
    time::{Duration, Instant},
};

/// The time that a rank that gives up waits for ranks of other processes that are in its
/// memory: longer than a chunk takes. Such a process may be stopped or dead, and may have written
/// any value.
const GRACE: Duration = Duration::from_millis(20);

/// A rank that may share memory, from arrival to departure. If it is dropped before the departure,
/// it ends the group and waits until no rank is in this rank's memory.
pub(crate) struct Sharing<'s> {
    pub(super) participant: &'s mut Participant,
    pub(super) signature: &'s Signature,
    active: bool,
    /// The parts of the heaps that belong to this rank, and that ranks of other processes write in
    /// this step.
    open: [Range<usize>; 2],
}

impl<'s> Sharing<'s> {
    /// Arrives at a step whose buffers peers may access. They stay valid until `depart` (success)
    /// or drop (abort). For `open` see [`Sharing`].
    pub(crate) fn arrive(
        participant: &'s mut Participant,
        arrival: &Arrival<'s>,
        open: [Range<usize>; 2],
    ) -> Result<Sharing<'s>, Fault> {
        let active = participant.staging.is_some() || !(arrival.input.is_null() && arrival.output.is_null());
        let mut sharing = Sharing { participant, signature: arrival.signature, active, open };
        let Participant { meeting, staging, .. } = &mut *sharing.participant;
        match meeting.arrive(arrival, || ()) {
            Ok(()) => {
                if let Some(staging) = staging {
                    staging.have_arrived(meeting.sequence);
                }
                Ok(sharing)
            }
            Err(fault) => {
                if let Fault::Mismatch | Fault::Left(_) = fault {
                    // No rank works in a step on which not all agree, or in which a descriptor will
                    // never come.
                    sharing.active = false;
                }
                Err(fault)
            }
        }
    }

    /// Ends the step without waiting for any rank.
    pub(crate) fn finish(mut self) {
        self.participant.meeting.note(Outcome::Done);
        self.active = false;
    }

    /// Calls `work` for the data of all ranks, which are threads of one process and have arrived at
    /// this step. Departs.
    pub(super) fn read_in_place(
        self,
        mut work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Participant { meeting, addresses, path, .. } = &mut *self.participant;
        path.set(Some(Path::InPlace));
        let Addresses { sources, scratch, .. } = addresses;
        let context = meeting.context(self.signature, true);
        work(&mut PeerBuffers { context, sources, scratch, window: None })?;
        self.depart()
    }

    /// Publishes that this rank is done, and waits for the others if they may be in its memory.
    pub(crate) fn depart(self) -> Result<(), Fault> {
        let meeting = &self.participant.meeting;
        let (waiter, sequence) = (&meeting.waiter, meeting.sequence);
        // SYNC POINT departure: pairs below.
        waiter.member.record().counters.done.store(sequence, Ordering::Release);
        waiter.wake();
        if self.active {
            // SYNC POINT departure: pairs above.
            waiter
                .wait_for_all(|record| Generation::reached(record.counters.done.load(Ordering::Acquire), sequence))?;
        }
        self.finish();
        Ok(())
    }
}

impl Drop for Sharing<'_> {
    fn drop(&mut self) {
        if !self.active {
            return;
        }
        let meeting = &self.participant.meeting;
        meeting.note(Outcome::Aborted);
        let member = meeting.member();
        let Member { state, world, .. } = member;
        member.abort(world.rank(), Reason::Failure);
        // SYNC POINT abort: pairs with the fence in `enter`.
        fence(Ordering::SeqCst);
        // Waits for threads of this process first, without a limit: they go on, and would also see
        // the replaced pages. No other process writes the words by which they are seen.
        for peer in world.peers().filter(|&peer| state.is_local(peer)) {
            // SYNC POINT inside: pairs with `Inside::drop`.
            while state.inside(peer).load(Ordering::Acquire) != 0 {
                yield_now();
            }
        }
        // Ranks of other processes matter only where they write.
        if self.open.iter().all(Range::is_empty) {
            return;
        }
        let begin = Instant::now();
        for peer in world.peers().filter(|&peer| !state.is_local(peer)) {
            // SYNC POINT inside: pairs with `Inside::drop`.
            while state.records()[peer].counters.inside.load(Ordering::Acquire) != 0 {
                if begin.elapsed() > GRACE {
                    return close(member, &self.open);
                }
                yield_now();
            }
        }
    }
}

/// Removes these parts of the heaps from the memory that other processes can write.
fn close(member: &Member, open: &[Range<usize>]) {
    let Some((segment, _)) = member.state.segment() else { return };
    for bytes in open.iter().filter(|bytes| !bytes.is_empty()) {
        // The replacement pages were reserved with them. The system can refuse to map them if the
        // process has as many mappings as it may have; then peers can still write there, as they
        // can in all memory of the segment.
        let _ = segment.detach(bytes.clone());
    }
}
