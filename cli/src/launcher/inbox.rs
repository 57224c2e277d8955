//! The lines from the workers to their launcher: which worker an error names, and who waits for
//! whom.
//!
//! A worker that fails takes others with it, and these may end before it does: after a panic it
//! unwinds, and the others are told at once. So the order of their ends does not tell whose fault
//! it was. The library knows: each error names a process. A process tells the launcher so through a
//! pipe, before its program gets the error. Thus what an ended worker has told is there when its
//! end is seen. A process also tells when it begins to wait for the other workers, and when it has
//! joined them: only the launcher knows that one of them has ended before it could be found.

use consonance_kernels::os::launcher::{Blame, Culprit, Line, News, Post};
use rustix::fs::{OFlags, fcntl_setfl};
use std::{
    collections::HashMap,
    io::{self, PipeReader, PipeWriter, Read},
    os::fd::AsRawFd,
    path::PathBuf,
    process,
    time::{Duration, Instant},
};

/// The pipe, and what was read from it.
pub(super) struct Inbox {
    reader: PipeReader,
    /// Workers open it by its number.
    writer: PipeWriter,
    /// The path by which workers open it, if they are not processes of this machine.
    elsewhere: Option<PathBuf>,
    /// The host of each worker.
    hosts: Vec<usize>,
    /// The beginning of a line that has not been read to its end.
    rest: String,
    /// The worker to which a process of a host belongs: the worker's own, and those that it has
    /// started.
    workers: HashMap<(usize, u32), usize>,
    /// For a worker, the worker that its latest error names.
    named: HashMap<usize, Named>,
    /// The number of names that were read.
    names: usize,
    /// For a worker, how far it is in forming the group of all workers.
    meetings: HashMap<usize, Meeting>,
    /// Whether the group of all workers was formed, of which some may run.
    has_met: bool,
}

/// A worker that an error names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) worker: usize,
    pub(super) blame: Blame,
    /// The position of this name among all that were read.
    order: usize,
    /// The last time at which it was read.
    read: Instant,
}

/// The time that a name counts. A program may go on after an error, and fail of another one
/// later.
const LASTS: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Meeting {
    Waits,
    Joined,
}

impl Inbox {
    /// Makes the inbox of a launch whose workers are on these hosts.
    pub(super) fn new(hosts: Vec<usize>) -> io::Result<Inbox> {
        let (reader, writer) = io::pipe()?;
        fcntl_setfl(&reader, OFlags::NONBLOCK)?;
        Ok(Inbox {
            elsewhere: None,
            reader,
            writer,
            hosts,
            rest: String::new(),
            workers: HashMap::new(),
            named: HashMap::new(),
            names: 0,
            meetings: HashMap::new(),
            has_met: false,
        })
    }

    /// Returns the path of the pipe for processes of this machine.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", process::id(), self.writer.as_raw_fd()).into()
    }

    /// Tells that workers find the pipe by another path.
    pub(super) fn set_path(&mut self, path: &str) {
        self.elsewhere = Some(path.into());
    }

    /// Returns the place of a worker in the launch.
    pub(super) fn post(&self, worker: usize) -> Post {
        Post { worker, workers: self.hosts.len(), pipe: self.elsewhere.clone().unwrap_or_else(|| self.path()) }
    }

    /// Forgets what the process of a worker has told, before there is another one beside the
    /// workers that run. If none of those is in a group of all workers, the next one needs all
    /// again.
    pub(super) fn forget(&mut self, worker: usize, running: &[usize]) {
        self.read();
        self.has_met &= running.iter().any(|at| self.meetings.get(at) == Some(&Meeting::Joined));
        self.workers.retain(|_, of| *of != worker);
        self.named.retain(|&from, named| from != worker && named.worker != worker);
        self.meetings.remove(&worker);
    }

    /// Notes that a worker has this process now, by its id on the worker's host. It may have told
    /// something already.
    pub(super) fn begin(&mut self, worker: usize, pid: i32) {
        self.workers.insert((self.host(worker), pid.unsigned_abs()), worker);
    }

    /// Returns the host of a worker. Processes of two hosts may have the same id.
    pub(super) fn host(&self, worker: usize) -> usize {
        self.hosts[worker]
    }

    /// Returns the worker whose fault it is that this one failed, if an error said so: the one that
    /// it named, or whom that one named in turn. Of workers that name each other, the first that
    /// was named is at fault: the others' errors are its consequence.
    pub(super) fn culprit_of(&mut self, worker: usize) -> Option<Named> {
        self.read();
        let mut chain: Vec<Named> = Vec::new();
        let mut at = worker;
        while let Some(next) = self.name_of(at) {
            chain.push(next);
            // A circle begins after the name by which the chain came to this worker before.
            let before = chain[..chain.len() - 1].iter().position(|named| named.worker == next.worker);
            let circle = if next.worker == worker { Some(0) } else { before.map(|at| at + 1) };
            if let Some(from) = circle {
                return chain.split_off(from).into_iter().min_by_key(|named| named.order);
            }
            at = next.worker;
        }
        chain.pop()
    }

    /// Returns whether a worker waits for all others.
    pub(super) fn waits(&mut self, worker: usize) -> bool {
        self.read();
        self.meetings.get(&worker) == Some(&Meeting::Waits)
    }

    /// Returns whether a worker is, or was, in a group of all workers.
    pub(super) fn has_joined(&mut self, worker: usize) -> bool {
        self.read();
        self.meetings.get(&worker) == Some(&Meeting::Joined)
    }

    /// Returns whether the group of all workers was formed. A later one that its members form needs
    /// fewer workers.
    pub(super) fn has_met(&mut self) -> bool {
        self.read();
        self.has_met
    }

    /// Reads what workers have told.
    pub(super) fn read(&mut self) {
        let mut bytes = [0; 4096];
        // Ends when the pipe is empty.
        while let Ok(count @ 1..) = self.reader.read(&mut bytes) {
            self.rest.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        let end = self.rest.rfind('\n').map_or(0, |end| end + 1);
        let lines: String = self.rest.drain(..end).collect();
        let size = self.hosts.len();
        // A program may write anything here.
        let lines = lines.lines().filter_map(|line| line.parse().ok());
        lines.filter(|line: &Line| line.worker < size).for_each(|line| self.take(line));
    }

    fn take(&mut self, Line { worker, process, news }: Line) {
        let host = self.host(worker);
        self.workers.entry((host, process)).or_insert(worker);
        match news {
            News::Here => {}
            News::Waits => _ = self.meetings.insert(worker, Meeting::Waits),
            News::Joined => {
                self.meetings.insert(worker, Meeting::Joined);
                self.has_met = true;
            }
            News::GaveUp(missing) => {
                self.meetings.remove(&worker);
                let missing = missing.filter(|&missing| missing < self.hosts.len());
                missing.into_iter().for_each(|missing| self.name(worker, missing, Blame::Missing));
            }
            News::Blames(culprit, blame) => {
                let culprit = match culprit {
                    Culprit::Process(id) => self.workers.get(&(host, id)).copied(),
                    Culprit::Worker(worker) => Some(worker).filter(|&worker| worker < self.hosts.len()),
                };
                culprit.into_iter().for_each(|culprit| self.name(worker, culprit, blame));
            }
        }
    }

    fn name(&mut self, from: usize, worker: usize, blame: Blame) {
        self.names += 1;
        let same = self.name_of(from).filter(|named| (named.worker, named.blame) == (worker, blame));
        let order = same.map_or(self.names, |named| named.order);
        self.named.insert(from, Named { worker, blame, order, read: Instant::now() });
    }

    /// Returns the worker that the latest error of this one names, unless that was long ago.
    fn name_of(&self, from: usize) -> Option<Named> {
        self.named.get(&from).copied().filter(|named| named.read.elapsed() < LASTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Returns an inbox of workers with the processes 10, 11, 12, ….
    fn inbox() -> Inbox {
        let mut inbox = Inbox::new(vec![0; 6]).expect("a pipe");
        (0..6).for_each(|worker| inbox.begin(worker, 10 + worker as i32));
        inbox
    }

    fn culprits<const N: usize>(inbox: &mut Inbox, of: [usize; N]) -> [Option<(usize, Blame)>; N] {
        of.map(|worker| inbox.culprit_of(worker).map(|named| (named.worker, named.blame)))
    }

    #[test]
    fn the_first_of_a_chain_is_at_fault() {
        let mut inbox = inbox();
        assert_eq!(inbox.culprit_of(1), None);
        inbox.writer.write_all(b"1 11 blames 12 left\nnonsense\n2 12 blames ").expect("room");
        assert_eq!(culprits(&mut inbox, [1, 2]), [Some((2, Blame::Left)), None]);
        inbox.writer.write_all(b"13 failed\n1 11 blames 12 left 4\n").expect("room");
        assert_eq!(culprits(&mut inbox, [1, 2, 3]), [Some((3, Blame::Failed)), Some((3, Blame::Failed)), None]);
    }

    #[test]
    fn of_workers_naming_each_other_the_first_named_is_at_fault() {
        let mut inbox = inbox();
        inbox.writer.write_all(b"1 11 blames 12 missing\n2 12 blames 11 left\n3 13 blames 11 left\n").expect("room");
        assert_eq!(culprits(&mut inbox, [1, 2, 3]), [Some((2, Blame::Missing)); 3]);
        inbox.writer.write_all(b"4 14 blames 14 differs\n5 15 blames 14 differs\n").expect("room");
        assert_eq!(culprits(&mut inbox, [4, 5]), [Some((4, Blame::Differs)); 2]);
    }

    #[test]
    fn a_process_belongs_to_the_worker_of_its_line() {
        let mut inbox = inbox();
        inbox.writer.write_all(b"1 77 here\n2 12 blames 77 left\n").expect("room");
        assert_eq!(culprits(&mut inbox, [2]), [Some((1, Blame::Left))]);
    }

    #[test]
    fn lines_of_unknown_workers_are_dropped() {
        let mut inbox = inbox();
        inbox
            .writer
            .write_all(b"1 11 gave-up 6\n6 77 here\n2 12 blames 77 left\n6 78 waits\n6 79 joined\n")
            .expect("room");
        assert_eq!(culprits(&mut inbox, [1, 2]), [None; 2]);
        assert!(!inbox.has_met());
        inbox
            .writer
            .write_all(b"1 11 gave-up 5\n2 12 blames-worker 6 left\n3 13 blames-worker 4 left\n")
            .expect("room");
        assert_eq!(culprits(&mut inbox, [1, 2, 3]), [Some((5, Blame::Missing)), None, Some((4, Blame::Left))]);
    }

    #[test]
    fn a_replacement_answers_for_no_earlier_line() {
        let mut inbox = inbox();
        inbox.writer.write_all(b"1 11 waits\n1 11 joined\n2 12 blames 11 left\n1 11 blames 13 left\n").expect("room");
        inbox.forget(1, &[]);
        inbox.begin(1, 20);
        assert_eq!(culprits(&mut inbox, [1, 2]), [None; 2]);
        assert!(!inbox.has_joined(1));
        inbox.writer.write_all(b"2 12 blames 11 left\n").expect("room");
        assert_eq!(culprits(&mut inbox, [2]), [None]);
    }

    #[test]
    fn the_workers_have_met_while_one_of_them_runs() {
        let mut inbox = inbox();
        inbox.writer.write_all(b"0 10 joined\n1 11 joined\n2 12 joined\n").expect("room");
        // Worker 2 has ended.
        inbox.forget(1, &[0]);
        assert!(inbox.has_met());
        inbox.forget(0, &[1]);
        assert!(!inbox.has_met() && inbox.has_joined(2));
        inbox.writer.write_all(b"1 20 joined\n").expect("room");
        assert!(inbox.has_met());
    }

    #[test]
    fn an_old_name_is_dropped_unless_repeated() {
        let mut inbox = inbox();
        inbox.writer.write_all(b"1 11 blames 12 differs\n3 13 blames 14 left\n").expect("room");
        assert_eq!(culprits(&mut inbox, [1, 3]), [Some((2, Blame::Differs)), Some((4, Blame::Left))]);
        inbox.named.values_mut().for_each(|named| named.read -= LASTS);
        inbox.writer.write_all(b"3 13 blames 14 left\n").expect("room");
        assert_eq!(culprits(&mut inbox, [1, 3]), [None, Some((4, Blame::Left))]);
    }

    #[test]
    fn a_repeated_name_keeps_its_position() {
        let mut inbox = inbox();
        inbox.writer.write_all(b"1 11 blames 12 left\n2 12 blames 11 left\n1 11 blames 12 left\n").expect("room");
        assert_eq!(culprits(&mut inbox, [1, 2]), [Some((2, Blame::Left)); 2]);
        // Unless it was dropped.
        inbox.named.get_mut(&1).expect("a name").read -= LASTS;
        inbox.writer.write_all(b"1 11 blames 12 left\n").expect("room");
        assert_eq!(culprits(&mut inbox, [1, 2]), [Some((1, Blame::Left)); 2]);
    }

    #[test]
    fn a_worker_waits_until_it_has_joined_or_given_up() {
        let mut inbox = inbox();
        inbox.writer.write_all(b"0 10 waits\n1 11 waits\n2 12 here\n").expect("room");
        assert_eq!([0, 1, 2].map(|worker| inbox.waits(worker)), [true, true, false]);
        inbox.writer.write_all(b"0 10 gave-up 2\n1 11 joined\n").expect("room");
        assert_eq!(
            [0, 1].map(|worker| (inbox.waits(worker), inbox.has_joined(worker))),
            [(false, false), (false, true)]
        );
        assert_eq!(culprits(&mut inbox, [0]), [Some((2, Blame::Missing))]);
    }
}
