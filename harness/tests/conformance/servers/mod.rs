//! Parameter servers: cases that are answered by the spec, and those with optimizers and
//! checkpoints, of clusters and of declarations, which the runtime answers.

mod body;
mod checkpoint;
mod chief;
mod declared;
mod partition;
mod slices;
mod store;
mod training;

pub(crate) use checkpoint::{checkpoint, refused_restore};
pub(crate) use declared::{cluster, has_step};
pub(crate) use partition::{has_negative, has_other_dtype, partition};

use crate::{
    case::{Answer, Case, Stop},
    value::Value,
};
use serde_json::{Value as Json, json};
use store::Kind;

impl From<Kind> for Stop {
    fn from(Kind(kind): Kind) -> Stop {
        Stop::OfSpec(kind)
    }
}

pub(crate) fn program(case: &Case) -> Answer {
    if Foreign::ALL.iter().any(|foreign| foreign.is_in(case)) {
        return Err(Stop::NotExpressible);
    }
    if declared::has_step(case, "define") {
        return declared::late(case);
    }
    if declared::has_step(case, "second_coordinator") {
        return declared::second_coordinator(case);
    }
    let results = match case.args["optimizers"].is_object() {
        true => training::play(case)?,
        false => chief::Chief::play(&case.args)?,
    };
    Ok(Value::dict([("steps", Value::List(results))]))
}

/// Returns TensorFlow's answers, with each error of a `schedule` in the answers of the next `join`
/// and of the closure's `fetch` instead.
pub(crate) fn told_later(case: &Case) -> Value {
    let is = |step: &Json, name: &str| step[0] == name;
    let steps = case.args["steps"].as_array().expect("steps");
    let none = |value: &Value| value.difference(&Value::none(), 0).is_none();
    let refused = Value::Other(json!({ "error": "refused" }));
    let (mut of_join, mut of_fetch) = (None, None);
    let answers = steps.iter().zip(case.expected_steps()).map(|(step, answer)| {
        if is(step, "schedule") && !none(&answer) {
            (of_join, of_fetch) = (Some(answer.clone()), Some(answer));
            return Value::none();
        }
        let is_refused = is(step, "fetch") && refused.difference(&answer, 0).is_none();
        let instead = if is_refused { of_fetch.clone() } else { of_join.take_if(|_| is(step, "join")) };
        instead.unwrap_or(answer)
    });
    Value::dict([("steps", Value::List(answers.collect()))])
}

/// Whether TensorFlow refuses the arguments of a closure when it is scheduled, and not the call.
pub(crate) fn is_told_later(case: &Case) -> bool {
    let kinds = ["dtype_unsupported", "indices_rank", "shape_mismatch", "dtype_mismatch"];
    let is_told = |(step, answer): (&Json, Value)| match answer {
        Value::Other(answer) => {
            step[0] == "schedule" && answer["error"].as_str().is_some_and(|kind| kinds.contains(&kind))
        }
        _ => false,
    };
    case.args["steps"].as_array().into_iter().flatten().zip(case.expected_steps()).any(is_told)
}

/// Whether there is an alternative, and our answer is not TensorFlow's, too.
pub(crate) fn is_better(case: &Case) -> bool {
    case.has_alternative() && case.differs_from_tensorflow(&program(case)).is_some()
}

/// Whether a closure scatters one number to all rows.
pub(crate) fn scatters_a_scalar(case: &Case) -> bool {
    case.args["steps"][0][2][0]["shape"] == json!([])
}

/// Returns the answers where the values of a scatter have to be rows.
pub(crate) fn refused_scatter(case: &Case) -> Value {
    let initial = Value::parse(&case.args["variables"][0]["initial"]);
    let refused = Value::Other(json!({ "error": "shape_mismatch" }));
    Value::dict([("steps", Value::List(vec![Value::none(), refused, initial]))])
}

/// Whether a result is an argument of another closure.
pub(crate) fn has_result_as_argument(case: &Case) -> bool {
    let steps = case.args["steps"].as_array().into_iter().flatten();
    steps.into_iter().any(|step| step[0] == "schedule" && step[2].to_string().contains("\"#"))
}

/// Returns the answers where both closures run, the second with the result of the first.
pub(crate) fn both_ready(_: &Case) -> Value {
    let states = Value::Other(json!({ "json": ["ready", "ready"] }));
    Value::dict([("steps", Value::List(vec![Value::none(), Value::none(), Value::none(), states]))])
}

/// Features of TensorFlow that no program of this library has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Foreign {
    Gradients,
    Scatters,
    Contexts,
    Options,
    Types,
}

impl Foreign {
    const ALL: [Foreign; 5] =
        [Foreign::Gradients, Foreign::Scatters, Foreign::Contexts, Foreign::Options, Foreign::Types];

    /// Whether a case is a program that has this feature, by its operators, initializers and
    /// options, or by the arguments of a call.
    pub(crate) fn is_in(self, case: &Case) -> bool {
        let (words, ids): (&[&str], &[&str]) = match self {
            Foreign::Gradients => (&["gradient"], &[]),
            Foreign::Scatters => (&["scatter_max", "scatter_mul"], &[]),
            Foreign::Contexts => (&["context", "run", "chief_run", "reduce", "gather", "call"], &[]),
            Foreign::Options => (&["partition", "half", "none", "aggregation", "synchronization", "trainable"], &[]),
            Foreign::Types => (
                &["python", "next_at_chief", "not_a_dataset"],
                &[
                    "parameter_server/dataset/24",
                    "parameter_server/fetch/15",
                    "parameter_server/misuse/04",
                    "parameter_server/misuse/09",
                    "parameter_server/misuse/10",
                ],
            ),
        };
        case.api == "ParameterServer.program"
            && (ids.contains(&case.id.as_str()) || words.iter().any(|word| has_word(&case.args, word)))
    }
}

/// Whether a part of a program begins with this word, or is named by it.
fn has_word(json: &Json, word: &str) -> bool {
    match json {
        Json::Array(list) => {
            list.first().is_some_and(|first| first == word)
                || list.last().is_some_and(|last| last == word)
                || list.iter().any(|entry| has_word(entry, word))
        }
        Json::Object(object) => {
            object.iter().any(|(key, value)| key != "name" && (key == word || value == word || has_word(value, word)))
        }
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
    }
}
