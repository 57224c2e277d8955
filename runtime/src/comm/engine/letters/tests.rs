use super::{
    Carrier,
    inbox::Inbox,
    letter::{Content, End, Generation, Last, Letter, Tagged},
    wait::Receive,
};
use crate::{ClusterSpec, Communicator, DType, Error, MultiWorkerMirroredStrategy, SimpleClusterResolver, World};
use consonance_kernels::group::{Envelope, Reason};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// The end of the whole group's first generation on a rank that has split nothing.
const LAST: Last = Last { of: Generation { group: 0, lost: 0, members: 0, number: 0 }, splits: 0 };

fn leave(group: u64) -> Content {
    Content::Leave { last: Last { of: Generation::of_all(group), splits: u64::MAX } }
}

/// Makes the inbox of rank 0 of five, in the whole group.
fn inbox() -> Inbox {
    let inbox = Inbox::new(0, 5);
    inbox.enter(Generation::of_all(0), (0..5).collect(), None);
    inbox
}

/// Returns the generation without these ranks, lost one after the other.
fn without(losses: &[&[usize]]) -> Generation {
    let inbox = inbox();
    let mut last = Generation::of_all(0);
    for ranks in losses {
        ranks.iter().for_each(|&rank| inbox.put(rank, Letter(leave(0))));
        last = inbox.begin_remaining(0, None).expect("this rank is left").generation;
    }
    last
}

#[test]
fn the_generation_of_those_left_follows_from_these_alone() {
    let all = [without(&[&[1], &[4]]), without(&[&[4], &[1]]), without(&[&[4, 1]])];
    assert!(all.iter().all(|&other| other == all[0]));
    let groups = [
        without(&[]),
        without(&[&[1]]),
        without(&[&[4]]),
        all[0],
        without(&[&[1, 2]]),
        without(&[&[1, 2, 3, 4]]),
        Generation::of_all(0).split(1, 0),
        without(&[&[1]]).split(1, 0),
        without(&[&[4]]).split(1, 0),
    ];
    let different: HashSet<Generation> = groups.into_iter().collect();
    assert_eq!(different.len(), groups.len());
    assert_eq!(groups[..6].iter().map(|of| of.group).collect::<HashSet<u64>>().len(), 1);
    assert_eq!(groups[5..].iter().map(|of| of.group).collect::<HashSet<u64>>().len(), 4);
}

#[test]
fn a_loss_of_an_earlier_group_ends_the_group_of_those_left() {
    for content in [
        Content::Lost { last: LAST, ranks: vec![(2, Reason::Death)] },
        Content::End {
            of: Generation { number: u64::MAX, ..Generation::of_all(0) },
            end: End { rank: 2, member: 2, reason: Reason::Leave, turn: None },
        },
    ] {
        let inbox = inbox();
        inbox.put(1, Letter(leave(0)));
        let first = inbox.begin_remaining(0, None).expect("this rank is left").generation;
        assert!(inbox.end_of(&[first]).is_none());
        inbox.put(3, Letter(content));
        let end = inbox.end_of(&[first]).expect("rank 3 goes on without rank 2");
        assert_eq!((end.rank, end.member), (1, 2));
        assert_eq!(inbox.begin_remaining(0, None).expect("this rank is left").members, [0, 3, 4]);
    }
}

/// The lost rank may have ended because of the abort.
#[test]
fn an_abort_comes_before_the_loss_after_it() {
    let inbox = inbox();
    let (all, split) = (Generation::of_all(0), Generation::of_all(0).split(1, 0));
    inbox.enter(split, vec![0, 2, 3, 4], Some(Last { splits: 1, ..LAST }));
    let abort =
        |of, member| Content::End { of, end: End { rank: member, member, reason: Reason::Failure, turn: None } };
    inbox.put(1, Letter(abort(all, 1)));
    inbox.put(3, Letter(Content::Lost { last: LAST, ranks: vec![(2, Reason::Death)] }));
    let blamed = |line: &[Generation]| inbox.end_of(line).map(|end| end.member);
    let call = |of| {
        inbox.begin_call(of);
        let told = blamed(&[of]);
        inbox.tell(of);
        told
    };
    assert_eq!(blamed(&[all]), Some(1));
    assert_eq!([call(all), call(all), call(all)], [Some(1), Some(2), Some(2)]);
    // Of two groups the one of which the other was split, too, but for its later end.
    let inherited = |inbox: &Inbox| inbox.end_of(&[all, split]).map(|end| end.member);
    assert_eq!(inherited(&inbox), None, "a loss of the whole group ends no part without the lost rank");
    let inbox = self::inbox();
    inbox.enter(split, vec![0, 2, 3, 4], Some(Last { splits: 1, ..LAST }));
    inbox.put(3, Letter(abort(split, 3)));
    inbox.put(1, Letter(abort(all, 1)));
    assert_eq!(inherited(&inbox), Some(3));
    inbox.tell(split);
    inbox.begin_call(split);
    assert_eq!(inherited(&inbox), Some(1));
}

#[test]
fn a_lost_rank_takes_no_other_rank_with_it() {
    let inbox = inbox();
    inbox.put(1, Letter(Content::Lost { last: LAST, ranks: vec![(2, Reason::Death)] }));
    inbox.put(2, Letter(Content::Lost { last: LAST, ranks: vec![(1, Reason::Death), (0, Reason::Death)] }));
    assert_eq!(inbox.begin_remaining(0, None).expect("this rank is left").members, [0, 1, 3, 4]);
    inbox.put(3, Letter(Content::Lost { last: LAST, ranks: vec![(0, Reason::Death)] }));
    assert!(inbox.begin_remaining(0, None).is_err());
}

#[test]
fn letters_of_groups_left_behind_are_dropped() {
    let inbox = inbox();
    let envelope = Envelope { dtype: DType::F32, label: 0, bytes: 8, tag: 3 };
    let fill = |of: Generation| {
        for from in 1..4 {
            inbox.put(from, Letter(Content::Message { of, bytes: vec![1; 8] }));
            inbox.put(from, Letter(Content::Tagged { of, message: Tagged { envelope, bytes: vec![1; 8] } }));
            inbox.put(from, Letter(Content::Unlike { of, sent: envelope, expected: envelope }));
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        inbox.open(Receive { line: vec![of], from: vec![4], tag: 5, deadline, finish: Box::new(drop) });
    };
    let (all, split) = (Generation::of_all(0), Generation::of_all(0).split(1, 0));
    inbox.enter(split, vec![0, 2, 3, 4], Some(Last { splits: 1, ..LAST }));
    fill(all);
    fill(split);
    let later = all.without(2, &[0, 2, 3]);
    inbox.put(2, Letter(Content::Message { of: later, bytes: vec![1; 8] }));
    assert_eq!(inbox.count(), (19, 2));
    inbox.put(1, Letter(leave(0)));
    let second = inbox.begin_remaining(0, None).expect("this rank is left").generation;
    assert_eq!(inbox.count(), (10, 1), "a later group and the split have theirs");
    for of in [all, all.without(1, &[0, 1, 2, 3])] {
        fill(of);
        assert_eq!(inbox.count(), (10, 1), "this rank never comes to such a group");
    }
    fill(second);
    assert_eq!(inbox.count(), (19, 2));
    inbox.put(0, Letter(leave(split.group)));
    fill(split);
    assert_eq!(inbox.count(), (10, 1));
    inbox.put(0, Letter(leave(0)));
    [all, second, later].into_iter().for_each(fill);
    assert_eq!(inbox.count(), (0, 0));
}

/// The inboxes of threads.
struct Threads(Vec<Arc<Inbox>>);

impl Threads {
    fn put(&self, from: usize, to: usize, letter: Letter) {
        self.0[to].put(from, letter);
    }
}

/// Keeps the letters of these pairs until ranks 0 and 3 have both begun a group of those left.
struct Late {
    threads: Threads,
    pairs: &'static [(usize, usize)],
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// Whether all have met. Nothing is held before.
    is_armed: bool,
    letters: Vec<(usize, usize, Letter)>,
    begun: HashSet<usize>,
}

impl Carrier for Late {
    fn carry(&self, from: usize, to: usize, letter: Letter) {
        let mut held = self.held.lock().expect("nobody panics holding it");
        let is_open = |held: &Held| held.begun.contains(&0) && held.begun.contains(&3);
        if let Content::Lost { .. } = letter.0 {
            held.begun.insert(from);
        }
        if held.is_armed && self.pairs.contains(&(from, to)) {
            held.letters.push((from, to, letter));
        } else {
            self.threads.put(from, to, letter);
        }
        if is_open(&held) {
            held.letters.drain(..).for_each(|(from, to, letter)| self.threads.put(from, to, letter));
        }
    }
}

/// Notes the ranks that are asked whether they may go on.
#[derive(Default)]
struct Asked(Mutex<Vec<[Vec<usize>; 2]>>);

impl Carrier for Asked {
    fn carry(&self, _from: usize, _to: usize, _letter: Letter) {}

    fn may_go_on(&self, earlier: &[usize], left: &[usize]) -> crate::Result<()> {
        self.0.lock().expect("nobody panics holding it").push([earlier.to_vec(), left.to_vec()]);
        Ok(())
    }
}

/// Two halves of a group each went on, since each heard of the losses of the other one by one.
#[test]
fn a_majority_is_one_of_the_last_group_to_have_formed() {
    let (inbox, asked) = (Arc::new(Inbox::new(3, 4)), Arc::new(Asked::default()));
    let mut engine = inbox.clone().engine(World::new(3, 4).expect("one of four"), asked.clone());
    let lose = |rank| inbox.put(rank, Letter::gone());
    lose(0);
    engine.remaining().expect("this rank is left");
    lose(1);
    engine.remaining().expect("this rank is left");
    engine.formed();
    lose(2);
    engine.remaining().expect("this rank is left");
    let all = [[vec![0, 1, 2, 3], vec![1, 2, 3]], [vec![0, 1, 2, 3], vec![2, 3]], [vec![2, 3], vec![3]]];
    assert_eq!(*asked.0.lock().expect("nobody panics holding it"), all);
}

#[test]
fn a_rank_ending_without_a_word_was_lost() {
    for says_so in [false, true] {
        let inbox = Arc::new(Inbox::new(0, 2));
        let world = World::new(0, 2).expect("one of two");
        let mut rank = Communicator::from_engine(inbox.clone().engine(world, Arc::new(Asked::default())));
        if says_so {
            inbox.put(1, Letter(leave(0)));
        }
        inbox.put(1, Letter::gone());
        match rank.barrier().expect_err("rank 1 is gone") {
            Error::Aborted { replica: 1, lost: true, reason, .. } if !says_so => assert_eq!(reason, "was lost"),
            Error::Left { replica: 1, lost: true, .. } if says_so => {}
            error => panic!("{error}"),
        }
    }
}

/// Carries letters to the inboxes of all ranks but one, which has ended.
struct Living(Vec<Arc<Inbox>>, usize);

impl Carrier for Living {
    fn carry(&self, from: usize, to: usize, letter: Letter) {
        if to != self.1 {
            self.0[to].put(from, letter);
        }
    }
}

/// Found by a soak of two hosts: rank 0 was told that rank 1 had left, which had lost rank 2 in a
/// subgroup of these two.
#[test]
fn a_rank_leaving_after_a_loss_in_a_part_names_the_lost_one() {
    let inboxes: Vec<Arc<Inbox>> = (0..3).map(|rank| Arc::new(Inbox::new(rank, 3))).collect();
    let carrier = Arc::new(Living(inboxes.clone(), 2));
    let engine = |rank: usize| {
        let world = World::new(rank, 3).expect("one of three");
        inboxes[rank].clone().engine(world, carrier.clone())
    };
    let (first, mut second) = (engine(0), engine(1));
    let part = second.subgroup(&[1, 2]).ok().flatten().expect("a part with this rank");
    let mut part = Communicator::from_engine(part);
    // Rank 0 does not hear of the end itself yet.
    inboxes[1].put(2, Letter::gone());
    assert!(matches!(part.barrier(), Err(Error::Aborted { replica: 1, lost: true, .. })));
    drop(part);
    drop(second);
    let error = Communicator::from_engine(first).barrier();
    assert!(matches!(error, Err(Error::Aborted { replica: 2, lost: true, .. })), "{error:?}");
}

/// Found by a soak of two hosts: rank 2 was killed in the split, when rank 0 had its words and rank
/// 1 had not. Rank 0 waited in the part until its deadline.
#[test]
fn a_rank_never_entering_a_part_has_left_it() {
    for [reforms, is_nested] in [[false, false], [true, false], [false, true], [true, true]] {
        let inboxes: Vec<Arc<Inbox>> = (0..3).map(|rank| Arc::new(Inbox::new(rank, 3))).collect();
        let carrier = Arc::new(Living(inboxes.clone(), 2));
        let engine = |rank: usize| {
            let world = World::new(rank, 3).expect("one of three");
            inboxes[rank].clone().engine(world, carrier.clone())
        };
        let (mut first, mut second) = (engine(0), engine(1));
        let both = [&mut first, &mut second].map(|one| one.subgroup(&[0, 1]).ok().flatten().expect("a part"));
        let mut part = first.subgroup(&[0, 1]).ok().flatten().expect("a part");
        if is_nested {
            part = part.subgroup(&[0, 1]).ok().flatten().expect("a part");
        }
        inboxes[..2].iter().for_each(|inbox| inbox.put(2, Letter::gone()));
        let mut both = both.map(Communicator::from_engine);
        let leaves = |second| {
            drop(second);
            None
        };
        let _second = if reforms { second.remaining().map(|()| second).ok() } else { leaves(second) };
        // Rank 1 goes on in what it has entered.
        thread::scope(|scope| {
            both.iter_mut().for_each(|one| _ = scope.spawn(|| one.barrier().expect("both are there")));
        });
        let mut part = Communicator::from_engine(part);
        let open = part.mailbox().expect("a mailbox");
        let received = open.recv(&mut [0u8][..], Some(1), 1, Some(Duration::from_secs(60)));
        let lost = !reforms;
        for error in [received.map(drop), part.barrier()] {
            assert!(matches!(error, Err(Error::Left { replica: 1, lost: is, .. }) if is == lost), "{error:?}");
        }
    }
}

/// A rank that moves on takes all others for gone. One that is done needs nothing of a lost rank,
/// and others may have what they need of it.
#[test]
fn a_rank_without_an_error_calls_nobody_lost() {
    for gone in [&[0, 2][..], &[2]] {
        let inboxes: Vec<Arc<Inbox>> = (0..3).map(|rank| Arc::new(Inbox::new(rank, 3))).collect();
        let carrier = Arc::new(Living(inboxes.clone(), 3));
        let world = |rank| World::new(rank, 3).expect("one of three");
        let first = inboxes[0].clone().engine(world(0), carrier.clone());
        let second = inboxes[1].clone().engine(world(1), carrier.clone());
        gone.iter().for_each(|&rank| inboxes[1].put(rank, Letter::gone()));
        drop(second);
        let error = Communicator::from_engine(first).barrier();
        assert!(matches!(error, Err(Error::Left { replica: 1, .. })), "{error:?}");
    }
}

/// Loses one rank more while a majority is waited for, the first time.
struct LosesMore {
    inbox: Arc<Inbox>,
    asked: Asked,
}

impl Carrier for LosesMore {
    fn carry(&self, _from: usize, _to: usize, _letter: Letter) {}

    fn may_go_on(&self, earlier: &[usize], left: &[usize]) -> crate::Result<()> {
        self.inbox.put(2, Letter::gone());
        self.asked.may_go_on(earlier, left)
    }
}

#[test]
fn a_loss_during_the_wait_for_a_majority_is_judged_too() {
    let inbox = Arc::new(Inbox::new(3, 4));
    let carrier = Arc::new(LosesMore { inbox: inbox.clone(), asked: Asked::default() });
    let mut engine = inbox.clone().engine(World::new(3, 4).expect("one of four"), carrier.clone());
    inbox.put(0, Letter::gone());
    engine.remaining().expect("this rank is left");
    assert_eq!(engine.world().size(), 2);
    let all = vec![0, 1, 2, 3];
    let asked = carrier.asked.0.lock().expect("nobody panics holding it");
    assert_eq!(*asked, [[all.clone(), vec![1, 2, 3]], [all, vec![1, 3]]]);
}

/// Rank 0 goes on without rank 1 first, rank 3 without rank 4, and rank 2 without one of them, both
/// or none.
#[test]
fn losses_learnt_in_different_orders_lead_to_one_group() {
    for told in [&[][..], &[(1, 2)], &[(4, 2)], &[(1, 2), (4, 2)]] {
        // Rank 2 does not hear of these before the others have begun.
        let pairs: &[(usize, usize)] = match told {
            [] => &[(0, 3), (3, 0), (1, 3), (4, 0)],
            [(1, 2)] => &[(0, 3), (3, 0), (1, 3), (4, 0), (1, 2), (0, 2)],
            [(4, 2)] => &[(0, 3), (3, 0), (1, 3), (4, 0), (4, 2), (3, 2)],
            _ => &[(0, 3), (3, 0), (1, 3), (4, 0), (1, 2), (4, 2), (0, 2), (3, 2)],
        };
        let inboxes: Vec<Arc<Inbox>> = (0..5).map(|rank| Arc::new(Inbox::new(rank, 5))).collect();
        let late = Arc::new(Late { threads: Threads(inboxes.clone()), pairs, held: Mutex::default() });
        let ready = std::sync::Barrier::new(5);
        let work = |rank: usize, inbox: Arc<Inbox>, carrier: Arc<dyn Carrier>| {
            let world = World::new(rank, 5).expect("one of five");
            let engine = inbox.engine(world, carrier);
            let addresses = (0..5).map(|worker| format!("host{worker}.example:1"));
            let cluster = ClusterSpec::new().job("worker", addresses).expect("five addresses");
            let resolver = SimpleClusterResolver::new(cluster).with_task("worker", rank).expect("one of five");
            let communicator = Communicator::from_engine(engine);
            let builder = MultiWorkerMirroredStrategy::builder(resolver);
            let strategy = builder.build_on(vec![communicator]).expect("all are here");
            if ready.wait().is_leader() {
                late.held.lock().expect("nobody panics holding it").is_armed = true;
            }
            ready.wait();
            if rank == 1 || rank == 4 {
                drop(strategy);
                ready.wait();
                return;
            }
            ready.wait();
            strategy.reform(Duration::ZERO).expect("three are left");
            let sums = strategy.run(|replica| replica.all_reduce("sum", 1f32)).expect("three are left");
            assert_eq!(sums.values(), [3.0]);
        };
        thread::scope(|scope| {
            for (rank, inbox) in inboxes.iter().enumerate() {
                let (work, inbox, carrier): (_, _, Arc<dyn Carrier>) = (&work, inbox.clone(), late.clone());
                scope.spawn(move || work(rank, inbox, carrier));
            }
        });
        assert!(inboxes.iter().all(|inbox| inbox.count() == (0, 0)));
    }
}
