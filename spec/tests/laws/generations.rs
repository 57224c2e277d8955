use consonance_spec::generations::{
    End,
    Event::{self, *},
    Fate, Group, PartEnd,
    Process::{self, Absent, Asks, Runs},
    Told, ends_of_part, formed, may_go_on,
};
use quickcheck::{Arbitrary, Gen, quickcheck};

/// Any events that can happen in a group, by numbers. Each value of a call is the number of the
/// event and the generation of its rank.
#[derive(Clone, Debug)]
struct Numbers(Vec<u16>);

impl Arbitrary for Numbers {
    fn arbitrary(g: &mut Gen) -> Numbers {
        Numbers((0..60).map(|_| u16::arbitrary(g)).collect())
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Numbers>> {
        Box::new(self.0.shrink().map(Numbers))
    }
}

type Value = (usize, u64);

/// Plays the events in a group of 1 to 4 ranks. Calls `check` with the group before each event, the
/// event, what is told, and the group after it.
fn play(numbers: Numbers, mut check: impl FnMut(&Group<Value>, &Event<Value>, &[Option<Told<Value>>], &Group<Value>)) {
    let ranks = 1 + numbers.0.first().map_or(0, |&number| number as usize % 4);
    let mut group = Group::new(ranks);
    for (at, &number) in numbers.0.iter().enumerate().skip(1) {
        let (rank, kind) = (number as usize % ranks, number / 8 % 32);
        let generation = group.generation(rank);
        let event = match (kind, group.waits(rank)) {
            (0..12, false) => Calls(rank, (at, generation)),
            (12..24, false) => Renews(rank),
            (0..24, true) => GivesUp(rank),
            (24..31, _) => Aborts { rank, generation: generation - generation.min(u64::from(number / 256 % 3)) },
            _ => IsLost(rank),
        };
        let before = group.clone();
        let told = group.happens(event.clone());
        check(&before, &event, &told, &group);
    }
}

fn ranks(told: &[Option<Told<Value>>]) -> impl Iterator<Item = (usize, &Told<Value>)> {
    told.iter().enumerate().filter_map(|(rank, told)| Some((rank, told.as_ref()?)))
}

quickcheck! {
    fn no_value_reaches_another_generation(numbers: Numbers) -> () {
        play(numbers, |before, _, told, after| {
            for (rank, told) in ranks(told) {
                if let Told::Result(values) = told {
                    assert_eq!(values.len(), before.ranks());
                    assert!(values.iter().all(|(_, generation)| *generation == after.generation(rank)));
                }
            }
        });
    }

    fn ranks_get_a_result_together(numbers: Numbers) -> () {
        play(numbers, |_, _, told, _| {
            let results: Vec<_> = ranks(told).filter(|(_, told)| matches!(told, Told::Result(_))).collect();
            assert!(results.iter().all(|(_, other)| *other == results[0].1));
            assert!([0, told.len()].contains(&results.len()));
        });
    }

    fn generations_only_grow_and_are_begun_together(numbers: Numbers) -> () {
        play(numbers, |before, event, told, after| {
            for rank in 0..told.len() {
                let (old, new) = (before.generation(rank), after.generation(rank));
                assert!(new == old || new > old && *event == Renews(rank));
            }
            for (rank, _) in ranks(told).filter(|(_, told)| **told == Told::Renewed) {
                assert!((0..told.len()).all(|other| after.generation(other) >= after.generation(rank)));
            }
        });
    }

    /// A generation that has ended is left by renewal alone, and what has ended stays so.
    fn an_end_reaches_all_and_stays(numbers: Numbers) -> () {
        play(numbers, |before, event, told, after| {
            for (rank, told) in told.iter().enumerate() {
                let generation = after.generation(rank);
                let is_told = matches!(told, Some(Told::Ended(_) | Told::Late(_)));
                assert!(!after.has_ended(generation) || !after.waits(rank));
                assert!(!is_told || after.has_ended(generation));
                assert!(!before.has_ended(generation) || after.has_ended(generation));
                assert_eq!(after.end(rank).is_some(), after.has_ended(generation));
            }
            if let Calls(rank, _) = event
                && let Some(end) = before.end(*rank)
            {
                assert_eq!(told[*rank], Some(Told::Ended(end)));
            }
        });
    }

    fn a_handle_of_an_earlier_generation_does_nothing(numbers: Numbers) -> () {
        play(numbers, |before, event, told, _| {
            if let Aborts { generation, .. } = event
                && before.has_ended(*generation)
            {
                assert!(told.iter().all(Option::is_none));
            }
        });
    }

    /// The abort is the reason for the loss, perhaps. A rank that was told of its generation's end
    /// needs the loss, and so does one that begins the next generation.
    fn a_loss_is_heard_of_after_the_abort_before_it(numbers: Numbers) -> () {
        let (mut lost, mut aborted, mut heard) = (None, None, [None; 4]);
        play(numbers, |before, event, told, after| {
            let (now, generation) = match *event {
                IsLost(rank) => {
                    lost = lost.or(Some(End::Lost(rank)));
                    (None, 0)
                }
                Aborts { rank, generation } => (Some(End::Aborted(rank)), generation),
                GivesUp(rank) => {
                    let Some(Told::Late(late)) = &told[rank] else { panic!("rank {rank} is told who is late") };
                    let first = late.iter().find(|&&late| late > rank).unwrap_or(&late[0]);
                    (Some(End::Late(*first)), before.generation(rank))
                }
                Calls(..) | Renews(_) => (None, 0),
            };
            if let Some(now) = now.filter(|_| !before.has_ended(generation)) {
                aborted = Some((generation, now));
            }
            for (rank, told) in ranks(told) {
                let generation = after.generation(rank);
                if let Told::Ended(end) = told {
                    let abort = aborted.filter(|(last, _)| *last >= generation).map(|(_, end)| end);
                    let needs_loss = heard[rank] == Some(generation) || *event == Renews(rank);
                    let expected = if needs_loss { lost.or(abort) } else { abort.or(lost) };
                    assert_eq!(Some(*end), expected);
                }
                if let Told::Ended(_) | Told::Late(_) = told {
                    heard[rank] = Some(generation);
                }
            }
        });
    }

    /// A rank of a part is told of each end that may be the reason for others, in their order. It
    /// is never told of a loss alone if an abort, which may be the reason for it, came before.
    fn no_consequence_comes_first_in_a_part(numbers: Numbers) -> () {
        let kinds: [fn(usize) -> PartEnd; 4] = [
            |rank| PartEnd::Own(End::Aborted(rank)),
            |rank| PartEnd::Own(End::Late(rank)),
            |rank| PartEnd::Inherited(End::Aborted(rank)),
            |rank| PartEnd::Inherited(End::Lost(rank)),
        ];
        let ends = numbers.0.iter().take(numbers.0.first().map_or(0, |&number| 1 + number as usize % 6)).enumerate();
        let ends: Vec<PartEnd> = ends.map(|(at, &number)| kinds[number as usize / 6 % 4](at)).collect();
        let told = ends_of_part(&ends);
        let places: Vec<_> = told.iter().map(|end| ends.iter().position(|other| other == end)).collect();
        assert!(places.is_sorted() && places.first() == ends.first().map(|_| &Some(0)), "{ends:?}: {told:?}");
        let is_loss = |end: &&PartEnd| matches!(end, PartEnd::Inherited(End::Lost(_)));
        assert!(told.iter().rev().skip(1).all(|end| !is_loss(&end)), "{ends:?}: {told:?}");
        assert_eq!(told.iter().find(is_loss), ends.iter().find(is_loss), "each rank needs the loss");
        let is_own = |end: &&PartEnd| matches!(end, PartEnd::Own(_));
        let needed = ends.iter().find(|end| !is_own(end));
        assert_eq!(told.iter().find(|end| !is_own(end)), needed, "{ends:?}: {told:?}");
        assert!(told.iter().skip(1).all(|end| !is_own(&end)));
    }

    fn a_group_does_not_outlive_a_process(numbers: Numbers) -> () {
        let mut lost = None;
        let mut others = [0; 4];
        play(numbers, |before, event, told, _| {
            if let (IsLost(rank), None) = (event, lost) {
                lost = Some(End::Lost(*rank));
                // Nothing is waited for any more.
                assert!((0..told.len()).all(|rank| told[rank].is_some() == before.waits(rank)));
            } else if let Some(loss) = lost {
                for (rank, told) in ranks(told) {
                    assert!(matches!(told, Told::Ended(_)));
                    // An abort from before the loss.
                    others[rank] += usize::from(*told != Told::Ended(loss));
                    assert!(others[rank] <= 1);
                }
            }
        });
    }

    /// Ranks that renew until they are told of no end meet again, whatever happened before, unless
    /// a process is lost.
    fn renewing_ranks_meet_again(numbers: Numbers) -> () {
        let mut last = None;
        play(numbers, |_, _, _, after| last = Some(after.clone()));
        let Some(mut group) = last else { return };
        let ranks = group.ranks();
        if group.has_ended(u64::MAX) {
            return;
        }
        let generation = (0..ranks).map(|rank| group.generation(rank)).max().unwrap_or(0);
        group.happens(Aborts { rank: 0, generation });
        let told: Vec<_> = (0..ranks).map(|rank| group.happens(Renews(rank))).collect();
        assert_eq!(told[ranks - 1], vec![Some(Told::Renewed); ranks]);
        let told: Vec<_> = (0..ranks).map(|rank| group.happens(Calls(rank, (rank, 0)))).collect();
        let values: Vec<Value> = (0..ranks).map(|rank| (rank, 0)).collect();
        assert_eq!(told[ranks - 1], vec![Some(Told::Result(values)); ranks]);
    }

    fn members_are_all_asking_tasks_and_no_running_one(last: u8, tasks: Vec<u8>, waits_for_all: bool) -> () {
        let process = |task: u8| [Absent, Runs, Asks, Asks][task as usize % 4];
        let tasks: Vec<Process> = tasks.into_iter().take(6).map(process).collect();
        let asks: Vec<usize> = (0..tasks.len()).filter(|&task| tasks[task] == Asks).collect();
        let last = u64::from(last % 3);
        let members = formed(last, &tasks, waits_for_all);
        // Ranks are numbered in the order of the tasks.
        assert!(members.as_ref().is_none_or(|members| *members == asks && members.is_sorted()));
        let is_complete = asks.len() == tasks.len();
        let may_lack_some = last > 0 && !waits_for_all;
        let can_be = !asks.is_empty() && !tasks.contains(&Runs) && (is_complete || may_lack_some);
        assert_eq!(members.is_some(), can_be);
    }
}

#[test]
fn a_rank_late_for_a_renewal_meets_the_others_in_the_next() {
    let mut group: Group<()> = Group::new(3);
    group.happens(Aborts { rank: 2, generation: 0 });
    assert_eq!(group.happens(Renews(1)), [None, None, None]);
    assert_eq!(group.happens(GivesUp(1)), [None, Some(Told::Late(vec![0, 2])), None]);
    // A rank that stayed behind gets the last end.
    assert_eq!(group.happens(Calls(0, ())), [Some(Told::Ended(End::Late(2))), None, None]);
    group.happens(Renews(0));
    group.happens(Renews(2));
    assert_eq!(group.happens(Renews(1)), vec![Some(Told::Renewed); 3]);
    assert_eq!([0, 1, 2].map(|rank| group.generation(rank)), [2; 3]);
}

#[test]
fn a_loss_hides_no_abort_from_a_slow_rank() {
    let mut group: Group<()> = Group::new(3);
    let (abort, loss) = (Told::Ended(End::Aborted(1)), Told::Ended(End::Lost(0)));
    group.happens(Calls(0, ()));
    assert_eq!(group.happens(Aborts { rank: 1, generation: 0 }), [Some(abort.clone()), None, None]);
    group.happens(IsLost(0));
    for (event, told) in [(Calls(2, ()), &abort), (Calls(2, ()), &loss), (Renews(2), &loss)] {
        assert_eq!(group.happens(event), [None, None, Some(told.clone())]);
    }
    // A rank that begins the next generation needs the reason why there is none.
    for event in [Renews(1), Calls(1, ())] {
        assert_eq!(group.happens(event), [None, Some(loss.clone()), None]);
    }
}

quickcheck! {
    /// Each process is on one side or has ended. A side knows of some of the ends, and hears
    /// nothing of all others.
    fn of_all_sides_of_a_broken_network_at_most_one_goes_on(sides: Vec<(u8, u8)>) -> bool {
        const ENDED: u8 = 3;
        let goes_on = |side: u8| {
            let fate = |&(of, known): &(u8, u8)| match of % 4 {
                of if of == side => Fate::Here,
                ENDED if known >> side & 1 == 1 => Fate::Ended,
                _ => Fate::Silent,
            };
            let fates: Vec<Fate> = sides.iter().map(fate).collect();
            fates.contains(&Fate::Here) && may_go_on(&fates)
        };
        (0..ENDED).filter(|&side| goes_on(side)).count() <= 1
    }

    fn whoever_knows_the_end_of_all_others_goes_on(ends: Vec<bool>) -> bool {
        let fates: Vec<Fate> = ends.iter().map(|&ended| if ended { Fate::Ended } else { Fate::Here }).collect();
        !fates.contains(&Fate::Here) || may_go_on(&fates)
    }
}

/// A process of several hosts, and the groups that it knows.
#[derive(Clone, Default)]
struct Known {
    /// The last group that has formed, as far as it knows.
    formed: Vec<usize>,
    /// The group that it has begun.
    begun: Vec<usize>,
    has_ended: bool,
}

/// Plays processes that take others for lost one by one, and form groups, in any order. Returns
/// whether two groups without a common process ever run. `counts_begun`: a group that was only
/// begun counts as the last one.
fn run_apart(steps: &[(u8, u8, u8)], processes: usize, counts_begun: bool) -> bool {
    let all: Vec<usize> = (0..processes).collect();
    let mut known = vec![Known { formed: all.clone(), begun: all, has_ended: false }; processes];
    for &(own, other, kind) in steps {
        let (own, other) = (own as usize % processes, other as usize % processes);
        if known[own].has_ended {
            continue;
        }
        match kind % 8 {
            0 => known[own].has_ended = true,
            // All that have begun the group meet; some do not hear of it.
            1..4 => {
                let group = known[own].begun.clone();
                if group.iter().all(|&process| known[process].begun == group && !known[process].has_ended) {
                    known[own].formed = group;
                }
            }
            _ => {
                let left: Vec<usize> = known[own].begun.iter().copied().filter(|&of| of != other).collect();
                let fate = |&of: &usize| match of {
                    of if left.contains(&of) => Fate::Here,
                    // It may know of an end, or not.
                    of if known[of].has_ended && kind % 2 == 0 => match known[of].begun.contains(&own) {
                        true => Fate::Ended,
                        false => Fate::LeftBehind,
                    },
                    _ => Fate::Silent,
                };
                let last = if counts_begun { &known[own].begun } else { &known[own].formed };
                let fates: Vec<Fate> = last.iter().map(fate).collect();
                if other != own && may_go_on(&fates) {
                    known[own].begun = left;
                }
            }
        }
        let running = || known.iter().filter(|process| !process.has_ended).map(|process| &process.formed);
        if running().any(|one| running().any(|other| one.iter().all(|process| !other.contains(process)))) {
            return true;
        }
    }
    false
}

quickcheck! {
    fn no_two_groups_without_a_common_process_run(steps: Vec<(u8, u8, u8)>, processes: u8) -> bool {
        !run_apart(&steps, 2 + processes as usize % 5, false)
    }
}

#[test]
fn two_groups_without_a_common_process_run_if_a_begun_one_counts() {
    // Of four, 0 and 1 lose 2 and 3 one by one, and the other way round.
    let lose = [(0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0), (3, 1)].map(|(own, other)| (own, other, 5));
    let meet = [0, 2].map(|own| (own, 0, 1));
    let steps = [&lose[..], &meet].concat();
    assert!(run_apart(&steps, 4, true));
    assert!(!run_apart(&steps, 4, false));
}
