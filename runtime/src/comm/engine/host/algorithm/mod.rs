//! The collectives of ranks that share memory, in steps. Every algorithm reduces in the canonical
//! order, so the choice of algorithm affects speed only.

mod all_to_all;
mod gather;
mod reduce;
mod scatter;
mod send_recv;

pub(crate) use send_recv::{recv, send};

use crate::comm::{
    call::{Call, OnHost, UnlikeCounts},
    options::Configuration,
};
use consonance_kernels::{
    cpu::copy::copy_own,
    group::{Endpoint, Fault},
    memory::{HostBuf, HostBufMut, HostMemory},
};
use consonance_spec::{DType, Signature};

/// The reason why a call failed.
pub(crate) enum Stop {
    /// A step of it failed.
    Fault(Fault),
    /// The counts of two ranks differ.
    Counts(UnlikeCounts),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

/// Executes any call of a whole group.
#[inline(always)]
pub(crate) fn run(
    endpoint: &mut Endpoint,
    signature: &Signature,
    call: Call<'_>,
    scratch: &mut Scratch,
    configuration: &Configuration,
) -> Result<(), Stop> {
    match call {
        Call::Barrier => endpoint.step(signature).exchange(None).map(drop)?,
        Call::Broadcast { data, root } => scatter::broadcast(endpoint, signature, data.on_host(), root)?,
        Call::Reduce { op, send, recv, root } => {
            reduce::reduce(endpoint, signature, op, send.on_host(), recv.on_host(), root)?;
        }
        Call::AllReduce { op, send, recv } => {
            let (send, recv) = (send.on_host(), recv.on_host());
            reduce::all_reduce(endpoint, signature, op, send, recv, scratch, configuration.implementation)?;
        }
        Call::ReduceScatter { op, send, recv } => {
            reduce::reduce_scatter(endpoint, signature, op, send.on_host(), recv.on_host())?;
        }
        Call::Gather { send, recv, counts, root } => {
            gather::gather(endpoint, signature, send.on_host(), recv.on_host(), counts, root)?;
        }
        Call::AllGather { send, recv, counts } => {
            gather::all_gather(endpoint, signature, send.on_host(), recv.on_host(), counts)?;
        }
        Call::Concat { send, rows, recv, counts } => {
            gather::concat(endpoint, signature, send.on_host(), rows, recv, counts)?;
        }
        Call::Scatter { send, recv, counts, root } => {
            scatter::scatter(endpoint, signature, send.on_host(), recv.on_host(), counts, root)?;
        }
        Call::AllToAll { send, recv, counts: None } => {
            all_to_all::all_to_all(endpoint, signature, send.on_host(), recv.on_host(), scratch)?;
        }
        Call::AllToAll { send, recv, counts: Some(counts) } => {
            all_to_all::all_to_all_v(endpoint, signature, send.on_host(), recv.on_host(), counts, scratch)?;
        }
        Call::Send { .. } | Call::Recv { .. } => unreachable!("a pair's call, not a group's"),
    }
    Ok(())
}

/// The limit on the bytes of a dtype that a rank of a strategy keeps from run to run.
const KEPT_BYTES: usize = 1 << 20;

/// Scratch memory that a rank keeps between calls, so that only the first call of a size allocates.
#[derive(Default)]
pub(crate) struct Scratch {
    /// One memory per dtype that was needed.
    memories: Vec<HostMemory>,
    /// The counts of all ranks.
    counts: Vec<u64>,
    /// The counts of this rank.
    row: Vec<u64>,
}

impl Scratch {
    /// Frees large memories: only a large call needs them.
    pub(crate) fn shrink(&mut self) {
        self.memories.retain(|memory| memory.as_buf().bytes() <= KEPT_BYTES);
    }

    /// Returns memory for `count` elements. It contains data of earlier calls.
    fn room(&mut self, dtype: DType, count: usize) -> HostBufMut<'_> {
        let place = self.memories.iter().position(|memory| memory.dtype() == dtype).unwrap_or_else(|| {
            self.memories.push(HostMemory::unspecified(dtype, count));
            self.memories.len() - 1
        });
        let memory = &mut self.memories[place];
        if memory.count() < count {
            *memory = HostMemory::unspecified(dtype, count);
        }
        memory.as_buf_mut().slice(0..count)
    }

    /// Returns a copy of these data.
    fn copy(&mut self, data: HostBuf<'_>) -> HostBuf<'_> {
        let mut copy = self.room(data.dtype(), data.count());
        copy_own(data, &mut copy);
        copy.into_buf()
    }
}

/// Returns the displacement of `rank`'s part in contiguous parts of these counts. Without counts
/// every part has `even` elements.
fn displacement(counts: Option<&[usize]>, even: usize, rank: usize) -> usize {
    counts.map_or(even * rank, |counts| counts[..rank].iter().sum())
}
