//! No data path calls the C library's `memcpy` for more than a few hundred bytes.
//!
//! This program has its own `memcpy`, which notes the largest number of bytes: the linker takes it
//! for every call, also for those that the compiler makes of loops.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use consonance_kernels::{
    cpu::{copy::copy_own, reduce::Reducer},
    group::{
        Endpoint, PeerBuffers,
        plan::{Chunking, Targets},
    },
    shm::{GroupId, Segment, Shape},
    tuning::{Knob, Origin, Tuning, Value, Way, adopt},
};
use consonance_spec::{DType, Kind, ReduceOp, Signature};
use std::{
    arch::asm,
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// A few hundred bytes.
const MOST: usize = 512;

/// The largest copy of a thread that is watched.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// # Safety
/// As C's `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(target: *mut u8, source: *const u8, bytes: usize) -> *mut u8 {
    note(bytes);
    // SAFETY: the caller's promises are the same; the direction flag is clear in Rust and C code.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") source => _,
            inout("rdi") target => _,
            options(nostack, preserves_flags)
        );
    }
    target
}

fn note(bytes: usize) {
    // A copy after the thread's values are gone is not of a data path.
    if IS_WATCHED.try_with(Cell::get).unwrap_or(false) {
        LARGEST.fetch_max(bytes, Ordering::Relaxed);
    }
}

fn watched<T>(work: impl FnOnce() -> T) -> T {
    IS_WATCHED.set(true);
    let result = work();
    IS_WATCHED.set(false);
    result
}

/// Elements of a rank's data: inline, and in one window and several.
const COUNTS: [usize; 6] = [300, 1000, 2048, 5000, 40_000, 700_000];

/// Makes calls of all kinds as one of two ranks, with `count` elements.
fn calls(endpoint: &mut Endpoint, count: usize) {
    let (rank, dtype) = (endpoint.world().rank(), DType::F32);
    let (own, mut all) = (vec![rank as f32; count], vec![9f32; 2 * count]);
    let signature = |kind| Signature { dtype: Some(dtype), ..Signature::new(kind) };
    let published = |endpoint: &mut Endpoint, kind, chunking, all: &mut [f32]| {
        let copy = |peers: &mut PeerBuffers<'_>| {
            let mut parts = all.chunks_exact_mut(count).enumerate();
            parts.try_for_each(|(peer, part)| match peer == rank {
                true => {
                    copy_own(own.as_slice().into(), &mut part.into());
                    Ok(())
                }
                false => peers.copy(peer, 0..count, &mut part.into()),
            })
        };
        let send = Some(own.as_slice().into());
        watched(|| endpoint.published(&signature(kind), send, chunking, copy)).expect("both ranks call the same");
        let expected = (0..2).flat_map(|peer| std::iter::repeat_n(peer as f32, count));
        assert!(expected.eq(all.iter().copied()), "{kind:?} of {count} elements");
        all.fill(9.0);
    };
    published(endpoint, Kind::AllGather, Chunking::WHOLE, &mut all);
    published(endpoint, Kind::AllGather, Chunking::whole(4 * count), &mut all);
    published(endpoint, Kind::Gather, Chunking::one_way(4 * count, 1), &mut all);
    if 4 * count <= Endpoint::PAYLOAD_BYTES {
        let signature = signature(Kind::AllGather);
        watched(|| {
            let payloads =
                endpoint.exchange(&signature, Some(own.as_slice().into())).expect("both ranks call the same");
            payloads.copy(1 - rank, 0, &mut (&mut all[..count]).into()).expect("as many elements");
        });
        assert!(all[..count].iter().all(|&number| number == (1 - rank) as f32));
    }
    let sum = Reducer::new(ReduceOp::Sum, dtype).expect("floats have sums");
    let signature = Signature { op: Some(ReduceOp::Sum), ..signature(Kind::AllReduce) };
    let (send, recv) = (Some(own.as_slice().into()), Some((&mut all[..count]).into()));
    watched(|| endpoint.divided(&signature, &sum, send, recv, Targets::All)).expect("both ranks call the same");
    assert!(all[..count].iter().all(|&number| number == 1.0));
}

#[test]
fn the_c_library_copies_little() {
    let is_own = watched(|| {
        let (from, mut to) = (vec![1u8; 1000], vec![0u8; 1000]);
        // The compiler calls `memcpy` here: the test sees it.
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(to);
        LARGEST.swap(0, Ordering::Relaxed)
    });
    assert_eq!(is_own, 1000, "the program's own memcpy is called");
    for way in [Way::Vector, Way::Movsb, Way::Ahead, Way::Stream] {
        for asks in [false, true] {
            let mut tuning = Tuning::DEFAULT;
            let knobs = Tuning::KNOBS.iter().map(|knob: &Knob| (knob, tuning.get(knob))).collect::<Vec<_>>();
            for (knob, value) in knobs {
                let value = match value {
                    Value::Way(_) => Value::Way(way),
                    Value::Switch(_) => Value::Switch(asks),
                    bytes => bytes,
                };
                tuning.set(knob, value).expect("an allowed value");
            }
            adopt(&tuning, Origin::File);
            let shape = Shape::new(2, Shape::STAGING_BYTES).expect("two ranks");
            let segment = Arc::new(Segment::create(shape, GroupId::from_bytes([9; 16])).expect("a segment"));
            let ranks = Endpoint::in_segment(&segment, 0..2, 2, &[], Duration::from_secs(60));
            thread::scope(|scope| {
                for mut rank in ranks {
                    scope.spawn(move || COUNTS.into_iter().for_each(|count| calls(&mut rank, count)));
                }
            });
            let largest = LARGEST.swap(0, Ordering::Relaxed);
            assert!(largest <= MOST, "memcpy of {largest} bytes, where copies go by {way}, {asks}");
        }
    }
}
