//! Partitioners and initial values of cases.

use super::store::Kind;
use crate::{
    case::{Answer, Case, Stop},
    value::Value,
};
use consonance::{DType, Tensor};
use consonance_spec::{
    FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner, parameter_server::RefusedPartition,
};
use serde_json::{Value as Json, json};

pub(crate) use consonance_spec::Partitioner as Partitions;

/// A partitioner that always answers the same.
struct Returns(Vec<usize>);

impl Partitioner for Returns {
    fn partitions(&self, _: &[usize], _: DType, _: usize) -> Result<Vec<usize>, RefusedPartition> {
        Ok(self.0.clone())
    }
}

impl From<RefusedPartition> for Kind {
    fn from(refused: RefusedPartition) -> Kind {
        Kind(match refused {
            RefusedPartition::NotPositive { .. } => "not_positive",
            RefusedPartition::Scalar => "scalar_not_allowed",
            RefusedPartition::AxisOutOfRange { .. } => "axis_out_of_range",
            RefusedPartition::Rank { .. } | RefusedPartition::NoParts { .. } | RefusedPartition::OtherAxis { .. } => {
                "bad_partition"
            }
        })
    }
}

/// Returns the partitioner that a case describes, if it has one.
pub(crate) fn partitioner(json: &Json) -> Result<Option<Box<dyn Partitions + Send + Sync>>, Kind> {
    let Some(name) = json[0].as_str() else { return Ok(None) };
    let given = |name: &str| json[1][name].as_u64().map(|number| number as usize);
    Ok(Some(match name {
        "fixed" => Box::new(FixedShardsPartitioner::new(json[1].as_u64().expect("a number") as usize)?),
        "min_size" => Box::new(MinSizePartitioner::new(
            given("min_shard_bytes").unwrap_or(MinSizePartitioner::MIN_SHARD_BYTES),
            given("max_shards").unwrap_or(MinSizePartitioner::MAX_SHARDS),
        )?),
        "max_size" => {
            Box::new(MaxSizePartitioner::new(given("max_shard_bytes").expect("a number"), given("max_shards"))?)
        }
        "returns" => Box::new(Returns(serde_json::from_value(json[1].clone()).expect("numbers"))),
        name => panic!("no partitioner {name}"),
    }))
}

pub(crate) fn partition(case: &Case) -> Answer {
    let dtype = dtype(case).ok_or(Stop::NotExpressible)?;
    if has_negative(&case.args["partitioner"]) {
        return Err(Stop::NotExpressible);
    }
    let shape: Vec<usize> = serde_json::from_value(case.args["shape"].clone()).expect("a shape");
    let axis = case.args["axis"].as_u64().unwrap_or_default() as usize;
    let partitioner = partitioner(&case.args["partitioner"])?.expect("a partitioner");
    let partitions = partitioner.partitions(&shape, dtype, axis).map_err(Kind::from)?;
    Ok(Value::Other(json!({ "json": partitions })))
}

fn dtype(case: &Case) -> Option<DType> {
    DType::ALL.iter().copied().find(|dtype| dtype.name() == case.text("dtype"))
}

/// Whether the tensor that is divided is of a type that we lack.
pub(crate) fn has_other_dtype(case: &Case) -> bool {
    dtype(case).is_none()
}

/// Whether a number of the arguments is negative.
pub(crate) fn has_negative(partitioner: &Json) -> bool {
    let is_negative = |number: &Json| number.as_i64().is_some_and(|number| number < 0);
    is_negative(&partitioner[1]) || partitioner[1].as_object().is_some_and(|all| all.values().any(is_negative))
}

/// Returns the initial value of a variable.
pub(crate) fn initial(variable: &Json) -> Tensor {
    if let Some(initial) = variable.get("initial") {
        return Value::parse(initial).into_tensor().expect("a tensor");
    }
    let shape: Vec<usize> = serde_json::from_value(variable["shape"].clone()).expect("a shape");
    let width: usize = shape.iter().skip(1).product();
    let number = |place: usize| match variable["initializer"][0].as_str().expect("an initializer") {
        "zeros" => 0.0,
        "ones" => 1.0,
        "constant" => variable["initializer"][1].as_f64().expect("a number"),
        "rows" => (place / width) as f64,
        name => panic!("no initializer {name}"),
    };
    let numbers: Vec<f64> = (0..shape.iter().product()).map(number).collect();
    let tensor = match variable["dtype"].as_str().expect("a dtype") {
        "f32" => Tensor::new(shape, &numbers.iter().map(|&number| number as f32).collect::<Vec<_>>()),
        "f64" => Tensor::new(shape, &numbers),
        "i32" => Tensor::new(shape, &numbers.iter().map(|&number| number as i32).collect::<Vec<_>>()),
        name => {
            assert!(numbers.iter().all(|&number| number == 0.0), "no initializer of {name}");
            let dtype = DType::ALL.iter().copied().find(|dtype| dtype.name() == name).expect("a dtype");
            Ok(Tensor::zeros(dtype, shape))
        }
    };
    tensor.expect("as many elements as the shape says")
}
