//! Measures what a call costs through the C library beyond the same call in Rust: an all-reduce of
//! one number in a group of one rank. Prints the medians of alternating rounds, in nanoseconds.
//!
//! ```sh
//! cargo run --release -p consonance-c --example overhead
//! ```

use consonance::{ProcessGroup, Queue, ReduceOp, UniqueId, raw::Call};
use consonance_c::{ConsId, cons_all_reduce, cons_comm_init, cons_unique_id};
use std::{mem::MaybeUninit, ptr, time::Instant};

const CALLS: u32 = 20_000;
const ROUNDS: usize = 51;

fn nanoseconds(mut call: impl FnMut()) -> f64 {
    let begun = Instant::now();
    (0..CALLS).for_each(|_| call());
    begun.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> consonance::Result<()> {
    let alone =
        || ProcessGroup::with_id(&UniqueId::new()?, 0, 1).join().map(|mut group| group.communicators().remove(0));
    let (mut communicator, queue) = (alone()?, Queue::new(alone()?));
    let (mut id, mut comm) = (MaybeUninit::<ConsId>::uninit(), 0);
    // SAFETY: the pointers are valid.
    let made = unsafe { (cons_unique_id(id.as_mut_ptr()), cons_comm_init(&mut comm, id.as_ptr(), 1, 0, ptr::null())) };
    assert_eq!(made, (0, 0));
    let mut data = [1.5f32];
    let start = data.as_mut_ptr();
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        times[0].push(nanoseconds(|| communicator.all_reduce(ReduceOp::Sum, &mut data).expect("a group of one")));
        times[1].push(nanoseconds(|| {
            let recv = data.as_mut_slice().into();
            queue.run(Call::AllReduce { op: ReduceOp::Sum, send: None, recv }, None).expect("a group of one");
        }));
        let reduce = || {
            // SAFETY: the pointers are valid, and the number is an f32 (11), summed (0).
            let code = unsafe { cons_all_reduce(comm, start.cast(), start.cast(), 1, 11, 0) };
            assert_eq!(code, 0);
        };
        times[2].push(nanoseconds(reduce));
    }
    let [communicator, queue, c] = times.map(median);
    println!(
        "Communicator {communicator:.0}, Queue {queue:.0}, C {c:.0} ns: C takes {:.0} ns more than Queue",
        c - queue
    );
    Ok(())
}
