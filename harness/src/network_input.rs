//! Tests of what arrives from other hosts: greetings, letters and claims to a rank are refused, or
//! mean the same when they are written and read again. No length of theirs decides an allocation.

use crate::{cases::Source, compare::Verdict};
use consonance::raw::{Inbox, Letter};
use consonance_kernels::hosts::{Claim, Greeting, Heard, MOST};
use std::io::{self, Read};

/// The digest of the job that is greeted.
const DIGEST: u128 = 0x1112_1314_1516_1718;

/// Judges the bytes as greetings, as letters to a rank, or as claims, by the first byte.
pub fn hosts(bytes: &[u8]) -> Verdict {
    let mut source = Source::new(bytes);
    match source.below(3) {
        0 => greetings(&mut source),
        1 => letters(&mut source),
        _ => claims(&mut source),
    }
}

/// Judges how a claim is read in which the bytes replace others from an offset on.
fn claims(source: &mut Source<'_>) -> Verdict {
    let digest = DIGEST;
    let claim = Claim { digest, rank: 1, size: 3, pid: 77, host: "host".repeat(source.below(20)), port: 5000 };
    let mut bytes: [u8; Claim::BYTES] =
        claim.bytes().try_into().map_err(|bytes| format!("{claim:?} is written as {bytes:?}"))?;
    let offset = source.below(Claim::BYTES);
    bytes[offset..].iter_mut().zip(rest(source)).for_each(|(byte, with)| *byte = with);
    let Ok(read) = Claim::read(&bytes, digest) else { return Ok(()) };
    if read.rank >= read.size || read.size > MOST {
        return Err(format!("a claim to rank {} of {} was read", read.rank, read.size));
    }
    // A byte that is no text is read as a character of three, and a longer name is cut.
    let again: Result<[u8; Claim::BYTES], Vec<u8>> = read.bytes().try_into();
    let again = again.map(|bytes| Claim::read(&bytes, digest));
    match again {
        Ok(Ok(again)) if again == read || read.host.len() > Claim::NAME => Ok(()),
        again => Err(format!("{read:?} is read again as {again:?}")),
    }
}

/// Judges how a greeting is read, with two inputs: all bytes, and a greeting in which they replace
/// others from an offset on. Both arrive in pieces.
fn greetings(source: &mut Source<'_>) -> Verdict {
    let piece = 1 + source.below(64);
    let offset = 2 * source.below(256);
    let with = rest(source);
    let text = |kind: &str, count: usize| kind.repeat(count);
    let greeting = Greeting {
        digest: DIGEST,
        task: 1,
        tasks: 3,
        replicas: 2,
        pid: 77,
        place: 5,
        near: 6,
        generation: 4,
        host: text("host ", piece),
        wire: text("é", piece),
        address: vec![7; 110],
    };
    let mut written = Vec::new();
    greeting.write(&mut written).map_err(|error| format!("memory takes all: {error}"))?;
    let offset = offset.min(written.len());
    let end = written.len().min(offset + with.len());
    written.splice(offset..end, with.iter().copied());
    [with, written].into_iter().try_for_each(|bytes| heard(&bytes, piece))
}

fn heard(bytes: &[u8], piece: usize) -> Verdict {
    let whole = Greeting::read(bytes, DIGEST);
    let pieces = Greeting::read(Pieces { bytes, piece }, DIGEST);
    let of = |heard: &io::Result<Heard>| format!("{heard:?}");
    if of(&whole) != of(&pieces) {
        return Err(format!("{bytes:?} is heard as {whole:?}, in pieces of {piece} as {pieces:?}"));
    }
    let Ok(Heard::Greeting(greeting)) = whole else { return Ok(()) };
    let mut written = Vec::new();
    greeting.write(&mut written).map_err(|error| format!("memory takes all: {error}"))?;
    // A byte that is no text is read as a character of three.
    let texts = [greeting.host.len().div_ceil(3), greeting.wire.len().div_ceil(3), greeting.address.len()];
    if texts.iter().any(|&bytes| bytes > Greeting::MOST) {
        return Err(format!("a greeting of {texts:?} bytes was heard"));
    }
    // A text that is longer now is cut.
    let is_whole = [&greeting.host, &greeting.wire].iter().all(|text| text.len() <= Greeting::MOST);
    match Greeting::read(&written[..], DIGEST) {
        Ok(Heard::Greeting(again)) if again == greeting || !is_whole => Ok(()),
        again => Err(format!("{greeting:?} is heard again as {again:?}")),
    }
}

/// Bytes that arrive in pieces, as those of a connection.
struct Pieces<'b> {
    bytes: &'b [u8],
    piece: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.piece);
        self.bytes.read(&mut into[..count])
    }
}

/// The ranks of the group whose letters are judged.
const RANKS: usize = 3;

/// Judges how letters are read, and puts them into the inbox of a rank. Their numbers are often
/// those of other letters.
fn letters(source: &mut Source<'_>) -> Verdict {
    let inbox = Inbox::new(0, RANKS);
    while !source.has_ended() {
        let from = source.below(RANKS);
        let mut head = [0; Letter::HEAD];
        for word in head.chunks_exact_mut(8) {
            let number = match source.below(8) {
                7 => u64::from_le_bytes(std::array::from_fn(|_| source.byte())),
                6 => u64::MAX,
                _ => source.byte().into(),
            };
            word.copy_from_slice(&number.to_le_bytes());
        }
        let body: Vec<u8> = (0..source.below(40)).map(|_| source.byte()).collect();
        let Some(letter) = Letter::read(&head, body) else { continue };
        let (head, body) = (letter.head(), letter.body().into_owned());
        let Some(again) = Letter::read(&head, body.clone()) else {
            return Err(format!("{letter:?} is written as {head:?} and {body:?}, which is no letter"));
        };
        if (again.head(), &*again.body()) != (head, &body) {
            return Err(format!("{letter:?} is written as {head:?} and {body:?}, which is {again:?}"));
        }
        inbox.put(from, again);
    }
    Ok(())
}

fn rest(source: &mut Source<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !source.has_ended() {
        bytes.push(source.byte());
    }
    bytes
}
