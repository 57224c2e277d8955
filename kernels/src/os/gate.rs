//! A barrier in a file that processes map: the ranks of a bench meet here before each call that is
//! measured, whatever library they use.
//!
//! The file has a `STRIDE` of bytes for the head, then one for each rank. All numbers are native
//! `u64`. The head holds the number of ranks, how many times a rank polls before it yields its
//! core, and the milliseconds after which it gives up. A rank's place holds its round, and 1 if the
//! rank has left. A program in C uses the same layout: `mpi.c` of the bench.
//!
//! To wait, a rank adds one to its own round and polls until no other round is smaller. So no rank
//! leads the others out, and each sees the last one arrive after one transfer of a cache line.

use crate::sync::plain::{AtomicU64, Ordering};
use memmap2::{MmapOptions, MmapRaw};
use std::{
    fs::File,
    hint::spin_loop,
    io::{self, Write},
    path::Path,
    thread::yield_now,
    time::{Duration, Instant},
};

/// Bytes from one rank's round to the next: a pair of cache lines, which processors fetch together.
const STRIDE: usize = 128;

/// The most ranks of a gate.
const MOST_RANKS: usize = 1 << 16;

/// Polls between two yields of the core, if there are more ranks than cores. The rank on another
/// core may arrive meanwhile.
const POLLS_SHARED: u64 = 16;

/// Polls between two yields if each rank has a core: some ten microseconds. A yield takes about
/// one, by which a rank could leave late. But if other programs run on the cores, a rank that never
/// yields keeps the last rank from coming for a whole time slice.
const POLLS: u64 = 1 << 10;

/// Polls between two looks at the clock.
const POLLS_A_LOOK: u64 = 1 << 12;

/// A rank's place in a barrier of processes or threads. Dropping it tells the other ranks that this
/// rank will not come again.
///
/// Every process that can write the file can let ranks through too early, or make them give up at
/// their deadline. If a process makes the file shorter, access to it ends the processes that use
/// it.
#[derive(Debug)]
pub struct Gate {
    map: MmapRaw,
    rank: usize,
    ranks: usize,
    round: u64,
    /// Polls between two yields.
    polls: u64,
    /// The longest time of a wait.
    patience: Duration,
}

impl Gate {
    /// Makes the file of a gate of `ranks` ranks on `cores` cores. A rank that waits longer than
    /// `patience` gives up.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::AlreadyExists`] if there is a file at `path`.
    pub fn create(path: &Path, ranks: usize, cores: usize, patience: Duration) -> io::Result<()> {
        let polls = if ranks > cores { POLLS_SHARED } else { POLLS };
        let mut bytes = vec![0; STRIDE * (1 + ranks)];
        let head = [ranks as u64, polls, patience.as_millis() as u64];
        for (place, number) in bytes.chunks_exact_mut(8).zip(head) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        File::create_new(path)?.write_all(&bytes)
    }

    /// Opens the gate as rank `rank`, which no other rank has opened.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::InvalidData`] if the file is no gate with this rank.
    pub fn open(path: &Path, rank: usize) -> io::Result<Gate> {
        let file = File::options().read(true).write(true).open(path)?;
        let map = MmapOptions::new().map_raw(&file)?;
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()));
        if map.len() < STRIDE {
            return Err(wrong(format!("expected at least {STRIDE} bytes, found {}", map.len())));
        }
        let head = [0, 1, 2].map(|index| number(&map, index).load(Ordering::Relaxed));
        let ranks = usize::try_from(head[0]).unwrap_or(usize::MAX).min(MOST_RANKS + 1);
        if !(1..=MOST_RANKS).contains(&ranks) || map.len() < STRIDE * (1 + ranks) {
            return Err(wrong(format!("{} bytes are no gate of {} ranks", map.len(), head[0])));
        }
        if rank >= ranks {
            return Err(wrong(format!("expected a rank below {ranks}, found {rank}")));
        }
        Ok(Gate { map, rank, ranks, round: 0, polls: head[1].max(1), patience: Duration::from_millis(head[2]) })
    }

    /// Waits until all ranks have come as often as this one.
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] if another rank left, [`io::ErrorKind::TimedOut`] if one does
    /// not come before the deadline. The error names the rank.
    pub fn wait(&mut self) -> io::Result<()> {
        self.round += 1;
        // Release: what a rank did before its arrival is seen by those who see the arrival.
        self.round_of(self.rank).store(self.round, Ordering::Release);
        let (mut polled, mut deadline) = (0, None);
        for rank in 0..self.ranks {
            let has_come = || self.round_of(rank).load(Ordering::Acquire) >= self.round;
            while !has_come() {
                // A rank may have come before it left.
                if self.has_left(rank).load(Ordering::Acquire) != 0 && !has_come() {
                    return Err(io::Error::new(io::ErrorKind::BrokenPipe, format!("rank {rank} has left the bench")));
                }
                polled += 1;
                if polled % POLLS_A_LOOK == 0 {
                    let now = Instant::now();
                    if now >= *deadline.get_or_insert(now + self.patience) {
                        return Err(self.late(rank));
                    }
                }
                if polled % self.polls == 0 {
                    yield_now();
                } else {
                    spin_loop();
                }
            }
        }
        Ok(())
    }

    fn late(&self, rank: usize) -> io::Error {
        let waited = self.patience.as_secs_f64();
        io::Error::new(io::ErrorKind::TimedOut, format!("rank {rank} did not come to a call within {waited} s"))
    }

    fn round_of(&self, rank: usize) -> &AtomicU64 {
        number(&self.map, (1 + rank) * STRIDE / 8)
    }

    fn has_left(&self, rank: usize) -> &AtomicU64 {
        number(&self.map, (1 + rank) * STRIDE / 8 + 1)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.has_left(self.rank).store(1, Ordering::Release);
    }
}

/// Returns the number at `index`.
///
/// # Panics
/// If the mapping has no such number.
fn number(map: &MmapRaw, index: usize) -> &AtomicU64 {
    assert!(index < map.len() / 8, "number {index} of {} bytes", map.len());
    // SAFETY: the number lies in the mapping, as asserted, which lives as long as the reference. A
    // mapping begins at a page, so the number is aligned. Every value is valid. This process, and
    // every process that follows the protocol, accesses the bytes only as atomics.
    unsafe { AtomicU64::from_ptr(map.as_mut_ptr().cast::<u64>().add(index)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{env, fs, path::PathBuf, process, sync::atomic::AtomicUsize, thread};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// The path of a gate. The drop removes the file.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Temporary {
            Temporary(env::temp_dir().join(format!("consonance-gate-{}-{name}", process::id())))
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn nobody_leaves_before_all_have_come() {
        for (ranks, cores) in [(1, 1), (2, 2), (2, 1), (5, 1)] {
            let file = Temporary::new(&format!("all-{ranks}-{cores}"));
            Gate::create(&file.0, ranks, cores, PATIENCE).unwrap();
            let came = AtomicUsize::new(0);
            thread::scope(|scope| {
                for rank in 0..ranks {
                    let mut gate = Gate::open(&file.0, rank).unwrap();
                    let came = &came;
                    scope.spawn(move || {
                        for round in 1..=1000 {
                            came.fetch_add(1, Ordering::Relaxed);
                            gate.wait().unwrap();
                            // None comes again before this rank has waited again.
                            assert_eq!(came.load(Ordering::Relaxed), round * ranks);
                            gate.wait().unwrap();
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn an_absent_rank_is_named_at_the_deadline() {
        let file = Temporary::new("late");
        for cores in [1, 3] {
            Gate::create(&file.0, 3, cores, Duration::from_millis(20)).unwrap();
            let mut gates: Vec<Gate> = (0..3).map(|rank| Gate::open(&file.0, rank).unwrap()).collect();
            gates[1].round_of(0).store(1, Ordering::Relaxed);
            let error = gates[1].wait().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(error.to_string(), "rank 2 did not come to a call within 0.02 s");
            fs::remove_file(&file.0).unwrap();
        }
    }

    #[test]
    fn a_departed_rank_is_not_waited_for() {
        let file = Temporary::new("left");
        Gate::create(&file.0, 2, 2, PATIENCE).unwrap();
        let mut gate = Gate::open(&file.0, 0).unwrap();
        drop(Gate::open(&file.0, 1).unwrap());
        let error = gate.wait().unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (io::ErrorKind::BrokenPipe, "rank 1 has left the bench")
        );
    }

    #[test]
    fn a_file_without_a_gate_is_refused() {
        let file = Temporary::new("wrong");
        assert_eq!(Gate::open(&file.0, 0).unwrap_err().kind(), io::ErrorKind::NotFound);
        for ranks in [0, 3, u64::MAX] {
            let mut bytes = vec![0; STRIDE * 3];
            bytes[..8].copy_from_slice(&ranks.to_ne_bytes());
            fs::write(&file.0, bytes).unwrap();
            assert_eq!(Gate::open(&file.0, 0).unwrap_err().kind(), io::ErrorKind::InvalidData, "{ranks}");
        }
        fs::write(&file.0, [1; STRIDE - 1]).unwrap();
        assert_eq!(Gate::open(&file.0, 0).unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::remove_file(&file.0).unwrap();
        Gate::create(&file.0, 2, 2, PATIENCE).unwrap();
        assert_eq!(Gate::open(&file.0, 2).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(Gate::create(&file.0, 2, 2, PATIENCE).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
