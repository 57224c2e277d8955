//! Generations of links: which process plays each server.

use super::message;
use crate::{Result, nest::NestReader, value::nest::sent::malformed};

/// The time from one recovery to the next. The layout of variables knows servers by number; a
/// generation says which process plays each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Generation {
    pub(super) number: u64,
    /// For each server, the number of the process that plays it: that of its own task, or of
    /// another one in its place.
    pub(super) players: Vec<usize>,
}

impl Generation {
    /// Returns the first generation, in which each process plays its own server.
    pub(super) fn first(servers: usize) -> Generation {
        Generation { number: 0, players: (0..servers).collect() }
    }

    /// Returns the next generation, without the processes that are not present: those that are play
    /// their servers, too, one after the other. `None` if nobody is left.
    #[cfg(any(feature = "checkpoint", test))]
    pub(super) fn next(&self, is_present: &[bool]) -> Option<Generation> {
        let present: Vec<usize> = (0..is_present.len()).filter(|&server| is_present[server]).collect();
        let mut others = present.iter().copied().cycle();
        let player = |(server, &is_present): (usize, &bool)| if is_present { Some(server) } else { others.next() };
        let players = is_present.iter().enumerate().map(player).collect::<Option<_>>()?;
        Some(Generation { number: self.number + 1, players })
    }

    /// Returns the servers that a process plays.
    pub(super) fn played_by(&self, process: usize) -> impl Iterator<Item = usize> {
        self.players.iter().enumerate().filter(move |&(_, &player)| player == process).map(|(server, _)| server)
    }

    /// Returns the number of the first attempt to run a closure. The answer to an attempt of
    /// another generation is none to one of this.
    pub(super) fn first_attempt(&self) -> u64 {
        self.number << 40
    }

    /// Returns the word of the chief that it begins.
    pub(super) fn word(&self) -> Vec<u8> {
        let mut word = message::request(message::BEGIN);
        word.number(self.number);
        word.numbers(&self.players);
        word.into_bytes()
    }

    /// Reads what follows the kind of the word, in a cluster of so many servers.
    pub(super) fn read(from: &mut NestReader<'_>, servers: usize) -> Result<Generation> {
        let generation = Generation { number: from.number()?, players: from.numbers_below(servers)? };
        match generation.players.len() == servers {
            true => Ok(generation),
            false => Err(malformed("a generation has other servers")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_in_the_place_of_others_play_their_servers() {
        let first = Generation::first(5);
        assert_eq!(first.players, [0, 1, 2, 3, 4]);
        let second = first.next(&[false, true, false, true, false]).unwrap();
        assert_eq!((second.number, &second.players[..]), (1, &[1, 1, 3, 3, 1][..]));
        assert_eq!(second.played_by(1).collect::<Vec<_>>(), [0, 1, 4]);
        // Whoever comes back plays its own server.
        assert_eq!(second.next(&[true; 5]).unwrap().players, first.players);
        assert_eq!(second.next(&[false; 5]), None);
        let word = second.word();
        let mut from = NestReader::new(&word);
        assert_eq!(from.number().unwrap(), message::BEGIN);
        assert_eq!(Generation::read(&mut from, 5).unwrap(), second);
    }
}
