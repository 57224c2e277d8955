//! Bytes from outside of the program, as they should be and with faults: text and messages are refused, or say the same when they
//! are read again; a segment is opened only if it is the group's.

mod law;

use consonance_harness::parsers;
use law::{Bytes, check_law};

/// Takes the next of the choices that bytes make, until they end.
struct Choices(std::vec::IntoIter<u8>);

impl Choices {
    fn below(&mut self, count: usize) -> usize {
        usize::from(self.0.next().unwrap_or(0)) % count
    }

    fn of<'a>(&mut self, parts: &[&'a str]) -> &'a str {
        parts[self.below(parts.len())]
    }

    /// Up to three parts.
    fn list(&mut self, part: fn(&mut Choices) -> String) -> String {
        (0..self.below(4)).map(|_| part(self)).collect::<Vec<_>>().join(",")
    }

    /// The text; of two such one with another character somewhere.
    fn perhaps_broken(&mut self, text: String) -> String {
        if self.below(2) == 0 {
            return text;
        }
        let mut characters: Vec<char> = text.chars().collect();
        let place = self.below(characters.len().max(1));
        characters.splice(
            place..(place + 1).min(characters.len()),
            self.of(&["\"", "{", "]", ",", "-", "0", "", "é", "\\"]).chars(),
        );
        characters.into_iter().collect()
    }
}

fn job(choices: &mut Choices) -> String {
    let name = choices.of(&["worker", "ps", "chief", "", "a\\\"b"]);
    // Few share an address.
    fn address(choices: &mut Choices) -> String {
        format!("\"h{}:{}\"", choices.below(200), choices.below(200))
    }
    fn task(choices: &mut Choices) -> String {
        let index = choices.below(9);
        format!("\"{index}\": {}", address(choices))
    }
    match choices.below(2) {
        0 => format!("\"{name}\": [{}]", choices.list(address)),
        _ => format!("\"{name}\": {{{}}}", choices.list(task)),
    }
}

#[test]
fn a_tf_config_is_refused_or_reads_as_it_is_written() {
    check_law(3000, |Bytes(bytes)| {
        let mut choices = Choices(bytes.into_iter());
        let cluster = choices.list(job);
        let task = format!(
            "{{\"type\": \"{}\", \"index\": {}}}",
            choices.of(&["worker", "ps", "evaluator"]),
            choices.below(3)
        );
        let rest = choices.of(&[
            "",
            ", \"rpc_layer\": \"grpc\"",
            ", \"session_master\": \"m\\n\"",
            ", \"other\": [null, 1e9]",
        ]);
        let text = match choices.below(3) {
            0 => format!("{{{cluster}}}"),
            1 => format!("{{\"cluster\": {{{cluster}}}{rest}}}"),
            _ => format!("{{\"cluster\": {{{cluster}}}, \"task\": {task}{rest}}}"),
        };
        parsers::tf_config(&choices.perhaps_broken(text))
    });
}

#[test]
fn lists_of_slurm_are_refused_or_read_as_they_are_written() {
    fn range(choices: &mut Choices) -> String {
        let (low, more) = (choices.below(120), choices.below(4));
        match choices.below(3) {
            0 => low.to_string(),
            1 => format!("{low:03}-{}", low + more),
            _ => format!("{low}-{}", low + more),
        }
    }
    fn name(choices: &mut Choices) -> String {
        let parts = (0..=choices.below(3)).map(|_| match choices.below(2) {
            0 => choices.of(&["n", "rack-", ".a", "7"]).to_owned(),
            _ => format!("[{}]", choices.list(range)),
        });
        parts.collect()
    }
    fn tasks(choices: &mut Choices) -> String {
        format!("{}{}", choices.below(5), choices.of(&["", "(x1)", "(x2)", "(x3)"]))
    }
    check_law(3000, |Bytes(bytes)| {
        let mut choices = Choices(bytes.into_iter());
        let text = format!("{}\n{}", choices.list(name), choices.list(tasks));
        parsers::slurm(&choices.perhaps_broken(text))
    });
}

#[test]
#[cfg(target_os = "linux")]
fn a_segment_is_opened_only_if_nothing_has_changed() {
    parsers::segment(&[0, 0]).unwrap();
    check_law(2000, |Bytes(bytes)| parsers::segment(&bytes));
    for at in 0..64 {
        for byte in 0..=255 {
            parsers::segment(&[at, 0, byte]).unwrap();
        }
    }
    for larger in 0..=255 {
        parsers::segment(&[0, larger]).unwrap();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_message_is_refused_or_reads_as_it_is_written() {
    check_law(3000, |Bytes(bytes)| parsers::control(&bytes));
    for kind in 0..4 {
        for place in 0..=255 {
            for byte in [0, 1, 4, 128, 255] {
                parsers::control(&[kind, place, byte]).unwrap();
                parsers::control(&[kind, place, byte, byte]).unwrap();
            }
        }
    }
}
