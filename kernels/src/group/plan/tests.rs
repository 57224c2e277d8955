use super::*;

const T: Tuning = Tuning::DEFAULT;

#[test]
fn the_way_changes_with_the_size() {
    let topology = Topology { ranks: 2, slot_bytes: Some(256 << 10), reads: false, tuning: &Tuning::DEFAULT };
    let sum = |targets| StepKind::Divided { targets, input_size: 4, output_size: 4 };
    let windows = |count, blocks| Windows { count, blocks, stride: (256 << 10) / blocks };
    let parts = |count, blocks| Windows { count, blocks, stride: T.window_bytes / blocks };
    let all = sum(Targets::All);
    assert_eq!(topology.protocol_in(&T, all, T.one_shot_bytes / 2, false), Protocol::Staged(windows(1, 1)));
    assert_eq!(topology.protocol_in(&T, all, T.one_shot_bytes / 2 + 4, false), Protocol::TwoShot(parts(1, 1)));
    let root = sum(Targets::Root(0));
    assert_eq!(topology.protocol_in(&T, root, T.root_one_shot_bytes / 2, false), Protocol::Staged(windows(1, 1)));
    assert_eq!(topology.protocol_in(&T, root, T.root_one_shot_bytes / 2 + 4, false), Protocol::TwoShot(parts(1, 1)));
    let three = Topology { ranks: 3, ..topology };
    assert_eq!(three.protocol_in(&T, all, T.one_shot_bytes / 3, false), Protocol::Staged(windows(1, 1)));
    assert_eq!(three.protocol_in(&T, all, T.one_shot_bytes / 3 + 4, false), Protocol::TwoShot(parts(1, 1)));
    assert_eq!(topology.protocol_in(&T, all, 1 << 20, false), Protocol::TwoShot(parts(8, 1)));
    assert_eq!(topology.protocol_in(&T, all, T.in_place_bytes + 4, true), Protocol::InPlace);
    assert_eq!(topology.protocol_in(&T, sum(Targets::Own), 1 << 20, false), Protocol::Staged(parts(8, 2)));
    // Blocks of different sizes are not staged side by side.
    let evenly = Windows { count: 8, blocks: 1, stride: T.window_bytes + BORDER_BYTES };
    assert_eq!(topology.protocol_in(&T, sum(Targets::Own), (1 << 20) + 4, true), Protocol::Staged(evenly));
    let wholes = |count| Windows { count, blocks: 1, stride: T.whole_window_bytes };
    assert_eq!(
        topology.protocol_in(&T, StepKind::Published(Chunking::WHOLE), 1 << 20, false),
        Protocol::Staged(wholes(16))
    );
    let to_one = |bytes| topology.protocol_in(&T, StepKind::Published(Chunking::one_way(bytes, 1)), bytes, false);
    assert_eq!(to_one(64 << 10), Protocol::Staged(Windows { count: 2, blocks: 1, stride: 32 << 10 }));
    assert_eq!(to_one(1 << 20), Protocol::Staged(parts(8, 1)));
    let half = T.payloads_bytes / 2;
    let rides = |ranks, bytes| Topology { ranks, ..topology }.rides_to_all(bytes);
    assert!(rides(2, half) && !rides(2, half + 1) && !rides(1, PAYLOAD_BYTES + 1));
    assert!(rides(1000, FIRST_BYTES) && !rides(1000, PAYLOAD_BYTES));
    let reading = Topology { reads: true, ..topology };
    let [even, odd] = [T.read_bytes, T.read_bytes + 4];
    assert_eq!(
        reading.protocol_in(&T, StepKind::Published(Chunking::blocks(2, even)), even, false),
        Protocol::ProcessRead
    );
    assert_eq!(reading.protocol_in(&T, StepKind::Published(Chunking::WHOLE), even, false), Protocol::Staged(wholes(4)));
    assert_eq!(reading.protocol_in(&T, sum(Targets::Own), even, false), Protocol::ProcessRead);
    assert_eq!(
        reading.protocol_in(&T, sum(Targets::Own), odd, false),
        topology.protocol_in(&T, sum(Targets::Own), odd, false)
    );
    assert_eq!(reading.protocol_in(&T, all, 1 << 20, false), Protocol::TwoShot(parts(8, 1)));
    assert_eq!(reading.protocol_in(&T, sum(Targets::Own), even, true), Protocol::InPlace);
    let threads = Topology { slot_bytes: None, ..topology };
    assert_eq!(threads.protocol_in(&T, all, 4096, false), Protocol::InPlace);
    for (topology, most) in [(topology, T.some_payload_bytes), (threads, T.threads_payload_bytes)] {
        assert_eq!(topology.moving(most, Chunking::WHOLE), StepKind::Exchange);
        assert_eq!(topology.moving(most + 1, Chunking::WHOLE), StepKind::Published(Chunking::WHOLE));
        assert_eq!(topology.gathering(half), StepKind::Exchange);
        assert_eq!(topology.gathering(half + 1), StepKind::Published(Chunking::whole(half + 1)));
        // With counts twice as much data, as long as these fit, too.
        let words = |bytes: usize| (PAYLOAD_BYTES - bytes) / size_of::<u64>();
        assert!(topology.rides_before(4, 2 * most) && !topology.rides_before(4, 2 * most + 1));
        assert!(topology.rides_before(words(most), most) && !topology.rides_before(words(most) + 1, most));
    }
}

/// Random calls have few elements: small slots let them pass through staging in several windows.
#[test]
fn few_bytes_take_several_windows_of_small_slots() {
    let topology = Topology { ranks: 2, slot_bytes: Some(512), reads: true, tuning: &T };
    let sum = StepKind::Divided { targets: Targets::All, input_size: 4, output_size: 4 };
    assert_eq!(
        topology.protocol_in(&T, sum, 1100, false),
        Protocol::TwoShot(Windows { count: 3, blocks: 1, stride: 512 })
    );
    assert!(topology.rides_to_all(128) && !topology.rides_to_all(129));
    let windows = Windows { count: 3, blocks: 1, stride: 512 };
    assert_eq!(topology.protocol_in(&T, topology.gathering(1100), 1100, false), Protocol::Staged(windows));
    let one_way = topology.moving(1100, Chunking::one_way(1100, 1));
    assert_eq!(topology.protocol_in(&T, one_way, 1100, false), Protocol::Staged(windows));
    let reads = Tuning { far: Pipeline::Read, ..T };
    assert_eq!(topology.protocol_in(&reads, one_way, 1100, false), Protocol::ProcessRead);
    assert_eq!(topology.protocol_in(&reads, topology.gathering(1100), 1100, false), Protocol::Staged(windows));
    let blocks = StepKind::Published(Chunking::blocks(2, 1100));
    assert_eq!(topology.protocol_in(&T, blocks, 1100, false), Protocol::ProcessRead);
    assert_eq!(topology.windows(blocks, 1100), Windows { count: 3, blocks: 2, stride: 256 });
    // The payloads of usual slots have their usual limits.
    let usual = Topology { slot_bytes: Some(64 << 10), ..topology };
    assert!(usual.rides_to_all(T.payloads_bytes / 2));
}

/// The first window is staged before the sizes are known, and the others are of one size. All ranks
/// count the same blocks, whatever they know.
#[test]
fn later_windows_are_of_one_size() {
    const SMALL: Tuning = Tuning { window_bytes: 1 << 10, ..Tuning::DEFAULT };
    let groups = [(2, 256 << 10), (3, 256 << 10), (7, 64 << 10), (3, 1 << 10), (9, 1 << 10), (300, 64 << 10)];
    for (ranks, slot_bytes, tuning) in
        groups.into_iter().flat_map(|(ranks, bytes)| [(ranks, bytes, &T), (ranks, bytes, &SMALL)])
    {
        let topology = Topology { ranks, slot_bytes: Some(slot_bytes), reads: false, tuning };
        let step = |bytes| StepKind::Published(Chunking::blocks(ranks, bytes));
        let Windows { blocks, stride: first, .. } = topology.windows(step(usize::MAX), 1);
        let room = topology.room(blocks);
        assert!(first <= room && blocks * room <= slot_bytes, "{first} and {room} bytes of {blocks} in {slot_bytes}");
        assert_eq!(topology.later_windows(step(ranks * first), first, first), (1, first));
        assert_eq!(topology.later_windows(step(ranks * 10 * first), first, 0), (1, first), "nothing is staged");
        for block in (1..60).map(|part| part * first / 7 + part).chain([first, first + 1, 9 * first, 1 << 20]) {
            assert_eq!(topology.windows(step(ranks * block), block).blocks, blocks);
            let (count, later) = topology.later_windows(step(ranks * block), first, block);
            assert!(later <= room, "{later} of {room} bytes");
            let covered = first + (count - 1) * later;
            assert!(covered >= block && (count == 1 || covered - later < block), "{count} windows of {block} bytes");
            let is_even = blocks > 1 && room < slot_bytes / blocks / 2;
            let unit = BORDER_BYTES * ranks;
            assert!(!is_even || count == 1 || covered - block < count * unit, "the last window of {block} is small");
        }
    }
}

/// A machine on which the system copies slower than two ranks had no way to say so.
#[test]
fn nothing_is_read_where_the_measurement_says_so() {
    let never = usize::MAX;
    assert_eq!([256 << 10, 1 << 20].map(|slot_bytes| least_read(never, slot_bytes)), [never; 2]);
    assert_eq!(least_read(never, 64 << 10), 64 << 10);
    assert_eq!(least_read(T.read_bytes, 256 << 10), T.read_bytes);
}

#[test]
fn windows_of_whole_parts_leave_no_small_rest() {
    let w = T.whole_window_bytes;
    for bytes in [0, 1, 5000, w, w + 4, w * 5 / 4, w * 5 / 4 + 1, 1 << 20, (1 << 20) + 4, 12_345_678] {
        let window_bytes = Chunking::whole(bytes).window_bytes(&T);
        assert!(window_bytes <= w * 5 / 4 && window_bytes.is_multiple_of(BORDER_BYTES));
        let rest = bytes % window_bytes;
        assert!(bytes < window_bytes || rest == 0 || rest > window_bytes / 2, "{bytes} bytes in {window_bytes}");
    }
}
