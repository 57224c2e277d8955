//! Letters, and the generations of groups that they are of.

use consonance_kernels::group::{Envelope, Reason};
use consonance_spec::DType;
use std::{borrow::Cow, fmt};

/// A generation of a group. A group keeps its number when ranks are lost. The ranks that are left
/// have generations of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Generation {
    /// The number of the group.
    pub(super) group: u64,
    /// The number of ranks that the group has lost.
    pub(super) lost: u64,
    /// A digest of the members that are left, by their ranks in the whole group; 0 without losses.
    pub(super) members: u64,
    /// The number of earlier generations of the same members.
    pub(super) number: u64,
}

impl Generation {
    /// Returns the first generation of the group of this number.
    pub(super) fn of_all(group: u64) -> Generation {
        Generation { group, lost: 0, members: 0, number: 0 }
    }

    /// Returns the first generation of `members`, which are left of this one's after this number of
    /// losses more. It depends on no order of losses.
    pub(super) fn without(self, lost: usize, members: &[usize]) -> Generation {
        let members = members.iter().fold(REMAINING, |digest, &rank| mix(digest, rank as u64));
        Generation { lost: self.lost + lost as u64, members, number: 0, ..self }
    }

    /// Returns the generation of a group that is split from this one: the number differs from that
    /// of any other group if the numbers of splits, or the first members, do.
    pub(super) fn split(self, splits: u64, first: usize) -> Generation {
        let Generation { group, lost, members, number } = self;
        Generation::of_all([SPLIT, group, lost, members, number, splits, first as u64].into_iter().fold(0, mix))
    }

    /// Returns the first generation of the same members.
    pub(super) fn first(self) -> Generation {
        Generation { number: 0, ..self }
    }

    /// Returns whether a rank in generation `now` of this group never comes to this generation.
    /// What a rank knows of losses only grows: of two sets of as many lost ranks it has seen one.
    pub(super) fn is_past(&self, now: &Generation) -> bool {
        let is_other = self.members != now.members || self.number < now.number;
        self.group == now.group && (self.lost < now.lost || self.lost == now.lost && is_other)
    }
}

/// A message between two ranks of a group: data, the end of the group, a loss. A
/// [`Carrier`](super::Carrier) brings it to the [inbox](super::Inbox) of the other rank, as it is,
/// or as a [head](Letter::head) and a [body](Letter::body) of bytes.
pub struct Letter(pub(super) Content);

/// The content of a letter.
pub(super) enum Content {
    /// Data of this generation.
    Message { of: Generation, bytes: Vec<u8> },
    /// A message with a tag.
    Tagged { of: Generation, message: Tagged },
    /// The answer to a message with a tag that does not fit its receive.
    Unlike { of: Generation, sent: Envelope, expected: Envelope },
    /// The generation was aborted, and so were all before it.
    End { of: Generation, end: End },
    /// The sender makes no more calls in the group of this generation.
    Leave { last: Last },
    /// The sender goes on from this generation without these ranks of the whole group:
    /// [`Reason::Leave`] or [`Reason::Death`] is why.
    Lost { last: Last, ranks: Vec<(usize, Reason)> },
    /// The sender makes no more calls in any group.
    Gone,
}

/// The last of what a rank does in a generation.
#[derive(Clone, Copy)]
pub(super) struct Last {
    pub(super) of: Generation,
    /// The number of groups that it has split from this generation, and so the only ones that it
    /// enters.
    pub(super) splits: u64,
}

/// The reason of an abort, the rank that it blames, and the turn in which it was made.
#[derive(Clone, Copy)]
pub(super) struct End {
    /// The rank in the group that was aborted.
    pub(super) rank: usize,
    /// The same rank in the whole group.
    pub(super) member: usize,
    pub(super) reason: Reason,
    pub(super) turn: Option<u64>,
}

impl End {
    /// Returns whether the rank makes no more calls: it has said so ([`Reason::Leave`]), or was
    /// lost ([`Reason::Death`]).
    pub(super) fn is_of_left(&self) -> bool {
        matches!(self.reason, Reason::Leave | Reason::Death)
    }
}

/// A message that no receive has taken.
pub(super) struct Tagged {
    pub(super) envelope: Envelope,
    pub(super) bytes: Vec<u8>,
}

/// Begins the digest of the members of a group of ranks that are left.
const REMAINING: u64 = u64::from_be_bytes(*b"left    ");

/// Begins the number of a group that is split from another one.
const SPLIT: u64 = u64::from_be_bytes(*b"split   ");

/// Returns the next step of a digest. Every bit of both numbers changes about half of its bits.
fn mix(digest: u64, next: u64) -> u64 {
    // The finish of SplitMix64.
    let mut mixed = digest.wrapping_mul(3).wrapping_add(next).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// The kind of [`Content::Leave`] in a head. Those of messages with tags follow. The kind of an end
/// counts from its reason's place among all.
const LEAVE: u64 = 1 + Reason::ALL.len() as u64;
const TAGGED: u64 = LEAVE + 1;
const UNLIKE: u64 = LEAVE + 2;
const LOST: u64 = LEAVE + 3;
const GONE: u64 = LEAVE + 4;

impl Letter {
    /// The size of a head in bytes.
    pub const HEAD: usize = 56;

    /// Says that a rank makes no more calls in any group: its process has ended.
    pub fn gone() -> Letter {
        Letter(Content::Gone)
    }

    /// Returns the head, which says how to read the [body](Letter::body): the kind, the four
    /// numbers of the generation, and two numbers more. These are the ranks and the turn of an end,
    /// the tag and the type of a message, or the number of splits. A turn counts from 1; 0 is none.
    pub fn head(&self) -> [u8; Letter::HEAD] {
        let (kind, of, numbers) = match &self.0 {
            Content::Message { of, .. } => (0, *of, [0, 0]),
            Content::End { of, end } => {
                let reason = Reason::ALL.iter().position(|reason| *reason == end.reason).expect("all are listed");
                let ranks = end.rank as u64 | (end.member as u64) << 32;
                (1 + reason as u64, *of, [ranks, end.turn.map_or(0, |turn| turn + 1)])
            }
            Content::Leave { last } => (LEAVE, last.of, [last.splits, 0]),
            Content::Tagged { of, message } => (TAGGED, *of, [message.envelope.tag, type_of(&message.envelope)]),
            Content::Unlike { of, sent, expected } => {
                (UNLIKE, *of, [sent.tag, type_of(sent) << 16 | type_of(expected)])
            }
            Content::Lost { last, .. } => (LOST, last.of, [last.splits, 0]),
            Content::Gone => (GONE, Generation::of_all(0), [0, 0]),
        };
        let Generation { group, lost, members, number } = of;
        let mut head = [0; Letter::HEAD];
        let numbers = [kind, group, lost, members, number, numbers[0], numbers[1]].map(u64::to_le_bytes);
        head.copy_from_slice(numbers.as_flattened());
        head
    }

    /// Returns the body, which may be of any number of bytes.
    pub fn body(&self) -> Cow<'_, [u8]> {
        match &self.0 {
            Content::Message { bytes, .. } => Cow::Borrowed(bytes),
            Content::Tagged { message, .. } => Cow::Borrowed(&message.bytes),
            Content::Unlike { sent, expected, .. } => numbers([sent.bytes, expected.bytes]).into(),
            Content::Lost { ranks, .. } => {
                numbers(ranks.iter().map(|&(rank, why)| rank << 1 | usize::from(why == Reason::Leave))).into()
            }
            Content::End { .. } | Content::Leave { .. } | Content::Gone => Cow::Borrowed(&[]),
        }
    }

    /// Returns the body, without a copy of data.
    pub fn into_body(self) -> Vec<u8> {
        match self.0 {
            Content::Message { bytes, .. } => bytes,
            Content::Tagged { message, .. } => message.bytes,
            _ => self.body().into_owned(),
        }
    }

    /// Reads a letter. `None` for bytes that are no letter's: another process may send anything.
    pub fn read(head: &[u8; Letter::HEAD], body: Vec<u8>) -> Option<Letter> {
        let (head, _) = head.as_chunks::<8>();
        let [kind, group, lost, members, number, first, second] = *head else { unreachable!("seven numbers") };
        let [kind, group, lost, members, number, first, second] =
            [kind, group, lost, members, number, first, second].map(u64::from_le_bytes);
        let of = Generation { group, lost, members, number };
        let (words, rest) = body.as_chunks::<8>();
        let last = Last { of, splits: first };
        let words = || words.iter().map(|word| u64::from_le_bytes(*word) as usize);
        let content = match kind {
            0 => Content::Message { of, bytes: body },
            1..LEAVE => {
                let reason = Reason::ALL[kind as usize - 1];
                let (rank, member) = ((first & u64::from(u32::MAX)) as usize, (first >> 32) as usize);
                Content::End { of, end: End { rank, member, reason, turn: second.checked_sub(1) } }
            }
            LEAVE => Content::Leave { last },
            TAGGED => {
                Content::Tagged { of, message: Tagged { envelope: envelope(first, second, body.len())?, bytes: body } }
            }
            UNLIKE => {
                let sizes: Vec<usize> = words().collect();
                let &[sent, expected] = &sizes[..] else { return None };
                let sent = envelope(first, second >> 16, sent)?;
                Content::Unlike { of, sent, expected: envelope(first, second, expected)? }
            }
            LOST if rest.is_empty() => {
                let why = |word| if word & 1 == 1 { Reason::Leave } else { Reason::Death };
                Content::Lost { last, ranks: words().map(|word| (word >> 1, why(word))).collect() }
            }
            GONE => Content::Gone,
            _ => return None,
        };
        Some(Letter(content))
    }
}

fn numbers(numbers: impl IntoIterator<Item = usize>) -> Vec<u8> {
    numbers.into_iter().flat_map(|number| (number as u64).to_le_bytes()).collect()
}

/// Returns the number of a message's type: the element type's place among all, and the label.
fn type_of(envelope: &Envelope) -> u64 {
    let dtype = DType::ALL.iter().position(|dtype| *dtype == envelope.dtype).expect("all are listed");
    (dtype as u64) << 8 | u64::from(envelope.label)
}

/// Reverses [`type_of`].
fn envelope(tag: u64, number: u64, bytes: usize) -> Option<Envelope> {
    let dtype = DType::ALL.get((number >> 8 & 0xff) as usize)?;
    Some(Envelope { dtype: *dtype, label: number as u8, bytes, tag })
}

impl fmt::Debug for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Letter").field("head", &self.head()).field("bytes", &self.body().len()).finish()
    }
}
