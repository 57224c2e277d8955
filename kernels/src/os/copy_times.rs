//! One short measurement of the ways to copy between cores, by which a process chooses its own. It
//! is made before the first large call (`group/measured.rs`).
//!
//! Two threads act as two ranks: one copies into a buffer, the other copies out of it, in turn. The
//! times decide the knobs of ways, of prefetches for writing, and whether ranks read each other's
//! memory by the system. Other knobs stay.

use super::{
    process_memory::Process,
    thread_pool::{Team, leave_only_core},
};
use crate::{
    cpu::copy::{copy_asking, copy_by},
    memory::{HostBuf, HostBufMut},
    tuning::{Tuning, Way, current, measure_with},
};
use memmap2::MmapMut;
use std::{
    process,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The time that a measurement takes at most, beyond the copy in progress.
pub(crate) const LIMIT: Duration = Duration::from_millis(20);

/// Copies in each way, of which the median counts.
const TURNS: usize = 5;

/// A way is chosen if it takes less than this part of the time of the way before: a machine that is
/// busy must not choose at random.
const GAIN: f64 = 0.85;

/// Never, for `read_bytes`.
const NEVER: usize = 1 << 40;

/// Measures, unless this process has done so, or has its knobs from a peer, from a file or from the
/// defaults.
pub fn measure_once() {
    // Without a second thread or memory nothing is measured: the values stay.
    measure_with(|| measure(LIMIT).map_or_else(|_| *current(), |times| choose(current(), &times)));
}

/// A size class of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Small,
    Medium,
    Large,
}

/// The way to copy bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// In this way.
    By(Way),
    /// 1 KiB at a time, while the next lines are prefetched for writing.
    Asking,
    /// By the system, out of the memory of a process.
    System,
}

/// Seconds of a copy.
#[derive(Clone, Copy, Debug)]
struct Time {
    class: Class,
    how: How,
    /// Into staging, out of it, and of a rank's own part.
    seconds: [f64; 3],
}

/// The indices in [`Time::seconds`].
const IN: usize = 0;
const OUT: usize = 1;
const OWN: usize = 2;

/// Returns the times of all ways in all size classes, or of those for which there was time.
fn measure(limit: Duration) -> std::io::Result<Vec<Time>> {
    let (begin, tuning) = (Instant::now(), current());
    let mut team = Team::new("measure", &[None, None])?;
    team.run(&|rank| {
        if rank > 0 {
            leave_only_core();
        }
    });
    let medium = (2 * tuning.medium_bytes).clamp(64 << 10, 256 << 10).min(tuning.far_bytes);
    let classes = [
        (Class::Small, (tuning.medium_bytes / 2).clamp(2 << 10, 16 << 10)),
        (Class::Medium, medium),
        (Class::Large, tuning.far_bytes.clamp(256 << 10, 1 << 20)),
    ];
    let ways = [How::By(Way::Vector), How::By(Way::Movsb), How::By(Way::Ahead), How::Asking, How::System];
    let mut times = Vec::new();
    for (class, bytes) in classes {
        // Pages that go back to the system at once: the library's own memory would be kept for a
        // while, and by a thread.
        let room = || MmapMut::map_anon(bytes).map(Mutex::new);
        let (source, stage, target, own) = (room()?, room()?, room()?, room()?);
        for how in ways {
            // Only the system's copies of medium parts are compared.
            if how == How::System && class != Class::Medium {
                continue;
            }
            let mut turns: [Vec<f64>; 3] = Default::default();
            for _ in 0..TURNS {
                if begin.elapsed() > limit {
                    return Ok(times);
                }
                let seconds = Mutex::new([f64::MAX; 3]);
                let timed = |which: usize, from: &Mutex<MmapMut>, to: &Mutex<MmapMut>| {
                    let (from, mut to) = (lock(from), lock(to));
                    let (from, to) = (HostBuf::from(&from[..]), HostBufMut::from(&mut to[..]));
                    let begin = Instant::now();
                    let is_done = copy(how, which == IN, from, to);
                    if is_done {
                        lock(&seconds)[which] = begin.elapsed().as_secs_f64();
                    }
                };
                team.run(&|rank| {
                    if rank == 0 {
                        timed(IN, &source, &stage);
                    }
                });
                team.run(&|rank| match rank {
                    0 => timed(OWN, &source, &own),
                    _ => timed(OUT, &stage, &target),
                });
                for (turns, seconds) in turns.iter_mut().zip(*lock(&seconds)) {
                    turns.push(seconds);
                }
            }
            let seconds = turns.map(|mut turns| {
                turns.sort_by(f64::total_cmp);
                turns[turns.len() / 2]
            });
            times.push(Time { class, how, seconds });
        }
    }
    Ok(times)
}

/// Copies all bytes. Returns whether it was possible.
fn copy(how: How, asks_target: bool, from: HostBuf<'_>, mut to: HostBufMut<'_>) -> bool {
    match how {
        How::By(way) => copy_by(way, from, &mut to),
        How::Asking => copy_asking(asks_target, from, &mut to),
        How::System => {
            let name = [7u8; 16];
            let this = Process { id: process::id(), mark: name.as_ptr().addr(), group: name };
            let bytes = from.bytes().min(to.bytes());
            // SAFETY: the target has these bytes, and is exclusive.
            return unsafe { this.read(from.as_ptr().addr(), to.as_mut_ptr(), bytes) }.is_ok();
        }
    }
    true
}

/// Returns the values that these times suggest. It is a pure function.
fn choose(tuning: &Tuning, times: &[Time]) -> Tuning {
    let mut chosen = *tuning;
    let seconds = |class: Class, how: How, which: usize| {
        times.iter().find(|time| time.class == class && time.how == how).map(|time| time.seconds[which])
    };
    // A way that was not measured is compared as the vector loop that it may stand for.
    let known = |class: Class, way: Way, which: usize| {
        seconds(class, How::By(way), which).or_else(|| seconds(class, How::By(Way::Vector), which))
    };
    let faster = |class: Class, way: &mut Way, which: usize| {
        let Some(mut best) = known(class, *way, which) else { return };
        best *= GAIN;
        for other in [Way::Vector, Way::Movsb, Way::Ahead] {
            if let Some(time) = seconds(class, How::By(other), which).filter(|&time| time < best) {
                (*way, best) = (other, time);
            }
        }
    };
    faster(Class::Small, &mut chosen.in_small, IN);
    faster(Class::Medium, &mut chosen.in_medium, IN);
    faster(Class::Large, &mut chosen.in_large, IN);
    faster(Class::Small, &mut chosen.out_small, OUT);
    faster(Class::Medium, &mut chosen.out_medium, OUT);
    faster(Class::Large, &mut chosen.out_large, OUT);
    faster(Class::Small, &mut chosen.own_small, OWN);
    faster(Class::Medium, &mut chosen.own_medium, OWN);
    faster(Class::Large, &mut chosen.own_large, OWN);
    // A prefetch pays if it does in both classes.
    let asks = |is_on: &mut bool, which: usize, small: Way, medium: Way| {
        let part = |class, way| Some(seconds(class, How::Asking, which)? / known(class, way, which)?);
        let Some((small, medium)) = part(Class::Small, small).zip(part(Class::Medium, medium)) else { return };
        match *is_on {
            true if small > 1.0 / GAIN && medium > 1.0 / GAIN => *is_on = false,
            false if small < GAIN && medium < GAIN => *is_on = true,
            _ => {}
        }
    };
    asks(&mut chosen.fetch_in, IN, chosen.in_small, chosen.in_medium);
    asks(&mut chosen.fetch_out, OUT, chosen.out_small, chosen.out_medium);
    // Of ranks that all read, each is busy with both copies of what is staged.
    let staged = known(Class::Medium, chosen.in_medium, IN).zip(known(Class::Medium, chosen.out_medium, OUT));
    if let Some((system, (one, other))) = seconds(Class::Medium, How::System, OUT).zip(staged)
        && system * GAIN > one + other
    {
        chosen.read_bytes = NEVER;
    }
    chosen
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The content of these locks is whole at any time.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Scope;

    /// The times of a machine on which a copy takes its part of a microsecond, whatever its
    /// direction.
    fn times(parts: &[(How, f64)]) -> Vec<Time> {
        let classes = [Class::Small, Class::Medium, Class::Large];
        let all = classes.into_iter().flat_map(|class| parts.iter().map(move |&(how, part)| (class, how, part)));
        all.map(|(class, how, part)| Time { class, how, seconds: [part * 1e-6; 3] }).collect()
    }

    const VECTOR: How = How::By(Way::Vector);
    const MOVSB: How = How::By(Way::Movsb);
    const AHEAD: How = How::By(Way::Ahead);

    fn ways(tuning: &Tuning) -> [Way; 9] {
        let Tuning { in_small, in_medium, in_large, out_small, out_medium, out_large, .. } = *tuning;
        let Tuning { own_small, own_medium, own_large, .. } = *tuning;
        [in_small, in_medium, in_large, out_small, out_medium, out_large, own_small, own_medium, own_large]
    }

    #[test]
    fn the_fastest_way_is_chosen() {
        let slow_movsb = times(&[(VECTOR, 1.0), (MOVSB, 10.0), (AHEAD, 1.5), (How::Asking, 1.0)]);
        assert_eq!(ways(&choose(&Tuning::DEFAULT, &slow_movsb)), [Way::Vector; 9]);
        let fast_movsb = times(&[(VECTOR, 1.0), (MOVSB, 0.5), (AHEAD, 1.5), (How::Asking, 1.0)]);
        let chosen = choose(&Tuning::DEFAULT, &fast_movsb);
        assert_eq!(ways(&chosen), [Way::Movsb; 9]);
        assert!(!chosen.fetch_in && !chosen.fetch_out);
        let ahead = times(&[(VECTOR, 1.0), (MOVSB, 1.0), (AHEAD, 0.5), (How::Asking, 0.4)]);
        let off = Tuning { fetch_in: false, fetch_out: false, ..Tuning::DEFAULT };
        let chosen = choose(&off, &ahead);
        assert_eq!(ways(&chosen), [Way::Ahead; 9]);
        assert!(chosen.fetch_in && chosen.fetch_out);
    }

    #[test]
    fn small_differences_and_missing_times_change_nothing() {
        let alike = times(&[(VECTOR, 1.0), (MOVSB, 0.9), (AHEAD, 1.0), (How::Asking, 1.0), (How::System, 1.9)]);
        assert_eq!(choose(&Tuning::DEFAULT, &alike), Tuning::DEFAULT);
        assert_eq!(choose(&Tuning::DEFAULT, &[]), Tuning::DEFAULT);
    }

    #[test]
    fn ranks_read_by_the_system_where_it_is_not_slower_than_two_copies() {
        let read_bytes = |system: f64| {
            let times = times(&[(VECTOR, 1.0), (MOVSB, 1.0), (How::System, system)]);
            choose(&Tuning::DEFAULT, &times).read_bytes
        };
        assert_eq!((read_bytes(2.2), read_bytes(4.0)), (Tuning::DEFAULT.read_bytes, NEVER));
    }

    #[test]
    fn a_measurement_gives_times_of_every_way_and_changes_no_knob_of_a_group() {
        let times = measure(Duration::from_secs(60)).unwrap();
        assert_eq!(times.len(), 13, "{times:?}");
        assert!(times.iter().all(|time| time.how == How::System || time.seconds.iter().all(|&at| at < 60.0)));
        let chosen = choose(&Tuning::DEFAULT, &times);
        for knob in Tuning::KNOBS {
            assert!(knob.allows(chosen.get(knob)), "{}", knob.name);
            assert!(knob.scope == Scope::Process || chosen.get(knob) == Tuning::DEFAULT.get(knob), "{}", knob.name);
        }
        assert_eq!(measure(Duration::ZERO).unwrap().len(), 0);
    }
}
