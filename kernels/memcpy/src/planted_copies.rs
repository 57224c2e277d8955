//! Copies that a check of object code must find, and one that it must not.

/// As many bytes as the caller says.
#[inline(never)]
pub fn unknown(target: &mut [u8], source: &[u8]) {
    target.copy_from_slice(source);
}

/// More than a few hundred bytes.
#[inline(never)]
pub fn long(target: &mut [u8; 4096], source: &[u8; 4096]) {
    *target = *source;
}

/// A few hundred bytes.
#[inline(never)]
pub fn short(target: &mut [u8; 256], source: &[u8; 256]) {
    *target = *source;
}
