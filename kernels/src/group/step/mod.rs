//! The step that a call is in, as callers see it.
//!
//! # Words
//!
//! In some steps every rank tells the others words with its data, such as the counts of its blocks:
//! no rank knows before how much data a peer has.
//!
//! A rank with few data has them in its payload, before the words
//! ([`Topology::rides_before`](super::plan::Topology::rides_before)). A rank with more begins a
//! published step: the words alone are its payload, and its descriptor tells where the data are. It
//! stages their first window before it knows of the others. So the words of all tell each rank
//! which ranks have done which. If all have few data, or if none has, the step has the data of all.
//! Otherwise no rank reads any, and the ranks move them in a step that follows.

use super::{
    end::abort::Fault,
    meeting::Meeting,
    participant::Participant,
    payloads::Payloads,
    peers::PeerBuffers,
    plan::{Chunking, StepKind, Targets},
    post::{Arrival, Inline, Places},
    scratch::Addresses,
    sharing::Sharing,
    transport::{Divided, Input, Showing, divided_in_place, divided_on_stage, in_windows},
};
use crate::{
    cpu::reduce::Reducer,
    memory::{HostBuf, HostBufMut},
    shm::{
        call_log::Outcome,
        codes::Access,
        records::{MESSAGE_BYTES, PAYLOAD_BYTES, TINY_BYTES},
    },
};
use consonance_spec::Signature;
use std::ptr;

/// A step that a rank begins: of all ranks, which agree on its signature. Each method makes it.
pub struct Step<'e> {
    participant: &'e mut Participant,
    signature: &'e Signature,
}

impl<'e> Step<'e> {
    #[inline]
    pub(super) fn new(participant: &'e mut Participant, signature: &'e Signature) -> Step<'e> {
        Step { participant, signature }
    }

    /// A step whose payloads are inline in the descriptors: no memory is shared, and no rank waits
    /// until the others have read.
    ///
    /// The result gives access to every rank's payload, until this rank's next step.
    ///
    /// # Errors
    /// See [`Fault`].
    ///
    /// # Panics
    /// If the payload has more than [`PAYLOAD_BYTES`](crate::group::Endpoint::PAYLOAD_BYTES) bytes,
    /// or is not of the signature's dtype.
    pub fn exchange(self, payload: Option<HostBuf<'_>>) -> Result<Payloads<'e>, Fault> {
        self.exchange_expecting(payload, payload.map_or(0, |buf| buf.bytes()))
    }

    /// Like [`exchange`](Step::exchange), for a rank whose only peer has a payload of another size
    /// than its own: `expected` bytes, or at most as many. Only the speed depends on `expected`.
    ///
    /// # Errors
    /// As [`exchange`](Step::exchange).
    ///
    /// # Panics
    /// As [`exchange`](Step::exchange).
    pub fn exchange_expecting(self, payload: Option<HostBuf<'_>>, expected: usize) -> Result<Payloads<'e>, Fault> {
        self.exchange_while(payload, expected, || ()).map(|((), payloads)| payloads)
    }

    /// Like [`exchange_expecting`](Step::exchange_expecting), and runs `meanwhile` until the
    /// others' descriptors arrive.
    ///
    /// # Errors
    /// As [`exchange`](Step::exchange).
    ///
    /// # Panics
    /// As [`exchange`](Step::exchange).
    // Inlined: otherwise the caller would move the result, which was just written in parts, and to
    // read it as a whole takes longer than to write it.
    #[inline(always)]
    pub fn exchange_while<R>(
        self,
        payload: Option<HostBuf<'_>>,
        expected: usize,
        meanwhile: impl FnOnce() -> R,
    ) -> Result<(R, Payloads<'e>), Fault> {
        let Step { participant, signature } = self;
        let bytes = payload.map_or(0, |buf| buf.bytes());
        assert!(bytes <= PAYLOAD_BYTES, "payload of {bytes} bytes");
        assert!(payload.is_none_or(|payload| Some(payload.dtype()) == signature.dtype), "payload of {signature}");
        let payload = Inline::new(payload.as_ref().map_or(&[], |payload| payload.as_bytes()), &[]);
        let arrival = Arrival::inline(signature, Access::Payload, bytes, payload, expected);
        let made = participant.meeting.arrive(&arrival, meanwhile)?;
        Ok((made, payloads(participant, signature, Places::Swapped, 0, bytes)))
    }

    /// Like [`exchange`](Step::exchange), where every payload ends with as many `words`:
    /// [`Payloads::words`] reads them. A peer may be in
    /// [`published_with_words`](Step::published_with_words): then it has words alone.
    ///
    /// # Errors
    /// As [`exchange`](Step::exchange).
    ///
    /// # Panics
    /// As [`exchange`](Step::exchange), or if the payload does not fit before the words.
    pub fn exchange_with_words(self, words: &[u64], payload: HostBuf<'_>) -> Result<Payloads<'e>, Fault> {
        let Step { participant, signature } = self;
        assert_eq!(Some(payload.dtype()), signature.dtype, "payload of {signature}");
        let (data, most_bytes) = (payload.as_bytes(), most_before(participant, words));
        assert!(data.len() <= most_bytes, "payload of {} bytes before {} words", data.len(), words.len());
        let payload = Inline::new(data, words);
        let arrival = Arrival::inline(signature, Access::Words, data.len(), payload, payload.bytes());
        participant.meeting.arrive(&arrival, || ())?;
        participant.meeting.note(Outcome::Done);
        let payloads = payloads(participant, signature, Places::Swapped, size_of_val(words), data.len());
        Ok(Payloads { most_bytes, ..payloads })
    }

    /// A step in which each rank's `input` is published: nobody writes it, all may read it.
    ///
    /// `work` may be called several times, each time with another part of the data: see
    /// [`PeerBuffers`]. All ranks pass the same `chunking`. If there is a block for each rank, a
    /// rank reads only its own.
    ///
    /// # Errors
    /// See [`Fault`], and the errors of `work`.
    ///
    /// # Panics
    /// If the input is not of the signature's dtype.
    pub fn published(
        self,
        input: Option<HostBuf<'_>>,
        chunking: Chunking,
        work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.publish(input, chunking, None, work)
    }

    /// Like [`published`](Step::published), with a block for each rank: `counts[r]` elements for
    /// rank `r`.
    ///
    /// # Errors
    /// As [`published`](Step::published).
    ///
    /// # Panics
    /// As [`published`](Step::published), and if the chunking has another number of blocks than
    /// `counts`, if these are not all elements of the input, or if a block for another rank has
    /// more bytes than all ranks know.
    pub fn published_in_blocks(
        self,
        input: HostBuf<'_>,
        counts: &[usize],
        chunking: Chunking,
        work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let most = chunking.most_bytes / chunking.blocks / input.dtype().size();
        let fits = self.participant.world().peers().all(|peer| counts[peer] <= most);
        assert!(counts.len() == chunking.blocks && fits, "blocks of at most {most} elements: {counts:?}");
        assert_eq!(counts.iter().sum::<usize>(), input.count(), "the blocks are the input");
        self.publish(Some(input), chunking, Some(counts), work)
    }

    fn publish(
        self,
        input: Option<HostBuf<'_>>,
        chunking: Chunking,
        counts: Option<&[usize]>,
        work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Step { participant, signature } = self;
        assert!(input.is_none_or(|input| Some(input.dtype()) == signature.dtype), "input of {signature}");
        let (bytes, start) = input.map_or((0, ptr::null()), |buf| (buf.bytes(), buf.as_ptr()));
        let kind = StepKind::Published(chunking);
        participant.prepare()?;
        if participant.staging.is_some() {
            let input = Input { start, bytes, counts };
            // SAFETY: the input is valid for reads of its bytes while it is borrowed.
            unsafe { in_windows(participant, signature, kind, input, work)? };
            participant.note_large(chunking.most_bytes);
            return Ok(());
        }
        let arrival = Arrival::shared(signature, kind.access(), bytes, start, ptr::null_mut());
        Sharing::arrive(participant, &arrival, Default::default())?.read_in_place(work)
    }

    /// Like [`published_in_blocks`](Step::published_in_blocks), where every rank tells as many
    /// `words`, and ranks with less data may be in
    /// [`exchange_with_words`](Step::exchange_with_words). `agree` gets the words of all, and
    /// returns the elements of the largest block that any rank has for another one, or `None` if
    /// not all data are published: then no rank reads any. Every rank comes to the same verdict.
    /// Returns whether the data were published.
    ///
    /// # Errors
    /// See [`Fault`], and the errors of `agree` and of `work`.
    ///
    /// # Panics
    /// As [`published_in_blocks`](Step::published_in_blocks), or if the input fits before the
    /// words.
    pub fn published_with_words<E: From<Fault>>(
        self,
        words: &[u64],
        (input, counts): (HostBuf<'_>, &[usize]),
        agree: impl FnOnce(&Payloads<'_>) -> Result<Option<usize>, E>,
        work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<bool, E> {
        let Step { participant, signature } = self;
        assert_eq!(Some(input.dtype()), signature.dtype, "input of {signature}");
        let (size, world) = (input.dtype().size(), participant.world());
        let ranks = world.size();
        assert!(counts.len() == ranks && counts.iter().sum::<usize>() == input.count(), "the blocks are the input");
        let (bytes, start, most_bytes) = (input.bytes(), input.as_ptr(), most_before(participant, words));
        assert!(bytes > most_bytes, "{bytes} bytes fit before {} words", words.len());
        let kind = |bytes: usize| StepKind::Published(Chunking::blocks(ranks, bytes));
        participant.prepare()?;
        let showing = match participant.staging {
            None => None,
            Some(_) => {
                let input = Input { start, bytes, counts: Some(counts) };
                // SAFETY: the input is valid for reads of its bytes while it is borrowed.
                Some(unsafe { Showing::new(participant, signature, kind(usize::MAX), input)? })
            }
        };
        let told = showing.as_ref().map_or(start, Showing::told);
        let payload = Inline::new(&[], words);
        let shared = Arrival::shared(signature, Access::Words, bytes, told, ptr::null_mut());
        let arrival = Arrival { payload, awaited: payload.bytes(), ..shared };
        let sharing = Sharing::arrive(participant, &arrival, Default::default())?;
        let payloads = payloads(sharing.participant, signature, Places::Swapped, payload.bytes(), bytes);
        let most = match agree(&Payloads { most_bytes, ..payloads }) {
            Ok(Some(most)) => most,
            not_published => {
                let has_ended = sharing.participant.meeting.member().aborted().is_some();
                // If the group has ended, a rank of this process may be in this rank's memory: the
                // drop waits for it.
                if not_published.is_ok() || !has_ended {
                    sharing.finish();
                }
                return not_published.map(|_| false);
            }
        };
        let fits = world.peers().all(|peer| counts[peer] <= most);
        assert!(fits, "blocks of at most {most} elements: {counts:?}");
        match showing {
            // SAFETY: as above.
            Some(showing) => unsafe { showing.read(sharing, kind(most * ranks * size), work)? },
            None => sharing.read_in_place(work)?,
        }
        Ok(true)
    }

    /// A step in which block `r` of every buffer is private to rank `r`. Rank `r` folds that block
    /// of all inputs and writes the result to the targets: one pass, in canonical order, each byte
    /// read once and written once.
    ///
    /// Without `send` the input is `recv`, in place. Every rank's buffers have the same number of
    /// elements. The ranks that receive need `recv`.
    ///
    /// # Errors
    /// See [`Fault`].
    ///
    /// # Panics
    /// If the buffers do not fit the reducer or each other, if there is no buffer, if a rank that
    /// receives passes no `recv`, or if the signature has another operation or dtype than the
    /// reducer.
    pub fn divided(
        self,
        reducer: &Reducer,
        send: Option<HostBuf<'_>>,
        mut recv: Option<HostBufMut<'_>>,
        targets: Targets,
    ) -> Result<(), Fault> {
        let Step { participant, signature } = self;
        let input = send.or_else(|| recv.as_ref().map(|recv| recv.as_buf())).expect("a buffer to read");
        assert_eq!(input.dtype(), reducer.input(), "the input's dtype is the reducer's");
        let agreed = (signature.op, signature.dtype);
        assert_eq!(agreed, (Some(reducer.op()), Some(reducer.input())), "the reducer is what the ranks agree on");
        if let Some(recv) = &recv {
            let found = (recv.dtype(), recv.count());
            assert_eq!(found, (reducer.output(), input.count()), "recv fits the reducer and send");
        }
        let (count, bytes, input) = (input.count(), input.bytes(), input.as_ptr());
        let output = recv.as_mut().map_or(ptr::null_mut(), |recv| recv.as_mut_ptr());
        let receives = targets == Targets::Own || targets.reach(participant.world().rank());
        assert!(!receives || !output.is_null(), "a rank that receives gives recv");
        participant.prepare()?;
        let step = Divided { signature, reducer, targets, input, count, output, holdings: None };
        // SAFETY: both buffers have `count` elements, are borrowed, and are the same or disjoint.
        // The output is null where this rank does not receive.
        unsafe {
            match participant.staging {
                None => return divided_in_place(participant, &step),
                Some(_) if receives => divided_on_stage(participant, &step)?,
                Some(_) => divided_on_stage(participant, &Divided { output: ptr::null_mut(), ..step })?,
            }
        }
        participant.note_large(bytes);
        Ok(())
    }

    /// Gives this rank's data to the peers that read them, and waits for none. `counts` has one for
    /// each rank, if parts differ in size. See `meeting.rs`.
    ///
    /// # Errors
    /// See [`Fault`], of this step or of the one before it: then the peers may have the data. If
    /// the ranks make different calls, this rank hears of it when it
    /// [settles](crate::group::Endpoint::settle) the step.
    ///
    /// # Panics
    /// If counts and payload have more bytes together than a
    /// [message](crate::group::plan::Topology::one_way), or the payload is not of the signature's
    /// dtype, or if the ranks are threads of one process.
    pub fn send_message(self, counts: Option<&[usize]>, payload: HostBuf<'_>) -> Result<(), Fault> {
        assert_eq!(Some(payload.dtype()), self.signature.dtype, "the payload is of the agreed dtype");
        let (meeting, arrival) = message(self.participant, self.signature, counts, payload.as_bytes(), 0);
        meeting.give(&arrival)
    }

    /// Waits for the data of `from` alone. They have at most `expected` bytes, as far as this rank
    /// knows: only the speed depends on it. Only the payload of `from` may be read.
    ///
    /// # Errors
    /// See [`Fault`], of this step or of the one before it. If the calls of this rank and of `from`
    /// are equal and another rank's is not, this rank hears of it when it
    /// [settles](crate::group::Endpoint::settle) the step.
    ///
    /// # Panics
    /// If `from` is no peer, or if the ranks are threads of one process.
    pub fn receive_message(
        self,
        counts: Option<&[usize]>,
        from: usize,
        expected: usize,
    ) -> Result<Payloads<'e>, Fault> {
        let Step { participant, signature } = self;
        let world = participant.world();
        assert!(from != world.rank() && from < world.size(), "rank {from} is a peer of rank {}", world.rank());
        // With counts the payload does not lie beside the descriptor of the only peer.
        let expected = if counts.is_some() { expected.max(TINY_BYTES + 1) } else { expected };
        let (meeting, arrival) = message(participant, signature, counts, &[], expected);
        meeting.take(&arrival, from)?;
        Ok(payloads(participant, signature, Places::Own, words_bytes(counts), 0))
    }

    /// Gives this rank's data and waits for those of all peers: for the only rank that reads them.
    /// As [`exchange_expecting`](Step::exchange_expecting) otherwise.
    ///
    /// # Errors
    /// See [`Fault`], of this step or of the one before it.
    ///
    /// # Panics
    /// As [`send_message`](Step::send_message).
    pub fn receive_messages(
        self,
        counts: Option<&[usize]>,
        payload: HostBuf<'_>,
        expected: usize,
    ) -> Result<Payloads<'e>, Fault> {
        let Step { participant, signature } = self;
        assert_eq!(Some(payload.dtype()), signature.dtype, "the payload is of the agreed dtype");
        let (meeting, arrival) = message(participant, signature, counts, payload.as_bytes(), expected);
        meeting.arrive(&arrival, || ())?;
        Ok(payloads(participant, signature, Places::Own, words_bytes(counts), payload.bytes()))
    }

    /// Takes part in a call that the peers make, and tells them why this rank's own call is
    /// invalid. They disagree, unless all do the same.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn refuse(self, why: &str) -> Result<(), Fault> {
        let why = &why.as_bytes()[..why.len().min(MESSAGE_BYTES)];
        let arrival = Arrival::inline(self.signature, Access::Refused, why.len(), why.into(), 0);
        self.participant.meeting.arrive(&arrival, || ())
    }
}

/// Returns the payloads of this rank's current step, each of which ends with words of `words_bytes`
/// bytes. This rank's has `own_bytes` bytes of data.
#[inline]
fn payloads<'e>(
    participant: &'e mut Participant,
    signature: &Signature,
    places: Places,
    words_bytes: usize,
    own_bytes: usize,
) -> Payloads<'e> {
    let Participant { meeting, staging, addresses, .. } = participant;
    let Addresses { sources, .. } = addresses;
    let context = meeting.context(signature, staging.is_none());
    Payloads { context, sources, own: &meeting.own, places, own_bytes, words_bytes, most_bytes: usize::MAX }
}

/// Returns the arrival of this rank at a message with these counts and data.
#[inline]
fn message<'e>(
    participant: &'e mut Participant,
    signature: &'e Signature,
    counts: Option<&[usize]>,
    data: &'e [u8],
    awaited: usize,
) -> (&'e mut Meeting, Arrival<'e>) {
    // Threads read each other's data in place.
    assert!(participant.staging.is_some(), "a group of processes");
    let Participant { meeting, addresses, .. } = participant;
    let (access, words) = match counts {
        None => (Access::Message, &[][..]),
        Some(counts) => {
            assert_eq!(counts.len(), meeting.member().world.size(), "a count for each rank");
            addresses.words.clear();
            addresses.words.extend(counts.iter().map(|&count| count as u64));
            (Access::CountedMessage, &*addresses.words)
        }
    };
    let payload = Inline::new(data, words);
    (meeting, Arrival::inline(signature, access, data.len(), payload, awaited))
}

/// Returns the bytes of the words of counts.
fn words_bytes(counts: Option<&[usize]>) -> usize {
    counts.map_or(0, |counts| counts.len() * size_of::<u64>())
}

/// Returns the limit on a rank's data that its payload has before these words.
fn most_before(participant: &Participant, words: &[u64]) -> usize {
    participant.topology().most_before(words.len()).unwrap_or_else(|| panic!("payload of {} words", words.len()))
}

mod holdings;
#[cfg(all(test, target_os = "linux"))]
mod tests;
