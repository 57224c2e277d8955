//! Initial inputs of fuzz targets, made by the same generators as the inputs of the tests.

use crate::cases::Source;
use consonance_kernels::digest::mix;

/// Returns inputs of the fuzz target `name`. A larger `count` reaches more of the target's code.
/// Returns `None` if there is no such target.
pub fn seeds(name: &str, count: u64) -> Option<Vec<Vec<u8>>> {
    let of_bytes = |make: &dyn Fn(&mut Source<'_>) -> Vec<u8>| {
        (0..count).map(|number| make(&mut Source::new(&bytes(number, 400)))).collect()
    };
    let drawn = |longest: u64| (0..count).map(|number| bytes(number, 4 + mix(number, longest) % longest)).collect();
    Some(match name {
        "collectives" | "messages" | "rank_deviation" | "nests" | "replica_deviation" | "axes" => drawn(200),
        "cuda" => drawn(120),
        "corrupted_memory" => drawn(60),
        "segment" | "control" | "trace" | "call_codes" => drawn(40),
        "formation" | "hosts" => drawn(300),
        "tf_config" => of_bytes(&|source| tf_config(source).into_bytes()),
        "slurm" => of_bytes(&|source| slurm(source).into_bytes()),
        "files" => files().into_iter().map(|file| [&[11], &file[..]].concat()).collect(),
        "checkpoints" => crate::compare::checkpoints(),
        _ => return None,
    })
}

/// Returns `count` bytes, the same for the same `number`.
fn bytes(number: u64, count: u64) -> Vec<u8> {
    (0..count).map(|place| (mix(number, place) >> 32) as u8).collect()
}

/// Returns the text of a `TF_CONFIG`, possibly with an error.
pub fn tf_config(source: &mut Source<'_>) -> String {
    let cluster = list(source, job);
    let task =
        format!("{{\"type\": \"{}\", \"index\": {}}}", source.pick(&["worker", "ps", "evaluator"]), source.below(3));
    let rest =
        source.pick(&["", ", \"rpc_layer\": \"grpc\"", ", \"session_master\": \"m\\n\"", ", \"other\": [null, 1e9]"]);
    let text = match source.below(3) {
        0 => format!("{{{cluster}}}"),
        1 => format!("{{\"cluster\": {{{cluster}}}{rest}}}"),
        _ => format!("{{\"cluster\": {{{cluster}}}, \"task\": {task}{rest}}}"),
    };
    perhaps_broken(source, text)
}

fn job(source: &mut Source<'_>) -> String {
    let name = source.pick(&["worker", "ps", "chief", "", "a\\\"b"]);
    // Only a few tasks have equal addresses.
    fn address(source: &mut Source<'_>) -> String {
        format!("\"h{}:{}\"", source.below(200), source.below(200))
    }
    fn task(source: &mut Source<'_>) -> String {
        let index = source.below(9);
        format!("\"{index}\": {}", address(source))
    }
    match source.below(2) {
        0 => format!("\"{name}\": [{}]", list(source, address)),
        _ => format!("\"{name}\": {{{}}}", list(source, task)),
    }
}

/// Returns Slurm's list of nodes and its list of tasks per node, on a line each, possibly with an
/// error.
pub fn slurm(source: &mut Source<'_>) -> String {
    fn range(source: &mut Source<'_>) -> String {
        let (low, more) = (source.below(120), source.below(4));
        match source.below(3) {
            0 => low.to_string(),
            1 => format!("{low:03}-{}", low + more),
            _ => format!("{low}-{}", low + more),
        }
    }
    fn name(source: &mut Source<'_>) -> String {
        let parts = (0..=source.below(3)).map(|_| match source.below(2) {
            0 => source.pick(&["n", "rack-", ".a", "7"]).to_owned(),
            _ => format!("[{}]", list(source, range)),
        });
        parts.collect()
    }
    fn tasks(source: &mut Source<'_>) -> String {
        format!("{}{}", source.below(5), source.pick(&["", "(x1)", "(x2)", "(x3)"]))
    }
    let text = format!("{}\n{}", list(source, name), list(source, tasks));
    perhaps_broken(source, text)
}

/// Returns a list of up to three parts.
fn list(source: &mut Source<'_>, part: fn(&mut Source<'_>) -> String) -> String {
    (0..source.below(4)).map(|_| part(source)).collect::<Vec<_>>().join(",")
}

/// Returns the text, or, once in two times, the text with one character replaced.
fn perhaps_broken(source: &mut Source<'_>, text: String) -> String {
    if source.below(2) == 0 {
        return text;
    }
    let mut characters: Vec<char> = text.chars().collect();
    let place = source.below(characters.len().clamp(1, 256));
    let other = source.pick(&["\"", "{", "]", ",", "-", "0", "", "é", "\\"]);
    characters.splice(place..(place + 1).min(characters.len()), other.chars());
    characters.into_iter().collect()
}

/// A data file of each format.
pub fn files() -> [Vec<u8>; 4] {
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }\n";
    let npy = [b"\x93NUMPY\x01\x00", &[header.len() as u8, 0][..], header.as_bytes(), &[1; 24]].concat();
    let idx = [&[0, 0, 8, 2, 0, 0, 0, 3, 0, 0, 0, 2][..], &[7; 6]].concat();
    let header = r#"{"y":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"BOOL","shape":[3],"data_offsets":[4,7]}}"#;
    let safetensors = [&[header.len() as u8, 0, 0, 0, 0, 0, 0, 0][..], header.as_bytes(), &[1; 7]].concat();
    let csv = b"a,\"b\"\r\n1,2.5\r\n\n\"3\", 4e2\r\n".to_vec();
    [npy, idx, safetensors, csv]
}
