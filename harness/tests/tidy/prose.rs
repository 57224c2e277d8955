//! Rules of prose: the names of tests, and comments and pages in every language of the project.

use super::{Problem, SOURCES, Source, check, files, none, places, read, root};
use std::fs;

/// Words that turn a test's name into a relative clause or a question, where a claim is meant.
const UNCLEAR: [&str; 7] = ["who", "whom", "whose", "what", "which", "that", "told"];

/// Words that begin no comment: a noun or a verb does. The doc of a truth value begins with
/// "Whether".
const QUESTIONS: [&str; 10] = ["What", "Which", "Who", "Whom", "Whose", "That", "How", "Why", "Where", "When"];

/// Words of notes about unfinished work.
const UNFINISHED: [&str; 4] = ["TODO", "FIXME", "XXX", "HACK"];

/// The maximum number of columns of a line of prose. Code in Rust has rustfmt's limit.
const COLUMNS: usize = 100;

/// The endings of the files that have prose, and the mark of their comments. Each line of a page or
/// of a manifest counts as prose.
const LANGUAGES: [(&str, &str); 10] = [
    (".c", "//"),
    (".cu", "//"),
    (".cuh", "//"),
    (".h", "//"),
    (".md", ""),
    (".py", "#"),
    (".pyi", "#"),
    (".rs", "//"),
    (".sh", "#"),
    (".toml", ""),
];

/// Returns the paths of all files that have prose, and the mark of their comments. Scripts without
/// an ending are among them.
fn texts() -> Vec<(String, &'static str)> {
    let is_script = |path: &String| {
        let name = path.rsplit('/').next().unwrap_or_default();
        !name.contains('.') && fs::read(root().join(path)).is_ok_and(|bytes| bytes.starts_with(b"#!"))
    };
    let scripts = files("").into_iter().filter(is_script).chain([".ci/run".to_owned()]);
    let others = LANGUAGES.iter().flat_map(|(ending, mark)| files(ending).into_iter().map(move |path| (path, *mark)));
    scripts.map(|path| (path, "#")).chain(others).collect()
}

/// A line of a comment, of a page or of a manifest.
struct Line<'t> {
    number: usize,
    line: &'t str,
    /// The line without the marks of a comment. Empty in an example.
    words: &'t str,
    /// Whether the line before it is no prose.
    opens: bool,
}

impl Line<'_> {
    fn problem(&self, path: &str, what: String) -> Problem {
        Problem { path: path.to_owned(), line: self.number, what }
    }
}

/// Returns the lines of prose of a file whose comments have this mark, or, in C, a block.
fn prose<'t>(text: &'t str, mark: &str) -> Vec<Line<'t>> {
    let (mut lines, mut is_block, mut is_example, mut opens) = (Vec::new(), false, false, true);
    for (index, line) in text.lines().enumerate() {
        let text = line.trim();
        is_block |= mark == "//" && text.starts_with("/*");
        let is_prose = is_block || text.starts_with(mark);
        is_block &= !text.contains("*/");
        is_example = is_prose && is_example != text.contains("```");
        // A heading of a doc keeps its mark.
        let is_sign = |c: char| " /*!".contains(c) || mark != "//" && c == '#';
        let words = text.trim_start_matches(is_sign);
        let words = if is_prose && !is_example { words } else { "" };
        if is_prose {
            lines.push(Line { number: index + 1, line, words, opens });
        }
        opens = words.is_empty();
    }
    lines
}

/// Returns lines wider than [`COLUMNS`]. Tables, drawings and examples are exempt.
fn wide_lines(path: &str, text: &str, mark: &str) -> Vec<Problem> {
    let is_wide = |line: &Line<'_>| line.line.chars().count() > COLUMNS && !line.words.is_empty();
    let is_drawn = |line: &Line<'_>| line.words.starts_with('|') || mark == "//" && line.words.contains(['|', '─']);
    let wide = prose(text, mark).into_iter().filter(|line| is_wide(line) && !is_drawn(line));
    wide.map(|line| line.problem(path, format!("more than {COLUMNS} columns"))).collect()
}

/// Returns comments that begin with a word of a question.
fn questions(path: &str, text: &str, mark: &str) -> Vec<Problem> {
    let word = |line: &Line<'_>| line.words.split(' ').next().unwrap_or_default().to_owned();
    let is_question = |line: &Line<'_>| {
        let is_comment = !path.ends_with(".md") && !line.line.trim().starts_with(line.words);
        line.opens && is_comment && !line.words.ends_with('?') && QUESTIONS.contains(&&*word(line))
    };
    let found = prose(text, mark).into_iter().filter(is_question);
    found.map(|line| line.problem(path, format!("`{}`: begin with a noun or a verb", word(&line)))).collect()
}

fn notes_of_unfinished_work(path: &str, text: &str, mark: &str) -> Vec<Problem> {
    let note = |line: &Line<'_>| UNFINISHED.into_iter().find(|word| places(line.words, word).next().is_some());
    let found = prose(text, mark).into_iter().filter_map(|line| note(&line).map(|word| (line, word)));
    found.map(|(line, word)| line.problem(path, format!("`{word}`: an issue is the place for it"))).collect()
}

/// Checks a rule of prose in all files.
fn check_prose(rule: impl Fn(&str, &str, &str) -> Vec<Problem>) {
    none(texts().iter().flat_map(|(path, mark)| rule(path, &read(path), mark)).collect());
}

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

#[test]
fn every_line_of_prose_is_narrow() {
    check_prose(wide_lines);
}

#[test]
fn comments_begin_with_a_noun_or_a_verb() {
    check_prose(questions);
}

#[test]
fn no_work_is_left_unfinished() {
    check_prose(notes_of_unfinished_work);
}

#[test]
fn prose_is_found_in_every_language() {
    let texts = texts();
    for (path, mark) in [(".ci/run", "#"), ("harness/perf/compare", "#"), ("kernels/cuda/fold.cu", "//")] {
        assert!(texts.contains(&(path.to_owned(), mark)), "{path}");
    }
    assert!(LANGUAGES.iter().all(|(ending, _)| texts.iter().any(|(path, _)| path.ends_with(ending))));
    type Rule = fn(&str, &str, &str) -> Vec<Problem>;
    let wide = "word ".repeat(COLUMNS / 4);
    let lines = |rule: Rule, path: &str, mark: &str, text: &str| -> Vec<usize> {
        rule(path, text, mark).into_iter().map(|problem| problem.line).collect()
    };
    assert_eq!(lines(wide_lines, "a.rs", "//", &format!("let x = 1;\n// {wide}\n// | {wide}")), [2]);
    assert_eq!(lines(wide_lines, "a.c", "//", &format!("/* a\n * {wide} */\n{wide};\n//// {wide}")), [2, 4]);
    assert_eq!(lines(wide_lines, "a.sh", "#", &format!("{wide}\n# {wide}")), [2]);
    assert_eq!(lines(wide_lines, "a.md", "", &format!("{wide}\n|{wide}\n```\n{wide}\n```\n")), [1]);
    assert_eq!(lines(questions, "a.rs", "//", "/// What it does.\n/// That is all.\nfn f() {} // Who"), [1]);
    assert_eq!(lines(questions, "a.rs", "//", "/// Does it.\n///\n/// How it does that.\n// Why?"), [3]);
    assert_eq!(lines(questions, "a.toml", "", "# Which\nWhich = 1\n# The reason"), [1]);
    assert_eq!(lines(questions, "a.md", "", "# What is there"), [0; 0]);
    assert_eq!(lines(notes_of_unfinished_work, "a.rs", "//", "\n// TODO: more\n// TODOS"), [2]);
    assert_eq!(lines(notes_of_unfinished_work, "run", "#", "# a\n# FIXME\nXXX=1"), [2]);
}
