//! Two ranks: one sends, the other receives. Up to a payload the data come with the sender's arrival; above, the sender waits until
//! they have been copied.

use consonance_kernels::{
    group::{
        Fault, Seat,
        plan::{Cut, Step},
    },
    memory::{Buf, BufMut},
};
use consonance_spec::Signature;

/// Sends in the group of two.
pub(crate) fn send(pair: &mut Seat, signature: &Signature, data: Buf<'_>) -> Result<(), Fault> {
    let cut = Cut::one_way(data.bytes(), 1);
    match pair.ground().moving(data.bytes(), cut) {
        Step::Exchange => pair.exchange(signature, Some(data)).map(drop),
        _ => pair.published(signature, Some(data), cut, |_| Ok(())),
    }
}

/// Receives in the group of two.
pub(crate) fn recv(pair: &mut Seat, signature: &Signature, mut data: BufMut<'_>) -> Result<(), Fault> {
    let peer = 1 - pair.world().rank();
    let all = 0..data.count();
    let cut = Cut::one_way(data.bytes(), 1);
    match pair.ground().moving(data.bytes(), cut) {
        Step::Exchange => pair.exchange_expecting(signature, None, data.bytes())?.copy(peer, 0, &mut data),
        _ => pair.published(signature, None, cut, |peers| peers.copy(peer, all.clone(), &mut data)),
    }
}
