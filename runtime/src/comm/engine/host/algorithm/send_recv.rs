//! Send and receive between two ranks. Data up to the payload limit travels inline with the
//! sender's descriptor; between processes the sender does not wait for the receiver. Above it, the
//! sender publishes its data and waits for the receiver.

use consonance_kernels::{
    group::{
        Endpoint, Fault,
        plan::{Chunking, StepKind},
    },
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::Signature;

/// Sends in the group of two.
pub(crate) fn send(pair: &mut Endpoint, signature: &Signature, data: HostBuf<'_>) -> Result<(), Fault> {
    let chunking = Chunking::one_way(data.bytes(), 1);
    match pair.topology().one_way(signature, None, data.bytes(), chunking) {
        StepKind::Message => pair.step(signature).send_message(None, data),
        StepKind::Exchange => pair.step(signature).exchange(Some(data)).map(drop),
        _ => pair.step(signature).published(Some(data), chunking, |_| Ok(())),
    }
}

/// Receives in the group of two.
pub(crate) fn recv(pair: &mut Endpoint, signature: &Signature, mut data: HostBufMut<'_>) -> Result<(), Fault> {
    let peer = 1 - pair.world().rank();
    let all = 0..data.count();
    let chunking = Chunking::one_way(data.bytes(), 1);
    match pair.topology().one_way(signature, None, data.bytes(), chunking) {
        StepKind::Message => pair.step(signature).receive_message(None, peer, data.bytes())?.copy(peer, 0, &mut data),
        StepKind::Exchange => pair.step(signature).exchange_expecting(None, data.bytes())?.copy(peer, 0, &mut data),
        _ => pair.step(signature).published(None, chunking, |peers| peers.copy(peer, all.clone(), &mut data)),
    }
}
