//! Checks the house rules that a program can check. Each failure names the file, the line and the
//! rule.
//!
//! Rules read a [`Source`], which separates code from comments and literals, so that words in
//! comments and strings break no rule of code. [`every_rule_finds_a_planted_fault`] has lines that
//! break them.

mod arrows;
mod prose;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// The crates of this project on which each crate may depend, in the order of the arrows.
const ARROWS: [(&str, &[&str]); 15] = [
    ("spec", &[]),
    ("kernels/memcpy", &[]),
    ("kernels", &["consonance-memcpy", "consonance-spec"]),
    ("kernels/model", &["consonance-spec"]),
    ("runtime/derive", &[]),
    ("runtime", &["consonance-derive", "consonance-kernels", "consonance-spec"]),
    ("harness/messages", &["consonance"]),
    ("harness/ptx", &[]),
    ("harness/driver", &["consonance-kernels", "consonance-ptx", "consonance-spec"]),
    (
        "harness",
        &[
            "consonance",
            "consonance-fake-driver",
            "consonance-kernels",
            "consonance-memcpy",
            "consonance-messages",
            "consonance-ptx",
            "consonance-spec",
        ],
    ),
    ("cli", &["consonance", "consonance-fake-driver", "consonance-harness", "consonance-kernels", "consonance-spec"]),
    ("examples", &["consonance", "consonance-messages"]),
    ("bindings/c", &["consonance", "consonance-fake-driver"]),
    ("bindings/python", &["consonance", "consonance-c", "consonance-cli"]),
    ("fuzz", &["consonance", "consonance-harness", "consonance-kernels", "consonance-spec"]),
];

/// The folders with unsafe code: the code that depends on the machine, and the borders where
/// pointers of C and arrays of Python come in. The driver for tests has the functions of a library
/// of C.
const UNSAFE: [&str; 4] = ["kernels/", "bindings/c/", "bindings/python/src/array/", "harness/driver/"];

/// Roots of libraries that forbid unsafe code: all libraries outside these folders.
const SAFE_ROOTS: [&str; 8] = [
    "spec/src/lib.rs",
    "runtime/derive/src/lib.rs",
    "runtime/src/lib.rs",
    "harness/src/lib.rs",
    "harness/messages/src/lib.rs",
    "harness/ptx/src/lib.rs",
    "cli/src/lib.rs",
    "cli/src/main.rs",
];

/// The modules of `spec` that all code may use. Every other module defines results. Of `order`,
/// which also does, all code may use the constants.
const WORDS: [&str; 9] =
    ["dtype", "op", "world", "partition", "call", "traffic", "packing", "aggregation", "static_shapes"];

/// The names at the root of `spec` other than types. Types begin with a capital.
const ROOT: [&str; 3] = ["f16", "bf16", "for_each_dtype"];

/// The crates whose code does without the types and functions that their `clippy.toml` lists.
const LINTED: [&str; 2] = ["spec", "runtime"];

/// Words that code outside tests must not contain, where they are no types or functions that a lint
/// can see by their path: the folder, the word, and the advice.
const ABSENT: [(&str, &str, &str); 6] = [
    ("kernels/src", "sync::atomic", "atomics come from kernels/src/sync/atomics.rs, or plain.rs"),
    ("runtime/src", "*const ", "runtime names no raw pointer"),
    ("runtime/src", "*mut ", "runtime names no raw pointer"),
    ("runtime/src", "std::arch", "runtime names no instruction set"),
    ("runtime/src", "target_feature", "runtime names no instruction set"),
    ("runtime/src", "libc", "runtime calls no system function"),
];

/// The only files in which a word of [`ABSENT`] is allowed.
const ABSENT_EXCEPTIONS: [(&str, &str); 1] = [("kernels/src/sync/plain.rs", "sync::atomic")];

/// The folders and files of a crate's source, from the bottom up. Each imports only from entries
/// before it.
const FLOORS: [(&str, &[&str]); 2] = [
    (
        "kernels/src",
        &["digest", "sync", "tuning", "memory", "cpu", "os", "cuda", "wire", "shm", "group", "bootstrap", "hosts"],
    ),
    (
        "runtime/src",
        &[
            "error",
            "foreign_errors",
            "worst",
            "kind",
            "panics",
            "profile",
            "device",
            "value",
            "comm",
            "cluster",
            "execution",
            "replica",
            "strategy",
            "variable",
            "dataset",
            "gradient",
            "training",
            "parameter_server",
            "checkpoint",
            "raw",
        ],
    ),
];

/// The folders whose files form no circle of imports and calls.
const ACYCLIC: [&str; 2] = ["kernels/src/group", "kernels/src/tuning"];

/// The folders of tests that compare variants and fields of errors.
const TESTS_OF_ERRORS: [&str; 3] = ["runtime/tests/", "harness/tests/", "harness/messages/tests/"];

/// The tests among them that compare texts: all texts of this library's errors, and errors of
/// serde, which have no fields.
const TESTS_OF_TEXTS: [&str; 2] = ["runtime/tests/error_texts.rs", "runtime/tests/serde.rs"];

/// The maximum numbers of lines of a file: of code, and of tests. A longer file has more than one
/// noun.
const LINES: [usize; 2] = [500, 900];

/// The enums of ops, of element types and of kinds of calls, of their properties, and those of the
/// bench and of the harness that follow them. The compiler is meant to find what an addition needs.
const TABLES: [&str; 10] =
    ["ReduceOp", "DType", "Class", "Kind", "Flow", "Work", "Extent", "Counts", "Collective", "NestCall"];

/// A line that breaks a rule.
#[derive(Debug)]
struct Problem {
    path: String,
    line: usize,
    what: String,
}

/// A Rust file. Its code has the same lines as the text; comments and literals in it are blank.
struct Source {
    path: String,
    text: String,
    code: String,
    /// Whether the whole file is a test.
    is_test: bool,
}

impl Source {
    fn new(path: &str, text: &str) -> Source {
        let is_test = path.contains("/tests/") || path.ends_with("/tests.rs") || path.contains("/benches/");
        Source { path: path.to_owned(), text: text.to_owned(), code: code(text), is_test }
    }

    /// Returns the code before the tests, which come last in a file.
    fn code_outside_tests(&self) -> &str {
        if self.is_test {
            return "";
        }
        let tests = self.code.match_indices("#[cfg(test)]").map(|(at, _)| at);
        let block = |at: &usize| {
            let item = self.code[*at..].lines().nth(1).unwrap_or_default();
            item.contains("mod ") && item.contains('{')
        };
        &self.code[..tests.into_iter().find(block).unwrap_or(self.code.len())]
    }

    /// Returns the names of modules that exist only in tests.
    fn test_modules(&self) -> Vec<&str> {
        let lines: Vec<&str> = self.code.lines().collect();
        let items = lines.windows(2).filter(|pair| pair[0].trim() == "#[cfg(test)]").map(|pair| pair[1]);
        items.filter_map(|item| item.split("mod ").nth(1)?.strip_suffix(';')).collect()
    }

    /// Returns a problem at byte `at` of the text.
    fn problem(&self, at: usize, what: impl Into<String>) -> Problem {
        let line = self.text[..at].matches('\n').count() + 1;
        Problem { path: self.path.clone(), line, what: what.into() }
    }

    /// Returns a problem for each occurrence of `word` in `view`, a prefix of one of the parts.
    fn each(&self, view: &str, word: &str, what: &str) -> Vec<Problem> {
        places(view, word).map(|at| self.problem(at, format!("`{}`: {what}", word.trim()))).collect()
    }
}

/// Returns the offsets of `word` in `text`, except inside longer words.
fn places(text: &str, word: &str) -> impl Iterator<Item = usize> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = text[..at].chars().next_back().filter(|_| word.starts_with(part));
        let after = text[at + word.len()..].chars().next().filter(|_| word.ends_with(part));
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

/// Returns the code of a text, where comments and literals are blank. It has as many bytes as the
/// text, so that offsets in it are offsets in the text.
///
/// # Panics
/// If the text is not Rust.
fn code(text: &str) -> String {
    /// Marks the bytes of code.
    fn note(tokens: TokenStream, text: &str, is_code: &mut [bool]) {
        for token in tokens {
            let mut mark = |span: Span| {
                let bytes = span.byte_range();
                // A doc comment is an attribute whose tokens all have the comment's span.
                if !text[bytes.clone()].starts_with("//") && !text[bytes.clone()].starts_with("/*") {
                    is_code[bytes].fill(true);
                }
            };
            match token {
                TokenTree::Literal(_) => {}
                TokenTree::Ident(ident) => mark(ident.span()),
                TokenTree::Punct(punct) => mark(punct.span()),
                TokenTree::Group(group) => {
                    mark(group.span_open());
                    mark(group.span_close());
                    note(group.stream(), text, is_code);
                }
            }
        }
    }
    let mut is_code = vec![false; text.len()];
    note(text.parse().unwrap_or_else(|error| panic!("{error}: {text}")), text, &mut is_code);
    let kept = |(at, c): (usize, char)| match c.is_whitespace() || is_code[at] {
        true => c.to_string(),
        false => " ".repeat(c.len_utf8()),
    };
    text.char_indices().map(kept).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the harness is in the workspace").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every Rust file of the workspace and of `fuzz`, except build output.
static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(sources);

fn sources() -> Vec<Source> {
    let mut sources: Vec<Source> = files(".rs").iter().map(|path| Source::new(path, &read(path))).collect();
    // `#[cfg(test)] mod sample;` in `mod.rs` makes the `sample.rs` beside it a test.
    let tests: Vec<String> = (sources.iter())
        .flat_map(|source| {
            let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            source.test_modules().into_iter().map(move |name| format!("{folder}/{name}.rs"))
        })
        .collect();
    for source in &mut sources {
        source.is_test |= tests.contains(&source.path);
    }
    assert!(sources.len() > 50, "the walk found {} files", sources.len());
    sources
}

/// Returns the files of the workspace and of `fuzz` with this ending, except build output.
fn files(ending: &str) -> Vec<String> {
    fn walk(folder: &Path, ending: &str, files: &mut Vec<String>) {
        let mut entries: Vec<PathBuf> = fs::read_dir(folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.expect("an entry of a readable folder").path())
            .collect();
        entries.sort();
        for path in entries {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                if !name.starts_with('.') && !["target", "corpus", "artifacts"].contains(&&*name) {
                    walk(&path, ending, files);
                }
            } else if name.ends_with(ending) {
                files.push(path.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/"));
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), ending, &mut found);
    found
}

#[track_caller]
fn none(problems: Vec<Problem>) {
    let lines: Vec<String> =
        problems.iter().map(|Problem { path, line, what }| format!("{path}:{line}: {what}")).collect();
    assert!(lines.is_empty(), "{} of the house rules' problems:\n{}", lines.len(), lines.join("\n"));
}

fn check(rule: impl Fn(&Source) -> Vec<Problem>) {
    none(SOURCES.iter().flat_map(rule).collect());
}

fn unsafe_outside_kernels(source: &Source) -> Vec<Problem> {
    if UNSAFE.iter().any(|folder| source.path.starts_with(folder)) {
        return Vec::new();
    }
    source.each(&source.code, "unsafe", "only kernels and the borders of C and Python have unsafe code")
}

fn words_that_are_absent(source: &Source) -> Vec<Problem> {
    let rules = ABSENT.iter().filter(|(folder, word, _)| {
        source.path.starts_with(folder) && !ABSENT_EXCEPTIONS.contains(&(source.path.as_str(), word))
    });
    rules.flat_map(|(_, word, what)| source.each(source.code_outside_tests(), word, what)).collect()
}

fn meaning_outside_tests(source: &Source) -> Vec<Problem> {
    if !(source.path.starts_with("kernels/src/") || source.path.starts_with("runtime/src/")) {
        return Vec::new();
    }
    let code = source.code_outside_tests();
    let mut problems = Vec::new();
    for at in places(code, "consonance_spec") {
        let Some(rest) = code[at..].strip_prefix("consonance_spec::") else {
            problems.push(source.problem(at, "name what is used of spec, so that this test can see it"));
            continue;
        };
        for path in imports(rest) {
            let (module, item) = path.split_once("::").unwrap_or((&path, ""));
            let is_constant = !item.is_empty() && !item.contains(char::is_lowercase) && !item.contains('*');
            let is_at_the_root = module.starts_with(char::is_uppercase) || ROOT.contains(&module);
            if !(is_at_the_root || WORDS.contains(&module) || module == "order" && is_constant) {
                let what = format!(
                    "`spec::{path}` says what results must be: code that used it would be compared with itself"
                );
                problems.push(source.problem(at, what));
            }
        }
    }
    problems
}

/// Returns the paths of the import tree at the beginning of the text: `a::{b, c::D}` gives `a::b`
/// and `a::c::D`.
fn imports(text: &str) -> Vec<String> {
    let plain = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':' || c == '*')).unwrap_or(text.len());
    let (prefix, rest) = text.split_at(plain);
    let Some(group) = rest.strip_prefix('{').filter(|_| prefix.is_empty() || prefix.ends_with("::")) else {
        return vec![prefix.trim_end_matches(':').to_owned()];
    };
    let (mut paths, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        if depth == 0 && (c == ',' || c == '}') {
            let item = group[start..at].trim();
            if !item.is_empty() {
                paths.extend(imports(item).into_iter().map(|path| format!("{prefix}{path}")));
            }
            start = at + 1;
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
    }
    paths
}

/// Returns the floor of each name at a crate's root, by the module from which `lib.rs` re-exports
/// the name.
fn floors_of_root(floors: &[&str], lib: &str) -> HashMap<String, usize> {
    let taken = lib.match_indices("pub use ").flat_map(|(at, word)| imports(&lib[at + word.len()..]));
    let floor = |path: String| {
        let (folder, name) = (path.split("::").next()?, path.rsplit("::").next()?);
        Some((name.to_owned(), floors.iter().position(|floor| *floor == folder)?))
    };
    taken.filter_map(floor).collect()
}

/// Returns imports from a floor above. `lib` is the `lib.rs` of the crate, which says where names
/// at the root come from.
fn arrows_that_point_up(source: &Source, floors: &[&str], lib: &str) -> Vec<Problem> {
    let names = floors_of_root(floors, lib);
    let floor_of = |name: &str| floors.iter().position(|floor| *floor == name).or_else(|| names.get(name).copied());
    let own = source.path.split("/src/").nth(1).and_then(|path| path.split(['/', '.']).next()).and_then(floor_of);
    let Some(own) = own else { return Vec::new() };
    let code = source.code_outside_tests();
    let paths = places(code, "crate").flat_map(|at| {
        let rest = code[at..].strip_prefix("crate::").unwrap_or_default();
        imports(rest).into_iter().map(move |path| (at, path))
    });
    let up = paths.filter(|(_, path)| path.split("::").next().and_then(floor_of).is_some_and(|floor| floor > own));
    up.map(|(at, path)| source.problem(at, format!("`crate::{path}` is above `{}`", floors[own]))).collect()
}

/// Returns the last arms of matches over [`TABLES`] that a new variant would take unseen.
fn wildcards_over_tables(source: &Source) -> Vec<Problem> {
    /// Returns the offsets of such arms.
    fn wildcards(tokens: TokenStream, found: &mut Vec<usize>) {
        let mut is_match = false;
        for token in tokens {
            let TokenTree::Group(group) = token else {
                is_match |= matches!(token, TokenTree::Ident(word) if word == "match");
                continue;
            };
            if is_match && group.delimiter() == Delimiter::Brace {
                is_match = false;
                let patterns = patterns(group.stream());
                let anything = patterns.iter().find(|pattern| matches_anything(pattern));
                if let Some(pattern) = anything.filter(|_| patterns.iter().any(|pattern| names_a_table(pattern))) {
                    found.push(pattern[0].span().byte_range().start);
                }
            }
            wildcards(group.stream(), found);
        }
    }
    let what = "a new op, type or kind would go here unseen: name those that do, or ask for a property of theirs";
    let mut found = Vec::new();
    wildcards(source.text.parse().expect("Rust, as when the source was read"), &mut found);
    found.into_iter().map(|at| source.problem(at, what)).collect()
}

/// Returns the pattern of each arm of a match, with its guard.
fn patterns(arms: TokenStream) -> Vec<Vec<TokenTree>> {
    let is = |token: &TokenTree, c: char| matches!(token, TokenTree::Punct(punct) if punct.as_char() == c);
    let (mut patterns, mut pattern) = (Vec::new(), Vec::new());
    let mut arms = arms.into_iter().peekable();
    while let Some(token) = arms.next() {
        if !(is(&token, '=') && arms.next_if(|next| is(next, '>')).is_some()) {
            pattern.push(token);
            continue;
        }
        patterns.push(std::mem::take(&mut pattern));
        // A block ends its arm, and anything else ends at a comma.
        let block = arms.next_if(|body| matches!(body, TokenTree::Group(body) if body.delimiter() == Delimiter::Brace));
        if block.is_some() {
            arms.next_if(|token| is(token, ','));
        } else {
            arms.by_ref().take_while(|token| !is(token, ',')).for_each(drop);
        }
    }
    patterns
}

/// Returns whether a pattern, not its guard, has a variant of [`TABLES`].
fn names_a_table(pattern: &[TokenTree]) -> bool {
    let is_guard = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word == "if");
    pattern.iter().take_while(|token| !is_guard(token)).enumerate().any(|(index, token)| match token {
        TokenTree::Ident(name) => {
            TABLES.iter().any(|table| name == table)
                && matches!(pattern.get(index + 1), Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
        }
        TokenTree::Group(group) => names_a_table(&group.stream().into_iter().collect::<Vec<_>>()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// Returns whether a pattern is `_`, a name, or a tuple of them.
fn matches_anything(pattern: &[TokenTree]) -> bool {
    match pattern {
        [TokenTree::Ident(name)] => name.to_string().starts_with(|c: char| c == '_' || c.is_lowercase()),
        [TokenTree::Group(group)] if group.delimiter() == Delimiter::Parenthesis => {
            let parts: Vec<TokenTree> = group.stream().into_iter().collect();
            let mut parts = parts.split(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ','));
            parts.all(matches_anything)
        }
        _ => false,
    }
}

fn texts_of_errors(source: &Source) -> Vec<Problem> {
    let compares_fields = TESTS_OF_ERRORS.iter().any(|folder| source.path.starts_with(folder));
    if !compares_fields || TESTS_OF_TEXTS.contains(&&*source.path) {
        return Vec::new();
    }
    let words = ["error.to_string()", "unwrap_err().to_string()"];
    let what = "compare its variant and its fields; the texts are in runtime/tests/error_texts.txt";
    words.iter().flat_map(|word| source.each(&source.code, word, what)).collect()
}

/// Returns modules in a file `x.rs` that have more files in `x/`: such a module is `x/mod.rs`.
fn modules_beside_folders(paths: &[&str]) -> Vec<Problem> {
    let has_files = |path: &&&str| {
        let folder = path.trim_end_matches(".rs");
        paths.iter().any(|other| other.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
    };
    let problem = |path: &&str| {
        let what = format!("its folder has files: move it to {}/mod.rs", path.trim_end_matches(".rs"));
        Problem { path: (*path).to_owned(), line: 1, what }
    };
    paths.iter().filter(has_files).map(problem).collect()
}

fn long_files(source: &Source) -> Vec<Problem> {
    let lines = source.text.lines().count();
    let most = LINES[usize::from(source.is_test)];
    let what = format!("{lines} lines: two files, of at most {most}");
    (lines > most).then(|| source.problem(0, what)).into_iter().collect()
}

#[test]
fn arrows_between_folders_point_down() {
    for (folder, floors) in FLOORS {
        let lib = Source::new("lib.rs", &read(&format!("{folder}/lib.rs")));
        let sources = SOURCES.iter().filter(|source| source.path.starts_with(folder));
        none(sources.flat_map(|source| arrows_that_point_up(source, floors, &lib.code)).collect());
    }
}

#[test]
fn files_of_a_folder_form_no_circle() {
    for folder in ACYCLIC {
        let inside = |source: &&Source| source.path.starts_with(&format!("{folder}/")) && !source.is_test;
        let sources: Vec<&Source> = SOURCES.iter().filter(inside).collect();
        assert!(sources.len() > 5, "{folder} has {} files", sources.len());
        assert_eq!(
            arrows::circle(&sources, folder),
            None,
            "{folder}: each imports from the next, or calls its methods"
        );
    }
}

#[test]
fn only_kernels_has_unsafe_code() {
    check(unsafe_outside_kernels);
    for path in SAFE_ROOTS {
        assert!(code(&read(path)).contains("#![forbid(unsafe_code)]"), "{path}:1: no #![forbid(unsafe_code)]");
    }
}

#[test]
fn absent_words_stay_absent() {
    check(words_that_are_absent);
    for folder in LINTED {
        let lints = "deny(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros)";
        let code = code(&read(&format!("{folder}/src/lib.rs")));
        assert!(code.contains(lints), "{folder}/src/lib.rs:1: no {lints}");
        assert!(
            read(&format!("{folder}/clippy.toml")).contains("disallowed-types"),
            "{folder}/clippy.toml:1: no types"
        );
    }
}

#[test]
fn only_tests_import_the_meaning_of_spec() {
    check(meaning_outside_tests);
    let modules = read("spec/src/lib.rs");
    for word in WORDS {
        assert!(modules.contains(&format!("pub mod {word};")), "spec/src/lib.rs: no module {word}");
    }
}

#[test]
fn no_match_has_a_wildcard_for_ops_types_and_kinds() {
    check(wildcards_over_tables);
}

#[test]
fn tests_compare_fields_of_errors() {
    check(texts_of_errors);
    for path in TESTS_OF_TEXTS {
        assert!(SOURCES.iter().any(|source| source.path == path), "there is no {path}");
    }
}

#[test]
fn a_module_with_files_is_in_its_folder() {
    let paths: Vec<&str> = SOURCES.iter().map(|source| &*source.path).collect();
    none(modules_beside_folders(&paths));
    assert_eq!(modules_beside_folders(&["a/b.rs", "a/b/c.rs", "a/bc.rs", "a/d/mod.rs"]).len(), 1);
}

#[test]
fn every_file_is_short() {
    check(long_files);
}

/// Returns each line of the dependency tables of a manifest: the line's number, the table's name,
/// the dependency's name, and the lines before it.
fn dependencies(manifest: &str) -> Vec<(usize, &str, &str, Vec<&str>)> {
    let (mut table, mut found, mut before) = ("", Vec::new(), Vec::new());
    for (index, line) in manifest.lines().enumerate() {
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_end_matches(']');
        } else if table.ends_with("dependencies") && line.contains('=') && !line.starts_with('#') {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            found.push((index + 1, table, name, before.clone()));
        }
        before.push(line);
    }
    found
}

fn wrong_arrows(folder: &str, allowed: &[&str], manifest: &str) -> Vec<Problem> {
    let path = format!("{folder}/Cargo.toml");
    // Only the crate of a type can implement the traits of another crate for it.
    let in_spec = ["half", "serde_core"];
    let ours = |name: &str| name.starts_with("consonance");
    let problem = |line, what| Problem { path: path.clone(), line, what };
    (dependencies(manifest).iter())
        .filter_map(|(line, table, name, _)| {
            if ours(name) && !allowed.contains(name) {
                return Some(problem(*line, format!("{folder} must not depend on {name}: arrows point down only")));
            }
            let foreign_in_spec = folder == "spec" && *table == "dependencies" && !in_spec.contains(name);
            foreign_in_spec.then(|| problem(*line, format!("spec needs nothing but {in_spec:?}, not {name}")))
        })
        .collect()
}

fn dependencies_without_reason(path: &str, manifest: &str) -> Vec<Problem> {
    let lines: Vec<&str> = manifest.lines().collect();
    (dependencies(manifest).into_iter())
        .filter(|(line, _, name, before)| {
            let said = before.last().is_some_and(|above| above.starts_with('#'));
            let elsewhere = lines[line - 1].contains("workspace = true") || name.starts_with("consonance");
            !said && !elsewhere
        })
        .map(|(line, _, name, _)| Problem {
            path: path.to_owned(),
            line,
            what: format!("{name} has no comment above it that says what it is for"),
        })
        .collect()
}

#[test]
fn arrows_between_crates_point_down() {
    let problems = ARROWS.iter().flat_map(|(folder, allowed)| {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        wrong_arrows(folder, allowed, &manifest)
    });
    none(problems.collect());
}

#[test]
fn every_dependency_has_a_reason() {
    let manifests = ARROWS.iter().map(|(folder, _)| format!("{folder}/Cargo.toml")).chain(["Cargo.toml".to_owned()]);
    none(manifests.flat_map(|path| dependencies_without_reason(&path, &read(&path))).collect());
}

#[test]
fn every_member_has_the_workspace_s_lints_and_licence() {
    let workspace = read("Cargo.toml");
    for (folder, _) in ARROWS.iter().filter(|(folder, _)| workspace.contains(&format!("\"{folder}\""))) {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        for line in ["[lints]\nworkspace = true", "license.workspace = true", "rust-version.workspace = true"] {
            assert!(manifest.contains(line), "{folder}/Cargo.toml: no {line:?}");
        }
    }
    for (path, words) in
        [("LICENSE-MIT", "Permission is hereby granted"), ("LICENSE-APACHE", "Version 2.0, January 2004")]
    {
        assert!(read(path).contains(words), "{path}:1: not the licence");
    }
}

/// Returns the files and folders that a page names between backticks, with their line numbers:
/// words that end in `.rs`, `.md`, `.toml` or `/`.
fn names(page: &str) -> Vec<(usize, &str)> {
    let endings = [".rs", ".md", ".toml", "/"];
    let is_name =
        |name: &str| endings.iter().any(|ending| name.ends_with(ending)) && !name.contains([' ', '<', ':', '*', '…']);
    let mut names = Vec::new();
    for (index, line) in page.lines().enumerate() {
        let spans = line.split('`').skip(1).step_by(2);
        names.extend(spans.filter(|span| is_name(span)).map(|span| (index + 1, span)));
    }
    names
}

#[test]
fn the_pages_name_existing_files() {
    let folders = ["", "spec/src", "kernels/src", "runtime/src", "harness/src", "harness/tests", "cli/src"];
    let mut problems = Vec::new();
    for path in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let page = read(path);
        for (line, name) in names(&page) {
            if !folders.iter().any(|folder| root().join(folder).join(name).exists()) {
                problems.push(Problem { path: path.to_owned(), line, what: format!("there is no {name}") });
            }
        }
    }
    none(problems);
}

#[test]
fn the_pages_name_the_rust_version() {
    let manifest = read("Cargo.toml");
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = "))
        .expect("a rust-version")
        .trim_matches('"');
    for path in ["README.md", "CONTRIBUTING.md"] {
        assert!(read(path).contains(&format!("Rust {version} or newer")), "{path}: does not name Rust {version}");
    }
}

#[test]
fn the_map_is_complete() {
    let map = read("ARCHITECTURE.md");
    let mut problems = Vec::new();
    for folder in ["kernels/src", "runtime/src", "cli/src"] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder of the workspace") {
            let path = entry.expect("an entry of a readable folder").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && !map.contains(&format!("`{name}/`")) {
                let what = format!("ARCHITECTURE.md does not say what it is for (write `{name}/`)");
                problems.push(Problem { path: format!("{folder}/{name}"), line: 1, what });
            }
        }
    }
    none(problems);
}

/// Checks that the script that puts faults back finds the texts that it edits. Without this test
/// nobody would notice before running the script.
#[test]
fn the_script_of_faults_finds_the_texts_to_edit() {
    let script = read("runtime/tests/processes/corrupt_peer/plant");
    let edits = script.lines().filter_map(|line| line.strip_prefix("edit ")?.split_once(" '"));
    let edits: Vec<(&str, &str)> =
        edits.map(|(path, texts)| (path, texts.split('\'').next().unwrap_or(texts))).collect();
    assert!(edits.len() > 5, "{edits:?}");
    for (path, text) in edits {
        assert_eq!(read(path).matches(text).count(), 1, "{path}: {text}");
    }
}

#[test]
fn every_rule_finds_a_planted_fault() {
    type Rule = fn(&Source) -> Vec<Problem>;
    let broken: [(Rule, &str, &str); 18] = [
        (wildcards_over_tables, "spec/src/a.rs", "fn f() { match a { DType::F32 => 1,\n_ => 2 } }"),
        (
            wildcards_over_tables,
            "cli/src/a.rs",
            "fn f() { g(match a(|b| {}) { (Some(Kind::Split), _) => { 1 }\nb => 2 }) }",
        ),
        (
            wildcards_over_tables,
            "spec/tests/a.rs",
            "fn f() { match (a, b) { (Flow::Pair, 1) if c => 1,\n(_, b) => 2 } }",
        ),
        (
            wildcards_over_tables,
            "fuzz/a.rs",
            "fn f() { match a { 1 => match b { spec::ReduceOp::Sum => 1,\n_ => 2 }, _ => 3 } }",
        ),
        (unsafe_outside_kernels, "runtime/src/a.rs", "fn f() {}\nunsafe fn g() {}"),
        (words_that_are_absent, "kernels/src/group/post.rs", "\nuse std::sync::atomic::AtomicU64;"),
        (words_that_are_absent, "runtime/src/a.rs", "fn f() {}\nfn f(_: *const u8) {}"),
        (words_that_are_absent, "runtime/src/a.rs", "\nuse std::arch::asm;\n#[cfg(test)]\nmod tests {}"),
        (meaning_outside_tests, "runtime/src/a.rs", "\nuse consonance_spec::collective;"),
        (meaning_outside_tests, "runtime/src/a.rs", "\nuse consonance_spec::{DType, call::Flow, number::Number};"),
        (meaning_outside_tests, "kernels/src/a.rs", "\nuse consonance_spec::order::{BLOCK, fold};"),
        (meaning_outside_tests, "kernels/src/a.rs", "\nuse consonance_spec::*;"),
        (meaning_outside_tests, "kernels/src/a.rs", "\nuse consonance_spec as spec;"),
        (meaning_outside_tests, "kernels/src/a.rs", "fn f() {\n    consonance_spec::array::gather() }"),
        (texts_of_errors, "runtime/tests/a.rs", "fn f() {\n    assert_eq!(error.to_string(), \"b\"); }"),
        (texts_of_errors, "harness/tests/a.rs", "fn f() {\n    g().unwrap_err().to_string() }"),
        (unsafe_outside_kernels, "spec/src/a.rs", "fn f<'a>(_: &'a str) -> char { '\"' }\nunsafe fn g() {} // \""),
        (unsafe_outside_kernels, "spec/src/a.rs", "const A: &str = r#\"\"unsafe\"#;\nunsafe fn g() {}"),
    ];
    for (rule, path, text) in broken {
        let lines: Vec<usize> = rule(&Source::new(path, text)).iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [2], "lines of the problems of {text:?}");
    }
    assert_eq!(long_files(&Source::new("spec/src/a.rs", &"\n".repeat(LINES[0] + 1))).len(), 1);
    assert_eq!(
        wrong_arrows("spec", &[], "[dependencies]\nconsonance-kernels.workspace = true\nserde = \"1\"").len(),
        2
    );
    let one = |name: &str| format!("[dependencies]\n{name}.workspace = true");
    assert_eq!(["serde_core", "csv"].map(|name| wrong_arrows("spec", &[], &one(name)).len()), [0, 1]);
    assert_eq!(
        dependencies_without_reason("Cargo.toml", "[workspace.dependencies]\n# so\nhalf = \"2\"\nwide = \"1\"").len(),
        1
    );
    let up = Source::new("runtime/src/a/b.rs", "use crate::{a::A, B};\nuse crate::{b::c, d};");
    let lines = arrows_that_point_up(&up, &["a", "b"], "pub use b::B;").into_iter().map(|problem| problem.line);
    assert_eq!(lines.collect::<Vec<_>>(), [1, 2]);
    assert_eq!(names("`a/b.rs` and `f(x)` and\n`c/`"), [(1, "a/b.rs"), (2, "c/")]);

    let kept: [(Rule, &str, &str); 11] = [
        (wildcards_over_tables, "spec/src/a.rs", "fn f() { match a { DType::F32 => b(1, |_| 2), DType::F64 => 2 } }"),
        (wildcards_over_tables, "spec/src/a.rs", "fn f() { match a { 1 if b == Kind::Split => Kind::Split, _ => 2 } }"),
        (wildcards_over_tables, "spec/src/a.rs", "fn f() { match a { (Kind::Split, _) => match b { _ => 1 } } }"),
        (texts_of_errors, "runtime/tests/error_texts.rs", "fn f() { error.to_string() }"),
        (texts_of_errors, "runtime/tests/a.rs", "fn f() { \"error.to_string()\"; value.to_string() }"),
        (
            unsafe_outside_kernels,
            "spec/src/a.rs",
            "// unsafe\n/* unsafe /* */ unsafe */ #![forbid(unsafe_code)] \"unsafe\"",
        ),
        (unsafe_outside_kernels, "kernels/src/a.rs", "unsafe fn f() {}"),
        (words_that_are_absent, "kernels/src/sync/plain.rs", "use std::sync::atomic::AtomicU64;"),
        (words_that_are_absent, "runtime/src/a.rs", "#[cfg(test)]\nmod tests { use std::arch::asm; }"),
        (
            meaning_outside_tests,
            "kernels/src/a.rs",
            "use consonance_spec::{DType, f16, order::{BLOCK, LANES}, call::{Flow, Work}};",
        ),
        (meaning_outside_tests, "kernels/src/tests.rs", "use consonance_spec::order;"),
    ];
    for (rule, path, text) in kept {
        let lines: Vec<usize> = rule(&Source::new(path, text)).iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [0; 0], "lines of the problems of {text:?}");
    }
}
