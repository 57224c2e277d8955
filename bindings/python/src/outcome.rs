//! The arrays that calls return: those of `out=`, or new ones of the caller's kind.

use crate::{array::Array, failure::Bad, types};
use consonance::World;
use consonance_c::codes::Type;
use numpy::PyUntypedArray;
use pyo3::{
    intern,
    prelude::*,
    types::{PyList, PyTuple},
};

/// The result of a call, and the memory that it writes.
pub(crate) enum Outcome {
    /// An array that the call writes, or a list of arrays.
    Written(Py<PyAny>),
    /// Memory of NumPy that becomes an array of another package. Such arrays never change.
    Becomes { memory: Py<PyAny>, package: Py<PyAny>, of: Type },
    /// A list of these.
    Listed(Vec<Outcome>),
}

impl Outcome {
    /// Returns the array that a caller gave.
    pub(crate) fn written(array: &Bound<'_, PyAny>) -> Outcome {
        Outcome::Written(array.clone().unbind())
    }

    /// Makes an array of the kind, the type and the shape of `data`, or a list for a list.
    pub(crate) fn like(data: &Bound<'_, PyAny>) -> Result<Outcome, Bad> {
        match items(data) {
            Some(items) => {
                let like = |item| Outcome::new(item, Ok).map_err(Bad::in_list);
                Ok(Outcome::Listed(items.iter().map(like).collect::<Result<_, _>>()?))
            }
            None => Outcome::new(data, Ok),
        }
    }

    /// Makes an array of the kind and the type of `data`, with the shape that `shape` makes of its
    /// own.
    pub(crate) fn new(
        data: &Bound<'_, PyAny>,
        shape: impl FnOnce(Vec<usize>) -> Result<Vec<usize>, Bad>,
    ) -> Result<Outcome, Bad> {
        let py = data.py();
        // Refuse an object that is no array as `data`.
        let array = Array::of(data, "data")?;
        let of = array.of_type();
        let shape =
            || -> Result<_, Bad> { Ok(PyTuple::new(py, shape(data.getattr(intern!(py, "shape"))?.extract()?)?)?) };
        let numpy = || py.import(intern!(py, "numpy"));
        if data.cast::<PyUntypedArray>().is_ok() {
            let dtype = data.getattr(intern!(py, "dtype"))?;
            return Ok(Outcome::Written(numpy()?.call_method1(intern!(py, "empty"), (shape()?, dtype))?.unbind()));
        }
        if let Ok(empty) = data.getattr(intern!(py, "new_empty")) {
            return Ok(Outcome::Written(empty.call1((shape()?,))?.unbind()));
        }
        let Some(package) = package_of(data).filter(|_| !array.is_on_device()) else {
            let found = format!("None, with data of {}", data.get_type().name()?);
            return Err(Bad::value("out", "an array: no new one of this kind can be made", found));
        };
        let dtype = types::in_numpy(py, of)?;
        let memory = numpy()?.call_method1(intern!(py, "empty"), (shape()?, dtype))?.unbind();
        Ok(Outcome::Becomes { memory, package: package.unbind(), of })
    }

    /// Whether it is an array before the call has ended.
    pub(crate) fn is_written(&self) -> bool {
        match self {
            Outcome::Written(_) => true,
            Outcome::Becomes { .. } => false,
            Outcome::Listed(parts) => parts.iter().all(Outcome::is_written),
        }
    }

    /// Returns what the call writes.
    pub(crate) fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Outcome::Written(array) => Ok(array.bind(py).clone()),
            Outcome::Becomes { memory, .. } => Ok(memory.bind(py).clone()),
            Outcome::Listed(parts) => {
                let parts: Vec<_> = parts.iter().map(|part| part.memory(py)).collect::<PyResult<_>>()?;
                Ok(PyList::new(py, parts)?.into_any())
            }
        }
    }

    /// Returns what the call returns. It has ended.
    pub(crate) fn give(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Outcome::Written(array) => Ok(array.clone_ref(py)),
            Outcome::Becomes { memory, package, of } => {
                // NumPy exports only its own types by DLPack.
                let make = if types::is_of_numpy(*of) { "from_dlpack" } else { "asarray" };
                package.call_method1(py, make, (memory,))
            }
            Outcome::Listed(parts) => {
                let parts: Vec<_> = parts.iter().map(|part| part.give(py)).collect::<PyResult<_>>()?;
                Ok(PyList::new(py, parts)?.into_any().unbind())
            }
        }
    }
}

/// Returns what a list or a tuple has.
pub(crate) fn items<'py>(object: &Bound<'py, PyAny>) -> Option<Vec<Bound<'py, PyAny>>> {
    let of_list = object.cast::<PyList>().map(|list| list.iter().collect());
    of_list.or_else(|_| object.cast::<PyTuple>().map(|tuple| tuple.iter().collect())).ok()
}

/// Whether `data` is an array of a package whose arrays never change, if it is read-only. NumPy's
/// are read-only because their program wants it.
pub(crate) fn never_changes(data: &Bound<'_, PyAny>) -> bool {
    data.cast::<PyUntypedArray>().is_err() && package_of(data).is_some()
}

/// Returns the functions of the package of an array, by the standard of array libraries.
fn package_of<'py>(data: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    data.call_method0(intern!(data.py(), "__array_namespace__")).ok()
}

/// Makes of an array's shape that of its even parts, one for each rank.
pub(crate) fn part(world: World) -> impl FnOnce(Vec<usize>) -> Result<Vec<usize>, Bad> {
    move |shape| {
        let (rows, row) = rows(shape);
        match rows.is_multiple_of(world.size()) {
            true => Ok(with_rows(rows / world.size(), row)),
            false => Err(Bad::value("data", format!("a multiple of {} rows", world.size()), rows.to_string())),
        }
    }
}

/// Makes of the shape of this rank's part that of all ranks' parts: as many as its own, or these
/// counts of elements.
pub(crate) fn whole(world: World, counts: Option<&[usize]>) -> impl FnOnce(Vec<usize>) -> Result<Vec<usize>, Bad> {
    move |shape| match counts {
        Some(counts) => of_counts(shape, "counts", counts),
        None => {
            let (rows, row) = rows(shape);
            Ok(with_rows(rows.saturating_mul(world.size()), row))
        }
    }
}

/// Makes of a shape that of so many elements, with the same rows.
pub(crate) fn of_counts(shape: Vec<usize>, argument: &'static str, counts: &[usize]) -> Result<Vec<usize>, Bad> {
    let (_, row) = rows(shape);
    let width = row.iter().product::<usize>().max(1);
    if let Some(count) = counts.iter().find(|count| !count.is_multiple_of(width)) {
        return Err(Bad::value(argument, format!("multiples of the {width} elements of a row"), count.to_string()));
    }
    let rows = counts.iter().fold(0usize, |rows, count| rows.saturating_add(count / width));
    Ok(with_rows(rows, row))
}

/// Returns the number of rows, and the shape of a row. An array without dimensions is a row.
fn rows(shape: Vec<usize>) -> (usize, Vec<usize>) {
    match shape.split_first() {
        Some((&rows, row)) => (rows, row.to_vec()),
        None => (1, Vec::new()),
    }
}

fn with_rows(rows: usize, mut row: Vec<usize>) -> Vec<usize> {
    row.insert(0, rows);
    row
}
