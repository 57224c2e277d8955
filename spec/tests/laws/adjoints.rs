//! Tests `<f(x), y> = <x, f*(y)>` in small integers, which every order of additions sums exactly.

use consonance_spec::{
    Flow, Kind,
    ReduceOp::{self, Max, Mean, Sum},
    adjoint,
    collective::{self, Error},
};
use quickcheck::{Arbitrary, Gen, quickcheck};

/// The number of elements from each rank to each rank, and a seed for their values.
#[derive(Clone, Debug)]
struct Case {
    counts: Vec<Vec<usize>>,
    seed: u64,
}

impl Arbitrary for Case {
    fn arbitrary(g: &mut Gen) -> Case {
        let ranks = 1 + usize::arbitrary(g) % 8;
        let counts = (0..ranks).map(|_| (0..ranks).map(|_| usize::arbitrary(g) % 4).collect()).collect();
        Case { counts, seed: u64::arbitrary(g) }
    }
}

impl Case {
    fn ranks(&self) -> usize {
        self.counts.len()
    }

    /// Returns the number of elements of each rank, for collectives that need only one number per
    /// rank.
    fn each(&self) -> &[usize] {
        &self.counts[0]
    }

    fn total(&self) -> usize {
        self.each().iter().sum()
    }

    /// Returns multiples of 840, which is divisible by 1 to 8 ranks.
    fn vector(&self, salt: u64, count: usize) -> Vec<f64> {
        let element = |i: usize| super::sample::mix(self.seed ^ salt, i as u64) % 2001;
        (0..count).map(|i| (element(i) as f64 - 1000.0) * 840.0).collect()
    }

    fn vectors(&self, salt: u64, counts: impl IntoIterator<Item = usize>) -> Vec<Vec<f64>> {
        counts.into_iter().enumerate().map(|(rank, count)| self.vector(salt + 10 * rank as u64, count)).collect()
    }

    fn equal(&self, salt: u64) -> Vec<Vec<f64>> {
        self.vectors(salt, vec![self.total(); self.ranks()])
    }
}

fn inner(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    assert!(a.iter().map(Vec::len).eq(b.iter().map(Vec::len)), "vectors of one space");
    a.concat().iter().zip(b.concat()).map(|(a, b)| a * b).sum()
}

fn flat(a: &[f64], b: &[f64]) -> f64 {
    inner(&[a.to_vec()], &[b.to_vec()])
}

quickcheck! {
    fn all_reduce(case: Case) -> bool {
        let (x, y) = (case.equal(1), case.equal(2));
        [Sum, Mean].into_iter().all(|op| {
            inner(&collective::all_reduce(op, &x).unwrap(), &y) == inner(&x, &adjoint::all_reduce(op, &y).unwrap())
        })
    }

    fn reduce(case: Case) -> bool {
        let (x, y) = (case.equal(1), case.vector(2, case.total()));
        [Sum, Mean].into_iter().all(|op| {
            flat(&collective::reduce(op, &x).unwrap(), &y) == inner(&x, &adjoint::reduce(op, &y, case.ranks()).unwrap())
        })
    }

    fn broadcast(case: Case) -> bool {
        let (x, y) = (case.vector(1, case.total()), case.equal(2));
        inner(&collective::broadcast(&x, case.ranks()), &y) == flat(&x, &adjoint::broadcast(&y).unwrap())
    }

    fn gather(case: Case) -> bool {
        let (x, y) = (case.vectors(1, case.each().to_vec()), case.vector(2, case.total()));
        flat(&collective::gather(&x), &y) == inner(&x, &adjoint::gather(&y, case.each()).unwrap())
    }

    fn scatter(case: Case) -> bool {
        let (x, y) = (case.vector(1, case.total()), case.vectors(2, case.each().to_vec()));
        inner(&collective::scatter_v(&x, case.each()).unwrap(), &y) == flat(&x, &adjoint::scatter(&y))
    }

    fn all_gather(case: Case) -> bool {
        let (x, y) = (case.vectors(1, case.each().to_vec()), case.equal(2));
        inner(&collective::all_gather(&x), &y) == inner(&x, &adjoint::all_gather(&y, case.each()).unwrap())
    }

    fn reduce_scatter(case: Case) -> bool {
        let (x, y) = (case.equal(1), case.vectors(2, case.each().to_vec()));
        [Sum, Mean].into_iter().all(|op| {
            let forward = collective::reduce_scatter_v(op, &x, case.each()).unwrap();
            inner(&forward, &y) == inner(&x, &adjoint::reduce_scatter(op, &y).unwrap())
        })
    }

    fn all_to_all(case: Case) -> bool {
        let sent = case.counts.iter().map(|to| to.iter().sum());
        let received = (0..case.ranks()).map(|to| case.counts.iter().map(|from| from[to]).sum());
        let (x, y) = (case.vectors(1, sent), case.vectors(2, received));
        let forward = collective::all_to_all_v(&x, &case.counts).unwrap();
        inner(&forward, &y) == inner(&x, &adjoint::all_to_all(&y, &case.counts).unwrap())
    }
}

#[test]
fn only_sum_and_mean_have_one() {
    let gradients = [vec![1.0], vec![2.0]];
    for op in ReduceOp::ALL.into_iter().filter(|op| ![Sum, Mean].contains(op)) {
        let undefined = Error::Undefined { op, dtype: consonance_spec::DType::F64 };
        assert_eq!(adjoint::all_reduce(op, &gradients), Err(undefined.clone()));
        assert_eq!(adjoint::reduce(op, &gradients[0], 2), Err(undefined.clone()));
        assert_eq!(adjoint::reduce_scatter(op, &gradients), Err(undefined));
    }
    assert!(collective::all_reduce(Max, &gradients).is_ok());
}

#[test]
fn the_adjoint_of_an_adjoint_is_the_call_itself() {
    for &kind in Kind::ALL {
        assert_eq!(kind.adjoint().is_some(), kind.flow() != Flow::Control, "{kind}");
        assert!(kind.adjoint().is_none_or(|adjoint| adjoint.adjoint() == Some(kind)), "{kind}");
    }
}
