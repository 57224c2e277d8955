//! The thread that corrupts the shared memory.

use super::{Key, key};
use crate::calls::Random;
use consonance_kernels::shm::Part;
use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

/// Limit on the bytes that are written at once.
const RUN_BYTES: usize = 4 << 10;

/// Writes false values. Has the parts of a segment by key and place.
pub(super) struct Liar {
    parts: BTreeMap<Key, Vec<Vec<Part>>>,
    keys: Vec<Key>,
    /// The size of a segment.
    bytes: u64,
    /// The segments of earlier groups.
    old: HashSet<u64>,
}

impl Liar {
    pub(super) fn new(parts: Vec<Part>, keys: Vec<Key>) -> Liar {
        let bytes = parts.last().expect("a segment has parts").bytes.end as u64;
        let mut all: BTreeMap<_, Vec<Vec<Part>>> = BTreeMap::new();
        for part in parts {
            let places = all.entry(key(&part)).or_default();
            places.resize_with(places.len().max(part.place + 1), Vec::new);
            places[part.place].push(part);
        }
        Liar { parts: all, keys, bytes, old: HashSet::new() }
    }

    /// Waits for the next group's segment and writes into it until `stop`, mostly to the parts with
    /// this key. Returns the number of writes by key.
    pub(super) fn lie(&mut self, seed: u64, key_of_most: usize, stop: &AtomicBool) -> Vec<u64> {
        let mut random = Random(seed ^ 0xabcd);
        let mut told = vec![0; self.keys.len()];
        let Some(segment) = self.next_segment(stop) else { return told };
        // The header is read before the group exists: other rounds write to it.
        let others: Vec<&Key> = self.keys.iter().filter(|(_, name)| !name.starts_with("Header")).collect();
        // In most rounds only these parts are written, in half of the rounds always with the same
        // value.
        let (is_mixed, held) = (random.below(4) == 0, (random.below(2) == 0).then(|| random.below(1 << 30) as u64));
        let (burst, pause) = (1 << random.below(7), [0, 0, 50, 1000][random.below(4)]);
        thread::sleep(Duration::from_micros([0, 0, 0, 5000][random.below(4)]));
        let most = &self.keys[key_of_most];
        // Nobody reads the identity of a GPU unless the state beside it says that there is one.
        let state = (most.1 == "CallLog.gpu.identity").then(|| (most.0, "CallLog.gpu.state".to_owned()));
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..burst {
                let key = match is_mixed && random.below(2) == 0 {
                    true => others[random.below(others.len())],
                    false => state.as_ref().filter(|_| random.below(2) == 0).unwrap_or(most),
                };
                let part = choose(&self.parts[key], &mut random);
                let value = lie(&segment, part, &mut held.map_or(Random(random.below(1 << 30) as u64), Random));
                // A random offset in the data, more often near the start, which is read most.
                let room = (part.bytes.len() - value.len()).min(1 << 20);
                let within = 1 << random.below(20);
                let at = random.below(within).min(room) / 8 * 8;
                segment.write_all_at(&value, (part.bytes.start + at) as u64).unwrap();
                told[self.keys.binary_search(key).unwrap()] += 1;
            }
            match pause {
                0 => thread::yield_now(),
                pause => thread::sleep(Duration::from_micros(pause)),
            }
        }
        told
    }

    /// Returns the segment of this process that is new since the last round.
    fn next_segment(&mut self, stop: &AtomicBool) -> Option<File> {
        while !stop.load(Ordering::Relaxed) {
            for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
                let path = entry.path();
                // The descriptor may be closed by now.
                let is_segment =
                    fs::read_link(&path).is_ok_and(|target| target.ends_with("memfd:consonance (deleted)"));
                let file = is_segment.then(|| OpenOptions::new().read(true).write(true).open(&path).ok()).flatten();
                let Some(file) = file else { continue };
                // A segment that is just being created has size 0.
                let status = file.metadata().unwrap();
                if status.len() == self.bytes && self.old.insert(status.ino()) {
                    return Some(file);
                }
            }
            thread::sleep(Duration::from_micros(100));
        }
        None
    }
}

/// Chooses one of these parts, more often at the places that are used first.
fn choose<'p>(places: &'p [Vec<Part>], random: &mut Random) -> &'p Part {
    let place = (0..places.len() - 1).find(|_| random.below(2) == 0).unwrap_or(0);
    &places[place][random.below(places[place].len())]
}

/// Returns the bytes to write over a part, or over some of its bytes.
fn lie(segment: &File, part: &Part, random: &mut Random) -> Vec<u8> {
    let bytes = part.bytes.len();
    if bytes != 4 && bytes != 8 {
        let bytes = (1 << random.below(13)).min(bytes).min(RUN_BYTES);
        return match random.below(4) {
            0 => vec![0xff; bytes],
            1 => vec![random.below(256) as u8; bytes],
            2 => (0..bytes).map(|at| if at % 8 == 7 { 0 } else { random.below(256) as u8 }).collect(),
            _ => (0..bytes).map(|_| random.below(256) as u8).collect(),
        };
    }
    let mut now = [0; 8];
    segment.read_exact_at(&mut now[..bytes], part.bytes.start as u64).unwrap();
    let now = u64::from_le_bytes(now);
    let wide = |random: &mut Random| (random.below(1 << 31) as u64) << 33 ^ random.below(1 << 31) as u64;
    let value = match random.below(12) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => 1 << random.below(64),
        4 => now ^ 1 << random.below(8 * bytes),
        5 => now.wrapping_add(1),
        6 => now.wrapping_sub(1),
        7 => now.wrapping_add(random.below(1 << 10) as u64),
        8 => random.below(1 << 10) as u64,
        // A size larger than any memory.
        9 => 1 << 60 | random.below(1 << 30) as u64,
        // An offset in a heap, as a call descriptor has it.
        10 => 1 << 62 | (random.below(1 << 24) as u64) << 12,
        _ => wide(random),
    };
    value.to_le_bytes()[..bytes].to_vec()
}
