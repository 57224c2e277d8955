//! Variables: made, assigned and read step by step, and the results of the same steps by the spec.

use crate::{
    case::{Answer, Case, Stop, kind},
    value::Value,
};
use consonance::{
    DType, Destinations, PerReplica, ReplicaContext, Result, Strategy, Tensor, Variable, VariableAggregation,
    VariableSynchronization,
};
use consonance_harness::sample::Sample;
use consonance_spec::variable::{self, Placement, Update};
use serde_json::{Value as Json, json};

/// One step of a case.
struct Step<'a> {
    context: &'a str,
    op: &'a str,
    /// Each replica's operand, or the same operand for all replicas.
    operands: Vec<Tensor>,
    is_per_replica: bool,
}

impl Step<'_> {
    fn of<'a>(case: &Case, step: &'a Json) -> Step<'a> {
        let text = |name: &str| step[name].as_str().expect("text");
        let tensor = |json: &Json| Value::parse(json).into_tensor().expect("a tensor");
        let operands = match (step.get("values"), step.get("value")) {
            (Some(values), _) => values.as_array().expect("a list").iter().map(tensor).collect(),
            (_, Some(value)) => vec![tensor(value); case.replicas],
            _ => Vec::new(),
        };
        Step { context: text("context"), op: text("op"), operands, is_per_replica: step.get("values").is_some() }
    }

    fn update(&self) -> Option<Update> {
        match self.op {
            "assign" => Some(Update::Assign),
            "assign_add" => Some(Update::AssignAdd),
            "assign_sub" => Some(Update::AssignSub),
            "read" => None,
            op => panic!("no step {op}"),
        }
    }
}

fn steps(case: &Case) -> Vec<Step<'_>> {
    case.args["steps"].as_array().expect("a list of steps").iter().map(|step| Step::of(case, step)).collect()
}

pub(crate) fn synchronization(case: &Case) -> VariableSynchronization {
    match case.text("synchronization") {
        "AUTO" => VariableSynchronization::Auto,
        "NONE" => VariableSynchronization::None,
        "ON_WRITE" => VariableSynchronization::OnWrite,
        "ON_READ" => VariableSynchronization::OnRead,
        name => panic!("no synchronization {name}"),
    }
}

pub(crate) fn aggregation(case: &Case) -> VariableAggregation {
    match case.text("aggregation") {
        "NONE" => VariableAggregation::None,
        "SUM" => VariableAggregation::Sum,
        "MEAN" => VariableAggregation::Mean,
        "ONLY_FIRST_REPLICA" => VariableAggregation::OnlyFirstReplica,
        name => panic!("no aggregation {name}"),
    }
}

fn initial(case: &Case) -> Tensor {
    Value::parse(&case.args["initial"]).into_tensor().expect("a tensor")
}

/// Returns the answers of the steps, the final components, and the final value outside the
/// replicas.
fn answered(steps: Vec<Value>, components: Vec<Tensor>, read: Value) -> Value {
    let components = components.into_iter().map(Value::Tensor).collect();
    Value::dict([("steps", Value::List(steps)), ("components", Value::List(components)), ("cross_replica_read", read)])
}

fn refused(kind: &str) -> Value {
    Value::Other(json!({ "error": kind }))
}

pub(crate) fn variables(case: &Case) -> Answer {
    let strategy = case.strategy()?;
    let variable = strategy.scope(|| {
        Variable::builder(|| initial(case))
            .synchronization(synchronization(case))
            .aggregation(aggregation(case))
            .build()
    })?;
    let value = |answer: Result<Value>| answer.unwrap_or_else(|error| refused(kind(&error)));
    let mut answers = Vec::new();
    for step in steps(case) {
        answers.push(value(match step.context {
            "replica" => in_replicas(&strategy, &variable, &step),
            "cross" => strategy.scope(|| across(&variable, &step)),
            "outside" => across(&variable, &step),
            // An update has one value for all copies.
            "update" if step.is_per_replica => return Err(Stop::NotExpressible),
            "update" => add(&strategy, &variable, &step.operands[0]).map(|()| Value::none()),
            "merge_update" => strategy
                .run_with(PerReplica::new(step.operands), |replica, operand| {
                    replica.merge_call(operand, |strategy, operands| {
                        let sum = strategy.reduce_to("sum", &operands, Destinations::Replicas)?.into_value();
                        add(strategy, &variable, &sum).map(|()| strategy.mirror(()))
                    })
                })
                .map(|_| Value::none()),
            context => panic!("no context {context}"),
        }));
    }
    let read = value(strategy.scope(|| variable.read()).map(Value::Tensor));
    Ok(answered(answers, strategy.local_results(&variable), read))
}

fn in_replicas(strategy: &Strategy, variable: &Variable, step: &Step<'_>) -> Result<Value> {
    let mut operands = step.operands.clone();
    operands.resize(strategy.num_replicas_in_sync(), Tensor::default());
    let values = strategy.run_with(PerReplica::new(operands), |replica: &ReplicaContext<'_>, operand| {
        match step.update() {
            Some(Update::Assign) => replica.assign(variable, operand)?,
            Some(Update::AssignAdd) => replica.assign_add(variable, operand)?,
            Some(Update::AssignSub) => replica.assign_sub(variable, operand)?,
            None => {}
        }
        variable.read()
    })?;
    Ok(Value::Local(values.into_iter().map(Value::Tensor).collect()))
}

fn across(variable: &Variable, step: &Step<'_>) -> Result<Value> {
    match step.update() {
        Some(Update::Assign) => variable.assign(step.operands[0].clone())?,
        Some(Update::AssignAdd) => variable.assign_add(step.operands[0].clone())?,
        Some(Update::AssignSub) => variable.assign_sub(step.operands[0].clone())?,
        None => {}
    }
    variable.read().map(Value::Tensor)
}

fn add(strategy: &Strategy, variable: &Variable, operand: &Tensor) -> Result<()> {
    strategy.update(variable, |copy| copy.assign_add(operand.clone())).map(drop)
}

/// Returns the results by the spec for the steps of a mirrored variable, which is assigned in
/// replicas, in the cross-replica context, or outside all scopes.
pub(crate) fn specified(case: &Case) -> Value {
    match initial(case).dtype() {
        DType::F32 => specified_of::<f32>(case),
        DType::I32 => specified_of::<i32>(case),
        DType::I64 => specified_of::<i64>(case),
        other @ (DType::Bool
        | DType::I8
        | DType::I16
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::F16
        | DType::Bf16
        | DType::F64) => panic!("no vectors of {other}"),
    }
}

fn specified_of<T: Sample>(case: &Case) -> Value {
    let initial = initial(case);
    let tensor = |elements: &Vec<T>| Tensor::new(initial.shape(), elements).expect("the variable's shape");
    let elements = |tensor: &Tensor| tensor.as_slice::<T>().expect("the variable's dtype").to_vec();
    let placement = Placement::EachReplica;
    let mut model = variable::Variable::new(
        placement,
        synchronization(case),
        aggregation(case),
        case.replicas,
        &elements(&initial),
    )
    .expect("a variable that can be");
    let read = |model: &variable::Variable<T>| match model.read_across() {
        Ok(value) => Value::Tensor(tensor(&value)),
        Err(_) => refused("aggregation_required"),
    };
    let mut answers = Vec::new();
    for step in steps(case) {
        let operands: Vec<Vec<T>> = step.operands.iter().map(elements).collect();
        let is_in_replicas = step.context == "replica";
        let after = match step.update() {
            None => Ok(model.clone()),
            Some(update) if is_in_replicas => model.assign_in_replicas(update, &operands),
            Some(update) => model.assign_across(update, &operands[0]),
        };
        let Ok(after) = after else {
            answers.push(refused("aggregation_required"));
            continue;
        };
        model = after;
        answers.push(match is_in_replicas {
            true => Value::Local(model.components().iter().map(|component| Value::Tensor(tensor(component))).collect()),
            false => read(&model),
        });
    }
    answered(answers, model.components().iter().map(tensor).collect(), read(&model))
}
