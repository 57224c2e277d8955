//! Asynchronous calls that own their buffers.

use consonance::{Communicator, Error, ReduceOp, Result, raw::Call};
use std::thread;

/// Runs `body` on each of `ranks` threads, and returns the results in rank order.
fn on_threads<R: Send>(ranks: usize, body: impl Fn(&mut Communicator) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let body = &body;
        let start = |mut communicator: Communicator| scope.spawn(move || body(&mut communicator));
        let threads: Vec<_> = Communicator::threads(ranks).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn a_buffer_is_made_and_read_in_the_body() {
    let all = on_threads(3, |rank| {
        let own = rank.rank() as f32;
        let mut weights = vec![0.0; 300];
        rank.scope(|scope| {
            // As a backward pass: the last layer's gradient comes first.
            let gradients = (0..3).rev().map(|layer| {
                let gradient: Vec<f32> = (0..100).map(|i| own + (layer * i) as f32).collect();
                Ok((layer, scope.all_reduce_owned(ReduceOp::Sum, gradient)?))
            });
            for (layer, gradient) in gradients.collect::<Result<Vec<_>>>()? {
                weights[100 * layer..][..100].copy_from_slice(&gradient.wait()?);
            }
            Ok(())
        })
        .unwrap();
        weights
    });
    let expected: Vec<f32> = (0..300).map(|i| 3.0 + (3 * (i / 100) * (i % 100)) as f32).collect();
    assert_eq!(all, [expected.clone(), expected.clone(), expected]);
}

#[test]
fn shared_memory_and_other_calls_can_be_owned() {
    let all = on_threads(2, |rank| {
        let (own, mut memory) = (rank.rank(), rank.alloc::<i64>(4000).unwrap());
        memory.fill(own as i64 + 1);
        rank.scope(|scope| {
            let sum = scope.all_reduce_owned("sum", memory)?;
            let (part, whole) = (vec![own as u8; 2], vec![9u8; 4]);
            let gathered = scope.start_owned((part, whole), |(part, whole)| {
                let (send, recv) = (Some(part[..].into()), (&mut whole[..]).into());
                Call::AllGather { send, recv, counts: None }
            });
            Ok((sum.wait()?.to_vec(), gathered.wait()?.1))
        })
        .unwrap()
    });
    assert_eq!(all, vec![(vec![3; 4000], vec![0, 0, 1, 1]); 2]);
}

#[test]
fn a_buffer_outlives_its_scope() {
    let all = on_threads(2, |rank| {
        let sum = rank.scope(|scope| scope.all_reduce_owned(ReduceOp::Sum, vec![1u32; 10])).unwrap();
        assert!(sum.is_finished());
        sum.wait().unwrap()
    });
    assert_eq!(all, vec![vec![2; 10]; 2]);
}

#[test]
fn an_error_is_returned_once() {
    on_threads(2, |rank| {
        let count = 10 + rank.rank();
        // By the wait, if there is one.
        rank.scope(|scope| {
            let error = scope.all_reduce_owned(ReduceOp::Sum, vec![1.0f32; count])?.wait().unwrap_err();
            assert!(matches!(error, Error::Mismatch { replica: 1, .. }), "{error}");
            Ok(())
        })
        .unwrap();
        // Else by the scope. A later wait says so.
        let mut left = None;
        let error = rank.scope(|scope| {
            left = Some(scope.all_reduce_owned(ReduceOp::Sum, vec![1.0f32; count])?);
            Ok(())
        });
        assert!(matches!(error, Err(Error::Mismatch { replica: 1, .. })), "{error:?}");
        let error = left.unwrap().wait().unwrap_err();
        assert!(matches!(error, Error::Other(_)), "{error}");
        // The group works on.
        rank.barrier().unwrap();
    });
}
