use super::*;

const ROUND: Round = Round(0);

#[test]
fn a_group_that_not_every_member_took_ends_with_its_parent() {
    let parent = Hub::new(2);
    let taken = parent.child(ROUND, Key::Split(1, 0), &[0, 1], 0);
    let (parent_ends, child_ends) = (Arc::downgrade(&parent), Arc::downgrade(&taken));
    drop(taken);
    assert!(child_ends.upgrade().is_some(), "the other member may still come");
    parent.leave(ROUND, 0);
    assert!(child_ends.upgrade().is_some(), "the leaving rank has its seat already");
    parent.leave(ROUND, 1);
    drop(parent);
    assert!(child_ends.upgrade().is_none() && parent_ends.upgrade().is_none());
}

#[test]
fn a_rank_that_leaves_the_parent_keeps_the_seat_that_it_took() {
    let parent = Hub::new(2);
    let child = parent.child(ROUND, Key::Split(1, 0), &[0, 1], 0);
    parent.leave(ROUND, 0);
    assert!(!child.has_left(ROUND, 0));
    parent.leave(ROUND, 1);
    assert!(child.has_left(ROUND, 1), "it left without a seat here");
}

#[test]
fn an_end_is_the_end_of_its_round_and_those_before() {
    let hub = Hub::new(2);
    let abort = Abort { rank: 1, reason: Reason::Panic };
    hub.abort(Round(3), abort);
    hub.abort(Round(2), Abort { rank: 0, reason: Reason::Failure });
    assert_eq!([Round(2), Round(3)].map(|round| hub.aborted(round)), [Some(abort); 2]);
    assert_eq!(hub.aborted(Round(4)), None);
    assert_eq!(hub.next_round(Round(1)), Some(Round(4)));
    hub.lose(0..1, Reason::Death);
    let lost = hub.aborted(Round(4)).map(|abort| (abort.rank, abort.reason));
    assert_eq!((lost, hub.next_round(Round(4))), (Some((0, Reason::Death)), None));
}

#[test]
fn an_end_in_a_turn_is_after_those_before() {
    let abort = Abort { rank: 0xff_ffff, reason: Reason::Failure };
    for turn in [0, 1, 63, 64, 127, 128, 1000] {
        let hub = Hub::new(1);
        hub.abort_in(Round(3), Some(turn), abort);
        assert_eq!(hub.ground.head().abort.load(Ordering::Relaxed) >> 40, Round(3).mark());
        assert_eq!(Abort::read(hub.ground.head().abort.load(Ordering::Relaxed), Round(3)), Some(abort));
        assert_eq!([0, 1, 2, 64].map(|more| hub.ended_after(Round(3), turn + more)), [false; 4], "{turn}");
        let before = (1..64).filter_map(|less| turn.checked_sub(less));
        before.for_each(|before| assert!(hub.ended_after(Round(3), before), "{turn}, {before}"));
        assert!(!hub.ended_after(Round(4), turn.saturating_sub(1)));
    }
    let hub = Hub::new(1);
    hub.abort(Round(3), abort);
    assert!((0..200).all(|turn| !hub.ended_after(Round(3), turn)), "no turn is given");
}

#[test]
fn who_leaves_after_it_was_told_of_a_leaver_is_not_to_blame() {
    let hub = Hub::new(4);
    hub.tell(2, 3);
    assert_eq!(hub.culprit(ROUND, 2), 2, "rank 3 is still there");
    hub.leave(ROUND, 3);
    assert_eq!(hub.culprit(ROUND, 2), 3);
    hub.leave(ROUND, 2);
    hub.tell(1, 2);
    assert_eq!([0, 1, 3].map(|rank| hub.culprit(ROUND, rank)), [0, 3, 3], "of whom rank 2 was told");
    // What no rank of this group writes.
    hub.tell(3, 2);
    hub.lines()[1].progress.told.store(u64::MAX, Ordering::Relaxed);
    assert_eq!([1, 2, 3].map(|rank| hub.culprit(ROUND, rank)), [1, 3, 2]);
    hub.lose(0..1, Reason::Death);
    hub.lose(1..2, Reason::Departure);
    assert_eq!(hub.aborted(ROUND), Some(Abort { rank: 0, reason: Reason::Death }));
}

#[test]
fn a_process_that_is_lost_after_it_was_told_of_a_leaver_is_not_to_blame() {
    for told in [0, 1] {
        let hub = Hub::new(3);
        hub.leave(ROUND, 2);
        hub.tell(told, 2);
        hub.lose(0..2, Reason::Death);
        assert_eq!(hub.aborted(ROUND), Some(Abort { rank: 2, reason: Reason::Departure }));
    }
}

#[test]
fn whom_a_rank_was_told_of_in_one_group_is_known_in_others() {
    let parent = Hub::new(3);
    let [pair, other] = [[0, 2], [0, 1]].map(|members| {
        let [first, _] = [0, 1].map(|rank| parent.child(ROUND, Key::Split(members[1] as u64, 0), &members, rank));
        first
    });
    pair.leave(ROUND, 1);
    pair.tell(0, 2);
    assert_eq!((pair.culprit(ROUND, 0), parent.culprit(ROUND, 0)), (1, 0), "rank 2 is still in the parent");
    parent.leave(ROUND, 2);
    assert_eq!((parent.culprit(ROUND, 0), other.culprit(ROUND, 0)), (2, 0), "rank 2 is not of the other group");
}
