//! Gradients of collectives, through the public API: they have the bits of the spec's adjoint, and
//! satisfy `<f(x), y> = <x, f*(y)>`.

use consonance::{
    Communicator, Error, IndexedSlices, MirroredStrategy, Nest, PerReplica,
    ReduceOp::{self, Mean, Sum},
    ReplicaContext, Result, Tensor, gradient,
};
use consonance_harness::subjects::STRATEGIES;
use consonance_kernels::digest::mix;
use consonance_spec::adjoint;
use quickcheck::{Arbitrary, Gen, QuickCheck};
use std::thread;

/// A group of ranks. `counts` is the number of elements from each rank to each rank.
#[derive(Clone, Debug)]
struct Case {
    counts: Vec<Vec<usize>>,
    root: usize,
    op: ReduceOp,
    seed: u64,
}

impl Arbitrary for Case {
    fn arbitrary(g: &mut Gen) -> Case {
        let ranks = 1 + usize::arbitrary(g) % 6;
        let counts = (0..ranks).map(|_| (0..ranks).map(|_| usize::arbitrary(g) % 4).collect()).collect();
        let op = if bool::arbitrary(g) { Sum } else { Mean };
        Case { counts, root: usize::arbitrary(g) % ranks, op, seed: u64::arbitrary(g) }
    }
}

type Vectors = Vec<Vec<f64>>;

impl Case {
    fn ranks(&self) -> usize {
        self.counts.len()
    }

    /// Returns the number of elements of each rank, for calls that have one count per rank.
    fn each(&self) -> &[usize] {
        &self.counts[0]
    }

    fn total(&self) -> usize {
        self.each().iter().sum()
    }

    /// Returns vectors of `counts` elements. The elements are multiples of 840, which is divisible
    /// by 1 to 8 ranks, so that sums are exact in every order. If `rounded`, they are multiples of
    /// 840 / 49.
    fn vectors(&self, salt: u64, rounded: bool, counts: impl IntoIterator<Item = usize>) -> Vectors {
        let unit = if rounded { 840.0 / 49.0 } else { 840.0 };
        let element = |rank: usize, i: usize| mix(mix(self.seed ^ salt, rank as u64), i as u64) % 2001;
        let vector = |(rank, count)| (0..count).map(|i| (element(rank, i) as f64 - 1000.0) * unit).collect();
        counts.into_iter().enumerate().map(vector).collect()
    }

    /// Checks `forward`, from vectors of `inputs` elements to vectors of `outputs` elements, and
    /// `back`, against the spec's `adjoint` and the law.
    fn check(
        &self,
        inputs: &[usize],
        outputs: &[usize],
        forward: impl Fn(&mut Communicator, &[f64]) -> Result<Vec<f64>> + Sync,
        back: impl Fn(&mut Communicator, &[f64]) -> Result<Vec<f64>> + Sync,
        adjoint: impl Fn(&Vectors) -> Vectors,
    ) -> bool {
        let same_bits = |a: &Vectors, b: &Vectors| {
            a.iter().map(Vec::len).eq(b.iter().map(Vec::len))
                && a.concat().iter().zip(b.concat()).all(|(a, b)| a.to_bits() == b.to_bits())
        };
        let (x, y) = (|| self.vectors(1, false, inputs.to_vec()), |rounded| self.vectors(2, rounded, outputs.to_vec()));
        inner(&ranks(&x(), forward), &y(false)) == inner(&x(), &ranks(&y(false), &back))
            && same_bits(&ranks(&y(true), &back), &adjoint(&y(true)))
    }
}

/// Returns the inner product over all ranks.
fn inner(a: &Vectors, b: &Vectors) -> f64 {
    assert!(a.iter().map(Vec::len).eq(b.iter().map(Vec::len)), "vectors of one space");
    a.concat().iter().zip(b.concat()).map(|(a, b)| a * b).sum()
}

/// Returns the result of `f` on each rank of a group of threads.
fn ranks(vectors: &Vectors, f: impl Fn(&mut Communicator, &[f64]) -> Result<Vec<f64>> + Sync) -> Vectors {
    let f = &f;
    thread::scope(|scope| {
        let group = Communicator::threads(vectors.len()).into_iter().zip(vectors);
        let threads: Vec<_> = group.map(|(mut rank, own)| scope.spawn(move || f(&mut rank, own))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic").expect("a result")).collect()
    })
}

fn check(law: fn(Case) -> bool) {
    QuickCheck::new().tests(100).quickcheck(law);
}

/// Returns `count` for the root and 0 for the other ranks.
fn on_root(case: &Case, count: usize) -> Vec<usize> {
    (0..case.ranks()).map(|rank| if rank == case.root { count } else { 0 }).collect()
}

/// Returns `data` on the root, and nothing on the other ranks.
fn kept(rank: &Communicator, root: usize, data: Vec<f64>) -> Vec<f64> {
    if rank.rank() == root { data } else { Vec::new() }
}

#[test]
fn all_reduce() {
    check(|case| {
        let (op, counts) = (case.op, vec![case.total(); case.ranks()]);
        let forward = |rank: &mut Communicator, x: &[f64]| {
            let mut data = x.to_vec();
            rank.all_reduce(op, &mut data).map(|()| data)
        };
        let back = |rank: &mut Communicator, y: &[f64]| {
            let mut data = y.to_vec();
            gradient::slices::all_reduce(rank, op, &mut data).map(|()| data)
        };
        case.check(&counts, &counts, forward, back, |y| adjoint::all_reduce(op, y).unwrap())
    });
}

#[test]
fn reduce() {
    check(|case| {
        let (op, root, count) = (case.op, case.root, case.total());
        let forward = |rank: &mut Communicator, x: &[f64]| {
            let mut data = x.to_vec();
            rank.reduce(op, &mut data, root).map(|()| kept(rank, root, data))
        };
        let back = |rank: &mut Communicator, y: &[f64]| {
            let mut data = if rank.rank() == root { y.to_vec() } else { vec![f64::NAN; count] };
            gradient::slices::reduce(rank, op, &mut data, root).map(|()| data)
        };
        let (each, root_alone) = (vec![count; case.ranks()], on_root(&case, count));
        case.check(&each, &root_alone, forward, back, |y| adjoint::reduce(op, &y[root], case.ranks()).unwrap())
    });
}

#[test]
fn broadcast() {
    check(|case| {
        let (root, count) = (case.root, case.total());
        let forward = |rank: &mut Communicator, x: &[f64]| {
            let mut data = x.to_vec();
            rank.broadcast(&mut data, root).map(|()| data)
        };
        let back = |rank: &mut Communicator, y: &[f64]| {
            let mut data = y.to_vec();
            gradient::slices::broadcast(rank, &mut data, root).map(|()| data)
        };
        let adjoint = |y: &Vectors| {
            let mut all = vec![vec![0.0; count]; y.len()];
            all[root] = adjoint::broadcast(y).unwrap();
            all
        };
        let counts = vec![count; case.ranks()];
        case.check(&counts, &counts, forward, back, adjoint)
    });
}

#[test]
fn gather_and_scatter() {
    check(|case| {
        let (root, counts, total) = (case.root, case.each(), case.total());
        let gather = |rank: &mut Communicator, x: &[f64]| {
            let mut all = vec![0.0; total];
            let recv = (rank.rank() == root).then_some(&mut all[..]);
            rank.gather_v(Some(x), recv, counts, root).map(|()| kept(rank, root, all))
        };
        let gather_back = |rank: &mut Communicator, y: &[f64]| {
            let mut own = vec![0.0; counts[rank.rank()]];
            let upstream = (rank.rank() == root).then_some(y);
            gradient::slices::gather_v(rank, upstream, &mut own, counts, root).map(|()| own)
        };
        let scatter = |rank: &mut Communicator, x: &[f64]| {
            let mut own = vec![0.0; counts[rank.rank()]];
            let send = (rank.rank() == root).then_some(x);
            rank.scatter_v(send, Some(&mut own), counts, root).map(|()| own)
        };
        let scatter_back = |rank: &mut Communicator, y: &[f64]| {
            let mut all = vec![0.0; total];
            let gradient = (rank.rank() == root).then_some(&mut all[..]);
            gradient::slices::scatter_v(rank, y, gradient, counts, root).map(|()| kept(rank, root, all))
        };
        let all = on_root(&case, total);
        let back_to_root = |y: &Vectors| {
            let mut vectors = vec![Vec::new(); y.len()];
            vectors[root] = adjoint::scatter(y);
            vectors
        };
        case.check(counts, &all, gather, gather_back, |y| adjoint::gather(&y[root], counts).unwrap())
            && case.check(&all, counts, scatter, scatter_back, back_to_root)
    });
}

#[test]
fn even_gather_and_scatter() {
    check(|case| {
        let (root, count, size) = (case.root, case.each()[0], case.ranks());
        let gather = |rank: &mut Communicator, x: &[f64]| {
            let mut all = vec![0.0; count * size];
            let recv = (rank.rank() == root).then_some(&mut all[..]);
            rank.gather(x, recv, root).map(|()| kept(rank, root, all))
        };
        let gather_back = |rank: &mut Communicator, y: &[f64]| {
            let mut own = vec![0.0; count];
            let upstream = (rank.rank() == root).then_some(y);
            gradient::slices::gather(rank, upstream, &mut own, root).map(|()| own)
        };
        let scatter_back = |rank: &mut Communicator, y: &[f64]| {
            let mut all = vec![0.0; count * size];
            let gradient = (rank.rank() == root).then_some(&mut all[..]);
            gradient::slices::scatter(rank, y, gradient, root).map(|()| kept(rank, root, all))
        };
        let (each, all) = (vec![count; size], on_root(&case, count * size));
        let back_to_root = |y: &Vectors| {
            let mut vectors = vec![Vec::new(); size];
            vectors[root] = adjoint::scatter(y);
            vectors
        };
        case.check(&each, &all, gather, gather_back, |y| adjoint::gather(&y[root], &each).unwrap())
            && case.check(&all, &each, gather_back, scatter_back, back_to_root)
    });
}

#[test]
fn all_gather() {
    check(|case| {
        let (counts, total) = (case.each(), case.total());
        let forward = |rank: &mut Communicator, x: &[f64]| {
            let mut all = vec![0.0; total];
            rank.all_gather_v(Some(x), &mut all, counts).map(|()| all)
        };
        let back = |rank: &mut Communicator, y: &[f64]| {
            let mut own = vec![0.0; counts[rank.rank()]];
            gradient::slices::all_gather_v(rank, y, &mut own, counts).map(|()| own)
        };
        let all = vec![total; case.ranks()];
        case.check(counts, &all, forward, back, |y| adjoint::all_gather(y, counts).unwrap())
    });
}

#[test]
fn even_all_gather_and_reduce_scatter() {
    check(|case| {
        let (op, count, total) = (case.op, case.each()[0], case.each()[0] * case.ranks());
        let all_gather = |rank: &mut Communicator, x: &[f64]| {
            let mut all = vec![0.0; total];
            rank.all_gather_into(x, &mut all).map(|()| all)
        };
        let all_gather_back = |rank: &mut Communicator, y: &[f64]| {
            let mut own = vec![0.0; count];
            gradient::slices::all_gather(rank, y, &mut own).map(|()| own)
        };
        let reduce_scatter = |rank: &mut Communicator, x: &[f64]| {
            let mut own = vec![0.0; count];
            rank.reduce_scatter_into(op, x, &mut own).map(|()| own)
        };
        let reduce_scatter_back = |rank: &mut Communicator, y: &[f64]| {
            let mut all = vec![0.0; total];
            gradient::slices::reduce_scatter(rank, op, y, &mut all).map(|()| all)
        };
        let (each, all) = (vec![count; case.ranks()], vec![total; case.ranks()]);
        case.check(&each, &all, all_gather, all_gather_back, |y| adjoint::all_gather(y, &each).unwrap())
            && case.check(&all, &each, reduce_scatter, reduce_scatter_back, |y| adjoint::reduce_scatter(op, y).unwrap())
    });
}

#[test]
fn all_to_all() {
    check(|case| {
        let counts = &case.counts;
        let received = |to: usize| counts.iter().map(|from| from[to]).collect::<Vec<usize>>();
        let forward = |rank: &mut Communicator, x: &[f64]| {
            let recv_counts = received(rank.rank());
            let mut recv = vec![0.0; recv_counts.iter().sum()];
            rank.all_to_all_v(x, &counts[rank.rank()], &mut recv, &recv_counts).map(|()| recv)
        };
        let back = |rank: &mut Communicator, y: &[f64]| {
            let (send_counts, recv_counts) = (&counts[rank.rank()], received(rank.rank()));
            let mut own = vec![0.0; send_counts.iter().sum()];
            gradient::slices::all_to_all_v(rank, y, send_counts, &mut own, &recv_counts).map(|()| own)
        };
        let inputs: Vec<usize> = counts.iter().map(|to| to.iter().sum()).collect();
        let outputs: Vec<usize> = (0..case.ranks()).map(|to| received(to).iter().sum()).collect();
        let even = |rank: &mut Communicator, x: &[f64]| {
            let mut data = x.to_vec();
            rank.all_to_all(&mut data).map(|()| data)
        };
        let even_back = |rank: &mut Communicator, y: &[f64]| {
            let mut data = y.to_vec();
            gradient::slices::all_to_all(rank, &mut data).map(|()| data)
        };
        let each = vec![case.each()[0] * case.ranks(); case.ranks()];
        let same = vec![vec![case.each()[0]; case.ranks()]; case.ranks()];
        case.check(&inputs, &outputs, forward, back, |y| adjoint::all_to_all(y, counts).unwrap())
            && case.check(&each, &each, even, even_back, |y| adjoint::all_to_all(y, &same).unwrap())
    });
}

/// Returns the result of `f` on each replica of one of the strategies that can have this number of
/// replicas.
fn replicas<N: Nest + Clone + Send + Sync>(
    case: &Case,
    values: Vec<N>,
    f: impl Fn(&ReplicaContext<'_>, N) -> Result<N> + Sync,
) -> Vec<N> {
    let subjects: Vec<_> = STRATEGIES.iter().filter(|subject| (subject.workers)(values.len()).is_some()).collect();
    let subject = subjects[case.seed as usize % subjects.len()];
    let results = subject.on_workers(values.len(), Default::default(), |strategy| {
        let values = PerReplica::new(values[strategy.local_replicas()].to_vec());
        strategy.run_with(values, &f).expect("a result").into_values()
    });
    results.expect("a strategy of so many").concat()
}

/// Returns a vector in two tensors: as a column of pairs, and as rows, so that both axes are used.
fn nest(vector: &[f64]) -> (Tensor, Tensor) {
    let pairs: Vec<f64> = vector.iter().flat_map(|&x| [x, -x]).collect();
    let rows: Vec<f64> = vector.iter().chain(vector).copied().collect();
    (Tensor::new([vector.len(), 2], &pairs).unwrap(), Tensor::new([2, vector.len()], &rows).unwrap())
}

/// Returns the vector of a nest. Its two tensors must agree.
fn vector((pairs, rows): &(Tensor, Tensor)) -> Vec<f64> {
    let first = pairs.as_slice::<f64>().unwrap().iter().step_by(2).copied().collect::<Vec<_>>();
    assert_eq!((pairs, rows), (&nest(&first).0, &nest(&first).1));
    first
}

#[test]
fn nests_of_a_replica() {
    check(|case| {
        let (op, root, counts, total) = (case.op, case.root, case.each(), case.total());
        let nests = |vectors: &Vectors| vectors.iter().map(|vector| nest(vector)).collect::<Vec<_>>();
        let of = |nests: Vec<(Tensor, Tensor)>| nests.iter().map(vector).collect::<Vectors>();
        let gathered = case.vectors(2, true, vec![total; case.ranks()]);

        let all_reduce = replicas(&case, nests(&gathered), |replica, y| gradient::all_reduce(replica, op, y));
        assert_eq!(of(all_reduce), adjoint::all_reduce(op, &gathered).unwrap());

        let all_gather = replicas(&case, nests(&gathered), |replica, (pairs, rows)| {
            let own = [counts[replica.replica_id_in_sync_group()]];
            let pairs = gradient::all_gather(replica, pairs, 0, &own)?;
            Ok((pairs, gradient::all_gather(replica, rows, -1, &own)?))
        });
        assert_eq!(of(all_gather), adjoint::all_gather(&gathered, counts).unwrap());

        let broadcast = replicas(&case, nests(&gathered), |replica, y| gradient::broadcast(replica, y, root));
        let mut expected = vec![vec![0.0; total]; case.ranks()];
        expected[root] = adjoint::broadcast(&gathered).unwrap();
        assert_eq!(of(broadcast), expected);

        // Gradients of even blocks of a reduce-scatter, which scatters along axis 0 only.
        let blocks = case.vectors(3, true, vec![counts[0]; case.ranks()]);
        let columns = blocks.iter().map(|block| nest(block).0).collect();
        let whole = replicas(&case, columns, |replica, y| gradient::reduce_scatter(replica, op, y));
        let expected = adjoint::reduce_scatter(op, &blocks).unwrap();
        assert_eq!(whole, expected.iter().map(|vector| nest(vector).0).collect::<Vec<_>>());
        true
    });
}

/// Returns the nonzero elements of a vector as sparse rows, from the last to the first. The first
/// element is split into two rows.
fn rows(vector: &[f64]) -> IndexedSlices {
    let mut rows: Vec<(usize, f64)> = (0..vector.len()).rev().map(|row| (row, vector[row])).collect();
    if let Some((row, element)) = rows.pop() {
        rows.extend([(row, element - 840.0), (row, 840.0)]);
    }
    let rows: Vec<(usize, f64)> = rows.into_iter().filter(|row| row.1 != 0.0).collect();
    let indices: Vec<i64> = rows.iter().map(|row| row.0 as i64).collect();
    let values: Vec<f64> = rows.iter().map(|row| row.1).collect();
    IndexedSlices::new(values.into(), indices.into(), Some(vec![vector.len()])).expect("rows within the vector")
}

#[test]
fn sparse_gradients_are_those_of_the_dense() {
    check(|case| {
        let (op, root, counts) = (case.op, case.root, case.each());
        let dense = |rows: Vec<IndexedSlices>| -> Vectors {
            rows.iter().map(|rows| rows.to_dense().unwrap().as_slice::<f64>().unwrap().to_vec()).collect()
        };
        let sparse = |vectors: &Vectors| vectors.iter().map(|vector| rows(vector)).collect::<Vec<_>>();
        let y = case.vectors(2, false, vec![case.total(); case.ranks()]);

        let all_reduce = replicas(&case, sparse(&y), |replica, y| gradient::all_reduce(replica, op, y));
        assert_eq!(dense(all_reduce), adjoint::all_reduce(op, &y).unwrap());

        let all_gather = replicas(&case, sparse(&y), |replica, y| {
            gradient::all_gather(replica, y, 0, &[counts[replica.replica_id_in_sync_group()]])
        });
        assert_eq!(dense(all_gather), adjoint::all_gather(&y, counts).unwrap());

        let broadcast = replicas(&case, sparse(&y), |replica, y| gradient::broadcast(replica, y, root));
        let mut expected = vec![vec![0.0; case.total()]; case.ranks()];
        expected[root] = adjoint::broadcast(&y).unwrap();
        assert_eq!(dense(broadcast), expected);

        let blocks = case.vectors(3, false, vec![counts[0]; case.ranks()]);
        let whole = replicas(&case, sparse(&blocks), |replica, y| gradient::reduce_scatter(replica, op, y));
        assert_eq!(dense(whole), adjoint::reduce_scatter(op, &blocks).unwrap());
        true
    });
}

/// All replicas get an error at once, and the next call works.
#[test]
fn a_call_without_a_gradient_is_refused() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let told = strategy
        .run(|replica| {
            let x = || Tensor::from([1.0f32, 2.0]);
            let told = [
                gradient::all_reduce(replica, ReduceOp::Max, x()).unwrap_err(),
                gradient::reduce_scatter(replica, Mean, Tensor::from([1, 2])).unwrap_err(),
                gradient::all_gather(replica, x(), 0, &[2]).unwrap_err(),
                gradient::all_gather(replica, x(), 0, &[]).unwrap_err(),
                gradient::broadcast(replica, x(), 2).unwrap_err(),
            ];
            assert_eq!(gradient::all_reduce(replica, Sum, x())?, Tensor::from([2.0f32, 4.0]));
            Ok(told)
        })
        .unwrap();
    let expected = [
        ("gradient::all_reduce", "op", "max"),
        ("gradient::reduce_scatter", "op", "mean"),
        ("gradient::all_gather", "value", "2"),
        ("gradient::all_gather", "own_sizes", "0 sizes"),
        ("gradient::broadcast", "root", "2"),
    ];
    for (error, (call, argument, found)) in told[1].iter().zip(expected) {
        assert_eq!(refusal(error), (call, argument, Some(1), found));
    }
    let mut alone = Communicator::threads(1).remove(0);
    let error = gradient::slices::reduce(&mut alone, ReduceOp::Product, &mut [1.0f32], 0).unwrap_err();
    assert_eq!(refusal(&error), ("gradient::slices::reduce", "op", Some(0), "product"));
    let error = gradient::slices::all_gather_v(&mut alone, &[1.0f32], &mut [0.0], &[2]).unwrap_err();
    assert_eq!(refusal(&error), ("gradient::slices::all_gather_v", "counts", Some(0), "[2]"));
}

/// Returns the call, the argument, the replica and the value that was refused.
#[track_caller]
fn refusal(error: &Error) -> (&str, &str, Option<usize>, &str) {
    match error {
        Error::InvalidCall { call, argument, replica, found, .. } => (call, argument, *replica, found),
        error => panic!("{error}"),
    }
}

#[test]
fn nests_without_leaves_have_gradients() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let none = Vec::<Tensor>::new;
    let gradients = strategy.run(|replica| {
        gradient::all_reduce(replica, Mean, none())?;
        gradient::all_gather(replica, none(), 0, &[])?;
        gradient::reduce_scatter(replica, Mean, none())?;
        gradient::broadcast(replica, none(), 1)
    });
    assert_eq!(gradients.unwrap().values(), [none(), none()]);
}

/// Checks that roots are compared for sparse rows, too, although the sum of the rows does not
/// depend on the root.
#[test]
fn replicas_with_another_root_differ() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let check = |error: Error| {
        assert!(matches!(&error, Error::Mismatch { argument, .. } if argument == "root"), "{error}");
    };
    let root = |replica: &ReplicaContext<'_>| replica.replica_id_in_sync_group();
    check(strategy.run(|replica| gradient::broadcast(replica, Tensor::from(1.0f32), root(replica))).unwrap_err());
    check(strategy.run(|replica| gradient::broadcast(replica, rows(&[1.0]), root(replica))).unwrap_err());
    check(strategy.run(|replica| gradient::broadcast(replica, (), root(replica))).unwrap_err());
}
