//! Lines from a process to the launcher that started it, in a pipe.

use crate::sync::fork::PerProcess;
#[cfg(target_os = "linux")]
use rustix::{
    fs::{Mode, OFlags, open},
    io::write,
};
use std::{
    env, fmt, mem,
    path::PathBuf,
    process,
    str::FromStr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The variable with a process's [`Post`] in a launch.
pub const VARIABLE: &str = "CONSONANCE_LAUNCHER";

/// The place of a worker in a launch, and the pipe to its launcher, as the text of [`VARIABLE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    /// The worker's index.
    pub worker: usize,
    /// The number of workers.
    pub workers: usize,
    /// The path of the pipe.
    pub pipe: PathBuf,
}

/// A line of the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The worker to which the process belongs.
    pub worker: usize,
    /// The process that tells it.
    pub process: u32,
    /// The news of the line.
    pub news: News,
}

/// The news of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It is about to form a group that need not have all workers of the launch.
    Here,
    /// It waits for all workers of the launch, to form a group with them.
    Waits,
    /// It has formed that group.
    Joined,
    /// It has not formed that group, and waits no more. It missed this worker at its deadline.
    GaveUp(Option<usize>),
    /// An error of a call names a process.
    Blames(Culprit, Blame),
}

/// The process that an error names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Culprit {
    /// The process of this id, on the host of the one that tells it.
    Process(u32),
    /// The process of the worker with this index, on any host.
    Worker(usize),
}

/// The blame of the process that an error names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// It failed, and the others with it.
    Failed,
    /// It has left, or was lost.
    Left,
    /// It did not come before a deadline.
    Missing,
    /// Its call differs from that of the others. The process may name itself.
    Differs,
}

/// The news so far: a program that goes on after an error may see the same one many times.
#[derive(Default)]
struct Told {
    /// Whether a group was told of.
    group: bool,
    /// Whether a group with all workers was told of.
    group_of_all: bool,
    /// The blame that was told last, and when.
    blame: Option<(Culprit, Blame, Instant)>,
}

/// The time after which the same blame is told again: the launcher forgets those of long ago.
const AGAIN: Duration = Duration::from_secs(1);

/// A fork has told nothing yet.
static TOLD: PerProcess<Mutex<Told>> = PerProcess::new(Mutex::default);

/// Tells the launcher, if there is one, that an error of this process names `culprit`. Never waits.
pub fn tell_blame(culprit: Culprit, blame: Blame) {
    let Some(post) = Post::own() else { return };
    let is_own = match culprit {
        Culprit::Process(id) => id == process::id(),
        Culprit::Worker(worker) => worker == post.worker,
    };
    if (!is_own || blame == Blame::Differs) && told().is_news(culprit, blame, Instant::now()) {
        post.tell(News::Blames(culprit, blame));
    }
}

impl Told {
    /// Notes that a group is about to form, and returns what is to be told of it.
    fn meets(&mut self, is_of_all: bool) -> Option<News> {
        let is_first = !mem::replace(&mut self.group, true);
        if is_of_all && !mem::replace(&mut self.group_of_all, true) {
            return Some(News::Waits);
        }
        is_first.then_some(News::Here)
    }

    /// Notes that a blame is told now, unless the same one was told just before.
    fn is_news(&mut self, culprit: Culprit, blame: Blame, now: Instant) -> bool {
        let is_told =
            |&(named, of, at): &(Culprit, Blame, Instant)| (named, of) == (culprit, blame) && now < at + AGAIN;
        let is_news = !self.blame.as_ref().is_some_and(is_told);
        if is_news {
            self.blame = Some((culprit, blame, now));
        }
        is_news
    }
}

/// The time in which a process forms the first of its groups. Dropping it tells the launcher how
/// that ended.
#[derive(Debug)]
pub struct Joining {
    post: Option<Post>,
    end: News,
}

impl Joining {
    /// Tells the launcher, if there is one, that this process is about to form a group of `tasks`
    /// processes as the one of `task`. `is_private` says that the processes have chosen each other,
    /// so that they may be others than the workers. Only the first group of a process, and its
    /// first one with all workers, are told of.
    pub fn begin(task: usize, tasks: usize, is_private: bool) -> Joining {
        let Some(post) = Post::own() else { return Joining { post: None, end: News::GaveUp(None) } };
        let is_of_all = !is_private && post.is_of(task, tasks);
        let news = told().meets(is_of_all);
        news.into_iter().for_each(|news| post.tell(news));
        Joining { post: Some(post).filter(|_| news == Some(News::Waits)), end: News::GaveUp(None) }
    }

    /// Notes that the group is formed.
    pub fn succeed(mut self) {
        self.end = News::Joined;
    }

    /// Notes that it is not, because this task did not come before the deadline.
    pub fn miss(mut self, task: usize) {
        self.end = News::GaveUp(Some(task));
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        if let Some(post) = &self.post {
            post.tell(self.end);
        }
    }
}

/// Returns whether the tasks of a group are the workers of the launch in which this process is. It
/// has this task, of so many.
pub fn has_workers(task: usize, tasks: usize) -> bool {
    Post::own().is_some_and(|post| post.is_of(task, tasks))
}

fn told() -> MutexGuard<'static, Told> {
    TOLD.get().lock().unwrap_or_else(PoisonError::into_inner)
}

impl Post {
    /// Returns the place of this process; `None` if no launcher has started it.
    fn own() -> Option<Post> {
        env::var(VARIABLE).ok()?.parse().ok()
    }

    fn is_of(&self, task: usize, tasks: usize) -> bool {
        (self.worker, self.workers) == (task, tasks)
    }

    #[cfg(target_os = "linux")]
    fn tell(&self, news: News) {
        // If the launcher is gone or its pipe is full, nobody needs the line.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if let Ok(pipe) = open(&self.pipe, flags, Mode::empty()) {
            let line = Line { worker: self.worker, process: process::id(), news };
            let _ = write(&pipe, format!("{line}\n").as_bytes());
        }
    }

    /// Elsewhere processes form no groups.
    #[cfg(not(target_os = "linux"))]
    fn tell(&self, _news: News) {}
}

impl fmt::Display for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.worker, self.workers, self.pipe.display())
    }
}

impl FromStr for Post {
    type Err = ();

    fn from_str(text: &str) -> Result<Post, ()> {
        let mut words = text.splitn(3, ' ');
        let [worker, workers] = [number(&mut words)?, number(&mut words)?];
        Ok(Post { worker, workers, pipe: words.next().ok_or(())?.into() })
    }
}

impl Blame {
    const ALL: [Blame; 4] = [Blame::Failed, Blame::Left, Blame::Missing, Blame::Differs];

    fn word(self) -> &'static str {
        match self {
            Blame::Failed => "failed",
            Blame::Left => "left",
            Blame::Missing => "missing",
            Blame::Differs => "differs",
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { worker, process, news } = self;
        write!(f, "{worker} {process} ")?;
        match news {
            News::Here => write!(f, "here"),
            News::Waits => write!(f, "waits"),
            News::Joined => write!(f, "joined"),
            News::GaveUp(None) => write!(f, "gave-up"),
            News::GaveUp(Some(missing)) => write!(f, "gave-up {missing}"),
            News::Blames(Culprit::Process(id), blame) => write!(f, "blames {id} {}", blame.word()),
            News::Blames(Culprit::Worker(worker), blame) => write!(f, "blames-worker {worker} {}", blame.word()),
        }
    }
}

impl FromStr for Line {
    type Err = ();

    fn from_str(line: &str) -> Result<Line, ()> {
        let mut words = line.split(' ');
        let (worker, process) = (number(&mut words)?, number(&mut words)?);
        let news = match words.next() {
            Some("here") => News::Here,
            Some("waits") => News::Waits,
            Some("joined") => News::Joined,
            Some("gave-up") => News::GaveUp(number(&mut words).ok()),
            Some(blames @ ("blames" | "blames-worker")) => {
                let culprit = match blames {
                    "blames" => Culprit::Process(number(&mut words)?),
                    _ => Culprit::Worker(number(&mut words)?),
                };
                let word = words.next();
                let blame = Blame::ALL.into_iter().find(|blame| Some(blame.word()) == word);
                News::Blames(culprit, blame.ok_or(())?)
            }
            _ => return Err(()),
        };
        Ok(Line { worker, process, news })
    }
}

fn number<'t, N: FromStr>(words: &mut impl Iterator<Item = &'t str>) -> Result<N, ()> {
    words.next().and_then(|word| word.parse().ok()).ok_or(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blame_is_reported_again_after_a_while_or_when_it_changes() {
        let mut told = Told::default();
        let begin = Instant::now();
        let mut tell = |id, blame, ms| told.is_news(Culprit::Process(id), blame, begin + Duration::from_millis(ms));
        assert!(tell(7, Blame::Differs, 0));
        assert!(!tell(7, Blame::Differs, 999));
        assert!(tell(7, Blame::Differs, 1000));
        assert!(!tell(7, Blame::Differs, 1999));
        assert!(tell(8, Blame::Differs, 1999));
        assert!(tell(8, Blame::Left, 1999));
    }

    #[test]
    fn the_first_group_and_the_first_with_all_workers_are_reported() {
        let mut told = Told::default();
        assert_eq!(
            [false, false, true, true, false].map(|is_of_all| told.meets(is_of_all)),
            [Some(News::Here), None, Some(News::Waits), None, None]
        );
        assert_eq!(
            [true, false].map(|is_of_all| Told::default().meets(is_of_all)),
            [Some(News::Waits), Some(News::Here)]
        );
    }

    /// A fork has only the thread that made it: a lock that another thread held is never released.
    #[test]
    fn a_fork_tells_while_another_thread_of_its_parent_holds_the_lock() {
        let mut held = told();
        held.group = true;
        // SAFETY: the child takes no lock but its own and those of the allocator, which `fork` has
        // put in order. The alarm ends it if it waits.
        let child = unsafe {
            match libc::fork() {
                0 => {
                    libc::alarm(20);
                    libc::_exit(if told().group { 1 } else { 17 })
                }
                child => child,
            }
        };
        assert!(child > 0, "{}", std::io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: waits for the child made above, and writes its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 17, "{status:#x}");
    }

    #[test]
    fn every_line_parses_back() {
        let culprits = [Culprit::Process(77), Culprit::Worker(2)];
        let blames = Blame::ALL.into_iter().flat_map(|blame| culprits.map(|culprit| News::Blames(culprit, blame)));
        let others = [News::Here, News::Waits, News::Joined, News::GaveUp(None), News::GaveUp(Some(3))];
        for news in blames.chain(others) {
            let line = Line { worker: 5, process: 4242, news };
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        for line in ["", "5", "5 4242", "5 4242 sings", "5 4242 blames 77", "5 4242 blames x left", "-1 4242 here"] {
            assert_eq!(line.parse::<Line>(), Err(()), "{line}");
        }
        let post = Post { worker: 1, workers: 3, pipe: "/proc/7/fd/8 (a name)".into() };
        assert_eq!(post.to_string().parse(), Ok(post));
        assert_eq!("1 3".parse::<Post>(), Err(()));
    }
}
