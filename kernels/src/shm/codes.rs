//! The numbers that stand for element types, operations and calls in the words that ranks share.

use consonance_spec::{DType, Kind, ReduceOp, call::mix};

/// A number and what it stands for.
type Code = (u8, &'static str);

const COUNT: usize = DType::ALL.len() + ReduceOp::ALL.len() + Kind::ALL.len();

/// All codes of this build.
pub(super) const CODES: [Code; COUNT] = {
    let mut codes = [(0, ""); COUNT];
    let mut index = 0;
    while index < COUNT {
        let op = index.wrapping_sub(DType::ALL.len());
        let kind = op.wrapping_sub(ReduceOp::ALL.len());
        codes[index] = if index < DType::ALL.len() {
            (DType::ALL[index] as u8, DType::ALL[index].name())
        } else if op < ReduceOp::ALL.len() {
            (ReduceOp::ALL[op] as u8, ReduceOp::ALL[op].name())
        } else {
            (Kind::ALL[kind] as u8, Kind::ALL[kind].name())
        };
        index += 1;
    }
    codes
};

/// A digest of codes, their names and their order.
pub(super) const fn digest(codes: &[Code]) -> u64 {
    let mut hash = codes.len() as u64;
    let mut index = 0;
    while index < codes.len() {
        let (code, name) = codes[index];
        hash = mix(mix(hash, code as u64), name.len() as u64);
        let mut byte = 0;
        while byte < name.len() {
            hash = mix(hash, name.as_bytes()[byte] as u64);
            byte += 1;
        }
        index += 1;
    }
    hash
}
