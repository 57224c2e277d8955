//! The exchange of call descriptors over an engine of [letters](super::Service::Letters) in a small
//! group: each rank sends its own to every other.
//!
//! Each rank comes to the same verdict, and knows itself which ranks are late. The first data for a
//! peer go with the descriptor if they are few: a call then takes one way of a message. If the
//! calls differ, such data are dropped.

use super::{Descriptor, Lowered, OF_TWO};
use crate::comm::{call::Call, engine::Failure};
use consonance_kernels::memory::HostBufMut;
use consonance_spec::Kind;

/// The size of the largest group whose ranks send descriptors to every other. It has `n (n - 1)`
/// messages, one after the other on each rank; along a tree there are fewer, but each waits for
/// another.
pub(super) const MOST_RANKS: usize = 8;

/// Upper bound on the data that a rank sends with the descriptors of a call, in bytes, to all peers
/// together. A late peer keeps them until it comes.
const FIRST_BYTES: usize = 16 << 10;

/// The size of a descriptor in bytes.
const DESCRIPTOR: usize = size_of::<Descriptor>();

/// Marks a descriptor with data in its third number.
const WITH_DATA: u64 = 1;

/// The data that went with the descriptors of a call.
#[derive(Default)]
pub(super) struct FirstData {
    /// The peers that have this rank's.
    sent: Vec<usize>,
    /// The messages of peers with theirs.
    arrived: Vec<(usize, Vec<u8>)>,
}

impl FirstData {
    /// Takes note that data for a peer are to be sent. Returns false if it has them.
    pub(super) fn must_send(&mut self, to: usize) -> bool {
        let place = self.sent.iter().position(|&peer| peer == to);
        place.map(|place| self.sent.swap_remove(place)).is_none()
    }

    /// Whether data of a peer have arrived.
    pub(super) fn has(&self, from: usize) -> bool {
        self.arrived.iter().any(|&(peer, _)| peer == from)
    }

    /// Passes the data of a peer on, if they have arrived.
    pub(super) fn take<R>(&mut self, from: usize, then: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let place = self.arrived.iter().position(|&(peer, _)| peer == from)?;
        Some(then(&self.arrived.swap_remove(place).1[DESCRIPTOR..]))
    }
}

/// Returns the limit on the bytes of data that go with the descriptor for each of this number of
/// peers.
pub(super) fn limit(peers: usize) -> usize {
    FIRST_BYTES / peers.max(1)
}

impl Lowered {
    /// Sends a descriptor to each of these peers, with the first data of the call for it if these
    /// are few, and receives theirs. The third number of such a descriptor is its mark, and the
    /// fourth the number of the call of all ranks, by which a lost message is noticed; 0 of a
    /// pair's.
    pub(super) fn swap(
        &mut self,
        [fingerprint, bytes, number]: [u64; 3],
        peers: &[usize],
        call: &Call<'_>,
        name: Kind,
    ) -> Result<Vec<(usize, Descriptor)>, Failure> {
        self.first = FirstData::default();
        let mut sent = Vec::new();
        for &peer in peers {
            let data = self.first_data(call, peer).filter(|data| data.bytes() <= limit(peers.len()));
            let mark = if data.is_some() { WITH_DATA } else { 0 };
            let mut message = vec![0; DESCRIPTOR + data.map_or(0, |data| data.bytes())];
            let (descriptor, room) = message.split_at_mut(DESCRIPTOR);
            descriptor.copy_from_slice([fingerprint, bytes, mark, number].map(u64::to_ne_bytes).as_flattened());
            if let Some(data) = data {
                HostBufMut::from(room).copy_from_bytes(data.as_bytes());
                sent.push(peer);
            }
            self.send(message.as_slice().into(), peer, name)?;
        }
        let (mut late, mut found) = (peers.to_vec(), Vec::with_capacity(peers.len()));
        let mut arrived = Vec::new();
        while !late.is_empty() {
            let Some(peer) = self.messages.probe(&late, self.deadline) else { return Err(self.give_up(late, name)) };
            let (descriptor, message) = self.receive_descriptor(peer, name)?;
            if (descriptor[1] == OF_TWO) != (bytes == OF_TWO) {
                let [pair, all] = ["a send or a receive", "a call of all ranks"];
                let (own, its) = if bytes == OF_TWO { (pair, all) } else { (all, pair) };
                return Err(self.out_of_step(peer, name, own, its));
            }
            if descriptor[3] != number {
                return Err(self.garbled("call descriptor", peer, name));
            }
            if descriptor[2] == WITH_DATA {
                arrived.push((peer, message));
            }
            late.retain(|&other| other != peer);
            found.push((peer, descriptor));
        }
        self.first = FirstData { sent, arrived };
        Ok(found)
    }

    /// Receives a descriptor. Returns also its message, in which data may follow it.
    pub(super) fn receive_descriptor(&mut self, peer: usize, name: Kind) -> Result<(Descriptor, Vec<u8>), Failure> {
        let message = self.messages.receive(peer, name)?;
        let (words, _) = message.as_chunks::<8>();
        match words.first_chunk::<4>().map(|words| words.map(u64::from_ne_bytes)) {
            Some(descriptor) => Ok((descriptor, message)),
            None => Err(self.garbled("call descriptor", peer, name)),
        }
    }

    /// Compares a call with this fingerprint on all ranks, as [`Exchange`](super::Exchange) does.
    pub(super) fn compare_directly(
        &mut self,
        fingerprint: u64,
        bytes: u64,
        call: &Call<'_>,
        name: Kind,
    ) -> Result<Option<Vec<u64>>, Failure> {
        let peers: Vec<usize> = self.meetings().collect();
        self.calls += 1;
        let found = self.swap([fingerprint, bytes, self.calls], &peers, call, name)?;
        let mut table = vec![bytes; self.size()];
        found.iter().for_each(|&(peer, descriptor)| table[peer] = descriptor[1]);
        Ok(found.iter().all(|(_, other)| other[0] == fingerprint).then_some(table))
    }
}
