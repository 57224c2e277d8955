//! The closures of a case: their statements, taken step by step.

use super::{
    slices::slice,
    store::{Effect, Kind, Read, Store},
};
use crate::value::Value;
use consonance::{Element, Tensor};
use consonance_spec::{
    parameter_server::{Came, Closure, Seen, Step},
    variable::Update,
};
use serde_json::{Map, Value as Json};
use std::{collections::BTreeMap, rc::Rc};

/// The meaning of the names in a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub(crate) variables: Vec<String>,
    /// Iterators: the number of the data set for the coordinator, and the elements.
    pub(crate) iterators: BTreeMap<String, (usize, Rc<Vec<Value>>)>,
    pub(crate) per_worker: BTreeMap<String, Vec<Value>>,
}

/// A function of a case with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) statements: Vec<Json>,
    pub(crate) arguments: Vec<Json>,
    pub(crate) named: Map<String, Json>,
    pub(crate) names: Rc<Names>,
}

pub(crate) type Next = Step<Read, Effect, Value, Kind>;

/// The reason why a run of the statements halts.
enum Halt {
    /// At a step of which nothing has come yet.
    At(Next),
    Failed(Kind),
}

/// A run of the statements, with what came of the steps so far.
struct Run<'a> {
    body: &'a Body,
    seen: &'a Seen<Tensor, Value>,
    /// The steps that this run has passed.
    passed: usize,
    lets: BTreeMap<String, Value>,
}

impl Body {
    fn all_arguments(&self) -> impl Iterator<Item = &Json> {
        self.arguments.iter().chain(self.named.values())
    }
}

/// Returns the number of the closure whose result this argument is.
fn needed(argument: &Json) -> Option<usize> {
    argument.as_str()?.strip_prefix('#')?.parse().ok()
}

impl Closure<Store> for Body {
    type Result = Value;
    type Error = Kind;

    fn needs(&self) -> Vec<usize> {
        self.all_arguments().filter_map(needed).collect()
    }

    fn is_per_worker(&self) -> bool {
        self.all_arguments().any(|argument| argument.as_str().is_some_and(|text| text.starts_with('@')))
    }

    fn step(&self, seen: &Seen<Tensor, Value>) -> Next {
        let mut run = Run { body: self, seen, passed: 0, lets: BTreeMap::new() };
        match run.statements(&self.statements) {
            Ok(result) => Step::Return(result.unwrap_or_else(Value::none)),
            Err(Halt::At(step)) => step,
            Err(Halt::Failed(kind)) => Step::Fail(kind),
        }
    }
}

impl Run<'_> {
    /// Runs the statements up to a return.
    fn statements(&mut self, statements: &[Json]) -> Result<Option<Value>, Halt> {
        for statement in statements {
            match statement[0].as_str().expect("a statement") {
                "return" => return self.expression(&statement[1]).map(Some),
                "let" => {
                    let value = self.expression(&statement[2])?;
                    self.lets.insert(statement[1].as_str().expect("a name").to_owned(), value);
                }
                "assert_less" => self.check(statement)?,
                "checked" => {
                    self.check(statement)?;
                    self.statements(statement[4].as_array().expect("statements"))?;
                }
                "then_check" => {
                    self.statements(statement[4].as_array().expect("statements"))?;
                    self.check(statement)?;
                }
                _ => {
                    self.expression(statement)?;
                }
            }
        }
        Ok(None)
    }

    /// Fails unless the first operand is less than the second one.
    fn check(&mut self, statement: &Json) -> Result<(), Halt> {
        let [a, b] = [1, 2].map(|place| self.tensor(&statement[place]));
        let is_less = a?.item::<i64>().expect("i64") < b?.item::<i64>().expect("i64");
        if is_less { Ok(()) } else { Err(Halt::Failed(Kind("invalid_argument"))) }
    }

    /// Returns what came of a step, or halts at it.
    fn pass(&mut self, step: Next) -> Result<Came<Tensor>, Halt> {
        let came = self.seen.steps.get(self.passed).cloned();
        self.passed += 1;
        came.ok_or(Halt::At(step))
    }

    fn read(&mut self, read: Read) -> Result<Value, Halt> {
        match self.pass(Step::Read(read))? {
            Came::Value(value) => Ok(Value::Tensor(value)),
            came @ (Came::Position(_) | Came::Updated) => panic!("{came:?} of a read"),
        }
    }

    fn tensor(&mut self, json: &Json) -> Result<Tensor, Halt> {
        Ok(self.expression(json)?.into_tensor().expect("a tensor"))
    }

    /// Returns the argument that a text names, as it is written.
    fn argument(&self, text: &str) -> Option<Json> {
        let name = text.strip_prefix('$')?;
        let place = name.parse::<usize>().ok();
        place.map_or_else(|| self.body.named.get(name), |place| self.body.arguments.get(place)).cloned()
    }

    /// Returns the number of the variable that a text names, or the argument that it names.
    fn variable(&self, json: &Json) -> usize {
        let text = json.as_str().expect("a name");
        let argument = self.argument(text);
        let name = argument.as_ref().map_or(text, |argument| argument.as_str().expect("a variable"));
        let name = name.trim_start_matches('&');
        self.body.names.variables.iter().position(|known| known == name).expect("a variable")
    }

    fn expression(&mut self, json: &Json) -> Result<Value, Halt> {
        match json {
            Json::String(text) => self.named(text),
            Json::Array(list) => match list.first().and_then(Json::as_str) {
                Some(operator) => self.operation(operator, list),
                None => Ok(Value::parse(json)),
            },
            Json::Object(object) => match object.iter().next().map(|(key, value)| (key.as_str(), value)) {
                Some(("tuple", Json::Array(list))) => self.all(list).map(Value::Tuple),
                Some(("dict", Json::Object(dict))) => {
                    let entry = |(key, value): (&String, &Json)| Ok((key.clone(), self.expression(value)?));
                    dict.iter().map(entry).collect::<Result<_, _>>().map(Value::Dict)
                }
                Some(("py", Json::Bool(truth))) => Ok(Value::Tensor(Tensor::from(*truth))),
                Some(("py", _)) => Ok(Value::Tensor(Value::parse(json).into_tensor().expect("a number"))),
                _ => Ok(Value::parse(json)),
            },
            _ => Ok(Value::parse(json)),
        }
    }

    fn all(&mut self, list: &[Json]) -> Result<Vec<Value>, Halt> {
        list.iter().map(|json| self.expression(json)).collect()
    }

    fn named(&mut self, text: &str) -> Result<Value, Halt> {
        if let Some(value) = text.strip_prefix('$').and_then(|name| self.lets.get(name)) {
            return Ok(value.clone());
        }
        let argument = self.argument(text).expect("an argument");
        if let Some(values) = argument.as_str().and_then(|text| self.body.names.per_worker.get(text.strip_prefix('@')?))
        {
            return Ok(values[self.seen.worker].clone());
        }
        match needed(&argument) {
            Some(number) => {
                let place = self.body.needs().iter().position(|&needed| needed == number).expect("it is needed");
                Ok(self.seen.arguments[place].clone())
            }
            None => self.expression(&argument),
        }
    }

    fn operation(&mut self, operator: &str, list: &[Json]) -> Result<Value, Halt> {
        let update = |name: &str| match name {
            "assign" | "scatter_update" => Some(Update::Assign),
            "assign_add" | "scatter_add" => Some(Update::AssignAdd),
            "assign_sub" | "scatter_sub" => Some(Update::AssignSub),
            _ => None,
        };
        if let Some(update) = update(operator) {
            let variable = self.variable(&list[1]);
            let operand = self.tensor(&list[2])?;
            let indices = list.get(3).map(|indices| self.tensor(indices)).transpose()?;
            self.pass(Step::Update(Effect { variable, update, indices, operand }))?;
            return Ok(Value::none());
        }
        match operator {
            "list" => self.all(&list[1..]).map(Value::List),
            "read" => self.read(Read { variable: self.variable(&list[1]), indices: None }),
            "slice" => {
                let read = self.read(Read { variable: self.variable(&list[1]), indices: None })?;
                let axes = list[2].as_array().expect("axes");
                slice(&read.into_tensor().expect("a tensor"), axes).map(Value::Tensor).map_err(Halt::Failed)
            }
            "var_add" => {
                let read = self.read(Read { variable: self.variable(&list[1]), indices: None })?;
                let operands = [read.into_tensor().expect("a tensor"), self.tensor(&list[2])?];
                arithmetic("add", &operands).map(Value::Tensor).map_err(Halt::Failed)
            }
            "matmul" => {
                let [a, b] = [1, 2].map(|place| self.tensor(&list[place]));
                Ok(Value::Tensor(product(&a?, &b?)))
            }
            "lookup" | "read_rows" => {
                let indices = self.tensor(&list[2])?;
                if operator == "read_rows" && indices.rank() != 1 {
                    return Err(Halt::Failed(Kind("indices_rank")));
                }
                self.read(Read { variable: self.variable(&list[1]), indices: Some(indices) })
            }
            "next" => {
                let argument = self.argument(list[1].as_str().expect("an iterator")).expect("an argument");
                let name = argument.as_str().and_then(|text| text.strip_prefix('@')).expect("an iterator");
                let (dataset, elements) = self.body.names.iterators[name].clone();
                match self.pass(Step::Next(dataset))? {
                    Came::Position(position) => {
                        elements.get(position).cloned().ok_or(Halt::Failed(Kind("end_of_data")))
                    }
                    came @ (Came::Value(_) | Came::Updated) => panic!("{came:?} of a data set"),
                }
            }
            "rows" => {
                let [tensor, rows] = [1, 2].map(|place| self.tensor(&list[place]));
                let store = Store(vec![tensor?]);
                let read = consonance_spec::parameter_server::Variables::read(
                    &store,
                    &Read { variable: 0, indices: Some(rows?) },
                );
                read.map(Value::Tensor).map_err(Halt::Failed)
            }
            _ => {
                let operands = list[1..].iter().map(|json| self.tensor(json)).collect::<Result<Vec<_>, _>>()?;
                arithmetic(operator, &operands).map(Value::Tensor).map_err(Halt::Failed)
            }
        }
    }
}

/// Returns the product of two matrices.
fn product(a: &Tensor, b: &Tensor) -> Tensor {
    let [rows, inner, columns] = [a.shape()[0], a.shape()[1], b.shape()[1]];
    let (left, right) = (a.as_slice::<f64>().expect("f64"), b.as_slice::<f64>().expect("f64"));
    let element = |place: usize| {
        let (row, column) = (place / columns, place % columns);
        (0..inner).map(|at| left[row * inner + at] * right[at * columns + column]).sum()
    };
    let elements: Vec<f64> = (0..rows * columns).map(element).collect();
    Tensor::new([rows, columns], &elements).expect("as many elements as the shape says")
}

/// Computes with tensors, element by element. The smaller one is repeated.
fn arithmetic(operator: &str, operands: &[Tensor]) -> Result<Tensor, Kind> {
    fn each<T: Element>(operands: &[Tensor], f: impl Fn(T, T) -> T) -> Tensor {
        let [a, b] =
            [0, operands.len() - 1].map(|place| operands[place].as_slice::<T>().expect("the dtype was matched"));
        let shape = if a.len() < b.len() { operands[1].shape() } else { operands[0].shape() };
        let count = a.len().max(b.len());
        let of = |all: &[T], place: usize| all[place % all.len()];
        let elements: Vec<T> = (0..count).map(|place| f(of(a, place), of(b, place))).collect();
        Tensor::new(shape, &elements).expect("as many elements as the shape says")
    }
    let first = &operands[0];
    if let Ok(elements) = first.as_slice::<i64>() {
        let divisors = operands[operands.len() - 1].as_slice::<i64>().expect("i64");
        return match operator {
            "add" => Ok(each(operands, |a: i64, b| a + b)),
            "sub" => Ok(each(operands, |a: i64, b| a - b)),
            "mul" => Ok(each(operands, |a: i64, b| a * b)),
            "sum" => Ok(Tensor::from(elements.iter().sum::<i64>())),
            "floordiv" if divisors.contains(&0) => Err(Kind("invalid_argument")),
            "floordiv" => Ok(each(operands, |a: i64, b| a.div_euclid(b))),
            _ => panic!("no operator {operator}"),
        };
    }
    match operator {
        "add" => Ok(each(operands, |a: f32, b| a + b)),
        "sum" => Ok(Tensor::from(first.as_slice::<f32>().expect("f32").iter().sum::<f32>())),
        _ => panic!("no operator {operator} of {}", first.dtype()),
    }
}
