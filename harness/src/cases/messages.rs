//! Messages with tags, from any rank to any rank.

use super::{Case, Source, script::SIZES};
use consonance_kernels::digest::mix;
use consonance_spec::{DType, messages::Receive};

/// Counts at the edges: of nothing, of a line, of a cell of a ring, and of a message in parts.
const COUNTS: &[usize] = &[1, 0, 7, 8, 9, 63, 64, 511, 512, 513, 1000, 4097, 20_000];

/// The number of tags. Few, so that messages have equal ones.
const TAGS: usize = 3;

/// Messages between the ranks of a group. Each rank sends its messages in order on one thread, and
/// receives on another.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The number of ranks.
    pub size: usize,
    /// The messages. Those of one sender are sent in this order.
    pub messages: Vec<Letter>,
    /// Whether the receiver of the last message, which is another rank than its sender, expects
    /// another number of elements.
    pub last_is_unlike: bool,
    /// Whether the ranks also make a collective meanwhile.
    pub beside_a_call: bool,
    /// The seed of the order of receives, and of which receives take messages of any rank.
    pub seed: u64,
}

/// A message.
#[derive(Clone, Debug)]
pub struct Letter {
    /// The sender.
    pub from: usize,
    /// The receiver, which may be the sender.
    pub to: usize,
    /// The tag.
    pub tag: u64,
    /// The element type.
    pub dtype: DType,
    /// The number of elements.
    pub count: usize,
    /// The seed of the elements.
    pub seed: u64,
}

impl Case for Exchange {
    fn read(source: &mut Source<'_>) -> Exchange {
        let size = source.pick(SIZES);
        let (beside_a_call, seed) = (source.once_in(2), source.seed());
        let messages: Vec<Letter> = (0..1 + source.below(12))
            .map(|_| Letter {
                from: source.below(size),
                to: source.below(size),
                tag: source.below(TAGS) as u64,
                dtype: source.pick(DType::ALL),
                count: source.pick(COUNTS),
                seed: source.seed(),
            })
            .collect();
        let last_is_unlike = source.once_in(4);
        let mut case = Exchange { size, messages, last_is_unlike, beside_a_call, seed };
        // A receive from any rank must fit every message that it may get.
        for place in 0..case.messages.len() {
            let Letter { to, tag, .. } = case.messages[place];
            if case.takes_any(to, tag) {
                let like = |letter: &&Letter| letter.to == to && letter.tag == tag;
                let Letter { dtype, count, .. } = *case.messages.iter().find(like).expect("this one, if no other");
                (case.messages[place].dtype, case.messages[place].count) = (dtype, count);
            }
        }
        let can_be_unlike = |last: &Letter| last.from != last.to && !case.takes_any(last.to, last.tag);
        case.last_is_unlike &= case.messages.last().is_some_and(can_be_unlike);
        case
    }
}

impl Exchange {
    /// Returns the number of the message whose receiver expects another number of elements.
    pub fn unlike(&self) -> Option<usize> {
        self.messages.len().checked_sub(1).filter(|_| self.last_is_unlike)
    }

    /// Returns whether rank `to` receives messages with this tag from any rank.
    fn takes_any(&self, to: usize, tag: u64) -> bool {
        mix(self.seed, to as u64 * TAGS as u64 + tag).is_multiple_of(3)
    }

    /// Returns the receives of a rank in the order in which it makes them, and the numbers of the
    /// messages whose size and type they have.
    pub fn receives(&self, rank: usize) -> Vec<(Receive, usize)> {
        let mut numbers: Vec<usize> =
            (0..self.messages.len()).filter(|&number| self.messages[number].to == rank).collect();
        numbers.sort_by_key(|&number| mix(self.seed, 1000 + number as u64));
        // Receives that take messages of the same sender with the same tag take them in order.
        let key = |number: usize| (self.messages[number].from, self.messages[number].tag);
        let nth = |place: usize| {
            let earlier = numbers[..place].iter().filter(|&&number| key(number) == key(numbers[place])).count();
            let mut same = (0..self.messages.len())
                .filter(|&number| self.messages[number].to == rank && key(number) == key(numbers[place]));
            same.nth(earlier).expect("as many messages as receives")
        };
        let receive = |number: usize| {
            let (from, tag) = key(number);
            (Receive { from: (!self.takes_any(rank, tag)).then_some(from), tag }, number)
        };
        (0..numbers.len()).map(nth).map(receive).collect()
    }
}
