//! One rank's data to the others: broadcast, scatter.

use super::displacement;
use consonance_kernels::{
    group::{
        Fault, Seat,
        plan::{Cut, Step},
    },
    memory::{Buf, BufMut},
};
use consonance_spec::Signature;

/// Up to a payload in the root's arrival line; above, the root publishes and the others copy at once, each all of it.
pub(super) fn broadcast(
    seat: &mut Seat,
    signature: &Signature,
    mut data: BufMut<'_>,
    root: usize,
) -> Result<(), Fault> {
    let is_root = seat.world().rank() == root;
    let all = 0..data.count();
    let cut = Cut::one_way(data.bytes(), 1);
    if seat.ground().moving(data.bytes(), cut) == Step::Exchange {
        return match is_root {
            true => seat.exchange(signature, Some(data.as_buf())).map(drop),
            false => seat.exchange_expecting(signature, None, data.bytes())?.copy(root, 0, &mut data),
        };
    }
    if is_root {
        seat.published(signature, Some(data.as_buf()), cut, |_| Ok(()))
    } else {
        seat.published(signature, None, cut, |peers| peers.copy(root, all.clone(), &mut data))
    }
}

/// Up to a payload all parts come with the root's arrival; above, the root publishes them. Each rank copies its own.
pub(super) fn scatter(
    seat: &mut Seat,
    signature: &Signature,
    send: Option<Buf<'_>>,
    recv: Option<BufMut<'_>>,
    counts: Option<&[usize]>,
    root: usize,
) -> Result<(), Fault> {
    let (rank, size) = (seat.world().rank(), seat.world().size());
    // Even parts are the blocks.
    let blocks = if counts.is_none() { size } else { 1 };
    match send.filter(|_| rank == root) {
        Some(send) => {
            let start = displacement(counts, send.count() / size, rank);
            let cut = Cut::one_way(send.bytes(), blocks);
            let copy_own = || {
                if let Some(mut recv) = recv {
                    let end = start + recv.count();
                    recv.copy_from(send.slice(start..end));
                }
            };
            if seat.ground().moving(send.bytes(), cut) == Step::Exchange {
                return seat.exchange(signature, Some(send)).map(|_| copy_own());
            }
            // While the others read what is put up last.
            let mut copy_own = Some(copy_own);
            seat.published(signature, Some(send), cut, |peers| {
                if let Some(copy_own) = copy_own.take_if(|_| peers.is_last()) {
                    copy_own();
                }
                Ok(())
            })
        }
        None => {
            let mut recv = recv.expect("Call::sign requires recv on every rank but the root");
            let start = displacement(counts, recv.count(), rank);
            let bytes = displacement(counts, recv.count(), size) * recv.dtype().size();
            let cut = Cut::one_way(bytes, blocks);
            if seat.ground().moving(bytes, cut) == Step::Exchange {
                return seat.exchange_expecting(signature, None, bytes)?.copy(root, start, &mut recv);
            }
            let range = start..start + recv.count();
            seat.published(signature, None, cut, |peers| peers.copy(root, range.clone(), &mut recv))
        }
    }
}
