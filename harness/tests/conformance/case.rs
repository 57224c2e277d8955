//! One case of a file: the call, its arguments, and TensorFlow's answer.

use crate::{decisions::NOT_JUDGED, value::Value};
use consonance::{
    CentralStorageStrategy, CommunicationOptions, Device, Error, Implementation, MirroredStrategy, OneDeviceStrategy,
    PerReplica, ReduceOp, StaticShapes, Strategy, UnknownReduceOp,
};
use serde_json::Value as Json;
use std::time::Duration;

pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) api: String,
    pub(crate) replicas: usize,
    pub(crate) args: Json,
    inputs: Json,
    expect: Result<Value, String>,
    alternative: Option<Value>,
    /// The number of units in the last place by which a float may differ.
    ulp: u64,
    /// Whether the replicas of a mirrored strategy exchange messages instead of sharing memory.
    pub(crate) on_messages: bool,
    /// Whether a strategy, if it can, has static shapes.
    pub(crate) static_shapes: bool,
}

/// Our answer.
pub(crate) type Answer = Result<Value, Stop>;

/// The reason why there is no value.
#[derive(Debug)]
pub(crate) enum Stop {
    Refused(Error),
    /// The spec answers with an error of this kind.
    OfSpec(&'static str),
    /// No program that compiles makes this call.
    NotExpressible,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Refused(error)
    }
}

/// An operation as the case passes it.
#[derive(Clone)]
pub(crate) enum Op {
    Text(String),
    Enum(ReduceOp),
}

impl TryFrom<Op> for ReduceOp {
    type Error = UnknownReduceOp;

    fn try_from(op: Op) -> Result<ReduceOp, UnknownReduceOp> {
        match op {
            Op::Text(text) => text.as_str().try_into(),
            Op::Enum(op) => Ok(op),
        }
    }
}

impl Case {
    /// Returns the cases of a file. `left_out` counts the parts of their answers that are not
    /// judged.
    pub(crate) fn all(text: &str, left_out: &mut [usize]) -> Vec<Case> {
        let file: Json = serde_json::from_str(text).expect("JSON");
        let cases = file["cases"].as_array().expect("a list of cases");
        cases.iter().map(|case| Case::parse(case, left_out)).collect()
    }

    fn parse(json: &Json, left_out: &mut [usize]) -> Case {
        let text = |json: &Json| json.as_str().expect("text").to_owned();
        let api = text(&json["api"]);
        let mut expect = match json["expect"].get("ok") {
            Some(value) => Ok(Value::parse(value)),
            None => Err(text(&json["expect"]["error"])),
        };
        if let Ok(Value::Dict(parts)) = &mut expect {
            for (part, count) in NOT_JUDGED.iter().zip(left_out) {
                *count += usize::from(part.api == api && parts.remove(part.part).is_some());
            }
        }
        let ulp = match &json["compare"] {
            Json::String(exact) if exact == "exact" => 0,
            compare => compare["ulp"].as_u64().expect("a number of units"),
        };
        Case {
            id: text(&json["id"]),
            api,
            replicas: json["num_replicas"].as_u64().expect("a number") as usize,
            args: json["args"].clone(),
            inputs: json["inputs"].clone(),
            expect,
            alternative: json.get("alternative").map(|alternative| Value::parse(&alternative["ok"])),
            ulp,
            on_messages: false,
            static_shapes: false,
        }
    }

    /// Returns whether TensorFlow answers with a value.
    pub(crate) fn is_answered(&self) -> bool {
        self.expect.is_ok()
    }

    /// Whether there is an alternative to TensorFlow's answer.
    pub(crate) fn has_alternative(&self) -> bool {
        self.alternative.is_some()
    }

    /// Returns TensorFlow's answers to the steps of the case.
    pub(crate) fn expected_steps(&self) -> Vec<Value> {
        match &self.expect {
            Ok(Value::Dict(parts)) => match &parts["steps"] {
                Value::List(steps) => steps.clone(),
                other => panic!("no list of steps: {other:?}"),
            },
            other => panic!("no answers to steps: {other:?}"),
        }
    }

    /// Returns TensorFlow's answer with `parts` replaced. If either is not a dict, `parts` is the
    /// whole answer.
    pub(crate) fn with_parts(&self, parts: Value) -> Value {
        match (&self.expect, parts) {
            (Ok(Value::Dict(expected)), Value::Dict(parts)) => {
                Value::Dict(expected.clone().into_iter().chain(parts).collect())
            }
            (_, answer) => answer,
        }
    }

    /// Returns how an answer differs from the alternative to TensorFlow's.
    pub(crate) fn differs_from_alternative(&self, answer: &Answer) -> Option<String> {
        match (&self.alternative, answer) {
            (Some(alternative), Ok(found)) => alternative.difference(found, self.ulp),
            (alternative, found) => Some(format!("the alternative is {alternative:?}, found {found:?}")),
        }
    }

    /// Returns how an answer differs from TensorFlow's.
    pub(crate) fn differs_from_tensorflow(&self, answer: &Answer) -> Option<String> {
        let is_difference = self.api.starts_with("ParameterServer.");
        if !is_difference && self.differs_from_alternative(answer).is_none() {
            return None;
        }
        match (&self.expect, answer) {
            (Ok(expected), Ok(found)) => expected.difference(found, self.ulp),
            (Err(expected), Err(Stop::Refused(error))) if kind(error) == expected => None,
            (Err(expected), Err(Stop::OfSpec(kind))) if kind == expected => None,
            (Err(expected), Err(Stop::Refused(error))) => {
                Some(format!("expected the error {expected}, found {}: {error}", kind(error)))
            }
            (expected, found) => Some(format!("expected {expected:?}, found {found:?}")),
        }
    }

    /// Returns the argument `name` as text; empty if it is absent or not text.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.args.get(name).and_then(Json::as_str).unwrap_or_default()
    }

    pub(crate) fn raw_inputs(&self) -> &[Json] {
        self.inputs.as_array().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn inputs(&self) -> Vec<Value> {
        self.raw_inputs().iter().map(Value::parse).collect()
    }

    /// Returns whether a tensor of the inputs has a dtype whose name begins with one of `names`.
    pub(crate) fn has_dtype(&self, names: &[&str]) -> bool {
        fn any(json: &Json, found: &dyn Fn(&str) -> bool) -> bool {
            match json {
                Json::Array(list) => list.iter().any(|entry| any(entry, found)),
                Json::Object(object) => {
                    object.get("dtype").and_then(Json::as_str).is_some_and(found)
                        || object.values().any(|entry| any(entry, found))
                }
                _ => false,
            }
        }
        any(&self.inputs, &|dtype| names.iter().any(|name| dtype.starts_with(name)))
    }

    /// Returns each replica's nest of tensors.
    pub(crate) fn nests(&self) -> Result<PerReplica<Value>, Stop> {
        let nests: Option<Vec<Value>> = self.inputs().into_iter().map(Value::into_nest).collect();
        // A single value for several replicas is not distributed. Our argument is always a
        // `PerReplica`.
        let nests = nests.filter(|nests| nests.len() == self.replicas);
        let nests = nests.map(PerReplica::new).ok_or(Stop::NotExpressible)?;
        Ok(if self.static_shapes { nests.with_shapes()? } else { nests })
    }

    pub(crate) fn strategy(&self) -> Result<Strategy, Error> {
        let devices = (0..self.replicas).map(Device::Cpu);
        let shapes = || self.static_shapes.then(StaticShapes::new);
        Ok(match self.text("strategy") {
            "" | "mirrored" => {
                let builder = MirroredStrategy::builder(devices);
                let builder = match self.on_messages {
                    true => builder.engines(|devices, _| Ok(consonance_messages::threads(devices.len()))),
                    false => builder,
                };
                (*builder.static_shapes(shapes()).build()?).clone()
            }
            "one_device" => (*OneDeviceStrategy::builder(Device::Cpu(0)).static_shapes(shapes()).build()?).clone(),
            "central_storage" => (*CentralStorageStrategy::new(devices, Device::Cpu(0))?).clone(),
            "default" => Strategy::default_strategy(),
            name => panic!("no strategy {name}"),
        })
    }

    pub(crate) fn op(&self) -> Result<Op, Stop> {
        match self.args["op"].as_str() {
            Some("enum:SUM") => Ok(Op::Enum(ReduceOp::Sum)),
            Some("enum:MEAN") => Ok(Op::Enum(ReduceOp::Mean)),
            Some(text) => Ok(Op::Text(text.to_owned())),
            None => Err(Stop::NotExpressible),
        }
    }

    /// Returns the axes that are reduced; `None` if the call reduces only over replicas.
    pub(crate) fn axes(&self) -> Option<Vec<isize>> {
        let number = |axis: &Json| axis.as_i64().expect("an axis") as isize;
        match self.args.get("axis") {
            None | Some(Json::Null) => None,
            Some(Json::Array(axes)) => Some(axes.iter().map(number).collect()),
            Some(axis) => Some(vec![number(axis)]),
        }
    }

    pub(crate) fn axis(&self) -> isize {
        self.axes().expect("an axis")[0]
    }

    pub(crate) fn options(&self) -> Result<CommunicationOptions, Error> {
        let mut options = CommunicationOptions::new();
        for (name, value) in self.args.get("options").and_then(Json::as_object).into_iter().flatten() {
            options = match (name.as_str(), value) {
                ("bytes_per_pack", bytes) => options.bytes_per_pack(bytes.as_u64().expect("a number") as usize),
                ("timeout_seconds", seconds) => {
                    options.timeout(Duration::from_secs_f64(seconds.as_f64().expect("a number")))?
                }
                ("implementation", Json::String(auto)) if auto == "AUTO" => {
                    options.implementation(Implementation::Auto)
                }
                // A ring also reduces each block once and then distributes it to all ranks.
                ("implementation", Json::String(ring)) if ring == "RING" => {
                    options.implementation(Implementation::TwoShot)
                }
                (name, value) => panic!("no option {name} = {value}"),
            };
        }
        Ok(options)
    }
}

/// Returns the kind of error that TensorFlow raises.
pub(crate) fn kind(error: &Error) -> &'static str {
    match error.root() {
        Error::UnknownReduceOp { .. } => "bad_reduce_op",
        Error::WrongContext { problem, .. } if problem.contains("strategies do not mix") => "strategy_mixed",
        Error::WrongContext { .. } => "wrong_context",
        Error::Mismatch { argument, expected, found, .. } => {
            let sparse = |text: &str| text.starts_with("IndexedSlices");
            // All replicas of a case make the same call, so its first step differs only if the
            // structure differs.
            if argument == "types"
                || argument == "call"
                || expected == "nothing"
                || found == "nothing"
                || sparse(expected) != sparse(found)
            {
                "structure_mismatch"
            } else {
                other_tensor(expected, found)
            }
        }
        Error::InvalidCall { call, argument, expected, found, .. } => match (argument.as_str(), expected.as_str()) {
            // A reduction of a scalar lacks the axis; a gather of a scalar is not allowed.
            (_, "a tensor with an axis") if call.contains("gather") => "scalar_not_allowed",
            (_, "a tensor with an axis") => "axis_out_of_range",
            ("axis", "each axis once") => "axis_repeated",
            ("axis", expected) if expected.starts_with("an axis from") => "axis_out_of_range",
            ("op", expected) if expected.starts_with("an operation on") => "dtype_unsupported",
            ("synchronization", _) => "bad_synchronization",
            ("aggregation", expected) if expected.starts_with("an aggregation that gives") => "dtype_unsupported",
            ("aggregation", _) => "aggregation_required",
            ("value", expected) if call.contains("assign") => other_tensor(expected, found),
            (_, expected) if expected.starts_with("batches, with rows") => "dataset_not_batched",
            (_, expected) if expected.ends_with("as the first element of the batch has") => "invalid_argument",
            ("global_batch_size", _) => "not_divisible",
            (_, "JSON") => "jsondecode",
            (_, "each task index once") => "duplicate_task",
            (_, expected) if expected.starts_with("text") || expected.contains("an object") => "type",
            (_, "a variable that Slurm sets in a step") | ("gpus_per_task", _) => "runtime",
            _ => "value",
        },
        // An error that a function of a case raises is a ValueError.
        Error::Other(_) => "value",
        _ => "another",
    }
}

/// Returns how two texts like `f32[2, 3]` differ.
fn other_tensor(expected: &str, found: &str) -> &'static str {
    let dtype = |text: &str| text.split('[').next().map(str::to_owned);
    if dtype(expected) != dtype(found) { "dtype_mismatch" } else { "shape_mismatch" }
}
