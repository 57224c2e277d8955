//! Arrows between the files of a folder: from a file that imports a module, or calls a method, to
//! the file that has it.
//!
//! The receiver of a call is known where it is `self`, where its name has a type in a field or a
//! parameter, or where it is the result of a function. Other calls are not seen.

use super::{Source, imports};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

/// A name of a value or, with `()`, of a function's result, and the types that it has.
type Types = BTreeMap<String, BTreeSet<String>>;

/// Returns files of which each has an arrow to the next, and the last to the first; `None` if there
/// are no such files among these.
pub(crate) fn circle(sources: &[&Source], folder: &str) -> Option<Vec<String>> {
    let arrows = arrows(sources, folder);
    let mut done = BTreeSet::new();
    (0..sources.len()).find_map(|file| follow(file, &arrows, &mut Vec::new(), &mut done)).map(|files| {
        let path = |file: usize| sources[file].path.clone();
        files.into_iter().map(path).collect()
    })
}

/// Follows the arrows from a file, which the files in `way` lead to.
fn follow(
    file: usize,
    arrows: &BTreeSet<(usize, usize)>,
    way: &mut Vec<usize>,
    done: &mut BTreeSet<usize>,
) -> Option<Vec<usize>> {
    if let Some(at) = way.iter().position(|&before| before == file) {
        return Some(way[at..].to_vec());
    }
    if !done.insert(file) {
        return None;
    }
    way.push(file);
    let found = arrows.range((file, 0)..(file + 1, 0)).find_map(|&(_, to)| follow(to, arrows, way, done));
    way.pop();
    found
}

/// Returns the arrows between these files of `folder`, as pairs of indexes.
fn arrows(sources: &[&Source], folder: &str) -> BTreeSet<(usize, usize)> {
    let files: Vec<File> = sources.iter().map(|source| File::read(source)).collect();
    let known: BTreeSet<String> = files.iter().flat_map(|file| &file.blocks).filter_map(|b| b.of.clone()).collect();
    let mut methods: BTreeMap<(&str, &str), BTreeSet<usize>> = BTreeMap::new();
    for (index, block) in files.iter().enumerate().flat_map(|(index, file)| file.blocks.iter().map(move |b| (index, b)))
    {
        for (name, of) in block.methods.iter().zip(block.of.iter().cycle()) {
            methods.entry((of, name)).or_default().insert(index);
        }
    }
    let types: Vec<Types> = files.iter().map(|file| file.types(&known)).collect();
    let mut everywhere = Types::new();
    for (name, of) in types.iter().flatten() {
        everywhere.entry(name.clone()).or_default().extend(of.clone());
    }
    let mut arrows = BTreeSet::new();
    for (index, file) in files.iter().enumerate() {
        for Call { receiver, method } in file.blocks.iter().flat_map(|block| &block.calls) {
            let of = match receiver {
                Receiver::Type(of) => Some(BTreeSet::from([of.clone()])),
                Receiver::Value(name) => types[index].get(name).or_else(|| everywhere.get(name)).cloned(),
            };
            let found = of.iter().flatten().filter_map(|of| methods.get(&(&**of, &**method)));
            arrows.extend(found.flatten().map(|&to| (index, to)));
        }
        arrows.extend(imported(sources, index, folder).map(|to| (index, to)));
    }
    arrows.into_iter().filter(|(from, to)| from != to).collect()
}

/// Returns the files that a file imports from.
fn imported(sources: &[&Source], index: usize, folder: &str) -> impl Iterator<Item = usize> {
    let root = folder.rsplit_once('/').map_or("", |(root, _)| root);
    let module = |source: &Source| -> Vec<String> {
        let path = source.path.strip_prefix(root).unwrap_or(&source.path).trim_start_matches('/');
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        path.split('/').map(str::to_owned).collect()
    };
    let modules: BTreeMap<Vec<String>, usize> = sources.iter().enumerate().map(|(at, s)| (module(s), at)).collect();
    let own = module(sources[index]);
    let code = sources[index].code_outside_tests();
    let uses = code.match_indices("use ").filter_map(|(at, word)| code[at + word.len()..].split(';').next());
    let paths: Vec<String> = uses.flat_map(|text| imports(&text.replace(char::is_whitespace, ""))).collect();
    paths.into_iter().filter_map(move |path| {
        let mut segments: Vec<String> = path.split("::").map(str::to_owned).collect();
        let mut from = own.clone();
        match &*segments[0] {
            "crate" => from.clear(),
            "super" => drop(from.pop()),
            "self" => {}
            child => {
                from.push(child.to_owned());
                if !modules.contains_key(&from) {
                    return None;
                }
                from.pop();
                segments.insert(0, String::new());
            }
        }
        segments.remove(0);
        while segments.first().is_some_and(|segment| segment == "super") {
            from.pop();
            segments.remove(0);
        }
        from.extend(segments);
        (1..=from.len()).rev().find_map(|length| modules.get(&from[..length]).copied())
    })
}

/// The declarations and calls of a file.
struct File {
    blocks: Vec<Block>,
    tokens: TokenStream,
}

/// The code of an `impl`, or of a file outside of any.
struct Block {
    /// The type, in an `impl`.
    of: Option<String>,
    methods: Vec<String>,
    calls: Vec<Call>,
}

struct Call {
    receiver: Receiver,
    method: String,
}

enum Receiver {
    Type(String),
    Value(String),
}

impl File {
    fn read(source: &Source) -> File {
        let tokens: TokenStream = source.text.parse().expect("Rust, as when the source was read");
        let all: Vec<TokenTree> = tokens.clone().into_iter().collect();
        // A module in a file has tests.
        let is_tests = |token: &TokenTree| word(token).is_some_and(|word| word == "mod");
        let mut blocks = vec![Block { of: None, methods: Vec::new(), calls: Vec::new() }];
        let mut at = 0;
        while at < all.len() {
            if word(&all[at]).is_some_and(|word| word == "impl") {
                let is_body = |token: &TokenTree| matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
                let end = at + all[at..].iter().position(is_body).expect("the body of an impl");
                let TokenTree::Group(body) = &all[end] else { unreachable!("a body is a group") };
                let (of, is_of_trait) = implemented(&all[at + 1..end]);
                let mut block = Block { of: Some(of), methods: Vec::new(), calls: Vec::new() };
                let body: Vec<TokenTree> = body.stream().into_iter().collect();
                if !is_of_trait {
                    let names = body.windows(2).filter(|pair| word(&pair[0]).is_some_and(|word| word == "fn"));
                    block.methods = names.filter_map(|pair| word(&pair[1])).collect();
                }
                block.calls(&body);
                blocks.push(block);
                at = end;
            } else if is_tests(&all[at]) {
                at += 2;
            } else if let TokenTree::Group(group) = &all[at] {
                blocks[0].calls(&group.stream().into_iter().collect::<Vec<_>>());
            }
            at += 1;
        }
        File { blocks, tokens }
    }

    /// Returns the types that names have in this file, among those that are known.
    fn types(&self, known: &BTreeSet<String>) -> Types {
        let mut types = Types::new();
        declared(&self.tokens.clone().into_iter().collect::<Vec<_>>(), known, &mut types);
        types
    }
}

impl Block {
    /// Adds the calls in these tokens.
    fn calls(&mut self, tokens: &[TokenTree]) {
        for (at, token) in tokens.iter().enumerate() {
            if let TokenTree::Group(group) = token {
                self.calls(&group.stream().into_iter().collect::<Vec<_>>());
            }
            let Some(method) = word(token) else { continue };
            let receiver = match tokens[..at] {
                [.., ref before, ref dot] if is(dot, '.') => match (before, &tokens[..at - 2]) {
                    (TokenTree::Group(_), [.., function]) => word(function).map(|name| Receiver::Value(name + "()")),
                    (before, _) => word(before).and_then(|name| self.receiver(name)),
                },
                [.., ref before, ref colon, ref second] if is(colon, ':') && is(second, ':') => {
                    word(before).and_then(|name| self.named(name))
                }
                _ => None,
            };
            self.calls.extend(receiver.map(|receiver| Call { receiver, method }));
        }
    }

    fn receiver(&self, name: String) -> Option<Receiver> {
        if name == "self" { self.of.clone().map(Receiver::Type) } else { Some(Receiver::Value(name)) }
    }

    fn named(&self, name: String) -> Option<Receiver> {
        if name == "Self" { self.of.clone().map(Receiver::Type) } else { Some(Receiver::Type(name)) }
    }
}

/// Returns the type of an `impl`, and whether it is of a trait.
fn implemented(header: &[TokenTree]) -> (String, bool) {
    let (mut of, mut is_of_trait, mut depth) = (None, false, 0usize);
    for (at, token) in header.iter().enumerate() {
        let follows = |c: char| at.checked_sub(1).is_some_and(|before| is(&header[before], c));
        if is(token, '<') {
            depth += 1;
        } else if is(token, '>') && !follows('-') {
            depth -= 1;
        } else if let Some(word) = word(token).filter(|_| depth == 0 && !follows('\'')) {
            match &*word {
                "for" => (of, is_of_trait) = (None, true),
                "where" => break,
                _ => of = Some(word),
            }
        }
    }
    (of.expect("the type of an impl"), is_of_trait)
}

/// Adds the names that have a type in fields and parameters, and of functions that return one.
fn declared(tokens: &[TokenTree], known: &BTreeSet<String>, types: &mut Types) {
    let first_known = |tokens: &[TokenTree], end: fn(&TokenTree) -> bool| {
        let of = tokens.iter().take_while(|token| !end(token)).filter_map(word);
        of.into_iter().find(|word| known.contains(word))
    };
    for (at, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            declared(&group.stream().into_iter().collect::<Vec<_>>(), known, types);
        }
        let Some(name) = word(token) else { continue };
        let found = match &tokens[at + 1..] {
            [colon, rest @ ..] if is(colon, ':') && !rest.first().is_some_and(|next| is(next, ':')) => {
                first_known(rest, |token| is(token, ',') || is(token, '=')).map(|of| (name, of))
            }
            // Behind the parameters of a function, which may have generics.
            rest if at > 0 && word(&tokens[at - 1]).is_some_and(|word| word == "fn") => {
                let parameters =
                    rest.iter().position(|token| matches!(token, TokenTree::Group(group) if is_list(group)));
                let result = parameters.map_or(&[][..], |parameters| &rest[parameters + 1..]);
                first_known(result, |token| {
                    matches!(token, TokenTree::Group(group) if !is_list(group)) || is(token, ';')
                })
                .map(|of| (name + "()", of))
            }
            _ => None,
        };
        if let Some((name, of)) = found {
            types.entry(name).or_default().insert(of);
        }
    }
}

fn is_list(group: &Group) -> bool {
    group.delimiter() == Delimiter::Parenthesis
}

fn is(token: &TokenTree, c: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == c)
}

fn word(token: &TokenTree) -> Option<String> {
    if let TokenTree::Ident(word) = token { Some(word.to_string()) } else { None }
}

#[test]
fn a_circle_of_files_is_found() {
    let found = |texts: [&str; 3]| {
        let file = |(name, text): (&str, &str)| Source::new(&format!("a/src/b/{name}.rs"), text);
        let sources: Vec<Source> = ["c", "d", "e"].into_iter().zip(texts).map(file).collect();
        circle(&sources.iter().collect::<Vec<_>>(), "a/src/b").map(|files| files.len())
    };
    let of = |calls: [&str; 3]| {
        let [c, d, e] =
            ["c", "d", "e"].map(|name| format!("struct {}; impl<'a> {0}<'a> {{ fn {name}(&self)", name.to_uppercase()));
        let texts = [
            format!("{c} {{ {} }} }}", calls[0]),
            format!("{d} {{ {} }} }}", calls[1]),
            format!("{e} {{ {} }} }}", calls[2]),
        ];
        found(texts.each_ref().map(|text| &**text))
    };
    // One type in three files.
    let one = |calls: [&str; 3]| {
        let texts = [("c", calls[0]), ("d", calls[1]), ("e", calls[2])];
        let texts = texts.map(|(name, call)| format!("impl A {{ fn {name}(&self) {{ {call} }} }}"));
        found(texts.each_ref().map(|text| &**text))
    };
    assert_eq!(one(["self.d()", "self.e()", "if true { self.c() }"]), Some(3));
    assert_eq!(one(["self.d()", "self.e()", "other.c()"]), None);
    assert_eq!(one(["Self::d(a)", "b.map(A::c)", ""]), Some(2));
    assert_eq!(of(["let x: &D; x.d()", "E::e(x)", "f(|y: C| y.c())"]), Some(3));
    assert_eq!(of(["let x: &D; x.d()", "E::e(x)", "y.d"]), None);
    assert_eq!(found(["use super::d::D;", "use crate::b::{e::E, f::F};", "impl C { fn c() {} fn d(c: &C) {} }"]), None);
    assert_eq!(found(["use super::d::D;", "use crate::b::{e::E, f::F};", "use super::{c::C};"]), Some(3));
    let results = ["impl C { fn d(&self) -> &D {} }", "impl D { fn x(&self, c: &C) { c.d().y() } fn y(&self) {} }", ""];
    assert_eq!(found(results), None, "D calls C alone");
    assert_eq!(found(["impl C { fn d(&self) -> &D { self.d().y() } }", results[1], ""]), Some(2));
    assert_eq!(found(["impl C { fn c() {} }\n#[cfg(test)]\nmod tests { use super::d; }", "use super::c;", ""]), None);
}
