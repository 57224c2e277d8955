//! The numbers in the words that ranks share: of element types, operations and calls, of how a rank
//! shares memory in a step, and of why a group was ended.

use crate::digest::{self, mix};
use consonance_spec::{DType, Extension, Kind, ReduceOp, Signature};

/// Returns a digest of the signature. Different signatures have different digests, but for one
/// chance in 2^64.
#[inline]
pub fn fingerprint(signature: &Signature) -> u64 {
    let count = signature.count.map_or(u64::MAX, |count| count as u64);
    let root = signature.root.map_or(u64::MAX, |root| root as u64);
    let small = u64::from(code(signature)) ^ root.rotate_left(24);
    // One multiplication, because every call waits for it. The detail is a digest already.
    let product = u128::from(small ^ 0x9e37_79b9_7f4a_7c15) * u128::from(count ^ 0xd6e8_feb8_6659_fd93);
    (product as u64) ^ (product >> 64) as u64 ^ signature.detail
}

/// Returns kind, op and dtype in three bytes, for the log of last calls. The inverse of [`read`].
#[inline]
pub fn code(signature: &Signature) -> u32 {
    let op = signature.op.map_or(0, |op| op as u32 + 1);
    let dtype = signature.dtype.map_or(0, |dtype| dtype as u32 + 1);
    u32::from(code_of(signature.kind)) | op << 8 | dtype << 16
}

/// Returns the kind, op and dtype of a [`code`], where `extensions` are the kinds of the layer
/// above; `None` if the bytes are not a valid code.
pub fn read(code: u32, extensions: &[&'static Extension]) -> Option<Signature> {
    let [kind, op, _, _] = code.to_le_bytes();
    let mut signature = Signature::new(kind_of(kind, extensions)?);
    if let Some(index) = op.checked_sub(1) {
        signature.op = Some(*ReduceOp::ALL.get(usize::from(index))?);
    }
    signature.dtype = dtype(code)?;
    Some(signature)
}

/// Returns the dtype of a [`code`], if it has one. The outer `None` is for a number that no dtype
/// has.
pub fn dtype(code: u32) -> Option<Option<DType>> {
    let [_, _, dtype, _] = code.to_le_bytes();
    match dtype.checked_sub(1) {
        None => Some(None),
        Some(index) => DType::ALL.get(usize::from(index)).copied().map(Some),
    }
}

/// The code of the first extension. Those of the spec's kinds are below.
const EXTENSIONS: u8 = 64;

/// Returns the code of a kind.
#[inline]
pub const fn code_of(kind: Kind) -> u8 {
    match kind {
        Kind::AllReduce => 0,
        Kind::Reduce => 1,
        Kind::ReduceScatter => 2,
        Kind::Broadcast => 3,
        Kind::AllGather => 4,
        Kind::Gather => 5,
        Kind::Scatter => 6,
        Kind::AllToAll => 7,
        Kind::SendRecv => 8,
        Kind::Barrier => 9,
        Kind::Split => 10,
        Kind::Extension(extension) => EXTENSIONS + extension.place,
    }
}

/// Returns the kind with this code; `None` for a code that no kind has.
pub fn kind_of(code: u8, extensions: &[&'static Extension]) -> Option<Kind> {
    let extensions = extensions.iter().map(|&extension| Kind::Extension(extension));
    Kind::ALL.iter().copied().chain(extensions).find(|&kind| code_of(kind) == code)
}

/// A number and its name.
pub(super) type Code = (u8, &'static str);

/// Declares an enum whose variants have numbers in words that ranks share, and lists them.
macro_rules! coded {
    ($(#[$attribute:meta])* $public:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$attribute])*
        $public enum $name {
            $($(#[$doc])* $variant = $code,)*
        }

        impl $name {
            /// All of them.
            #[allow(dead_code, reason = "not every list is walked")]
            $public const ALL: [$name; [$($code),*].len()] = [$($name::$variant),*];

            /// The number and the name of each, for the digest of a segment's layout.
            pub(super) const CODES: &'static [$crate::shm::codes::Code] = &[$(($code, stringify!($variant))),*];
        }
    };
}
pub(super) use coded;

coded! {
    /// The access of a rank to shared memory in a step. Descriptors must be equal in this and in
    /// the call's code.
    #[derive(Clone, Copy, PartialEq, Eq)]
    #[repr(u8)]
    pub(crate) enum Access {
        Payload = 0,
        Published = 1,
        DividedToAll = 2,
        DividedToOwn = 3,
        DividedToRoot = 4,
        /// The rank waits for the data that it reads, and compares the other descriptors at its
        /// next call.
        Message = 5,
        /// The rank's own call is invalid; its payload says why.
        Refused = 6,
        /// As `Message`, and the payload ends with a count for each rank.
        CountedMessage = 7,
        /// The payload ends with words. Data that do not fit before them are published.
        Words = 8,
    }
}

impl Access {
    /// Whether the rank may have gone on before its peers arrived.
    pub(crate) fn is_message(self) -> bool {
        matches!(self, Access::Message | Access::CountedMessage)
    }
}

coded! {
    /// The reason why a group was ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum Reason {
        /// A rank did not arrive before the deadline of another.
        Deadline = 1,
        /// A rank's code panicked.
        Panic = 2,
        /// A rank's code returned an error, or asked for the end.
        Failure = 3,
        /// A rank's process has ended.
        Death = 4,
        /// A rank got no memory for the data that it shares.
        Memory = 5,
        /// A rank's process has left the group, to form another one.
        Departure = 6,
        /// A rank is idle, and another rank of its process waits for it.
        Return = 7,
        /// A rank has left, and a rank that was told of it has ended the group.
        Leave = 8,
    }
}

const COUNT: usize = DType::ALL.len() + ReduceOp::ALL.len() + Kind::ALL.len();

/// The codes of types, operations and calls.
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
            (code_of(Kind::ALL[kind]), Kind::ALL[kind].name())
        };
        index += 1;
    }
    codes
};

/// A digest of codes, their names and their order.
pub(super) const fn digest_of(codes: &[Code]) -> u64 {
    let mut hash = codes.len() as u64;
    let mut index = 0;
    while index < codes.len() {
        let (code, name) = codes[index];
        hash = mix(mix(hash, code as u64), digest::digest(name));
        index += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const EXTENDED: [&Extension; 2] = [&Extension { place: 0, name: "meet" }, &Extension { place: 1, name: "leave" }];

    #[test]
    fn codes_are_read_back() {
        let ops = [None].into_iter().chain(ReduceOp::ALL.map(Some));
        let dtypes = [None].into_iter().chain(DType::ALL.iter().copied().map(Some));
        let mut codes = HashSet::new();
        for (op, dtype) in ops.flat_map(|op| dtypes.clone().map(move |dtype| (op, dtype))) {
            for kind in Kind::ALL.iter().copied().chain(EXTENDED.map(Kind::Extension)) {
                let signature = Signature { op, dtype, ..Signature::new(kind) };
                assert_eq!(read(code(&signature), &EXTENDED), Some(signature));
                assert!(codes.insert(code(&signature)), "{signature}");
            }
        }
        let (ops, dtypes) = (ReduceOp::ALL.len() as u32, DType::ALL.len() as u32);
        for no_code in [0xff, (ops + 1) << 8, (dtypes + 1) << 16] {
            assert_eq!(read(no_code, &EXTENDED), None, "{no_code:#x}");
        }
        let extended = code(&Signature::new(Kind::Extension(EXTENDED[1])));
        assert_eq!(read(extended, &EXTENDED[..1]), None, "an extension of another build");
    }

    #[test]
    fn fingerprints_differ_where_a_field_does() {
        for (count, root, detail) in [(0, 1, 0), (1, 0, 7), (1 << 40, 255, u64::MAX), (12, 3, 1 << 63)] {
            let base = Signature {
                kind: Kind::Reduce,
                op: Some(ReduceOp::Sum),
                dtype: Some(DType::F32),
                count: Some(count),
                root: Some(root),
                detail,
            };
            let others = [
                base,
                Signature { kind: Kind::AllReduce, ..base },
                Signature { op: Some(ReduceOp::Mean), ..base },
                Signature { op: None, ..base },
                Signature { dtype: Some(DType::F64), ..base },
                Signature { dtype: None, ..base },
                Signature { count: Some(count + 1), ..base },
                Signature { count: None, ..base },
                Signature { root: Some(root + 1), ..base },
                Signature { root: None, ..base },
                Signature { detail: detail ^ 1, ..base },
                // Fields do not stand in for each other.
                Signature { count: base.root, root: base.count, ..base },
                Signature { kind: Kind::Extension(EXTENDED[0]), ..base },
                Signature { kind: Kind::Extension(EXTENDED[1]), ..base },
            ];
            assert_eq!(others.iter().map(fingerprint).collect::<HashSet<u64>>().len(), others.len());
        }
    }
}
