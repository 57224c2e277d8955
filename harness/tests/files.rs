//! Data files with a wrong byte or a missing end: opening them fails, or gives columns that can be
//! read.

mod law;

use consonance_harness::{compare, seeds::files};
use law::check_law;

/// Judges a file as the fuzz target does. The first byte is the dtype of the CSV numbers.
fn check(content: &[u8]) {
    compare::file(&[&[11], content].concat())
        .unwrap_or_else(|wrong| panic!("{wrong}\nin {:?}", content.escape_ascii()));
}

#[test]
fn files_without_their_end() {
    for file in files() {
        (0..=file.len()).for_each(|bytes| check(&file[..bytes]));
    }
}

#[test]
fn files_with_a_wrong_byte() {
    for file in files() {
        for place in 0..file.len() {
            let others = (0..8).map(|bit| file[place] ^ 1 << bit).chain([0, b'9', b'"', 0xff]);
            for byte in others {
                let mut damaged = file.clone();
                damaged[place] = byte;
                check(&damaged);
            }
        }
    }
}

#[test]
fn any_bytes() {
    check_law(1000, |bytes| compare::file(&bytes.0));
}
