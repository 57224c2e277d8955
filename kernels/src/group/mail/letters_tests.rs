use super::{
    Letters, Unreadable,
    ring::{Envelope, Part, Writer},
};
use crate::{
    os::available,
    shm::{GroupId, Segment, Shape, records::Generation},
};
use consonance_spec::DType;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

/// A head, as long as that of a message between hosts.
const HEAD: usize = 96;

/// Makes the letters of some processes, each with its own mapping of the memory.
fn letters(count: usize) -> (Vec<Arc<Segment>>, Vec<Letters>) {
    let id = GroupId::random().unwrap();
    let segment = Segment::create(Shape::new(count, 2 << 10).unwrap(), id).unwrap();
    let open = |_| {
        let file = segment.file().try_clone_to_owned().unwrap();
        Arc::new(Segment::open(file, id, segment.shape()).unwrap())
    };
    let segments: Vec<Arc<Segment>> = (0..count).map(open).collect();
    let letters = segments.iter().enumerate().map(|(own, segment)| Letters::in_segment(segment, own).unwrap());
    let letters = letters.collect();
    (segments, letters)
}

fn nobody(process: usize) {
    panic!("{process} does not sleep");
}

/// Returns the body of letter `number`: some fill a cell with the head, or several rings.
fn body(number: usize) -> Vec<u8> {
    let cell = crate::shm::ring::CELL_BYTES;
    let bytes = [0, 1, cell - HEAD, cell - HEAD + 1, 2 * cell, 2 * cell + 1, 1_300_000][number % 7];
    vec![number as u8; bytes]
}

#[test]
fn letters_of_all_sizes_arrive_in_order() {
    let (_segments, letters) = letters(3);
    for number in 0..50 {
        letters[2].send(0, &[number as u8; HEAD], body(number), nobody).unwrap();
        letters[1].send(0, &[number as u8; HEAD], body(number + 1), nobody).unwrap();
    }
    assert!(letters[1].pending() > 0 && letters[2].pending() > 0, "the rings are full");
    for (from, shift) in [(1, 1), (2, 0)] {
        let mut number = 0;
        while number < 50 {
            letters[from].advance(0, |_, _| panic!("nobody has sent"), nobody).unwrap();
            let take = |head: Vec<u8>, taken: Vec<u8>| {
                assert_eq!(head, [number as u8; HEAD]);
                assert!(taken == body(number + shift), "letter {number} of {from}");
                number += 1;
                true
            };
            letters[0].advance(from, take, nobody).unwrap();
        }
        assert_eq!(letters[from].pending(), 0);
    }
}

#[test]
fn a_sleeping_process_is_woken_by_letters_and_by_room_for_its_own() {
    let (_segments, letters) = letters(2);
    let woken = AtomicUsize::new(0);
    let wake = |process| _ = woken.fetch_add(1 + process, Ordering::Relaxed);
    assert!(letters[1].may_sleep());
    letters[0].send(1, &[0; HEAD], body(6), wake).unwrap();
    assert_eq!(woken.swap(0, Ordering::Relaxed), 2);
    assert!(!letters[1].may_sleep(), "a letter has come");
    letters[1].awake();
    assert!(letters[0].may_sleep(), "there is no room");
    letters[1].advance(0, |_, _| panic!("it has not come as a whole"), wake).unwrap();
    assert!(woken.load(Ordering::Relaxed) > 0, "there is room");
    assert!(!letters[0].may_sleep());
}

#[test]
fn the_letters_to_an_ended_process_are_freed_and_it_gets_no_more() {
    let (_segments, letters) = letters(3);
    letters[0].send(1, &[0; HEAD], body(6), nobody).unwrap();
    assert_eq!(letters[0].pending(), 1);
    letters[0].part(1);
    assert_eq!(letters[0].pending(), 0);
    assert!(letters[0].send(1, &[0; HEAD], body(6), nobody).is_ok());
    assert_eq!(letters[0].pending(), 0);
    letters[0].send(2, &[0; HEAD], vec![8], nobody).unwrap();
    let mut taken = Vec::new();
    letters[2].advance(0, collect(&mut taken), nobody).unwrap();
    assert_eq!(taken, [[8]]);
}

#[test]
fn nonsense_of_a_process_is_reported_once_and_harms_no_other() {
    let envelope = |bytes, tag| Envelope { dtype: DType::U8, label: 0, bytes, tag };
    let heads = [(Part::Next, envelope(100, 96)), (Part::Withdrawn, envelope(100, 96))];
    let heads = heads.into_iter().chain(
        // A head without an end, one longer than its letter, and one longer than a cell.
        [envelope(100, u64::MAX), envelope(100, 101), envelope(1 << 30, 1 << 20)]
            .map(|envelope| (Part::First, envelope)),
    );
    for (part, envelope) in heads {
        let (segments, letters) = letters(3);
        letters[1].send(0, &[1; HEAD], vec![1], nobody).unwrap();
        let (_, cells) = segments[1].ring(segments[1].root(), 1, 0);
        let mut writer = Writer::new(Generation::default());
        // SAFETY: the ring is open, and the segment is mapped.
        let cells = unsafe { cells.as_ref() };
        writer.put(cells, Part::First, 0, envelope_of_a_letter(), &[1; HEAD + 1]);
        writer.put(cells, part, 0, envelope, &[0; 64]);
        let mut taken = Vec::new();
        assert!(matches!(letters[0].advance(1, collect(&mut taken), nobody), Err(Unreadable::Corrupt)));
        letters[0].advance(1, collect(&mut taken), nobody).unwrap();
        assert!(letters[0].may_sleep(), "it is not read again");
        letters[0].awake();
        letters[2].send(0, &[2; HEAD], vec![2], nobody).unwrap();
        letters[0].advance(2, collect(&mut taken), nobody).unwrap();
        assert_eq!(taken, [[1], [2]]);
    }
    // No memory at all, and more than is left, of which the system promises more than it has.
    let left = available::bytes().map(|left| left as usize + (64 << 20));
    for bytes in [Some(usize::MAX), left].into_iter().flatten() {
        let (segments, letters) = letters(2);
        letters[1].send(0, &[1; HEAD], vec![1], nobody).unwrap();
        let (_, cells) = segments[1].ring(segments[1].root(), 1, 0);
        // SAFETY: as above.
        Writer::new(Generation::default()).put(unsafe { cells.as_ref() }, Part::First, 0, envelope(bytes, 96), &[]);
        assert!(matches!(letters[0].advance(1, collect(&mut Vec::new()), nobody), Err(Unreadable::Memory)));
    }
}

#[test]
fn a_letter_refused_by_its_receiver_is_the_last_one() {
    let (_segments, letters) = letters(2);
    for number in 0..3 {
        letters[1].send(0, &[number; HEAD], Vec::new(), nobody).unwrap();
    }
    let mut taken = Vec::new();
    let take = |head: Vec<u8>, _| {
        taken.push(head[0]);
        head[0] < 1
    };
    assert!(matches!(letters[0].advance(1, take, nobody), Err(Unreadable::Corrupt)));
    letters[0].advance(1, |_, _| panic!("it is not read again"), nobody).unwrap();
    assert_eq!(taken, [0, 1]);
}

/// A reader that takes as fast as a writer writes does not keep that one from its other work.
#[test]
fn a_process_writes_at_most_a_ring_at_a_time() {
    let (_segments, letters) = letters(2);
    let [first, second] = &letters[..] else { unreachable!("two processes") };
    let cells = first.ring(0, 1).1.len() as u64;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                second.advance(0, |_, _| true, |_| {}).unwrap();
            }
        });
        let mut before = 0;
        let mut is_bounded = || {
            let written = first.written_for_test(1);
            let wrote = written - before;
            before = written;
            wrote <= cells
        };
        let mut all = true;
        for _ in 0..4 {
            first.send(1, &[0; HEAD], vec![7; 64 << 20], |_| {}).unwrap();
            all &= is_bounded();
            while first.pending() > 0 {
                first.advance(1, |_, _| true, |_| {}).unwrap();
                all &= is_bounded();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(all);
    });
}

#[test]
fn a_thread_waits_for_no_copies_of_another_one() {
    let (_segments, letters) = letters(2);
    letters[0].send(1, &[0; HEAD], body(6), nobody).unwrap();
    letters[1].send(0, &[1; HEAD], vec![1], nobody).unwrap();
    let busy = letters[0].lock_for_test(1);
    let mut taken = Vec::new();
    letters[0].advance(1, collect(&mut taken), nobody).unwrap();
    assert_eq!((taken, letters[0].pending()), (vec![vec![1]], 1));
    assert!(!letters[0].may_sleep(), "the other thread may leave something to do");
    drop(busy);
    assert!(letters[0].may_sleep());
}

fn collect(bodies: &mut Vec<Vec<u8>>) -> impl FnMut(Vec<u8>, Vec<u8>) -> bool {
    |_, body| {
        bodies.push(body);
        true
    }
}

fn envelope_of_a_letter() -> Envelope {
    Envelope { dtype: DType::U8, label: 0, bytes: HEAD + 1, tag: HEAD as u64 }
}
