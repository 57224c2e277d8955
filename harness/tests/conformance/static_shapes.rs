//! The vectors on strategies with static shapes: `static_shapes.txt` has the id of each one that a
//! rule refuses. All others have the same verdict as without the option.

use crate::{
    FILES, Verdict, answer,
    case::{Answer, Stop},
    cases,
    decisions::NOT_JUDGED,
    judge_answer,
};
use consonance::Error;
use consonance_spec::static_shapes::RULES;
use std::env;

/// A line for each vector that is refused: its id and the name of the rule.
const REFUSED: &str = include_str!("static_shapes.txt");

#[test]
fn static_shapes_refuse_the_listed_vectors_and_no_others() {
    // The list is that of the vectors here.
    if env::var_os("CONSONANCE_CONFORMANCE_DIR").is_some() {
        return;
    }
    for on_messages in [false, true] {
        let mut refused = String::new();
        let mut failures = Vec::new();
        // The spec answers those of parameter servers, without a strategy.
        for name in FILES.into_iter().filter(|&name| name != "parameter_server") {
            for mut case in cases(name, &mut vec![0; NOT_JUDGED.len()]) {
                (case.on_messages, case.static_shapes) = (on_messages, true);
                let answer = answer(&case);
                if let Some(rule) = rule(&answer) {
                    refused += &format!("{}: {rule}\n", case.id);
                } else if let (true, Some(line), Err(Stop::Refused(_))) = (on_messages, listed(&case.id), &answer) {
                    // Another difference, in dtype, is found first there.
                    refused += line;
                    refused += "\n";
                } else if let Verdict::Failed(problem) = judge_answer(&case, answer) {
                    failures.push(format!("{}: {problem}", case.id));
                }
            }
        }
        assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
        assert!(refused == REFUSED, "static_shapes.txt needs these lines:\n{refused}");
    }
}

/// Returns the line of a vector that is listed.
fn listed(id: &str) -> Option<&'static str> {
    REFUSED.lines().find(|line| line.split_once(": ").is_some_and(|(listed, _)| listed == id))
}

/// Returns the name of the rule that refused a case, if one did.
fn rule(answer: &Answer) -> Option<&'static str> {
    let Err(Stop::Refused(error)) = answer else { return None };
    let (Error::InvalidCall { expected: text, .. } | Error::Mismatch { found: text, .. }) = error.root() else {
        return None;
    };
    RULES.iter().map(|rule| rule.name).find(|name| text.contains(&format!("rule \"{name}\" of static shapes")))
}
