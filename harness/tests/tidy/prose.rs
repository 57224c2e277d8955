//! Rules of prose: the names of tests, and the columns of comments and pages.

use super::{Problem, SOURCES, Source, check, files, none, places, read};

/// Words that turn a test's name into a relative clause or a question, where a claim is meant.
const UNCLEAR: [&str; 7] = ["who", "whom", "whose", "what", "which", "that", "told"];

fn is_unclear(name: &str) -> bool {
    name.split('_').any(|word| UNCLEAR.contains(&word))
}

fn problem_of(name: &str) -> String {
    format!("`{name}`: name a test by its claim, without {}", UNCLEAR.join(", "))
}

/// Returns the names of tests in Rust that make no claim: functions with `#[test]`, and those in a
/// block of `quickcheck!`.
fn unclear_tests(source: &Source) -> Vec<Problem> {
    let code = &source.code;
    let attributes = places(code, "#[test]").filter_map(|at| Some(at + code[at..].find("fn ")?));
    let blocks = places(code, "quickcheck! {").flat_map(|at| {
        let end = code[at..].find("\n}").map_or(code.len(), |end| at + end);
        places(&code[at..end], "fn ").map(move |function| at + function)
    });
    let name =
        |at: usize| code[at + 3..].split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default();
    let unclear = attributes.chain(blocks).filter(|&at| is_unclear(name(at)));
    unclear.map(|at| source.problem(at, problem_of(name(at)))).collect()
}

/// Returns the names of tests in Python that make no claim.
fn unclear_tests_of_python(path: &str, text: &str) -> Vec<Problem> {
    let name = |line: &str| Some(line.trim_start().strip_prefix("def test_")?.split('(').next()?.to_owned());
    let names = text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, name(line)?)));
    let unclear = names.filter(|(_, name)| is_unclear(name));
    unclear.map(|(line, name)| Problem { path: path.to_owned(), line, what: problem_of(&name) }).collect()
}

#[test]
fn names_of_tests_are_claims() {
    check(unclear_tests);
    none(files(".py").iter().flat_map(|path| unclear_tests_of_python(path, &read(path))).collect());
    assert!(SOURCES.iter().any(|source| source.code.contains("quickcheck! {")));
}

#[test]
fn an_unclear_name_of_a_test_is_found() {
    let lines = |text: &str| -> Vec<usize> {
        unclear_tests(&Source::new("a/tests/b.rs", text)).into_iter().map(|problem| problem.line).collect()
    };
    assert_eq!(lines("#[test]\nfn npy_that_is_not_right() {}"), [2]);
    assert_eq!(lines("#[test]\n#[ignore]\nfn what_is_not_right() {}\n#[test]\nfn whatever_holds() {}"), [3]);
    assert_eq!(lines("quickcheck! {\n    fn a() {}\n    fn who_waits_sleeps() {}\n}\nfn which() {}"), [3]);
    assert_eq!(lines("#[test]\nfn a() { fn that() {} }\nfn told() { \"#[test] fn what\" }"), [0; 0]);
    let python = "def test_a():\ndef that():\nclass A:\n    def test_a_rank_that_exits(a):\n        pass";
    let found: Vec<usize> = unclear_tests_of_python("a.py", python).into_iter().map(|problem| problem.line).collect();
    assert_eq!(found, [4]);
}
