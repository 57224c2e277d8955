//! No data path calls the C library's `memcpy` for more than a few hundred bytes.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use consonance_kernels::{
    cpu::{
        axis::{Along, Part, Partial},
        copy::copy_own,
        reduce::Reducer,
        rows::copy_rows,
    },
    group::{
        Deadline, Endpoint, Mail, PeerBuffers,
        plan::{Chunking, Targets},
    },
    memory::{HostBufMut, HostMemory},
    shm::{GroupId, Segment, Shape},
    tuning::{Knob, Origin, Pipeline, Tuning, Value, Way, adopt},
};
use consonance_memcpy::{found, watched};
use consonance_spec::{DType, Kind, ReduceOp, Signature};
use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};

/// Elements of a rank's data: inline, and in one window and several.
const COUNTS: [usize; 6] = [300, 1000, 2048, 5000, 40_000, 700_000];

/// Makes calls of all kinds as one of two ranks, with `count` elements.
fn calls(endpoint: &mut Endpoint, count: usize) {
    let (rank, dtype) = (endpoint.world().rank(), DType::F32);
    let (own, mut all) = (vec![rank as f32; count], vec![9f32; 2 * count]);
    let signature = |kind| Signature { dtype: Some(dtype), ..Signature::new(kind) };
    let published = |endpoint: &mut Endpoint, kind: Kind, chunking, all: &mut [f32]| {
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
        watched(kind.name(), || endpoint.step(&signature(kind)).published(send, chunking, copy))
            .expect("both ranks call the same");
        let expected = (0..2).flat_map(|peer| std::iter::repeat_n(peer as f32, count));
        assert!(expected.eq(all.iter().copied()), "{kind:?} of {count} elements");
        all.fill(9.0);
    };
    published(endpoint, Kind::AllGather, Chunking::WHOLE, &mut all);
    published(endpoint, Kind::AllGather, Chunking::whole(4 * count), &mut all);
    published(endpoint, Kind::Gather, Chunking::one_way(4 * count, 1), &mut all);
    if 4 * count <= Endpoint::PAYLOAD_BYTES {
        let signature = signature(Kind::AllGather);
        watched("inline payloads", || {
            let payloads =
                endpoint.step(&signature).exchange(Some(own.as_slice().into())).expect("both ranks call the same");
            payloads.copy(1 - rank, 0, &mut (&mut all[..count]).into()).expect("as many elements");
        });
        assert!(all[..count].iter().all(|&number| number == (1 - rank) as f32));
    }
    let sum = Reducer::new(ReduceOp::Sum, dtype).expect("floats have sums");
    let signature = Signature { op: Some(ReduceOp::Sum), ..signature(Kind::AllReduce) };
    let (send, recv) = (Some(own.as_slice().into()), Some((&mut all[..count]).into()));
    watched("all_reduce", || endpoint.step(&signature).divided(&sum, send, recv, Targets::All))
        .expect("both ranks call the same");
    assert!(all[..count].iter().all(|&number| number == 1.0));
}

/// Sends messages between the two ranks that come before their receive, and to this rank itself.
fn messages(mail: &Mail, count: usize) {
    let (rank, limit) = (mail.world().rank(), Deadline::after(Duration::from_secs(60)));
    let own = vec![rank as f32; count];
    let mut all = vec![9f32; count];
    for tag in [1, 2] {
        if rank == 1 {
            let send = || mail.send_and_wait(own.as_slice().into(), 0, 0, tag, limit);
            watched("a message", send).expect("rank 0 receives it");
        }
    }
    if rank == 0 {
        // The first message comes before the second, and so before its own receive.
        for tag in [2, 1] {
            let receive = || mail.recv_and_wait(all.as_mut_slice().into(), 0, Some(1), tag, limit);
            watched("a kept message", receive).expect("rank 1 sends it");
            assert!(all.iter().all(|&number| number == 1.0));
            all.fill(9.0);
        }
    }
    watched("a message to itself", || {
        mail.send_and_wait(own.as_slice().into(), 0, rank, 3, limit).expect("it is kept");
        mail.recv_and_wait(all.as_mut_slice().into(), 0, Some(rank), 3, limit).expect("it is there");
    });
    assert_eq!(all, own);
    let awaited: &'static mut [f32] = vec![9f32; count].leak();
    watched("a message to itself that is awaited", || {
        mail.recv(
            HostBufMut::from(awaited),
            0,
            Some(rank),
            4,
            limit,
            Box::new(move |result| assert_eq!(result, Ok(rank))),
        );
        mail.send_and_wait(own.as_slice().into(), 0, rank, 4, limit).expect("it is received");
    });
}

/// Copies rows from anywhere, and whole buffers.
fn rows(count: usize) {
    let source: Vec<f32> = (0..3).flat_map(|row| std::iter::repeat_n(row as f32, count)).collect();
    let mut chosen = vec![9f32; 2 * count];
    let rows = |chosen: &mut Vec<f32>| {
        copy_rows(source.as_slice().into(), count, &[2, 0], chosen.as_mut_slice().into());
    };
    watched("rows", || rows(&mut chosen));
    assert!(chosen[..count].iter().all(|&number| number == 2.0) && chosen[count..].iter().all(|&number| number == 0.0));
    let memory = watched("concat", || HostMemory::concat(DType::F32, &[source.as_slice().into(); 2]));
    let copy = watched("a clone", || memory.clone());
    let bytes = copy.as_buf().as_bytes();
    let mut again = HostMemory::zeroed(DType::F32, copy.count());
    watched("bytes", || again.as_buf_mut().copy_from_bytes(bytes));
    let vector = watched("a vector", || again.into_vec::<f32>()).expect("floats");
    assert!(vector.chunks_exact(source.len()).all(|part| part == source));
}

/// Reduces along the middle axis of tensors of these shapes.
fn along(outer: usize, axis: usize, inner: usize) {
    let shape = [outer, axis, inner];
    let ones = vec![1i32; outer * axis * inner];
    let tensors = [(ones.as_slice().into(), shape), (ones.as_slice().into(), shape)];
    let sum = watched("a reduction along an axis", || {
        let mut sum = Along::new(ReduceOp::Sum, &tensors).expect("memory").expect("integers have sums");
        sum.parts(2).into_iter().for_each(Part::run);
        sum.finish().expect("memory")
    });
    assert!(sum.as_buf().as_slice::<i32>().expect("integers").iter().all(|&number| number == 2 * axis as i32));
    let sum = watched("a partial reduction", || {
        let partial = || Partial::new(ReduceOp::Sum, ones.as_slice().into(), shape).expect("memory");
        let partials = [(); 2].map(|()| partial().expect("integers have sums"));
        consonance_kernels::cpu::axis::finish(&partials, 1).expect("memory")
    });
    assert!(sum.as_buf().as_slice::<i32>().expect("integers").iter().all(|&number| number == 2 * axis as i32));
}

#[test]
fn the_c_library_copies_little() {
    watched("to_vec", || {
        // The compiler calls `memcpy` here: the test sees it.
        std::hint::black_box(std::hint::black_box(&[1u8; 1000]).to_vec());
    });
    assert_eq!(found(), BTreeMap::from([("to_vec".to_owned(), 1000)]), "the program's own memcpy is called");
    for pipeline in Pipeline::ALL {
        for way in [Way::Vector, Way::Movsb, Way::Ahead, Way::Stream] {
            let mut tuning = Tuning::DEFAULT;
            let knobs = Tuning::KNOBS.iter().map(|knob: &Knob| (knob, tuning.get(knob))).collect::<Vec<_>>();
            for (knob, value) in knobs {
                let value = match value {
                    Value::Way(_) => Value::Way(way),
                    Value::Pipeline(_) => Value::Pipeline(pipeline),
                    Value::Bytes(_) => value,
                };
                tuning.set(knob, value).expect("an allowed value");
            }
            adopt(&tuning, Origin::File);
            let shape = Shape::new(2, Shape::STAGING_BYTES).expect("two ranks");
            let segment = Arc::new(Segment::create(shape, GroupId::from_bytes([9; 16])).expect("a segment"));
            let ranks = Endpoint::in_segment(&segment, 0..2, 2, &[], Duration::from_secs(60));
            thread::scope(|scope| {
                for mut rank in ranks {
                    scope.spawn(move || {
                        COUNTS.into_iter().for_each(|count| calls(&mut rank, count));
                        let mail = rank.mail().expect("room for rings");
                        COUNTS.into_iter().for_each(|count| messages(&mail, count));
                    });
                }
            });
            COUNTS.into_iter().for_each(rows);
            // Columns of few rows; many narrow rows; blocks of several slices, wide and narrow.
            for (outer, axis, inner) in [(1, 2, 5000), (2000, 2, 3), (3, 10_000, 300), (300, 10_000, 1)] {
                along(outer, axis, inner);
            }
            assert_eq!(
                found(),
                BTreeMap::new(),
                "bytes of the largest memcpy, where data go by {pipeline} and copies by {way}"
            );
        }
    }
}
