//! The numbers of element types, operations and codes. They are a part of the ABI and never change.

use consonance::{DType, Error, MessageType, ReduceOp};
use std::ffi::c_int;

/// An element type of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    /// Its number.
    pub number: c_int,
    /// Its name, which the header has in capitals.
    pub name: &'static str,
    /// The element type of its parts.
    pub dtype: DType,
    /// The number of parts: 2 for a complex number.
    pub parts: usize,
    /// Whether the buffers of this type lie in the memory of the communicator's GPU.
    pub on_gpu: bool,
}

/// Added to the number of a type whose buffers lie in the memory of the communicator's GPU.
pub const CONS_ON_GPU: c_int = 256;

impl Type {
    /// Whether its parts tell the type: there is one, of an element type of the runtime.
    pub fn is_plain(self) -> bool {
        self.number <= 12
    }
}

const fn plain(number: c_int, name: &'static str, dtype: DType) -> Type {
    Type { number, name, dtype, parts: 1, on_gpu: false }
}

/// All element types.
pub const TYPES: [Type; 15] = [
    plain(0, "bool", DType::Bool),
    plain(1, "i8", DType::I8),
    plain(2, "i16", DType::I16),
    plain(3, "i32", DType::I32),
    plain(4, "i64", DType::I64),
    plain(5, "u8", DType::U8),
    plain(6, "u16", DType::U16),
    plain(7, "u32", DType::U32),
    plain(8, "u64", DType::U64),
    plain(9, "f16", DType::F16),
    plain(10, "bf16", DType::Bf16),
    plain(11, "f32", DType::F32),
    plain(12, "f64", DType::F64),
    Type { number: 13, name: "c64", dtype: DType::F32, parts: 2, on_gpu: false },
    Type { number: 14, name: "c128", dtype: DType::F64, parts: 2, on_gpu: false },
];

/// The types that are not plain.
pub const COMPLEX: [Type; 2] = [TYPES[13], TYPES[14]];

/// Returns the types for messages.
pub const fn messages<const N: usize>(types: [Type; N]) -> [MessageType; N] {
    let mut messages = [MessageType { name: "", elements: 1 }; N];
    let mut index = 0;
    while index < N {
        messages[index] = MessageType { name: types[index].name, elements: types[index].parts };
        index += 1;
    }
    messages
}

/// All operations, with their numbers and their names in the header.
pub const OPS: [(c_int, &str, ReduceOp); 8] = [
    (0, "SUM", ReduceOp::Sum),
    (1, "MEAN", ReduceOp::Mean),
    (2, "PRODUCT", ReduceOp::Product),
    (3, "MIN", ReduceOp::Min),
    (4, "MAX", ReduceOp::Max),
    (5, "AND", ReduceOp::And),
    (6, "OR", ReduceOp::Or),
    (7, "XOR", ReduceOp::Xor),
];

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $number:literal, $name:literal;)*) => {
        $($(#[$doc])* pub const $code: c_int = $number;)*

        /// All codes, with their names in the header and, in C strings, for users.
        pub const CODES: &[(c_int, &str, &std::ffi::CStr)] = &[$(($code, stringify!($code), $name)),*];
    };
}

codes! {
    /// No error.
    CONS_OK = 0, c"ok";
    /// An argument is invalid.
    CONS_ERR_ARGUMENT = 1, c"invalid argument";
    /// The ranks did not make the same call, or a message does not fit its receive.
    CONS_ERR_MISMATCH = 2, c"mismatch";
    /// Ranks did not come before the timeout.
    CONS_ERR_TIMEOUT = 3, c"timeout";
    /// A rank has left or was lost with its process.
    CONS_ERR_LOST = 4, c"rank lost";
    /// The group was aborted.
    CONS_ERR_ABORTED = 5, c"aborted";
    /// The handle was freed, or never existed.
    CONS_ERR_FREED = 6, c"handle freed";
    /// The process is a fork of the one that uses the library.
    CONS_ERR_FORKED = 7, c"process forked";
    /// The operating system refused a request.
    CONS_ERR_SYSTEM = 8, c"system error";
    /// The processes did not form a group.
    CONS_ERR_MEETING = 9, c"no group formed";
    /// The call is not allowed here.
    CONS_ERR_CONTEXT = 10, c"wrong context";
    /// A fault of the library.
    CONS_ERR_INTERNAL = 11, c"internal error";
}

/// Returns the code of an error.
pub(crate) fn of(error: &Error) -> c_int {
    match error.root() {
        Error::InvalidCall { .. } | Error::UnknownReduceOp { .. } => CONS_ERR_ARGUMENT,
        Error::WrongContext { .. } => CONS_ERR_CONTEXT,
        Error::Mismatch { .. } => CONS_ERR_MISMATCH,
        Error::Timeout { .. } => CONS_ERR_TIMEOUT,
        Error::Left { .. } | Error::Aborted { lost: true, .. } => CONS_ERR_LOST,
        Error::Aborted { .. } => CONS_ERR_ABORTED,
        Error::Meeting { .. } => CONS_ERR_MEETING,
        Error::System { .. } => CONS_ERR_SYSTEM,
        _ => CONS_ERR_INTERNAL,
    }
}
