//! The header agrees with the library.

use consonance_c::{
    codes::{CODES, OPS, TYPES},
    prototypes,
};

const HEADER: &str = include_str!("../include/consonance.h");

/// The header without comments and line breaks.
fn text() -> String {
    let mut text = String::new();
    let mut rest = HEADER;
    while let Some((before, after)) = rest.split_once("/*") {
        text += before;
        rest = after.split_once("*/").expect("the end of a comment").1;
    }
    (text + rest).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_function_has_its_prototype_and_no_other_is_there() {
    let text = text();
    let mut declared: Vec<&str> =
        text.split_inclusive(';').map(str::trim).filter(|line| line.contains("cons_")).collect();
    declared.retain(|line| line.starts_with("int cons_") || line.starts_with("const char *cons_"));
    let mut expected = prototypes();
    // They return no code.
    expected.push("int cons_abi_version(void);".to_owned());
    expected.push("const char *cons_code_name(int code);".to_owned());
    let missing: Vec<_> = expected.iter().filter(|line| !declared.contains(&line.as_str())).collect();
    let unknown: Vec<_> = declared.iter().filter(|line| !expected.iter().any(|other| other == *line)).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing: {missing:#?}\nunknown: {unknown:#?}");
}

#[test]
fn numbers_in_the_header_are_those_of_the_library() {
    let text = text();
    let types = TYPES.iter().map(|of| (of.number, format!("CONS_{}", of.name.to_uppercase())));
    let ops = OPS.iter().map(|(number, name, _)| (*number, format!("CONS_{name}")));
    let codes = CODES.iter().map(|(number, name, _)| (*number, (*name).to_owned()));
    for (number, name) in types.chain(ops).chain(codes) {
        let line = format!("{name} = {number}");
        let is_there = text.contains(&format!("{line},")) || text.contains(&format!("{line} }}"));
        assert!(is_there, "the header has no {line}");
    }
}

/// These numbers are a part of the ABI. A new one is added at the end.
#[test]
fn numbers_never_change() {
    let types: Vec<String> =
        TYPES.iter().map(|of| format!("{} {} {} {}", of.number, of.name, of.dtype, of.parts)).collect();
    let expected = [
        "0 bool bool 1",
        "1 i8 i8 1",
        "2 i16 i16 1",
        "3 i32 i32 1",
        "4 i64 i64 1",
        "5 u8 u8 1",
        "6 u16 u16 1",
        "7 u32 u32 1",
        "8 u64 u64 1",
        "9 f16 f16 1",
        "10 bf16 bf16 1",
        "11 f32 f32 1",
        "12 f64 f64 1",
        "13 c64 f32 2",
        "14 c128 f64 2",
    ];
    assert_eq!(types[..expected.len()], expected);
    let ops: Vec<String> = OPS.iter().map(|(number, name, op)| format!("{number} {name} {op}")).collect();
    let expected = [
        "0 SUM sum",
        "1 MEAN mean",
        "2 PRODUCT product",
        "3 MIN min",
        "4 MAX max",
        "5 AND and",
        "6 OR or",
        "7 XOR xor",
    ];
    assert_eq!(ops[..expected.len()], expected);
    let codes: Vec<String> = CODES.iter().map(|(number, name, _)| format!("{number} {}", &name[5..])).collect();
    let expected = [
        "0 OK",
        "1 ERR_ARGUMENT",
        "2 ERR_MISMATCH",
        "3 ERR_TIMEOUT",
        "4 ERR_LOST",
        "5 ERR_ABORTED",
        "6 ERR_FREED",
        "7 ERR_FORKED",
        "8 ERR_SYSTEM",
        "9 ERR_MEETING",
        "10 ERR_CONTEXT",
        "11 ERR_INTERNAL",
    ];
    assert_eq!(codes[..expected.len()], expected);
}
