//! Two ranks: one sends, the other receives. The sender waits until its data has been copied.

use consonance_kernels::{
    buffer::{Buf, BufMut},
    step::{Fault, Seat},
};
use consonance_spec::Signature;

/// Sends in the group of two.
pub(crate) fn send(pair: &mut Seat, signature: &Signature, data: Buf<'_>) -> Result<(), Fault> {
    pair.published(signature, Some(data), 1, |_| Ok(()))
}

/// Receives in the group of two.
pub(crate) fn recv(pair: &mut Seat, signature: &Signature, mut data: BufMut<'_>) -> Result<(), Fault> {
    let peer = 1 - pair.world().rank();
    let all = 0..data.count();
    pair.published(signature, None, 1, |peers| peers.copy(peer, all.clone(), &mut data))
}
