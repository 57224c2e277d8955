//! Groups that are ended and renewed, by threads and in a segment, compared with the spec: what
//! each rank is told, event by event.
//!
//! Each rank is a thread that makes the calls that it is told to make. After each event the test
//! waits for the ranks that are told something, by the spec. A rank whose deadline passes has a
//! short one, and no other rank acts or waits meanwhile: so no outcome depends on time.

use consonance_kernels::{
    group::{Abort, Aborter, Endpoint, Fault, Payloads, Reason},
    shm::{GroupId, Segment, Shape},
};
use consonance_spec::{
    DType, Kind, Signature,
    generations::{End, Event, Group, Told},
};
use quickcheck::{Arbitrary, Gen, QuickCheck};
use std::{
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

/// Longer than any rank waits that is not meant to give up: a wait of this length is a hang.
const LONG: Duration = Duration::from_secs(30);

/// The timeout of a wait that nobody ends.
const SHORT: Duration = Duration::from_millis(1);

/// The elements of a call's data: inline in the first lines of a descriptor, and behind them.
const COUNTS: [usize; 2] = [1, 1000];

/// A command to a rank.
enum Command {
    Call { value: u64, timeout: Duration },
    Renew { timeout: Duration },
}

/// The result of a rank, and its handle of the generation that it is in.
struct Reply {
    rank: usize,
    told: Told<u64>,
    aborter: Aborter,
}

/// Returns the endpoints of a group of threads, or of a segment that each rank maps for itself.
fn endpoints(ranks: usize, in_segment: bool) -> Vec<Endpoint> {
    if !in_segment {
        return Endpoint::group(ranks, LONG);
    }
    let (id, shape) = (GroupId::from_bytes([7; 16]), Shape::new(ranks, Shape::STAGING_BYTES).unwrap());
    let segment = Segment::create(shape, id).unwrap();
    let endpoint = |rank| {
        let segment = Segment::open(segment.file().try_clone_to_owned().unwrap(), id, shape).unwrap();
        Endpoint::in_segment(&Arc::new(segment), rank..rank + 1, ranks, &[], LONG).remove(0)
    };
    (0..ranks).map(endpoint).collect()
}

/// Executes the commands of a rank until there are no more.
fn obey(mut endpoint: Endpoint, commands: Receiver<Command>, replies: Sender<Reply>) {
    let rank = endpoint.world().rank();
    for command in commands {
        let told = match command {
            Command::Call { value, timeout } => call(&mut endpoint, value, timeout),
            Command::Renew { timeout } => {
                let has_ended = endpoint.aborter().aborted().is_some();
                endpoint.set_timeout(timeout);
                match endpoint.renew() {
                    Ok(()) if has_ended => Told::Renewed,
                    Ok(()) => Told::Unchanged,
                    Err(fault) => told(fault),
                }
            }
        };
        let _ = replies.send(Reply { rank, told, aborter: endpoint.aborter() });
    }
}

/// Gives every rank this value, and returns the values of all.
fn call(endpoint: &mut Endpoint, value: u64, timeout: Duration) -> Told<u64> {
    endpoint.set_timeout(timeout);
    endpoint.begin_call();
    let ranks = endpoint.world().size();
    let own = vec![value; COUNTS[value as usize % COUNTS.len()]];
    let signature = Signature { dtype: Some(DType::U64), ..Signature::new(Kind::AllGather) };
    let values = |payloads: Payloads<'_>| {
        let value = |rank| {
            // The payload of a rank is as long as its value says. What lies behind is old.
            let mut first = [0];
            payloads.copy(rank, 0, &mut first.as_mut_slice().into())?;
            let mut all = vec![0; COUNTS[first[0] as usize % COUNTS.len()]];
            payloads.copy(rank, 0, &mut all.as_mut_slice().into())?;
            assert!(all.iter().all(|&element| element == first[0]), "torn: {all:?}");
            Ok(first[0])
        };
        (0..ranks).map(value).collect::<Result<Vec<u64>, Fault>>()
    };
    match endpoint.step(&signature).exchange(Some(own.as_slice().into())).and_then(values) {
        Ok(values) => Told::Result(values),
        Err(fault) => told(fault),
    }
}

fn told(fault: Fault) -> Told<u64> {
    match fault {
        Fault::Missing(ranks) => Told::Late(ranks),
        Fault::Aborted(Abort { rank, reason }) => Told::Ended(match reason {
            Reason::Failure => End::Aborted(rank),
            Reason::Deadline => End::Late(rank),
            Reason::Death => End::Lost(rank),
            reason => panic!("no rank ends the group by {reason:?}"),
        }),
        fault => panic!("{fault:?}"),
    }
}

/// The ranks of a group, each a thread, and the group by the spec.
struct Players {
    group: Group<u64>,
    commands: Vec<Sender<Command>>,
    replies: Receiver<Reply>,
    /// The handles of each rank, with their generations.
    aborters: Vec<Vec<(u64, Aborter)>>,
    /// The events so far, to show on a failure.
    events: Vec<Event<u64>>,
}

impl Players {
    fn new(ranks: usize, in_segment: bool) -> Players {
        let (tell, replies) = channel();
        let mut aborters = Vec::new();
        let play = |endpoint: Endpoint| {
            aborters.push(vec![(0, endpoint.aborter())]);
            let ((command, commands), tell) = (channel(), tell.clone());
            thread::spawn(move || obey(endpoint, commands, tell));
            command
        };
        let commands = endpoints(ranks, in_segment).into_iter().map(play).collect();
        Players { group: Group::new(ranks), commands, replies, aborters, events: Vec::new() }
    }

    /// Makes an event happen, and compares what the ranks are told. A rank that begins to wait is
    /// told so by `gives_up`, if the next event is the end of its deadline.
    fn play(&mut self, event: Event<u64>, gives_up: bool) {
        self.events.push(event.clone());
        let timeout = if gives_up { SHORT } else { LONG };
        let command = |rank: usize, command| self.commands[rank].send(command).expect("a rank that listens");
        match event {
            Event::Calls(rank, value) => command(rank, Command::Call { value, timeout }),
            Event::Renews(rank) => command(rank, Command::Renew { timeout }),
            Event::Aborts { rank, generation } => {
                let handle = self.aborters[rank].iter().find(|(of, _)| *of == generation).expect("a handle");
                handle.1.abort(Reason::Failure);
            }
            // It has begun with the wait.
            Event::GivesUp(_) => {}
            // Any process may hear of it, by a handle of any generation.
            Event::IsLost(rank) => {
                self.aborters[(rank + 1) % self.aborters.len()][0].1.lose(rank..rank + 1, Reason::Death)
            }
        }
        let expected = self.group.happens(event);
        let mut found = vec![None; expected.len()];
        for _ in expected.iter().flatten() {
            let Reply { rank, told, aborter } = match self.replies.recv_timeout(LONG + LONG) {
                Ok(reply) => reply,
                Err(_) => panic!("after {:?}: {expected:?} is not told", self.events),
            };
            self.aborters[rank].push((self.group.generation(rank), aborter));
            let before = found[rank].replace(told);
            assert_eq!(before, None, "rank {rank} is told twice, after {:?}", self.events);
        }
        assert_eq!(found, expected, "after {:?}", self.events);
    }
}

/// The numbers by which the events of a case are chosen.
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

/// Plays any events, then ends the group for good, so that no rank waits.
fn play(numbers: &[u16], in_segment: bool) {
    let ranks = 1 + numbers.first().map_or(0, |&number| number as usize % 4);
    let mut players = Players::new(ranks, in_segment);
    for (at, &number) in numbers.iter().enumerate().skip(1) {
        let (rank, kind) = (number as usize % ranks, number / 8 % 32);
        let begins = match (kind, players.group.waits(rank)) {
            (0..12, false) => Event::Calls(rank, at as u64),
            (12..24, false) => Event::Renews(rank),
            (0..24, true) => continue,
            (24..31, _) => {
                let handles = &players.aborters[rank];
                let generation = handles[number as usize / 256 % handles.len()].0;
                players.play(Event::Aborts { rank, generation }, false);
                continue;
            }
            _ => {
                players.play(Event::IsLost(rank), false);
                continue;
            }
        };
        // A rank gives up where it is the only one that waits, as seen from now.
        let mut after = players.group.clone();
        after.happens(begins.clone());
        let is_alone = (0..ranks).all(|other| after.waits(other) == (other == rank));
        let gives_up = is_alone && number / 256 % 4 == 0;
        players.play(begins, gives_up);
        if gives_up {
            players.play(Event::GivesUp(rank), false);
        }
    }
    players.play(Event::IsLost(0), false);
}

#[test]
fn threads_get_the_ends_of_the_spec() {
    QuickCheck::new().tests(60).quickcheck((|numbers| play(&numbers.0, false)) as fn(Numbers));
}

#[test]
fn ranks_of_a_segment_get_the_ends_of_the_spec() {
    QuickCheck::new().tests(60).quickcheck((|numbers| play(&numbers.0, true)) as fn(Numbers));
}

/// Ends generation after generation with a call under way, whose data the next one must not get.
#[test]
fn no_data_reach_the_next_generation() {
    for in_segment in [false, true] {
        let mut players = Players::new(3, in_segment);
        for generation in 0..20 {
            let value = 100 * generation;
            for rank in 0..3 {
                players.play(Event::Calls(rank, value + rank as u64), false);
            }
            // Two ranks bring data that the third never gets.
            players.play(Event::Calls(0, value + 50), false);
            players.play(Event::Calls(1, value + 51), false);
            players.play(Event::Aborts { rank: 2, generation }, false);
            for rank in [2, 0, 1] {
                players.play(Event::Renews(rank), false);
            }
            // A handle of the generation that has ended.
            players.play(Event::Aborts { rank: 2, generation }, false);
        }
        players.play(Event::IsLost(1), false);
    }
}
