//! The step of ranks that have different numbers of contributions.

use super::{Step, payloads};
use crate::{
    cpu::reduce::Reducer,
    group::{
        end::abort::Fault,
        payloads::Payloads,
        plan::Targets,
        post::Places,
        transport::{Divided, Holdings, HoldingsStep, Last, OwnHoldings},
    },
};
use std::{ops::Range, ptr};

/// The word of a rank that shows nothing, in the place of the bytes of its nodes.
const NOTHING: u64 = u64::MAX;

impl Step<'_> {
    /// Like [`divided`](Step::divided), for ranks that have different numbers of contributions of
    /// `count` elements: this one those of `run`. `runs` becomes the runs of all ranks. `agree`
    /// gets them and returns what the ranks hold; with `None` no rank reads any of it. Every rank
    /// comes to the same verdict.
    ///
    /// Returns whether the step was made. It was not either if a rank shows nothing, or something
    /// that not all ranks reach: ranks of several processes reach what lies in
    /// [`Endpoint::alloc`](crate::group::Endpoint::alloc).
    ///
    /// # Errors
    /// See [`Fault`].
    ///
    /// # Panics
    /// If a buffer does not fit the reducer or `count`, or if the signature or the holdings have
    /// another operation or dtype than the reducer.
    pub fn divided_holdings<'h>(
        self,
        (reducer, count, targets): (&Reducer, usize, Targets),
        run: Range<usize>,
        own: Option<OwnHoldings<'_>>,
        runs: &mut Vec<Range<usize>>,
        agree: impl FnOnce(&[Range<usize>]) -> Option<&'h Holdings>,
    ) -> Result<bool, Fault> {
        let Step { participant, signature } = self;
        let agreed = (signature.op, signature.dtype);
        assert_eq!(agreed, (Some(reducer.op()), Some(reducer.input())), "the reducer is what the ranks agree on");
        let world = participant.world();
        let receives = targets == Targets::Own || targets.reach(world.rank());
        let (mut input, mut output, mut told) = (ptr::null(), ptr::null_mut(), NOTHING);
        if let Some(OwnHoldings { nodes, mut last }) = own {
            let is = match &mut last {
                Last::InPlace(data) => {
                    assert_eq!(reducer.input(), reducer.output(), "a result in place");
                    output = data.as_mut_ptr();
                    (data.dtype(), data.count())
                }
                Last::ToRead(data) => {
                    assert!(!receives, "a place for the result");
                    output = data.as_ptr().cast_mut();
                    (data.dtype(), data.count())
                }
            };
            assert_eq!(is, (reducer.input(), count), "the last contribution");
            (input, told) = (nodes.as_ptr(), nodes.len() as u64);
        }
        let words = [run.start as u64, run.end as u64, told];
        let step = Divided { signature, reducer, targets, input, count, output, holdings: None };
        let own_bytes = if told == NOTHING { 0 } else { told as usize };
        // SAFETY: the nodes and the contribution are borrowed until this returns, the latter
        // exclusively where this rank receives. So they are disjoint.
        let arrived = unsafe { HoldingsStep::arrive(participant, &step, &words, own_bytes)? };
        let payloads = payloads(arrived.sharing.participant, signature, Places::Swapped, size_of_val(&words), 0);
        // The data are not in the payload, however few.
        let payloads = Payloads { most_bytes: 0, ..payloads };
        let mut all = vec![words; world.size()];
        world.peers().try_for_each(|peer| payloads.words(peer, &mut all[peer]))?;
        runs.clear();
        runs.extend(all.iter().map(|&[start, end, _]| start as usize..end as usize));
        let node_bytes = reducer.accumulator_bytes(count);
        let shows = |holdings: &Holdings| {
            assert_eq!(holdings.reduces(), (reducer.op(), reducer.input()), "holdings of this reducer");
            let fits = |rank: usize| holdings.nodes(rank).saturating_mul(node_bytes) as u64 == all[rank][2];
            (0..world.size()).all(fits)
        };
        match agree(runs).filter(|holdings| shows(holdings)) {
            // SAFETY: as above: every rank shows the bytes of as many nodes as `holdings` says, and
            // has passed the assertions on its contribution.
            Some(holdings) => unsafe { arrived.fold(&step, holdings) },
            None => {
                arrived.end();
                Ok(false)
            }
        }
    }
}
