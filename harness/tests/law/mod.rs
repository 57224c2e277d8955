//! Cases from quickcheck.

use consonance_harness::compare::Verdict;
use quickcheck::{Arbitrary, Gen, QuickCheck};

/// Bytes that encode a case.
#[derive(Clone, Debug)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Arbitrary for Bytes {
    fn arbitrary(g: &mut Gen) -> Bytes {
        Bytes((0..300).map(|_| u8::arbitrary(g)).collect())
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Bytes>> {
        Box::new(self.0.shrink().map(Bytes))
    }
}

/// Checks a law on the given number of cases.
pub(crate) fn check_law(cases: u64, law: fn(Bytes) -> Verdict) {
    QuickCheck::new().tests(cases).quickcheck(law);
}
