//! Cables between hosts that are played: frames that come late, in another order, or never, as a
//! seed says.
//!
//! The system's own means for this, `netem`, is missing in many kernels. So a cable is two TAP
//! devices, one of the host and one of the bridge, and a thread of the launcher carries the frames
//! from each to the other. The cables end with their [`Cables`].

use super::StartError;
use consonance_kernels::os::tap;
use consonance_spec::sample::mix;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fmt,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// A cable: its effect on frames, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cable {
    /// The seed of all that is drawn. Each direction of each host's cable draws for itself.
    pub seed: u64,
    /// The time that every frame takes.
    pub delay: Duration,
    /// The limit on the time that is drawn for each frame beyond: frames overtake each other.
    pub spread: Duration,
    /// The part of the frames that get lost, from 0 to 1.
    pub loss: f64,
    /// Times in which all frames get lost, if there are some.
    pub cuts: Option<Cuts>,
}

/// The cuts of a cable. Each host's are at other times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cuts {
    /// The duration of a cut, at most that in which there is one.
    pub time: Duration,
    /// The time in which there is one, at a moment that is drawn; above 0.
    pub every: Duration,
}

impl Cable {
    /// Returns the time that a frame takes, or `None` if it gets lost. `way` is the number of a
    /// direction of a host's cable, `2 * host` or one more. The frame is the direction's one of
    /// this number, and comes at a time since the cable was plugged in. It is a pure function.
    fn carry(&self, way: u64, number: u64, since: Duration) -> Option<Duration> {
        let drawn = mix(mix(self.seed, way), number);
        let [part, spread] = [drawn >> 32, drawn & u64::from(u32::MAX)].map(|half| half as f64 / (1u64 << 32) as f64);
        let is_lost = part < self.loss || self.cuts.is_some_and(|cuts| self.is_cut(cuts, way / 2, since));
        (!is_lost).then(|| self.delay + self.spread.mul_f64(spread))
    }

    fn is_cut(&self, Cuts { time, every }: Cuts, host: u64, since: Duration) -> bool {
        let [since, every, time] = [since, every, time].map(|time| time.as_nanos());
        let (turn, within) = (since / every, since % every);
        let drawn = mix(mix(!self.seed, host), turn as u64) as f64 / u64::MAX as f64;
        let begin = (every.saturating_sub(time) as f64 * drawn) as u128;
        (begin..begin + time).contains(&within)
    }
}

impl fmt::Display for Cable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cable { seed, delay, spread, loss, cuts } = *self;
        let [cut, every] = cuts.map_or([Duration::ZERO; 2], |cuts| [cuts.time, cuts.every]);
        for (name, time) in [("delay", delay), ("spread", spread), ("cut", cut), ("every", every)] {
            if !time.is_zero() {
                write!(f, "{name}={}ms,", time.as_millis())?;
            }
        }
        write!(f, "loss={loss},seed={seed}")
    }
}

/// Cables that are plugged in. Dropping this ends them.
pub(super) struct Cables {
    /// Readable when they are to end.
    end: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Cables {
    /// Plugs in the cable of each host. The devices are in the networks of these processes: `eth0`
    /// in that of a host, `port1`, `port2`, … in that of the bridge.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn plug(cable: Cable, bridge: i32, hosts: impl Iterator<Item = i32>) -> io::Result<Cables> {
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut cables = Cables { end: end.clone(), threads: Vec::new() };
        for (host, pid) in hosts.enumerate() {
            let ends = [end_of(pid, "eth0".to_owned())?, end_of(bridge, format!("port{}", host + 1))?];
            let (end, ways) = (end.clone(), [0, 1].map(|side| Way::new(2 * host as u64 + side)));
            let carrier = Carrier { cable, ends, ways, began: Instant::now(), end };
            let thread = thread::Builder::new().name(format!("cable of host {host}"));
            cables.threads.push(thread.spawn(move || carrier.run())?);
        }
        Ok(cables)
    }
}

impl Drop for Cables {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        // A panic of a cable is none of the launcher.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Checks that this machine has what cables take.
pub(super) fn check() -> Result<(), StartError> {
    let opened = File::options().read(true).write(true).open(tap::DEVICE);
    let missing = |error| StartError::Hosts { why: format!("a cable takes the device {}: {error}", tap::DEVICE) };
    opened.map(drop).map_err(missing)
}

/// Returns the other end of a device in the network of a process.
fn end_of(pid: i32, device: String) -> io::Result<File> {
    // The thread ends there: the launcher stays in its own network.
    let there = thread::Builder::new().spawn(move || {
        let network = File::open(format!("/proc/{pid}/ns/net"))?;
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        tap::open(&device).map_err(|error| io::Error::new(error.kind(), format!("the cable of {device}: {error}")))
    })?;
    there.join().unwrap_or_else(|_| Err(io::Error::other("the thread of a cable panicked")))
}

/// The limit on the frames on one way of a cable, as switches have one. More get lost.
const ROOM: usize = 4096;

/// The frames that are taken at a time from one side.
const TURN: usize = 64;

/// The limit on the bytes of a frame. Those of a TAP device have some 1,500.
const FRAME: usize = 1 << 16;

/// One direction of a cable.
struct Way {
    way: u64,
    /// The frames that have come.
    count: u64,
    /// Those that are on their way, with the times at which they arrive and their numbers.
    carried: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
}

impl Way {
    fn new(way: u64) -> Way {
        Way { way, count: 0, carried: BinaryHeap::new() }
    }
}

/// The thread of a cable.
struct Carrier {
    cable: Cable,
    ends: [File; 2],
    ways: [Way; 2],
    began: Instant,
    end: Arc<OwnedFd>,
}

impl Carrier {
    fn run(mut self) {
        let mut frame = vec![0; FRAME];
        while self.wait() {
            for side in 0..2 {
                self.take(side, &mut frame);
                self.give(side);
            }
        }
    }

    /// Waits for a frame, or for the time at which one arrives. Returns whether the cable goes on.
    fn wait(&self) -> bool {
        let next = self.ways.iter().filter_map(|way| way.carried.peek().map(|Reverse((at, ..))| *at)).min();
        let rest = next.map(|at| at.saturating_duration_since(Instant::now()));
        let rest = rest.and_then(|rest| Timespec::try_from(rest).ok());
        let [one, other] = &self.ends;
        let files = [self.end.as_fd(), one.as_fd(), other.as_fd()];
        let mut polled = files.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
        // Interrupted, or without memory: the next pass looks again.
        if poll(&mut polled, rest.as_ref()).is_err() {
            thread::yield_now();
            return true;
        }
        let [end, ends @ ..] = polled;
        // A device that is gone is an error.
        end.revents().is_empty() && !ends.iter().any(|end| end.revents().contains(PollFlags::ERR))
    }

    /// Takes the frames that have come from one side.
    fn take(&mut self, side: usize, frame: &mut [u8]) {
        let way = &mut self.ways[side];
        for _ in 0..TURN {
            // None is there, or the device is down.
            let Ok(bytes) = self.ends[side].read(frame) else { return };
            way.count += 1;
            let carried = self.cable.carry(way.way, way.count, self.began.elapsed());
            if let Some(time) = carried.filter(|_| way.carried.len() < ROOM) {
                way.carried.push(Reverse((Instant::now() + time, way.count, frame[..bytes].to_vec())));
            }
        }
    }

    /// Gives the frames that have arrived from one side to the other.
    fn give(&mut self, side: usize) {
        let (way, now) = (&mut self.ways[side], Instant::now());
        while way.carried.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            if let Some(Reverse((.., frame))) = way.carried.pop() {
                // A device that is down takes none.
                let _ = self.ends[1 - side].write(&frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the times of the first 10,000 frames of a direction, one each millisecond.
    fn times(cable: Cable, way: u64) -> Vec<Option<Duration>> {
        (0..10_000).map(|number| cable.carry(way, number, Duration::from_millis(number))).collect()
    }

    #[test]
    fn a_seed_says_when_each_frame_arrives() {
        let (delay, spread) = (Duration::from_millis(2), Duration::from_millis(3));
        let cable = Cable { seed: 7, delay, spread, loss: 0.01, cuts: None };
        let all = times(cable, 0);
        assert_eq!(all, times(cable, 0));
        assert_ne!(all, times(Cable { seed: 8, ..cable }, 0));
        assert_ne!(all, times(cable, 1));
        assert!(all.iter().flatten().all(|time| (delay..delay + spread).contains(time)));
        let lost = all.iter().filter(|time| time.is_none()).count();
        assert!((50..200).contains(&lost), "{lost} of 10,000 frames");
        let overtakes =
            |pair: &[Option<Duration>]| pair[1].zip(pair[0]).is_some_and(|(next, one)| next + SECOND / 1000 < one);
        assert!(all.windows(2).any(overtakes));
        let perfect = Cable::default();
        assert!(times(perfect, 3).iter().all(|time| *time == Some(Duration::ZERO)));
        assert!(times(Cable { loss: 1.0, ..perfect }, 3).iter().all(Option::is_none));
    }

    #[test]
    fn cuts_are_at_times_of_their_own_on_each_host_and_last_as_long() {
        let cuts = Some(Cuts { time: SECOND / 2, every: 2 * SECOND });
        let cable = Cable { seed: 3, cuts, ..Cable::default() };
        let cut = |way: u64| times(cable, way).iter().map(Option::is_none).collect::<Vec<_>>();
        assert_eq!(cut(0), cut(1), "both directions");
        assert_ne!(cut(0), cut(2));
        for turn in cut(2).chunks(2_000) {
            let within = turn.iter().filter(|is_cut| **is_cut).count();
            assert!((499..=501).contains(&within), "{within} of 2,000 ms");
            let (first, last) = (turn.iter().position(|is_cut| *is_cut), turn.iter().rposition(|is_cut| *is_cut));
            assert_eq!(last.zip(first).map(|(last, first)| last + 1 - first), Some(within), "one after the other");
        }
        // A cut without an end.
        let cuts = Some(Cuts { time: SECOND, every: SECOND });
        assert!(times(Cable { cuts, ..cable }, 0).iter().all(Option::is_none));
    }
}
