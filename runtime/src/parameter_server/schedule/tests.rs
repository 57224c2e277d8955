//! Tests of the schedule with answers that are late, and workers that are lost.

use super::{super::generation::Generation, *};
use quickcheck::QuickCheck;
use std::collections::HashMap;

fn schedule(order: Order) -> Schedule {
    Schedule::new(order, OnError::Continue, 3, 0)
}

fn done() -> Done {
    Done { result: Vec::new(), servers: vec![0], taken: Vec::new() }
}

#[test]
fn the_answer_to_an_attempt_of_an_earlier_generation_is_none() {
    let first = Generation::first(2);
    let second = first.next(&[true, false]).unwrap();
    let third = second.next(&[true, true]).unwrap();
    let mut earlier: Vec<Attempt> = Vec::new();
    for generation in [first, second, third] {
        let mut schedule = schedule(Order::Arrival).beginning_at(generation.first_attempt());
        for _ in 0..20 {
            let _ = schedule.schedule((0, "step".into()), Vec::new());
            let attempt = schedule.begin(0).unwrap().attempt;
            for &earlier in &earlier {
                assert!(earlier.id < attempt.id, "{earlier:?} is before {attempt:?}");
                assert!(matches!(schedule.ended(0, earlier, done()), Next::Forget(_)));
                assert!(matches!(schedule.failed(0, earlier, Error::other("late")), Next::Nothing));
            }
            assert_eq!(schedule.runs().map(|(_, slot)| slot.number).collect::<Vec<_>>(), [attempt.number]);
            earlier.push(attempt);
            let Next::Commit(effects) = schedule.ended(0, attempt, done()) else { panic!("it has effects") };
            let _ = schedule.committed(effects);
        }
    }
}

/// A server forgets attempts by the numbers of open ones. None of them commits, and nothing is left
/// at the end.
#[test]
fn forgotten_attempts_never_commit() {
    fn holds(events: Vec<(u8, u8)>, window: u8) -> bool {
        let order = match std::num::NonZeroUsize::new(usize::from(window % 4)) {
            None => Order::Arrival,
            Some(window) => Order::Scheduled { window },
        };
        let mut schedule = schedule(order);
        let mut running: [Option<Attempt>; 3] = [None; 3];
        // The attempts whose effects a server has, and those that are to commit.
        let mut staged: HashMap<u64, u64> = HashMap::new();
        let mut first = 0;
        let mut commits: Vec<Vec<Effects>> = Vec::new();
        let mut go_on = |schedule: &mut Schedule, staged: &mut HashMap<u64, u64>, effects: Vec<Effects>| {
            first = first.max(schedule.first_open_attempt());
            let are_there =
                effects.iter().all(|effects| staged.remove(&effects.attempt.number) == Some(effects.attempt.id));
            staged.retain(|_, id| *id >= first);
            (are_there, schedule.committed(effects))
        };
        // At last all closures end.
        let ends = (0..400).map(|number| (if number % 4 == 0 { 7 } else { 1 }, number as u8));
        for (what, worker) in events.into_iter().chain(ends) {
            let worker = usize::from(worker % 3);
            let next = match (what % 8, running[worker]) {
                (0, _) => schedule.schedule((0, "step".into()), Vec::new()).1,
                (7, _) if !commits.is_empty() => {
                    let (are_there, next) = go_on(&mut schedule, &mut staged, commits.remove(0));
                    if !are_there {
                        return false;
                    }
                    next
                }
                (1..=3, Some(attempt)) => {
                    running[worker] = None;
                    staged.insert(attempt.number, attempt.id);
                    schedule.ended(worker, attempt, done())
                }
                (4, Some(attempt)) => {
                    // It is lost after it has brought its effects.
                    running[worker] = None;
                    staged.insert(attempt.number, attempt.id);
                    schedule.lost(worker).1
                }
                (5, Some(attempt)) => {
                    running[worker] = None;
                    schedule.failed(worker, attempt, Error::other("as it was asked"))
                }
                (6, _) => schedule.end_window(),
                _ => {
                    running[worker] = running[worker].or_else(|| schedule.begin(worker).map(|begun| begun.attempt));
                    Next::Nothing
                }
            };
            if let Next::Commit(effects) = next {
                commits.push(effects);
            }
        }
        while !commits.is_empty() {
            let (are_there, next) = go_on(&mut schedule, &mut staged, commits.remove(0));
            if !are_there {
                return false;
            }
            if let Next::Commit(effects) = next {
                commits.push(effects);
            }
        }
        // The next commit forgets all that lost attempts have left.
        let first = schedule.first_open_attempt();
        staged.retain(|_, id| *id >= first);
        let open = schedule.runs.iter().flatten().count() + schedule.current.ended.len();
        staged.len() <= open
    }
    QuickCheck::new().tests(500).quickcheck(holds as fn(Vec<(u8, u8)>, u8) -> bool);
}
