//! The table of knobs: each with its default, its limits and its reason.

use super::{
    pipelines::Pipeline,
    value::{Field, Value},
    way::Way,
};
use crate::digest::mix;
use std::ops::RangeInclusive;

/// The processes that must have the same value of a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All ranks of a group.
    Group,
    /// Nobody: each process has its own.
    Process,
}

/// A row of the table.
#[derive(Debug)]
pub struct Knob {
    /// The name in files and reports.
    pub name: &'static str,
    /// The processes that must have the same value.
    pub scope: Scope,
    /// The effect of the knob, and the reason for its default.
    pub about: &'static str,
    /// The bytes that are allowed. Ways have no such limits.
    pub limits: RangeInclusive<usize>,
    /// Bytes are a multiple of this.
    pub unit: usize,
    get: fn(&Tuning) -> Value,
    set: fn(&mut Tuning, Value),
}

macro_rules! knobs {
    ($($scope:ident {
        $($(#[doc = $about:literal])* $name:ident: $type:ty = $default:expr, $limits:expr, $unit:expr;)*
    })*) => {
        /// A value of every knob. The fields' documentation is also the text of reports.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct Tuning {
            $($($(#[doc = $about])* pub $name: $type,)*)*
        }

        impl Tuning {
            /// The values before anything is known of the machine, which are also those of
            /// `CONSONANCE_TUNING=off`.
            pub const DEFAULT: Tuning = Tuning { $($($name: $default,)*)* };

            /// The table, in the order of reports.
            pub const KNOBS: &[Knob] = &[$($(Knob {
                name: stringify!($name),
                scope: Scope::$scope,
                about: concat!($($about),*),
                limits: $limits,
                unit: $unit,
                get: |tuning| Field::value(tuning.$name),
                set: |tuning, value| {
                    if let Some(value) = Field::of(value) {
                        tuning.$name = value;
                    }
                },
            },)*)*];
        }
    };
}

/// The limits of a knob that is not a number of bytes.
const NONE: RangeInclusive<usize> = 0..=0;

/// No data that move in a call have more bytes.
const MOST: usize = 1 << 40;

/// Room for the payload of a descriptor (`shm/records.rs`): no payload may be larger.
const PAYLOAD: usize = 8 << 10;

/// The cells of a ring of messages, and the bytes of each (`shm/ring.rs`).
pub(crate) const RING_CELLS: usize = 16;
pub(crate) const RING_CELL_BYTES: usize = (8 << 10) - 64;

/// The least of both: a message whose sender does not wait fits in a ring.
pub(crate) const LEAST_CELLS: usize = 2;
pub(crate) const LEAST_CELL_BYTES: usize = 2 << 10;

// Tests of this crate reach the long paths with short data.
const STREAM_BYTES: usize = if cfg!(test) { 1 << 20 } else { 48 << 20 };
const LEAST_STREAM_BYTES: usize = if cfg!(test) { 64 } else { 4 << 10 };

knobs! {
    Group {
        /// Limit on the bytes that one rank reads in an inline exchange, over all ranks. Payloads
        /// that fit beside the descriptors are exempt. Above it the two-shot algorithm reads less.
        payloads_bytes: usize = 16 << 10, 0..=1 << 20, 1;
        /// Limit on an inline payload between processes, if not every rank reads all of them.
        some_payload_bytes: usize = 4 << 10, 0..=PAYLOAD, 1;
        /// The least of this limit where ranks outnumber the cores: each wait costs switches, and
        /// staged data need one more.
        crowded_payload_bytes: usize = PAYLOAD, 0..=PAYLOAD, 1;
        /// The limit between threads, which read larger data in place.
        threads_payload_bytes: usize = 80 + (2 << 10), 0..=PAYLOAD, 1;
        /// Ragged parts, for all ranks or for the root, are awaited if the largest has at most this
        /// many bytes.
        ragged_bytes: usize = 192, 0..=PAYLOAD, 1;
        /// Limit on the bytes of all ranks together up to which every rank of a reduction folds all
        /// staged data, not one block for all ranks: one wait instead of two, for more reads.
        one_shot_bytes: usize = 128 << 10, 0..=MOST, 1;
        /// The least of this limit where ranks outnumber the cores: each wait costs switches.
        crowded_one_shot_bytes: usize = 128 << 10, 0..=MOST, 1;
        /// The same limit for two ranks, if the result is for one rank, which is then the only one
        /// that folds, and has elements of the same size.
        root_one_shot_bytes: usize = 32 << 10, 0..=MOST, 1;
        /// Data in heaps of more bytes than this are read and written in place. Smaller data are
        /// staged, so that no rank waits at the end of the step.
        in_place_bytes: usize = 2 << 10, 0..=MOST, 1;
        /// Bytes of one rank that are staged at a time for others to copy: two larger windows would
        /// leave a core's own cache. Windows are up to a quarter larger if there is one less then.
        window_bytes: usize = 128 << 10, 1 << 10..=64 << 20, 128;
        /// The same, where every rank copies all the data.
        whole_window_bytes: usize = 64 << 10, 1 << 10..=64 << 20, 128;
        /// The least of both windows where ranks outnumber the cores: each window costs switches
        /// between the ranks of a core, which take longer than a read of the last-level cache.
        crowded_window_bytes: usize = 256 << 10, 1 << 10..=64 << 20, 128;
        /// The smallest window, where ranks work in turn: no read overlaps the copy of the first
        /// window, and no copy overlaps the read of the last one.
        least_window_bytes: usize = 8 << 10, 128..=1 << 20, 128;
        /// Bytes of each slot that successive windows use in turn, at most: a larger part has no
        /// further effect.
        moving_bytes: usize = 256 << 10, 0..=MOST, 128;
        /// Bytes of a message in one cell of a ring, at most: a message that fits is taken with its
        /// envelope, and a longer one is read while its next cell is written.
        mail_cell_bytes: usize = RING_CELL_BYTES, LEAST_CELL_BYTES..=RING_CELL_BYTES, 64;
        /// The cells of a ring that its writer uses in turn: fewer stay in the caches, more let it
        /// run further ahead of its reader.
        mail_cells: usize = RING_CELLS, LEAST_CELLS..=RING_CELLS, 1;
    }
    Process {
        /// From this many bytes on, ranks that each need another block of the others' data read it
        /// out of the other processes, if they can: one copy instead of two. Where each rank needs
        /// all the data, two copies through the caches take less time.
        read_bytes: usize = 256 << 10, 0..=MOST, 1;
        /// Bytes of the scratch buffer for data read out of all other processes before they are
        /// folded: it stays in a core's own cache.
        read_scratch_bytes: usize = 128 << 10, 4 << 10..=64 << 20, 128;
        /// The least bytes that are read at a time, for any number of peers: a system call costs as
        /// much as a copy of some KiB.
        read_least_bytes: usize = 16 << 10, 4 << 10..=64 << 20, 128;
        /// Limit on the payloads apart from their descriptor whose lines are prefetched before
        /// that is seen.
        awaited_bytes: usize = 512, 0..=PAYLOAD, 1;
        /// Limit on the bytes that are prefetched for writing beyond the end of a peer's data.
        fetched_bytes: usize = 16 << 10, 0..=1 << 20, 1;
        /// A core's own caches do not hold this many bytes that are copied one after the other,
        /// whatever the size of the parts: a quarter of 2 MiB, since data are copied twice.
        far_bytes: usize = 512 << 10, 4 << 10..=MOST, 1;
        /// Results are written past the caches when a reduction, or all ranks of a call together,
        /// read and write at least this many bytes: four thirds of a last-level cache of 36 MiB.
        stream_bytes: usize = STREAM_BYTES, 64 << 10..=MOST, 1;
        /// The fewest bytes of a target that are written past the caches at a time: each time
        /// begins and ends with parts of lines, and then waits for the stores.
        least_stream_bytes: usize = LEAST_STREAM_BYTES, 64..=MOST, 1;
        /// From this many bytes on, a reduction of data in a core's own caches prefetches.
        near_ahead_bytes: usize = 1 << 20, 0..=MOST, 1;
        /// From this many bytes on, a reduction of data in other cores' caches prefetches.
        far_ahead_bytes: usize = 64 << 10, 0..=MOST, 1;
        /// The way of staged data of fewer than `far_bytes`, until a group has measured.
        near: Pipeline = Pipeline::Vector, NONE, 1;
        /// The way of staged data of more bytes, until a group has measured.
        far: Pipeline = Pipeline::Ahead, NONE, 1;
        /// The way to copy a rank's own data, until a group has measured.
        own: Way = Way::Vector, NONE, 1;
    }
}

/// The knobs that files have and reports show: those that a user can understand. The others are
/// constants and derived sizes, which only tests vary.
const OFFERED: [&str; 11] = [
    "near",
    "far",
    "own",
    "window_bytes",
    "payloads_bytes",
    "some_payload_bytes",
    "threads_payload_bytes",
    "one_shot_bytes",
    "read_bytes",
    "far_bytes",
    "stream_bytes",
];

impl Tuning {
    /// Returns the knobs that files have and reports show, in the order of reports.
    pub fn offered() -> impl Iterator<Item = &'static Knob> + Clone {
        OFFERED.iter().filter_map(|name| Knob::named(name))
    }

    /// Returns these values with windows of this size where each rank has a block, and with the
    /// sizes that follow from it: windows of half of it where every rank reads all data, and slots
    /// for two.
    pub(crate) fn with_windows(self, bytes: usize) -> Tuning {
        let whole_window_bytes = (bytes / 2 / 128 * 128).max(1 << 10);
        Tuning { window_bytes: bytes, whole_window_bytes, moving_bytes: 2 * bytes, ..self }
    }

    /// Returns the value of a knob.
    pub fn get(&self, knob: &Knob) -> Value {
        (knob.get)(self)
    }

    /// Sets the value of a knob, and the sizes that follow from it.
    ///
    /// # Errors
    /// What is expected, if the knob does not allow this value.
    pub fn set(&mut self, knob: &Knob, value: Value) -> Result<(), String> {
        if !knob.allows(value) {
            return Err(knob.expected());
        }
        (knob.set)(self, value);
        if knob.name == "window_bytes" {
            *self = self.with_windows(self.window_bytes);
        }
        Ok(())
    }

    /// Returns the values that words say, as in the header of a segment.
    ///
    /// # Errors
    /// The first knob that does not allow its word, and the word.
    pub fn of_words(words: &[u64; Tuning::WORDS]) -> Result<Tuning, (&'static Knob, u64)> {
        let mut tuning = Tuning::DEFAULT;
        for (knob, &word) in Tuning::KNOBS.iter().zip(words) {
            let value = tuning.get(knob).with_word(word).ok_or((knob, word))?;
            tuning.set(knob, value).map_err(|_| (knob, word))?;
        }
        Ok(tuning)
    }

    /// Returns every knob as a word.
    pub(crate) fn words(&self) -> [u64; Tuning::WORDS] {
        let mut words = [0; Tuning::WORDS];
        for (word, knob) in words.iter_mut().zip(Tuning::KNOBS) {
            *word = self.get(knob).word();
        }
        words
    }

    /// The number of knobs.
    pub const WORDS: usize = Tuning::KNOBS.len();

    /// The digest of the names of all knobs, in their order.
    pub(crate) const DIGEST: u64 = {
        let (mut at, mut digest) = (0, 0);
        while at < Tuning::KNOBS.len() {
            let name = Tuning::KNOBS[at].name.as_bytes();
            let mut byte = 0;
            while byte < name.len() {
                digest = mix(digest, name[byte] as u64);
                byte += 1;
            }
            at += 1;
        }
        digest
    };

    /// Returns these values with the knobs of this scope from `other`.
    pub(crate) fn with(mut self, scope: Scope, other: &Tuning) -> Tuning {
        for knob in Tuning::KNOBS.iter().filter(|knob| knob.scope == scope) {
            (knob.set)(&mut self, other.get(knob));
        }
        self
    }

    /// Returns these values for a group whose ranks outnumber the cores.
    pub fn crowded(self) -> Tuning {
        let least = self.crowded_window_bytes;
        Tuning {
            some_payload_bytes: self.some_payload_bytes.max(self.crowded_payload_bytes),
            window_bytes: self.window_bytes.max(least),
            whole_window_bytes: self.whole_window_bytes.max(least),
            one_shot_bytes: self.one_shot_bytes.max(self.crowded_one_shot_bytes),
            ..self
        }
    }
}

impl Knob {
    /// Returns the knob with this name.
    pub fn named(name: &str) -> Option<&'static Knob> {
        Tuning::KNOBS.iter().find(|knob| knob.name == name)
    }

    /// Whether the knob may have this value.
    pub fn allows(&self, value: Value) -> bool {
        match ((self.get)(&Tuning::DEFAULT), value) {
            (Value::Bytes(_), Value::Bytes(bytes)) => self.limits.contains(&bytes) && bytes.is_multiple_of(self.unit),
            (Value::Way(_), Value::Way(_)) | (Value::Pipeline(_), Value::Pipeline(_)) => true,
            _ => false,
        }
    }

    /// Describes the values that the knob may have.
    pub fn expected(&self) -> String {
        match (self.get)(&Tuning::DEFAULT) {
            Value::Bytes(_) if self.unit > 1 => {
                format!("a multiple of {} from {} to {}", self.unit, self.limits.start(), self.limits.end())
            }
            Value::Bytes(_) => format!("a number of bytes from {} to {}", self.limits.start(), self.limits.end()),
            Value::Way(_) => format!("one of {}", Way::ALL.map(Way::name).join(", ")),
            Value::Pipeline(_) => format!("one of {}", Pipeline::ALL.map(Pipeline::name).join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_allowed_and_every_knob_has_a_reason() {
        for knob in Tuning::KNOBS {
            assert!(knob.allows(Tuning::DEFAULT.get(knob)), "{}", knob.name);
            assert!(knob.about.trim_end().ends_with('.'), "{}", knob.name);
            assert_eq!(Knob::named(knob.name).map(|found| found.about), Some(knob.about));
        }
    }

    #[test]
    fn words_of_a_header_are_checked() {
        let other = Tuning { window_bytes: 4 << 10, far_bytes: 9 << 10, ..Tuning::DEFAULT };
        let taken = Tuning::of_words(&other.words()).unwrap();
        assert_eq!(taken, other);
        let group = Tuning::DEFAULT.with(Scope::Group, &taken);
        assert_eq!(group, Tuning { window_bytes: 4 << 10, ..Tuning::DEFAULT });
        for (index, knob) in Tuning::KNOBS.iter().enumerate() {
            let mut words = other.words();
            words[index] = u64::MAX;
            assert_eq!(Tuning::of_words(&words).err().map(|(knob, _)| knob.name), Some(knob.name));
        }
        let mut words = other.words();
        words[1] = 8193;
        assert_eq!(Tuning::of_words(&words).err().map(|(knob, _)| knob.name), Some("some_payload_bytes"));
    }
}
