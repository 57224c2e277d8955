//! Variables of all element types, with the reads and effects of the spec.

use consonance::{DType, Tensor};
use consonance_spec::{
    array::Array,
    for_each_dtype,
    number::Number,
    parameter_server::{self, Refused, Variables, lookup},
    variable::Update,
};

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kind(pub(crate) &'static str);

#[derive(Clone, Debug)]
pub(crate) struct Store(pub(crate) Vec<Tensor>);

/// A variable, or rows of it.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) variable: usize,
    pub(crate) indices: Option<Tensor>,
}

/// The update of a variable, or of rows of it.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    pub(crate) variable: usize,
    pub(crate) update: Update,
    pub(crate) indices: Option<Tensor>,
    pub(crate) operand: Tensor,
}

impl From<Refused> for Kind {
    fn from(refused: Refused) -> Kind {
        Kind(match refused {
            Refused::Shape { .. } => "shape_mismatch",
            Refused::Scalar => "scalar_not_allowed",
            Refused::IndexOutOfRange { .. } => "index_out_of_range",
            Refused::Undefined { .. } => "dtype_unsupported",
        })
    }
}

impl Variables for Store {
    type Read = Read;
    type Value = Tensor;
    type Effect = Effect;
    type Refused = Kind;

    fn read(&self, Read { variable, indices }: &Read) -> Result<Tensor, Kind> {
        let table = &self.0[*variable];
        match indices {
            None => Ok(table.clone()),
            Some(indices) => looked_up(table, indices),
        }
    }

    fn update(&mut self, effect: &Effect) -> Result<(), Kind> {
        self.0[effect.variable] = updated(&self.0[effect.variable], effect)?;
        Ok(())
    }
}

fn looked_up(table: &Tensor, indices: &Tensor) -> Result<Tensor, Kind> {
    fn of<T: Number>(table: &Tensor, indices: &[i64]) -> Result<Tensor, Kind> {
        Ok(tensor(lookup(&array::<T>(table), indices)?))
    }
    let rows = rows(indices)?;
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
            match table.dtype() {
                $(DType::$variant => of::<$type>(table, &rows)?,)*
            }
        };
    }
    let found = for_each_dtype!(by_dtype);
    // The rows have the axes of the indices.
    let shape = [indices.shape(), &table.shape()[1..]].concat();
    Ok(found.reshape(shape).expect("as many elements"))
}

fn updated(table: &Tensor, effect: &Effect) -> Result<Tensor, Kind> {
    fn of<T: Number>(
        table: &Tensor,
        Effect { update, operand, .. }: &Effect,
        rows: Option<Vec<i64>>,
    ) -> Result<Tensor, Kind> {
        let effect = match rows {
            None => parameter_server::Effect::Assign(*update, array::<T>(operand)),
            Some(rows) => parameter_server::Effect::Scatter(*update, rows, array::<T>(operand)),
        };
        Ok(tensor(effect.apply(&array::<T>(table))?))
    }
    if effect.operand.dtype() != table.dtype() {
        return Err(Kind("dtype_mismatch"));
    }
    if effect.indices.as_ref().is_some_and(|indices| indices.rank() != 1) {
        return Err(Kind("indices_rank"));
    }
    let rows = effect.indices.as_ref().map(rows).transpose()?;
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
            match table.dtype() {
                $(DType::$variant => of::<$type>(table, effect, rows),)*
            }
        };
    }
    for_each_dtype!(by_dtype)
}

/// Returns the numbers of rows, if they are integers.
fn rows(indices: &Tensor) -> Result<Vec<i64>, Kind> {
    let short = indices.as_slice::<i32>().map(|rows| rows.iter().copied().map(i64::from).collect());
    indices.as_slice::<i64>().map(<[i64]>::to_vec).or(short).map_err(|_| Kind("dtype_unsupported"))
}

fn array<T: Number>(tensor: &Tensor) -> Array<T> {
    Array::new(tensor.shape(), tensor.as_slice::<T>().expect("the dtype was matched").to_vec())
}

fn tensor<T: Number>(array: Array<T>) -> Tensor {
    Tensor::new(array.shape, &array.data).expect("as many elements as the shape says")
}
