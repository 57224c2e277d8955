//! Groups that are ended and renewed, by threads, in a segment and on an engine of messages,
//! compared with the spec: what each rank is told, event by event.
//!
//! Each rank is a thread that makes the calls that it is told to make. After each event the test
//! waits for the ranks that are told something, by the spec. A rank whose deadline passes has a
//! short one, and no other rank acts or waits meanwhile: so no outcome depends on time.

use consonance::{Communicator, Error, raw::AbortHandle};
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
    handle: Handle,
}

/// A handle of a generation.
enum Handle {
    Host(Aborter),
    Messages(AbortHandle),
}

impl Handle {
    fn abort(&self) {
        match self {
            Handle::Host(aborter) => aborter.abort(Reason::Failure),
            Handle::Messages(handle) => handle.abort(Reason::Failure),
        }
    }
}

/// The ways in which ranks communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Threads,
    Segment,
    Messages,
}

impl Way {
    /// Returns what ranks are told by this way where the spec says `told`. On an engine of messages
    /// a rank does not know all ranks that are late, so an end names one of them.
    fn tells(self, told: &Told<u64>) -> Told<u64> {
        match told {
            Told::Late(_) if self == Way::Messages => Told::Late(Vec::new()),
            Told::Ended(End::Late(_)) if self == Way::Messages => Told::Ended(End::Late(0)),
            told => told.clone(),
        }
    }
}

/// A rank of a group.
trait Player: Send {
    fn rank(&self) -> usize;
    fn handle(&self) -> Handle;
    fn has_ended(&self) -> bool;
    /// Gives every rank this value, and returns the values of all.
    fn call(&mut self, value: u64, timeout: Duration) -> Told<u64>;
    /// Renews the group, which has ended or not.
    fn renew(&mut self, timeout: Duration) -> Result<(), Told<u64>>;
}

/// Makes the ranks of a new group.
fn ranks(count: usize, way: Way) -> Vec<Box<dyn Player>> {
    fn boxed<P: Player + 'static>(player: P) -> Box<dyn Player> {
        Box::new(player)
    }
    match way {
        Way::Threads | Way::Segment => endpoints(count, way == Way::Segment).into_iter().map(boxed).collect(),
        Way::Messages => {
            consonance_messages::threads(count).into_iter().map(Communicator::from_engine).map(boxed).collect()
        }
    }
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
fn obey(mut player: Box<dyn Player>, commands: Receiver<Command>, replies: Sender<Reply>) {
    let rank = player.rank();
    for command in commands {
        let told = match command {
            Command::Call { value, timeout } => player.call(value, timeout),
            Command::Renew { timeout } => {
                let has_ended = player.has_ended();
                match player.renew(timeout) {
                    Ok(()) if has_ended => Told::Renewed,
                    Ok(()) => Told::Unchanged,
                    Err(told) => told,
                }
            }
        };
        let _ = replies.send(Reply { rank, told, handle: player.handle() });
    }
}

impl Player for Endpoint {
    fn rank(&self) -> usize {
        self.world().rank()
    }

    fn handle(&self) -> Handle {
        Handle::Host(self.aborter())
    }

    fn has_ended(&self) -> bool {
        self.aborter().aborted().is_some()
    }

    fn call(&mut self, value: u64, timeout: Duration) -> Told<u64> {
        self.set_timeout(timeout);
        self.begin_call();
        let ranks = self.world().size();
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
        match self.step(&signature).exchange(Some(own.as_slice().into())).and_then(values) {
            Ok(values) => Told::Result(values),
            Err(fault) => told(fault),
        }
    }

    fn renew(&mut self, timeout: Duration) -> Result<(), Told<u64>> {
        self.set_timeout(timeout);
        Endpoint::renew(self).map_err(told)
    }
}

impl Player for Communicator {
    fn rank(&self) -> usize {
        Communicator::rank(self)
    }

    fn handle(&self) -> Handle {
        Handle::Messages(self.abort_handle())
    }

    fn has_ended(&self) -> bool {
        self.abort_handle().is_aborted()
    }

    fn call(&mut self, value: u64, timeout: Duration) -> Told<u64> {
        self.set_timeout(timeout).expect("a timeout that ends");
        let mut values = vec![0; self.size()];
        match self.all_gather_into(&[value], &mut values) {
            Ok(()) => Told::Result(values),
            Err(error) => told_by(error),
        }
    }

    fn renew(&mut self, timeout: Duration) -> Result<(), Told<u64>> {
        self.set_timeout(timeout).expect("a timeout that ends");
        Communicator::renew(self).map_err(told_by)
    }
}

fn told_by(error: Error) -> Told<u64> {
    match error {
        Error::Timeout { .. } => Told::Late(Vec::new()),
        Error::Aborted { replica, reason, .. } if reason == "failed" => Told::Ended(End::Aborted(replica)),
        Error::Aborted { reason, .. } if reason.contains("deadline") => Told::Ended(End::Late(0)),
        error => panic!("{error}"),
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
    handles: Vec<Vec<(u64, Handle)>>,
    way: Way,
    /// The events so far, to show on a failure.
    events: Vec<Event<u64>>,
}

impl Players {
    fn new(count: usize, way: Way) -> Players {
        let (tell, replies) = channel();
        let mut handles = Vec::new();
        let play = |player: Box<dyn Player>| {
            handles.push(vec![(0, player.handle())]);
            let ((command, commands), tell) = (channel(), tell.clone());
            thread::spawn(move || obey(player, commands, tell));
            command
        };
        let commands = ranks(count, way).into_iter().map(play).collect();
        Players { group: Group::new(count), commands, replies, handles, way, events: Vec::new() }
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
                let handle = self.handles[rank].iter().find(|(of, _)| *of == generation).expect("a handle");
                handle.1.abort();
            }
            // It has begun with the wait.
            Event::GivesUp(_) => {}
            // Any process may hear of it, by a handle of any generation.
            Event::IsLost(rank) => match &self.handles[(rank + 1) % self.handles.len()][0].1 {
                Handle::Host(aborter) => aborter.lose(rank..rank + 1, Reason::Death),
                Handle::Messages(_) => panic!("an engine of messages notices a loss itself"),
            },
        }
        let told = self.group.happens(event);
        let expected: Vec<_> = told.iter().map(|told| told.as_ref().map(|told| self.way.tells(told))).collect();
        let mut found = vec![None; expected.len()];
        for _ in expected.iter().flatten() {
            let Reply { rank, told, handle } = match self.replies.recv_timeout(LONG + LONG) {
                Ok(reply) => reply,
                Err(_) => panic!("after {:?}: {expected:?} is not told", self.events),
            };
            self.handles[rank].push((self.group.generation(rank), handle));
            let before = found[rank].replace(told);
            assert_eq!(before, None, "rank {rank} is told twice, after {:?}", self.events);
        }
        assert_eq!(found, expected, "after {:?}", self.events);
    }
}

impl Players {
    /// Ends the group, so that no rank waits.
    fn end(&mut self) {
        match self.way {
            Way::Threads | Way::Segment => self.play(Event::IsLost(0), false),
            Way::Messages => {
                let last = (0..self.group.ranks()).max_by_key(|&rank| self.group.generation(rank)).expect("a rank");
                let generation = self.group.generation(last);
                // Without a handle it waits for the others to come to this generation, until its
                // deadline.
                if self.handles[last].iter().any(|(of, _)| *of == generation) {
                    self.play(Event::Aborts { rank: last, generation }, false);
                }
            }
        }
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

/// Plays any events, then ends the group, so that no rank waits.
fn play(numbers: &[u16], way: Way) {
    let ranks = 1 + numbers.first().map_or(0, |&number| number as usize % 4);
    let mut players = Players::new(ranks, way);
    for (at, &number) in numbers.iter().enumerate().skip(1) {
        let (rank, kind) = (number as usize % ranks, number / 8 % 32);
        let begins = match (kind, players.group.waits(rank)) {
            (0..12, false) => Event::Calls(rank, at as u64),
            (12..24, false) => Event::Renews(rank),
            (0..24, true) => continue,
            (24..31, _) => {
                let handles = &players.handles[rank];
                let generation = handles[number as usize / 256 % handles.len()].0;
                players.play(Event::Aborts { rank, generation }, false);
                continue;
            }
            _ if way == Way::Messages => continue,
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
    players.end();
}

#[test]
fn threads_get_the_ends_of_the_spec() {
    QuickCheck::new().tests(60).quickcheck((|numbers| play(&numbers.0, Way::Threads)) as fn(Numbers));
}

#[test]
fn ranks_of_a_segment_get_the_ends_of_the_spec() {
    QuickCheck::new().tests(60).quickcheck((|numbers| play(&numbers.0, Way::Segment)) as fn(Numbers));
}

#[test]
fn ranks_on_messages_get_the_ends_of_the_spec() {
    QuickCheck::new().tests(200).quickcheck((|numbers| play(&numbers.0, Way::Messages)) as fn(Numbers));
}

/// Ends generation after generation with a call under way, whose data the next one must not get.
#[test]
fn no_data_reach_the_next_generation() {
    for way in [Way::Threads, Way::Segment, Way::Messages] {
        let mut players = Players::new(3, way);
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
        players.end();
    }
}
