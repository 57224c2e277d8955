//! Send and receive between two ranks. Data up to the payload limit travels inline with the
//! sender's descriptor; between processes the sender does not wait for the receiver. Above it, the
//! sender publishes its data and waits for the receiver.

use consonance_kernels::{
    group::{
        Endpoint, Fault,
        plan::{Chunking, Step},
    },
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::Signature;

/// Sends in the group of two.
pub(crate) fn send(pair: &mut Endpoint, signature: &Signature, data: HostBuf<'_>) -> Result<(), Fault> {
    let chunking = Chunking::one_way(data.bytes(), 1);
    match pair.topology().one_way(signature, None, data.bytes(), chunking) {
        Step::Message => pair.send_message(signature, None, data),
        Step::Exchange => pair.exchange(signature, Some(data)).map(drop),
        _ => pair.published(signature, Some(data), chunking, |_| Ok(())),
    }
}

/// Receives in the group of two.
pub(crate) fn recv(pair: &mut Endpoint, signature: &Signature, mut data: HostBufMut<'_>) -> Result<(), Fault> {
    let peer = 1 - pair.world().rank();
    let all = 0..data.count();
    let chunking = Chunking::one_way(data.bytes(), 1);
    match pair.topology().one_way(signature, None, data.bytes(), chunking) {
        Step::Message => pair.receive_message(signature, None, peer, data.bytes())?.copy(peer, 0, &mut data),
        Step::Exchange => pair.exchange_expecting(signature, None, data.bytes())?.copy(peer, 0, &mut data),
        _ => pair.published(signature, None, chunking, |peers| peers.copy(peer, all.clone(), &mut data)),
    }
}
