//! The collectives of ranks that share memory, in steps. Each keeps to the one canonical order, so
//! that the choice between them is a matter of speed alone.

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
    group::{Endpoint, Fault},
    memory::{HostBufMut, Memory},
};
use consonance_spec::{DType, Signature};

/// Why a call did not happen.
pub(crate) enum Stop {
    /// A step of it did not.
    Fault(Fault),
    /// Two ranks do not expect the same of each other.
    Counts(UnlikeCounts),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

/// Carries out any call of a whole group.
pub(crate) fn run(
    endpoint: &mut Endpoint,
    signature: &Signature,
    call: Call<'_>,
    scratch: &mut Scratch,
    configuration: &Configuration,
) -> Result<(), Stop> {
    match call {
        Call::Barrier => endpoint.exchange(signature, None).map(drop)?,
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
        Call::AllToAll { send, recv, counts } => {
            all_to_all::all_to_all(endpoint, signature, send.on_host(), recv.on_host(), counts, scratch)?;
        }
        Call::Send { .. } | Call::Recv { .. } => unreachable!("a pair's call, not a group's"),
    }
    Ok(())
}

/// The most bytes of a dtype that a rank of a strategy keeps from run to run.
const KEPT_BYTES: usize = 1 << 20;

/// Memory that a rank keeps between calls, so that a call that needs some allocates nothing after
/// the first of its size.
#[derive(Default)]
pub(crate) struct Scratch {
    /// One for each dtype that was needed.
    memories: Vec<Memory>,
    /// Counts of all ranks.
    counts: Vec<u64>,
}

impl Scratch {
    /// Gives up what is large: it is for a call that was large.
    pub(crate) fn shrink(&mut self) {
        self.memories.retain(|memory| memory.as_buf().bytes() <= KEPT_BYTES);
    }

    /// Room for `count` elements; what is in it is left from earlier calls.
    fn room(&mut self, dtype: DType, count: usize) -> HostBufMut<'_> {
        let place = self.memories.iter().position(|memory| memory.dtype() == dtype).unwrap_or_else(|| {
            self.memories.push(Memory::zeroed(dtype, count));
            self.memories.len() - 1
        });
        let memory = &mut self.memories[place];
        if memory.count() < count {
            *memory = Memory::zeroed(dtype, count);
        }
        memory.as_buf_mut().slice(0..count)
    }
}

/// Where the part of `rank` begins when parts of these counts lie one after the other; even parts
/// of `even` without counts.
fn displacement(counts: Option<&[usize]>, even: usize, rank: usize) -> usize {
    counts.map_or(even * rank, |counts| counts[..rank].iter().sum())
}
