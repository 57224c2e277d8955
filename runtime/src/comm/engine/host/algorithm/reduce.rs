//! Collectives that combine data: reduce, all_reduce, reduce_scatter.

use super::Scratch;
use crate::Implementation;
use consonance_kernels::{
    cpu::copy::copy_own,
    cpu::reduce::Reducer,
    group::{
        Endpoint, Fault,
        plan::{Chunking, StepKind, Targets},
    },
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::{DType, ReduceOp, Signature, partition};

fn reducer(op: ReduceOp, dtype: DType) -> Reducer {
    Reducer::new(op, dtype).expect("Call::sign refuses operations that are not defined")
}

/// Reduces on all ranks. Few bytes travel inline in the call descriptors, and every rank reduces
/// all data: one step, no buffer shared.
///
/// More bytes, two-shot: each rank reduces its block of all inputs straight into all outputs. One
/// pass; each rank reads `bytes` and writes `bytes`, whatever the number of ranks.
///
/// One-shot, if configured: each rank reads all inputs (`ranks * bytes`) and writes its own output.
pub(super) fn all_reduce(
    endpoint: &mut Endpoint,
    signature: &Signature,
    op: ReduceOp,
    send: Option<HostBuf<'_>>,
    mut recv: HostBufMut<'_>,
    scratch: &mut Scratch,
    implementation: Implementation,
) -> Result<(), Fault> {
    let (dtype, bytes) = send.map_or((recv.dtype(), recv.bytes()), |send| (send.dtype(), send.bytes()));
    if implementation == Implementation::Auto && endpoint.rides_to_all(bytes) {
        let payload = send.unwrap_or_else(|| recv.as_buf());
        let (reducer, mut payloads) =
            endpoint.step(signature).exchange_while(Some(payload), payload.bytes(), || reducer(op, dtype))?;
        return payloads.reduce(&reducer, 0, send, &mut recv);
    }
    let reducer = reducer(op, dtype);
    match implementation {
        Implementation::OneShot => match send {
            Some(send) => {
                let chunking = Chunking::WHOLE.at_most(send.bytes());
                endpoint.step(signature).published(Some(send), chunking, |peers| peers.reduce(&reducer, 0, &mut recv))
            }
            None => {
                // Peers read this rank's data until the step ends. Keep the result in scratch until
                // then.
                let mut result = scratch.room(recv.dtype(), recv.count());
                let chunking = Chunking::WHOLE.at_most(recv.bytes());
                endpoint
                    .step(signature)
                    .published(Some(recv.as_buf()), chunking, |peers| peers.reduce(&reducer, 0, &mut result))?;
                copy_own(result.as_buf(), &mut recv);
                Ok(())
            }
        },
        _ => endpoint.step(signature).divided(&reducer, send, Some(recv), Targets::All),
    }
}

/// Reduces on the root. Up to the payload limit data travels inline with the descriptors, and the
/// root alone reduces. Above it, each rank reduces its block into the root's output.
pub(super) fn reduce(
    endpoint: &mut Endpoint,
    signature: &Signature,
    op: ReduceOp,
    send: Option<HostBuf<'_>>,
    recv: Option<HostBufMut<'_>>,
    root: usize,
) -> Result<(), Fault> {
    let input = send.or_else(|| recv.as_ref().map(|recv| recv.as_buf())).expect("Call::sign requires a buffer");
    let reducer = reducer(op, input.dtype());
    let rank = endpoint.world().rank();
    if endpoint.topology().combining(&reducer, input.bytes(), Targets::Root(root)) == StepKind::Exchange {
        let is_root = rank == root;
        let mut payloads = endpoint.step(signature).exchange(Some(input))?;
        if let Some(mut recv) = recv.filter(|_| is_root) {
            payloads.reduce(&reducer, 0, send, &mut recv)?;
        }
        return Ok(());
    }
    // Ignore a `recv` that is passed on another rank than the root.
    let recv = recv.filter(|_| send.is_none() || rank == root);
    endpoint.step(signature).divided(&reducer, send, recv, Targets::Root(root))
}

/// Reduces on each rank its block of all inputs, into `recv` or in place into its own block. Few
/// bytes travel inline with the descriptors.
pub(super) fn reduce_scatter(
    endpoint: &mut Endpoint,
    signature: &Signature,
    op: ReduceOp,
    send: Option<HostBuf<'_>>,
    mut recv: HostBufMut<'_>,
) -> Result<(), Fault> {
    let reducer = reducer(op, send.map_or(recv.dtype(), |send| send.dtype()));
    let (rank, size) = (endpoint.world().rank(), endpoint.world().size());
    let input = send.unwrap_or_else(|| recv.as_buf());
    if endpoint.topology().combining(&reducer, input.bytes(), Targets::Own) == StepKind::Exchange {
        let own = partition::block(input.count(), size, rank);
        let mut payloads = endpoint.step(signature).exchange(Some(input))?;
        let mut recv = if send.is_some() { recv } else { recv.slice(own.clone()) };
        return payloads.reduce(&reducer, own.start, send.map(|send| send.slice(own.clone())), &mut recv);
    }
    match send {
        Some(send) => {
            let offset = rank * recv.count();
            let chunking = Chunking::blocks(size, send.bytes());
            endpoint.step(signature).published(Some(send), chunking, |peers| peers.reduce(&reducer, offset, &mut recv))
        }
        None => endpoint.step(signature).divided(&reducer, None, Some(recv), Targets::Own),
    }
}
