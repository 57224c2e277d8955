use super::*;
use crate::group::{Abort, Reason};
use consonance_spec::generations::{End, PartEnd, ends_of_part};

const GENERATION: Generation = Generation(0);

#[test]
fn an_incomplete_subgroup_ends_with_its_parent() {
    let parent = GroupState::new(2);
    let taken = parent.child(GENERATION, Key::Split(1, 0), &[0, 1], 0);
    let (parent_ends, child_ends) = (Arc::downgrade(&parent), Arc::downgrade(&taken));
    drop(taken);
    assert!(child_ends.upgrade().is_some(), "the other member may still come");
    parent.leave(GENERATION, 0);
    assert!(child_ends.upgrade().is_some(), "the leaving rank has its endpoint already");
    parent.leave(GENERATION, 1);
    drop(parent);
    assert!(child_ends.upgrade().is_none() && parent_ends.upgrade().is_none());
}

#[test]
fn a_rank_leaving_the_parent_keeps_its_taken_seat() {
    let parent = GroupState::new(2);
    let child = parent.child(GENERATION, Key::Split(1, 0), &[0, 1], 0);
    parent.leave(GENERATION, 0);
    assert!(!child.has_left(GENERATION, 0));
    parent.leave(GENERATION, 1);
    assert!(child.has_left(GENERATION, 1), "it left without an endpoint here");
}

#[test]
fn an_end_is_the_end_of_its_round_and_those_before() {
    let state = GroupState::new(2);
    let abort = Abort { rank: 1, reason: Reason::Panic };
    state.abort(Generation(3), abort);
    state.abort(Generation(2), Abort { rank: 0, reason: Reason::Failure });
    assert_eq!([Generation(2), Generation(3)].map(|generation| state.aborted(generation, 0)), [Some(abort); 2]);
    assert_eq!(state.aborted(Generation(4), 0), None);
    assert_eq!(state.next_round(Generation(1)), Some(Generation(4)));
    state.lose(0..1, Reason::Death);
    let lost = state.aborted(Generation(4), 0).map(|abort| (abort.rank, abort.reason));
    assert_eq!((lost, state.next_round(Generation(4))), (Some((0, Reason::Death)), None));
}

#[test]
fn a_loss_after_an_abort_hides_no_first_culprit() {
    let state = GroupState::new(3);
    let (first, loss) = (Abort { rank: 1, reason: Reason::Panic }, Abort { rank: 0, reason: Reason::Death });
    state.abort(Generation(2), Abort { rank: 2, reason: Reason::Failure });
    state.abort_in(Generation(3), Some(7), first);
    state.lose(0..1, Reason::Death);
    state.lose(2..3, Reason::Death);
    let ends = |rank| [2, 3, 4].map(|generation| state.aborted(Generation(generation), rank));
    let in_time = |rank| !state.ended_after(Generation(3), rank, 6);
    assert_eq!((ends(1), in_time(1)), ([Some(first), Some(first), Some(loss)], false));
    state.begin_after_end(Generation(3), 1);
    state.hear(Generation(3), 1);
    assert_eq!((ends(1)[1], in_time(1)), (Some(first), false), "reports of the same call");
    state.begin_after_end(Generation(3), 1);
    assert_eq!((ends(1)[1], in_time(1)), (Some(loss), true));
    assert_eq!((ends(2)[1], in_time(2)), (Some(first), false), "another rank");
    state.pass_over_abort(Generation(3), 2);
    assert_eq!((ends(2)[1], state.next_round(Generation(3))), (Some(loss), None));
}

#[test]
fn a_subgroup_learns_of_the_abort_before_the_loss() {
    let top = GroupState::new(3);
    let pair = top.child(GENERATION, Key::Split(1, 1), &[1, 2], 1);
    let (first, loss) = (Abort { rank: 1, reason: Reason::Panic }, Abort { rank: 0, reason: Reason::Death });
    top.abort(GENERATION, first);
    top.lose(0..1, Reason::Death);
    assert_eq!(pair.aborted(Generation(5), 1), Some(first));
    pair.hear(Generation(5), 1);
    pair.begin_after_end(Generation(5), 1);
    // Rank 1 of the pair is rank 2 of the whole group, which has heard by that.
    let ends = [pair.aborted(Generation(5), 1), top.aborted(GENERATION, 2), top.aborted(GENERATION, 1)];
    assert_eq!(ends, [Some(loss), Some(loss), Some(first)]);
}

/// Asks in each of four calls how the part has ended, and in reports between them.
fn told_in_calls(part: &GroupState, generation: Generation, rank: usize) -> Vec<(Abort, bool)> {
    let mut told = Vec::new();
    for _ in 0..4 {
        if part.aborted(generation, rank).is_some() {
            part.begin_after_end(generation, rank);
        }
        let end = || part.end(generation, rank).map(|end| (end.abort, !std::ptr::eq(end.state, part)));
        let now = end();
        part.hear(generation, rank);
        assert_eq!((end(), part.aborted(generation, rank)), (now, now.map(|(abort, _)| abort)), "in the same call");
        told.extend(now);
    }
    told
}

/// Every order of three ends, in a part and in a part of that.
#[test]
fn ends_of_a_part_and_its_ancestors_are_heard_in_their_order() {
    let kinds = [
        |rank| PartEnd::Own(End::Aborted(rank)),
        |rank| PartEnd::Inherited(End::Aborted(rank)),
        |rank| PartEnd::Inherited(End::Lost(rank)),
    ];
    for orders in (0..27usize).flat_map(|order| [1, 2, 3].map(|count| (order, count))) {
        let (order, count) = orders;
        let ends: Vec<PartEnd> = (0..count).map(|at| kinds[order / 3usize.pow(at as u32) % 3](at)).collect();
        for depth in [1, 2] {
            let top = GroupState::new(3);
            let mut part = top.clone();
            for depth in 0..depth {
                part = part.child(GENERATION, Key::Split(1 + depth, 0), &[2, 0, 1], 0);
            }
            for end in &ends {
                let abort = |&rank: &usize| Abort { rank, reason: Reason::Panic };
                match end {
                    PartEnd::Own(End::Aborted(rank)) => _ = part.abort(GENERATION, abort(rank)),
                    PartEnd::Inherited(End::Aborted(rank)) => _ = top.abort(GENERATION, abort(rank)),
                    PartEnd::Inherited(End::Lost(rank)) => top.lose(*rank..rank + 1, Reason::Death),
                    end => unreachable!("{end:?}"),
                }
            }
            let expected: Vec<_> = (ends_of_part(&ends).into_iter())
                .map(|end| match end {
                    PartEnd::Own(End::Aborted(rank)) => (Abort { rank, reason: Reason::Panic }, false),
                    PartEnd::Inherited(End::Aborted(rank)) => (Abort { rank, reason: Reason::Panic }, true),
                    PartEnd::Inherited(End::Lost(rank)) => (Abort { rank, reason: Reason::Death }, true),
                    end => unreachable!("{end:?}"),
                })
                .collect();
            // Each rank is told, whatever the others were told.
            for rank in 0..3 {
                let mut told = told_in_calls(&part, GENERATION, rank);
                assert_eq!(told.len(), 4);
                told.dedup();
                assert_eq!(told, expected, "{ends:?}, rank {rank}, depth {depth}");
            }
        }
    }
}

#[test]
fn a_part_of_a_part_ends_before_the_part_and_the_whole() {
    let top = GroupState::new(2);
    let part = top.child(GENERATION, Key::Split(1, 0), &[0, 1], 0);
    let inner = part.child(GENERATION, Key::Split(1, 0), &[0, 1], 0);
    let [first, second] = [0, 1].map(|rank| Abort { rank, reason: Reason::Failure });
    inner.abort(GENERATION, first);
    part.abort(GENERATION, second);
    top.lose(0..1, Reason::Death);
    let loss = Abort { rank: 0, reason: Reason::Death };
    let mut told: Vec<_> = told_in_calls(&inner, GENERATION, 1).into_iter().map(|(abort, _)| abort).collect();
    told.dedup();
    assert_eq!(told, [first, second, loss]);
    // The note of a call in the inner part holds in the part. The ranks do not share notes.
    assert_eq!([1, 0].map(|rank| part.aborted(GENERATION, rank)), [Some(loss), Some(second)]);
    assert_eq!(inner.aborted(GENERATION, 0), Some(first));
}

/// A peer may write any word.
#[test]
fn false_words_name_ranks_in_range() {
    for word in [u64::MAX, u64::MAX - (1 << 7), 1 << 40 | 0xffff_ff80, 1 << 40 | 0x7f] {
        let top = GroupState::new(3);
        let pair = top.child(GENERATION, Key::Split(1, 0), &[0, 2], 0);
        for (top_word, pair_word) in [(word, 0), (0, word), (word, word), (word, 1 << 40), (1 << 40, word)] {
            top.backing.head().abort.store(top_word, Ordering::Relaxed);
            pair.backing.head().abort.store(pair_word, Ordering::Relaxed);
            for (heard, rank) in [(0, 0), (3, 1), (u64::MAX, 1)] {
                pair.heard(rank).store(heard, Ordering::Relaxed);
                let end = pair.end(GENERATION, rank).expect("it has ended");
                assert!(end.abort.rank < end.state.records().len());
                assert_eq!(pair.aborted(GENERATION, rank), Some(end.abort));
            }
        }
    }
}

#[test]
fn an_end_in_a_turn_is_after_those_before() {
    let abort = Abort { rank: 0xff_ffff, reason: Reason::Failure };
    for turn in [0, 1, 63, 64, 127, 128, 1000] {
        let state = GroupState::new(1);
        state.abort_in(Generation(3), Some(turn), abort);
        assert_eq!(state.backing.head().abort.load(Ordering::Relaxed) >> 40, Generation(3).mark());
        assert_eq!(Abort::read(state.backing.head().abort.load(Ordering::Relaxed), Generation(3)), Some(abort));
        assert_eq!([0, 1, 2, 64].map(|more| state.ended_after(Generation(3), 0, turn + more)), [false; 4], "{turn}");
        let before = (1..64).filter_map(|less| turn.checked_sub(less));
        before.for_each(|before| assert!(state.ended_after(Generation(3), 0, before), "{turn}, {before}"));
        assert!(!state.ended_after(Generation(4), 0, turn.saturating_sub(1)));
    }
    let state = GroupState::new(1);
    state.abort(Generation(3), abort);
    assert!((0..200).all(|turn| !state.ended_after(Generation(3), 0, turn)), "no turn is given");
}

#[test]
fn a_rank_leaving_after_notice_of_a_leaver_is_not_at_fault() {
    let state = GroupState::new(4);
    state.tell(2, 3);
    assert_eq!(state.culprit(GENERATION, 2), 2, "rank 3 is still there");
    state.leave(GENERATION, 3);
    assert_eq!(state.culprit(GENERATION, 2), 3);
    state.leave(GENERATION, 2);
    state.tell(1, 2);
    assert_eq!([0, 1, 3].map(|rank| state.culprit(GENERATION, rank)), [0, 3, 3], "of whom rank 2 was told");
    // Values that no rank of this group writes.
    state.tell(3, 2);
    state.records()[1].counters.told.store(u64::MAX, Ordering::Relaxed);
    assert_eq!([1, 2, 3].map(|rank| state.culprit(GENERATION, rank)), [1, 3, 2]);
    state.lose(0..1, Reason::Death);
    state.lose(1..2, Reason::Departure);
    assert_eq!(state.aborted(GENERATION, 0), Some(Abort { rank: 0, reason: Reason::Death }));
}

#[test]
fn a_process_lost_after_notice_of_a_leaver_is_not_at_fault() {
    for told in [0, 1] {
        let state = GroupState::new(3);
        state.leave(GENERATION, 2);
        state.tell(told, 2);
        state.lose(0..2, Reason::Death);
        assert_eq!(state.aborted(GENERATION, 0), Some(Abort { rank: 2, reason: Reason::Departure }));
    }
}

#[test]
fn notice_of_a_leaver_in_one_group_holds_in_others() {
    let parent = GroupState::new(3);
    let [pair, other] = [[0, 2], [0, 1]].map(|members| {
        let [first, _] = [0, 1].map(|rank| parent.child(GENERATION, Key::Split(members[1] as u64, 0), &members, rank));
        first
    });
    pair.leave(GENERATION, 1);
    pair.tell(0, 2);
    assert_eq!((pair.culprit(GENERATION, 0), parent.culprit(GENERATION, 0)), (1, 0), "rank 2 is still in the parent");
    parent.leave(GENERATION, 2);
    assert_eq!(
        (parent.culprit(GENERATION, 0), other.culprit(GENERATION, 0)),
        (2, 0),
        "rank 2 is not of the other group"
    );
}
