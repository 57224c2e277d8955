//! Steps in which every rank tells the others words with its data, such as the counts of its
//! blocks: no rank knows before how much data a peer has.
//!
//! A rank with few data has them in its payload, before the words
//! ([`Topology::rides_before`](super::plan::Topology::rides_before)). A rank with more begins a
//! published step: the words alone are its payload, and its descriptor tells where the data are. It
//! stages their first window before it knows of the others. So the words of all tell each rank
//! which ranks have done which. If all have few data, or if none has, the step has the data of all.
//! Otherwise no rank reads any, and the ranks move them in a step that follows.

use super::{
    end::abort::Fault,
    endpoint::Endpoint,
    payloads::Payloads,
    peers::PeerBuffers,
    plan::{Chunking, Step},
    post::{Inline, Places},
    transport::Showing,
};
use crate::{
    memory::HostBuf,
    shm::{call_log::Outcome, codes::Access},
};
use consonance_spec::Signature;
use std::ptr;

impl Endpoint {
    /// Like [`exchange`](Endpoint::exchange), where every payload ends with as many `words`:
    /// [`Payloads::words`] reads them. A peer may be in
    /// [`published_with_words`](Endpoint::published_with_words): then it has words alone.
    ///
    /// # Errors
    /// As [`exchange`](Endpoint::exchange).
    ///
    /// # Panics
    /// As [`exchange`](Endpoint::exchange), or if the payload does not fit before the words.
    pub fn exchange_with_words(
        &mut self,
        signature: &Signature,
        words: &[u64],
        payload: HostBuf<'_>,
    ) -> Result<Payloads<'_>, Fault> {
        assert_eq!(Some(payload.dtype()), signature.dtype, "payload of {signature}");
        let (data, most_bytes) = (payload.as_bytes(), self.most_before(words));
        assert!(data.len() <= most_bytes, "payload of {} bytes before {} words", data.len(), words.len());
        let (payload, none) = (Inline::new(data, words), (ptr::null(), ptr::null_mut()));
        self.arrive(signature, Access::Words, data.len(), (payload, payload.bytes()), none, || ())?;
        self.note(Outcome::Done);
        Ok(Payloads { most_bytes, ..self.payloads(signature, Places::Swapped, size_of_val(words), data.len()) })
    }

    /// Like [`published_in_blocks`](Endpoint::published_in_blocks), where every rank tells as many
    /// `words`, and ranks with less data may be in
    /// [`exchange_with_words`](Endpoint::exchange_with_words). `agree` gets the words of all, and
    /// returns the elements of the largest block that any rank has for another one, or `None` if
    /// not all data are published: then no rank reads any. Every rank comes to the same verdict.
    /// Returns whether the data were published.
    ///
    /// # Errors
    /// See [`Fault`], and the errors of `agree` and of `work`.
    ///
    /// # Panics
    /// As [`published_in_blocks`](Endpoint::published_in_blocks), or if the input fits before the
    /// words.
    pub fn published_with_words<E: From<Fault>>(
        &mut self,
        signature: &Signature,
        words: &[u64],
        (input, counts): (HostBuf<'_>, &[usize]),
        agree: impl FnOnce(&Payloads<'_>) -> Result<Option<usize>, E>,
        work: impl FnMut(&mut PeerBuffers<'_>) -> Result<(), Fault>,
    ) -> Result<bool, E> {
        assert_eq!(Some(input.dtype()), signature.dtype, "input of {signature}");
        let (size, ranks) = (input.dtype().size(), self.world.size());
        assert!(counts.len() == ranks && counts.iter().sum::<usize>() == input.count(), "the blocks are the input");
        let (bytes, address, most_bytes) = (input.bytes(), input.as_ptr(), self.most_before(words));
        assert!(bytes > most_bytes, "{bytes} bytes fit before {} words", words.len());
        let step = |bytes: usize| Step::Published(Chunking::blocks(ranks, bytes));
        let showing = match self.staging {
            None => {
                self.before_copies(bytes);
                None
            }
            Some(_) => {
                self.check()?;
                // The protocol depends on what this rank knows once all have arrived at the last
                // call.
                self.settle()?;
                self.before_copies(bytes);
                // SAFETY: the input is valid for reads of its bytes while it is borrowed.
                Some(unsafe { self.show(signature, step(usize::MAX), (address, bytes), Some(counts))? })
            }
        };
        let told = (showing.as_ref().map_or(address, Showing::told), ptr::null_mut());
        let words = Inline::new(&[], words);
        let shared = self.share(signature, Access::Words, bytes, told, Default::default(), words)?;
        let payloads = shared.endpoint.payloads(signature, Places::Swapped, words.bytes(), bytes);
        let most = match agree(&Payloads { most_bytes, ..payloads }) {
            Ok(Some(most)) => most,
            not_published => {
                let has_ended = shared.endpoint.state.aborted(shared.endpoint.generation).is_some();
                // If the group has ended, a rank of this process may be in this rank's memory: the
                // drop waits for it.
                if not_published.is_ok() || !has_ended {
                    shared.finish();
                }
                return not_published.map(|_| false);
            }
        };
        let fits = shared.endpoint.world.peers().all(|peer| counts[peer] <= most);
        assert!(fits, "blocks of at most {most} elements: {counts:?}");
        match showing {
            // SAFETY: as above.
            Some(showing) => unsafe { shared.read(signature, step(most * ranks * size), showing, work)? },
            None => shared.read_in_place(signature, work)?,
        }
        Ok(true)
    }

    /// Returns the limit on a rank's data that its payload has before these words.
    fn most_before(&self, words: &[u64]) -> usize {
        self.topology().most_before(words.len()).unwrap_or_else(|| panic!("payload of {} words", words.len()))
    }
}
