//! The identity of a rank.

use super::{
    end::abort::{Abort, Fault, Reason},
    state::GroupState,
};
use crate::{
    memory::HostMemory,
    shm::{
        Segment,
        call_log::CallLog,
        records::{CallDescriptor, Generation, RankRecord},
    },
    sync::{
        atomics::{Ordering, fence},
        core,
    },
};
use consonance_spec::{DType, World};
use std::{io, sync::Arc};

/// A rank of a group, in one of the group's generations.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) state: Arc<GroupState>,
    pub(crate) world: World,
    pub(crate) generation: Generation,
}

impl Member {
    /// Returns a rank in the first generation of its group.
    pub(super) fn new(state: Arc<GroupState>, world: World) -> Member {
        Member { state, world, generation: Generation::default() }
    }

    /// Returns every rank's record.
    #[inline]
    pub(crate) fn records(&self) -> &[RankRecord] {
        self.state.records()
    }

    /// Returns this rank's own record.
    #[inline]
    pub(crate) fn record(&self) -> &RankRecord {
        &self.records()[self.world.rank()]
    }

    /// Whether one of these peers was last seen on the core of this thread, and so may need it.
    /// Publishes that core.
    pub(super) fn shares_core(&self, mut peers: impl Iterator<Item = usize>) -> bool {
        let core = self.say_core();
        core != 0 && peers.any(|peer| self.state.sleeper(peer).core.load(Ordering::Relaxed) == core)
    }

    /// Publishes and returns the core of this thread: see [`core::current`].
    pub(super) fn say_core(&self) -> u32 {
        let (core, said) = (core::current(), &self.state.sleeper(self.world.rank()).core);
        // Relaxed, as the load of a peer: how long a wait polls depends on it, and nothing else.
        if said.load(Ordering::Relaxed) != core {
            said.store(core, Ordering::Relaxed);
        }
        core
    }

    /// Wakes `peer`, which sleeps until this rank makes progress: it has. Publishes the core of
    /// this thread for the next wait of `peer`.
    pub(super) fn wake_for_progress(&self, peer: usize) {
        self.say_core();
        self.state.wake_for_progress(peer);
    }

    /// Returns every rank's descriptor of call `sequence`, in rank order.
    pub(super) fn descriptors(&self, sequence: u64) -> impl Iterator<Item = &CallDescriptor> {
        self.records().iter().map(move |record| record.descriptor(sequence))
    }

    /// Returns the log of this rank's last calls, if there is one.
    #[inline]
    pub(super) fn call_log(&self) -> Option<&CallLog> {
        self.state.call_log(self.world.rank())
    }

    /// Returns the segment of a group of processes.
    pub(super) fn segment(&self) -> &Segment {
        self.state.segment().expect("a group of processes").0
    }

    /// Returns the abort that ended this generation, if it was ended.
    #[inline]
    pub(crate) fn aborted(&self) -> Option<Abort> {
        self.state.aborted(self.generation, self.world.rank())
    }

    /// Like `aborted`, for a call of this rank, which fails because of it.
    #[inline]
    pub(crate) fn hear(&self) -> Option<Abort> {
        self.aborted().inspect(|_| self.state.hear(self.generation, self.world.rank()))
    }

    /// Whether the system can read this memory of this rank's own process. It cannot read the
    /// memory of a device.
    pub(super) fn is_readable(&self, address: *const u8) -> bool {
        self.state.process(self.world.rank()).is_some_and(|process| process.has_ordinary(address))
    }

    /// Checks that this process may take part in a call that begins now, and that the group has not
    /// ended.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.state.forked() {
            return Err(Fault::Forked);
        }
        if self.state.has_ended(self.generation) { self.check_ended() } else { Ok(()) }
    }

    /// Does [`check`](Member::check) in a group that has ended.
    #[cold]
    fn check_ended(&self) -> Result<(), Fault> {
        self.state.begin_after_end(self.generation, self.world.rank());
        self.hear().map_or(Ok(()), |abort| Err(Fault::Aborted(abort)))
    }

    /// Checks that the group has not ended, so that the data read in others' own memory were valid:
    /// a rank that gives up ends the group before it returns.
    pub(super) fn check_after_reads(&self) -> Result<(), Fault> {
        // SYNC POINT abort: the reads come before this check; a rank that wrote the memory
        // afterwards had ended the group before.
        fence(Ordering::Acquire);
        self.hear().map_or(Ok(()), |abort| Err(Fault::Aborted(abort)))
    }

    /// Ends the group because of `rank`, in a call of this one, which fails.
    pub(crate) fn abort(&self, rank: usize, reason: Reason) {
        self.state.abort(self.generation, Abort { rank, reason });
        self.state.hear(self.generation, self.world.rank());
    }

    /// Ends the group because `rank` wrote values that no correct rank writes. Between threads this
    /// would be a fault of this program. If the group has ended already, returns that end: a rank
    /// that was told of it may have freed memory that this one still reads.
    pub(crate) fn corrupt(&self, rank: usize) -> Fault {
        if let Some(abort) = self.hear() {
            return Fault::Aborted(abort);
        }
        self.abort(rank, Reason::Failure);
        Fault::CorruptPeer(rank)
    }

    /// Ends the group because the system gave no memory for `bytes` of data.
    pub(crate) fn no_memory(&self, bytes: usize, error: &io::Error) -> Fault {
        self.abort(self.world.rank(), Reason::Memory);
        Fault::NoMemory { bytes, code: error.raw_os_error() }
    }

    /// See [`Endpoint::alloc`](super::Endpoint::alloc).
    pub(super) fn alloc(&self, dtype: DType, count: usize) -> io::Result<HostMemory> {
        let Some(segment) = self.state.shared_segment().filter(|_| dtype != DType::Bool) else {
            return HostMemory::try_zeroed(dtype, count);
        };
        if segment.forked() {
            return Err(io::Error::other("this process was made by fork after it joined the group"));
        }
        let bytes = count.checked_mul(dtype.size()).ok_or(io::ErrorKind::OutOfMemory)?;
        let block = segment.allocate(self.state.top_rank(self.world.rank()), bytes)?;
        let start = block.start();
        // SAFETY: a block begins at a page and has at least `bytes` bytes, which are zero at first.
        // No other value of this process gives access to it; peers touch it only within a step
        // whose descriptor refers to it.
        Ok(unsafe { HostMemory::in_block(start, dtype, count, Box::new(block)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::thread_pool;
    use std::thread;

    #[test]
    #[cfg_attr(not(target_os = "linux"), ignore = "only Linux tells the core of a thread")]
    fn ranks_on_one_core_know_of_each_other() {
        let cores = thread::available_parallelism().unwrap().get();
        let state = GroupState::new(3);
        let ranks = [0, 1, 2].map(|rank| Member::new(Arc::clone(&state), World::new(rank, 3).unwrap()));
        let on_core = |core, look: &(dyn Fn() -> bool + Sync)| {
            thread::scope(|scope| {
                let pinned = || thread_pool::pin(core).map(|()| look());
                scope.spawn(pinned).join().unwrap().unwrap()
            })
        };
        assert!(!on_core(0, &|| ranks[0].shares_core([1, 2].into_iter())), "the peers have not said theirs");
        assert!(on_core(0, &|| ranks[1].shares_core([0].into_iter())));
        assert!(on_core(0, &|| ranks[2].shares_core([0, 1].into_iter())));
        if cores > 1 {
            assert!(!on_core(1, &|| ranks[2].shares_core([0, 1].into_iter())));
            assert!(on_core(0, &|| ranks[0].shares_core([1, 2].into_iter())));
            assert!(!on_core(0, &|| ranks[0].shares_core([2].into_iter())), "it has moved");
        }
    }
}
