//! One rank's data to the others: broadcast, scatter.

use super::displacement;
use consonance_kernels::{
    buffer::{Buf, BufMut},
    plan::Step,
    step::{Fault, Seat},
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
    if Step::moving(data.bytes(), 1) == Step::Exchange {
        let payloads = seat.exchange(signature, is_root.then(|| data.as_buf()))?;
        if !is_root {
            payloads.copy(root, 0, &mut data)?;
        }
        return Ok(());
    }
    if is_root {
        seat.published(signature, Some(data.as_buf()), 1, |_| Ok(()))
    } else {
        seat.published(signature, None, 1, |peers| peers.copy(root, all.clone(), &mut data))
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
            match Step::moving(send.bytes(), blocks) {
                Step::Exchange => seat.exchange(signature, Some(send)).map(drop)?,
                _ => seat.published(signature, Some(send), blocks, |_| Ok(()))?,
            }
            if let Some(mut recv) = recv {
                let end = start + recv.count();
                recv.copy_from(send.slice(start..end));
            }
            Ok(())
        }
        None => {
            let mut recv = recv.expect("Call::signature requires recv on every rank but the root");
            let start = displacement(counts, recv.count(), rank);
            let all = displacement(counts, recv.count(), size);
            if Step::moving(all * recv.dtype().size(), blocks) == Step::Exchange {
                return seat.exchange(signature, None)?.copy(root, start, &mut recv);
            }
            let range = start..start + recv.count();
            seat.published(signature, None, blocks, |peers| peers.copy(root, range.clone(), &mut recv))
        }
    }
}
