//! Records in memory that processes share. One macro declares a record and lists its fields, so
//! that the digest of a segment's layout, and the tests that write invalid values into a segment,
//! know each field.
#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has segments"))]

use super::{
    atomics::{AtomicPtr, AtomicU32, AtomicU64},
    futex::Sleepers,
};
use crate::digest::mix;
use std::cell::UnsafeCell;

/// A field of a record.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// Bytes of the record before the field.
    pub(crate) offset: usize,
    /// Bytes of one element.
    pub(crate) bytes: usize,
    /// Number of elements: one, unless the field is an array.
    pub(crate) count: usize,
    /// The fields of an element; empty unless the element is a record.
    pub(crate) fields: &'static [Field],
}

/// The types that a field of a record may have.
pub(crate) trait Record: Sized {
    const COUNT: usize = 1;
    const FIELDS: &'static [Field] = &[];
}

impl Record for AtomicU32 {}
impl Record for AtomicU64 {}
impl<T> Record for AtomicPtr<T> {}
impl<const BYTES: usize> Record for UnsafeCell<[u8; BYTES]> {}
impl Record for u64 {}
impl Record for [u8; 16] {}
impl Record for Sleepers {}

impl<T: Record, const COUNT: usize> Record for [T; COUNT] {
    const COUNT: usize = COUNT;
    const FIELDS: &'static [Field] = T::FIELDS;
}

/// Declares a record, and lists its fields.
macro_rules! record {
    (
        $(#[$attribute:meta])*
        $seen:vis struct $record:ident {
            $($(#[$about:meta])* $field_seen:vis $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$attribute])*
        #[repr(C)]
        $seen struct $record {
            $($(#[$about])* $field_seen $field: $type,)*
        }

        impl $crate::sync::record::Record for $record {
            const FIELDS: &'static [$crate::sync::record::Field] = &[$($crate::sync::record::Field {
                name: stringify!($field),
                offset: ::std::mem::offset_of!($record, $field),
                bytes: size_of::<$type>() / <$type as $crate::sync::record::Record>::COUNT,
                count: <$type as $crate::sync::record::Record>::COUNT,
                fields: <$type as $crate::sync::record::Record>::FIELDS,
            }),*];
        }
    };
}

/// Returns a digest of the names, offsets and sizes of a record's fields, and of its alignment.
pub(crate) const fn digest<R: Record>() -> u64 {
    mix(digest_of(R::FIELDS, size_of::<R>() as u64), align_of::<R>() as u64)
}

const fn digest_of(fields: &[Field], mut digest: u64) -> u64 {
    let mut index = 0;
    while index < fields.len() {
        let Field { name, offset, bytes, count, fields } = fields[index];
        let mut letter = 0;
        while letter < name.len() {
            digest = mix(digest, name.as_bytes()[letter] as u64);
            letter += 1;
        }
        digest = mix(mix(mix(digest, offset as u64), bytes as u64), count as u64);
        digest = digest_of(fields, digest);
        index += 1;
    }
    digest
}
