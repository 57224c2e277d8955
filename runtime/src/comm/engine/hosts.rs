//! The engines of replicas whose processes are on several hosts: letters over a network.

use super::{
    Engine,
    letters::{Carrier, Inbox, Letter},
};
use crate::{
    Error, Result,
    profile::{self, ClockRecord},
};
use consonance_kernels::{
    group::Reason,
    hosts::{HEAD, Head, Met, Neighbours, Network, News, places},
    os::{
        clock,
        clock_comparison::Comparison,
        launcher::{Blame, Culprit, tell_blame},
        process_state::ProcessState,
        thread_pool::cores_of,
    },
    wire::Wire,
};
use std::{
    cmp::Ordering,
    io,
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A process of the group.
pub(crate) struct Process {
    /// Its task, host and process id, in words.
    pub(crate) name: String,
    /// Its ranks.
    pub(crate) ranks: Range<usize>,
    /// Its index among the workers of a launch, if the processes are those.
    pub(crate) worker: Option<usize>,
}

/// The number of the group of all processes, with one rank each, by which they form again. The
/// groups of all ranks have numbers from 0.
const CONTROL: u64 = u64::MAX;

/// Connects processes that have met. This one shares memory with those `near`.
///
/// # Errors
/// The system's, and the wire's if it cannot reach a process.
pub(crate) fn connect(
    wire: Wire,
    met: Met,
    near: Option<Neighbours>,
    processes: Vec<Process>,
) -> io::Result<Arc<Hosts>> {
    let own = met.own;
    let (local, size) = (processes[own].ranks.clone(), processes.last().map_or(0, |last| last.ranks.end));
    let of_host = || met.greetings.iter().filter(|greeting| greeting.place == met.greetings[own].place);
    let pids: Vec<u32> = of_host().map(|greeting| greeting.pid).collect();
    let waits_awake = of_host().map(|greeting| greeting.replicas).sum::<usize>() <= cores_of(&pids);
    let inboxes: Vec<Arc<Inbox>> = local.map(|rank| Arc::new(Inbox::new(rank, size))).collect();
    let processes: Arc<[Process]> = processes.into();
    let ends: Ends = Arc::new((Mutex::new(vec![End::default(); processes.len()]), Condvar::new()));
    let places = places(&met.greetings);
    let clock = Clock { rank: processes[own].ranks.start, size, place: places[own], reference: places[0] };
    clock.tell_place();
    let arriving = Arriving { inboxes: inboxes.clone(), processes: processes.clone(), ends: ends.clone(), clock };
    let compares = profile::is_on().then_some(COMPARES);
    let network = Network::start(wire, met, near, compares, move |news| arriving.take(news))?;
    Ok(Arc::new(Hosts { own, inboxes, processes, ends, network, waits_awake }))
}

/// The letters that arrive for the ranks of this process.
struct Arriving {
    inboxes: Vec<Arc<Inbox>>,
    processes: Arc<[Process]>,
    ends: Ends,
    clock: Clock,
}

/// The clock of this process's host, for profiles.
struct Clock {
    /// The first rank of the process, and the number of ranks.
    rank: usize,
    size: usize,
    /// The host, and that of process 0, with whose clock this one is compared.
    place: u64,
    reference: u64,
}

/// The time between two comparisons of a clock. The offset of two clocks that drift apart by 50 µs
/// a second changes by half a millisecond in it.
const COMPARES: Duration = Duration::from_secs(10);

impl Clock {
    /// Records the host on which this process is.
    fn tell_place(&self) {
        let clock = ClockRecord { place: self.place, reference: self.place, offset: 0, error: 0 };
        profile::tell_clock(clock::now(), self.rank, self.size, clock);
    }

    /// Records a comparison.
    fn tell(&self, Comparison { at, offset, error }: Comparison) {
        let (place, reference) = (self.place, self.reference);
        let clock = ClockRecord { place, reference, offset: offset as i64, error: error as u64 };
        profile::tell_clock(Duration::from_nanos(at as u64), self.rank, self.size, clock);
    }
}

type Ends = Arc<(Mutex<Vec<End>>, Condvar)>;

/// The knowledge of a process and its end.
#[derive(Clone, Default)]
struct End {
    /// If it is gone, why, and whether it has ended for sure.
    gone: Option<(String, bool)>,
    /// Whether it had begun a group without this process.
    left_behind: bool,
}

/// The limit on the time after which a process that others take for lost is known to have ended, or
/// not to answer.
const CERTAIN: Duration = Duration::from_secs(7);

/// The time for which a rank that waits stays awake: several ways of a message through a network.
/// A sleep and a waking take as long.
const AWAKE: Duration = Duration::from_micros(100);

impl Arriving {
    fn take(&self, news: News) {
        match news {
            News::Arrived { process, head, body } => {
                // Numbers of another process are checked before they are used.
                let (letter, ranks) = head.split_at(Letter::HEAD);
                let (ranks, _) = ranks.as_chunks::<4>();
                let [from, place] = [ranks[0], ranks[1]].map(|rank| u32::from_le_bytes(rank) as usize);
                let letter = Letter::read(letter.try_into().expect("the head of a letter"), body);
                if self.processes[process].ranks.contains(&from)
                    && let (Some(letter), Some(inbox)) = (letter, self.inboxes.get(place))
                {
                    inbox.put(from, letter);
                }
            }
            News::Compared(compared) => self.clock.tell(compared),
            News::LeftBehind { process } => {
                self.ends.0.lock().unwrap_or_else(PoisonError::into_inner)[process].left_behind = true;
            }
            News::Gone { process, why, has_ended } => {
                self.ends.0.lock().unwrap_or_else(PoisonError::into_inner)[process].gone = Some((why, has_ended));
                self.ends.1.notify_all();
                for inbox in &self.inboxes {
                    self.processes[process].ranks.clone().for_each(|rank| inbox.put(rank, Letter::gone()));
                }
            }
        }
    }
}

/// Carries letters to the ranks of all processes.
pub(crate) struct Hosts {
    own: usize,
    inboxes: Vec<Arc<Inbox>>,
    processes: Arc<[Process]>,
    ends: Ends,
    network: Network,
    /// Whether a rank that waits may keep its core for a while: the host has one for each rank.
    waits_awake: bool,
}

/// The ranks after a letter's head: the sender, and the receiver's place in its process.
const _: () = assert!(Letter::HEAD + 8 <= HEAD);

impl Hosts {
    /// Returns the position of this process.
    pub(crate) fn own(&self) -> usize {
        self.own
    }

    /// Returns the processes.
    pub(crate) fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// Makes an engine for each rank of this process, in rank order, in the group of this number,
    /// of all ranks of these processes.
    pub(crate) fn engines(self: &Arc<Self>, number: u64, processes: &[usize]) -> Vec<Box<dyn Engine>> {
        let members: Vec<usize> = processes.iter().flat_map(|&one| self.processes[one].ranks.clone()).collect();
        let engine = |(rank, inbox): (usize, &Arc<Inbox>)| {
            inbox.clone().engine_in(rank, number, members.clone(), members.clone(), self.clone())
        };
        self.processes[self.own].ranks.clone().zip(&self.inboxes).filter_map(engine).collect()
    }

    /// Makes the engine of this process by which the processes form again. Those of the last
    /// generation are `formed`.
    pub(crate) fn control(self: &Arc<Self>, formed: &[usize]) -> Box<dyn Engine> {
        let first = |process: &Process| process.ranks.start;
        let members = self.processes.iter().map(first).collect();
        let formed = formed.iter().map(|&process| first(&self.processes[process])).collect();
        let own = first(&self.processes[self.own]);
        let engine = self.inboxes[0].clone().engine_in(own, CONTROL, members, formed, self.clone());
        engine.expect("each process has a first rank")
    }

    /// Returns the processes of the group by which the processes form again, in order.
    pub(crate) fn in_control(&self) -> Vec<usize> {
        self.inboxes[0].members(CONTROL).into_iter().map(|rank| self.process_of(rank)).collect()
    }

    /// Leaves these processes and all others, for a network with new ones. Calls of the groups here
    /// end.
    pub(crate) fn move_on(&self, from: &[usize]) {
        let others = self.processes.iter().enumerate().filter(|&(process, _)| process != self.own);
        let ranks: Vec<usize> = others.flat_map(|(_, process)| process.ranks.clone()).collect();
        for inbox in &self.inboxes {
            ranks.iter().for_each(|&rank| inbox.put(rank, Letter::gone()));
        }
        from.iter().filter(|&&process| process != self.own).for_each(|&process| self.network.leave_behind(process));
        self.network.leave();
    }

    /// Leaves all other processes, and waits until they have what this one has sent.
    pub(crate) fn end(&self) {
        self.network.end();
    }

    /// Returns whether a process answers. Waits for the answer for at most 300 ms.
    pub(crate) fn answers(&self, process: usize) -> bool {
        let is_gone = self.ends.0.lock().unwrap_or_else(PoisonError::into_inner)[process].gone.is_some();
        !is_gone && self.network.answers(process)
    }

    /// Returns whether a process is known to have ended, and had not left the group of this number.
    pub(crate) fn was_lost(&self, process: usize, group: u64) -> bool {
        let ends = self.ends.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_ended = matches!(ends[process].gone, Some((_, true)));
        drop(ends);
        has_ended && self.inboxes[0].reason_of(self.processes[process].ranks.start, group) == Reason::Death
    }

    /// Returns whether these processes have ended for sure. Waits until that is known of each.
    pub(crate) fn have_ended(&self, processes: &[usize]) -> bool {
        let ends = self.known_ends(processes);
        processes.iter().all(|&process| matches!(ends[process].gone, Some((_, true))))
    }

    /// Returns the ends of all processes, once those of these are known. Another process may have
    /// heard of an end first.
    fn known_ends(&self, processes: &[usize]) -> MutexGuard<'_, Vec<End>> {
        let ends = self.ends.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = |ends: &mut Vec<End>| processes.iter().any(|&process| ends[process].gone.is_none());
        self.ends.1.wait_timeout_while(ends, CERTAIN, is_open).unwrap_or_else(PoisonError::into_inner).0
    }

    fn process_of(&self, rank: usize) -> usize {
        self.processes.partition_point(|process| process.ranks.end <= rank)
    }
}

impl Carrier for Hosts {
    fn carry(&self, from: usize, to: usize, letter: Letter) {
        let process = self.process_of(to);
        let place = to - self.processes[process].ranks.start;
        if process == self.own {
            return self.inboxes[place].put(from, letter);
        }
        let mut head: Head = [0; HEAD];
        head[..Letter::HEAD].copy_from_slice(&letter.head());
        head[Letter::HEAD..][..4].copy_from_slice(&(from as u32).to_le_bytes());
        head[Letter::HEAD..][4..8].copy_from_slice(&(place as u32).to_le_bytes());
        self.network.send(process, &head, letter.into_body());
    }

    fn wait_awake(&self, is_done: &dyn Fn() -> bool) {
        if self.waits_awake {
            self.network.receive_until(Instant::now() + AWAKE, is_done);
        }
    }

    fn leave_behind(&self, rank: usize) {
        self.network.leave_behind(self.process_of(rank));
    }

    fn blame(&self, rank: usize, why: Blame) {
        let worker = self.processes.get(self.process_of(rank)).and_then(|process| process.worker);
        worker.into_iter().for_each(|worker| tell_blame(Culprit::Worker(worker), why));
    }

    fn describe(&self, rank: usize) -> Option<String> {
        let process = self.process_of(rank);
        // Another process may have sent any rank.
        let name = &self.processes.get(process)?.name;
        let ends = self.ends.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(match &ends[process].gone {
            Some((why, _)) => format!("{name}: {why}"),
            None => name.clone(),
        })
    }

    fn describe_silent(&self, ranks: &[usize]) -> Vec<Option<String>> {
        let mut processes: Vec<usize> = ranks.iter().map(|&rank| self.process_of(rank)).collect();
        processes.dedup();
        let states = self.network.states(&processes);
        let describe = |rank: &usize| {
            let (process, described) = (self.process_of(*rank), self.describe(*rank)?);
            if self.ends.0.lock().unwrap_or_else(PoisonError::into_inner)[process].gone.is_some() {
                return Some(described);
            }
            let place = processes.iter().position(|&other| other == process).expect("the process of a rank");
            Some(match states[place] {
                Some(ProcessState::Running) => described,
                Some(ProcessState::Stopped) => format!("{described}, is stopped"),
                Some(ProcessState::Gone) => format!("{described}, has ended"),
                // It is alone on its host, or that is silent.
                None => format!("{described}, is silent"),
            })
        };
        ranks.iter().map(describe).collect()
    }

    /// The rule of `consonance_spec::generations::may_go_on`.
    fn may_go_on(&self, earlier: &[usize], left: &[usize]) -> Result<()> {
        let mut processes: Vec<usize> = earlier.iter().map(|&rank| self.process_of(rank)).collect();
        processes.dedup();
        let is_here = |process: usize| left.iter().any(|&rank| self.process_of(rank) == process);
        let others: Vec<usize> = processes.iter().copied().filter(|&process| !is_here(process)).collect();
        let ends = self.known_ends(&others);
        let has_ended = |&process: &usize| matches!(ends[process].gone, Some((_, true)));
        if processes.iter().any(|process| has_ended(process) && ends[*process].left_behind) {
            let problem = "the other replicas took this one for lost, and one has ended since".to_owned();
            return Err(Error::WrongContext { call: "MultiWorkerMirroredStrategy::reform", problem });
        }
        processes.retain(|process| !has_ended(process));
        let may_run = processes;
        let (here, silent): (Vec<usize>, Vec<usize>) = may_run.iter().partition(|&&process| is_here(process));
        match here.len().cmp(&silent.len()) {
            Ordering::Greater => return Ok(()),
            // A process that replaces one of them does not count.
            Ordering::Equal if !here.is_empty() && may_run.first() == here.first() => return Ok(()),
            Ordering::Equal | Ordering::Less => {}
        }
        let names = silent.iter().map(|&process| self.processes[process].name.as_str()).collect::<Vec<_>>();
        let problem = match may_run.len() {
            0 => "all processes of the last generation have ended".to_owned(),
            all => format!(
                "cut off from {}, which may go on: of {all} processes that may run this side has {}",
                names.join(" and "),
                here.len()
            ),
        };
        Err(Error::Meeting {
            call: "MultiWorkerMirroredStrategy::reform",
            task: self.processes[self.own].name.clone(),
            problem,
            missing: silent,
        })
    }
}
