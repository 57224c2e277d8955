//! Bytes from outside the program, valid and damaged. Text and messages are refused, or keep their
//! meaning when they are written and read again. A segment is opened only if it is the group's.

mod law;

use consonance_harness::{cases::Source, external_input, seeds};
use law::{Bytes, check_law};

#[test]
fn a_tf_config_is_refused_or_reads_as_it_is_written() {
    check_law(3000, |Bytes(bytes)| external_input::tf_config(&seeds::tf_config(&mut Source::new(&bytes))));
}

#[test]
fn lists_of_slurm_are_refused_or_read_as_they_are_written() {
    check_law(3000, |Bytes(bytes)| external_input::slurm(&seeds::slurm(&mut Source::new(&bytes))));
}

#[test]
#[cfg(target_os = "linux")]
fn a_segment_is_opened_only_if_nothing_has_changed() {
    external_input::segment(&[0, 0]).unwrap();
    check_law(2000, |Bytes(bytes)| external_input::segment(&bytes));
    for at in 0..64 {
        for byte in 0..=255 {
            external_input::segment(&[at, 0, byte]).unwrap();
        }
    }
    for larger in 0..=255 {
        external_input::segment(&[0, larger]).unwrap();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_message_is_refused_or_reads_as_it_is_written() {
    check_law(3000, |Bytes(bytes)| external_input::control(&bytes));
    for kind in 0..4 {
        for place in 0..=255 {
            for byte in [0, 1, 4, 128, 255] {
                external_input::control(&[kind, place, byte]).unwrap();
                external_input::control(&[kind, place, byte, byte]).unwrap();
            }
        }
    }
}
