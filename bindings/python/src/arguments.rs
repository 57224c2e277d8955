//! Arguments of calls: arrays, ranks, operations and counts.

use crate::{
    array::{Array, Loans},
    failure::Bad,
    outcome::items,
    types,
};
use consonance::{
    ReduceOp, World,
    raw::{Buf, BufMut},
};
use consonance_c::codes::Type;
use pyo3::{exceptions::PyTypeError, prelude::*, types::PyRange};
use std::{convert::Infallible, ops::Range};

/// Returns the operation of this name on a type.
pub(crate) fn operation(op: &str, of: Type) -> Result<ReduceOp, Bad> {
    let named: Result<ReduceOp, _> = op.parse();
    let expected = "one of sum, mean, product, min, max, and, or, xor";
    let named = named.map_err(|_| Bad::value("op", expected, format!("{op:?}")))?;
    types::operation(of, named).map_err(|expected| Bad::value("op", expected, format!("{op} of {}", of.name)))
}

/// An argument that is looked at in the call: if it is wrong, the other ranks are told. A function
/// whose argument Python converts is not called then.
pub(crate) struct Given<T>(Result<T, Refused>);

/// An object that Python did not convert.
struct Refused {
    is_of_wrong_type: bool,
    found: String,
}

impl<'a, 'py, T: FromPyObject<'a, 'py>> FromPyObject<'a, 'py> for Given<T> {
    type Error = Infallible;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> Result<Given<T>, Infallible> {
        Ok(Given(object.extract().map_err(|error: T::Error| Refused {
            is_of_wrong_type: error.into().is_instance_of::<PyTypeError>(object.py()),
            found: object.repr().map_or_else(|_| "another object".to_owned(), |text| text.to_string()),
        })))
    }
}

impl<T> Given<T> {
    /// Returns the argument for this value, which a call without the argument has.
    pub(crate) fn of(value: T) -> Given<T> {
        Given(Ok(value))
    }

    pub(crate) fn get(self, argument: &'static str, expected: &'static str) -> Result<T, Bad> {
        self.0.map_err(|Refused { is_of_wrong_type, found }| match is_of_wrong_type {
            true => Bad::Type { argument, expected, found },
            false => Bad::value(argument, expected, found),
        })
    }
}

/// Returns the numbers of a `range` of Python.
pub(crate) fn run(argument: &'static str, range: &Bound<'_, PyAny>) -> Result<Range<usize>, Bad> {
    let expected = "a range of numbers from 0, with steps of 1";
    let found = || range.repr().map_or_else(|_| "another object".to_owned(), |text| text.to_string());
    if range.cast::<PyRange>().is_err() {
        return Err(Bad::Type { argument, expected, found: found() });
    }
    let number = |name: &str| range.getattr(name)?.extract::<usize>();
    match (number("start"), number("stop"), number("step")) {
        (Ok(start), Ok(end), Ok(1)) => Ok(start..end),
        _ => Err(Bad::value(argument, expected, found())),
    }
}

/// The counts of a call as a program passes them.
pub(crate) type Counts = Option<Given<Vec<usize>>>;

/// Returns the counts that a program passed.
pub(crate) fn given_counts(given: Counts, argument: &'static str) -> Result<Option<Vec<usize>>, Bad> {
    given.map(|counts| counts.get(argument, "a list of counts of elements")).transpose()
}

/// The arrays of a call: the input, unless the call is in place, and the output.
pub(crate) struct Pair {
    pub(crate) send: Option<Buf<'static>>,
    pub(crate) recv: BufMut<'static>,
    pub(crate) of: Type,
    /// The number of elements of each array of a list.
    pub(crate) sent: Vec<usize>,
    pub(crate) received: Vec<usize>,
}

/// Returns the view of an array, or of a list of arrays with the number of elements of each.
pub(crate) fn array(
    loans: &mut Loans,
    object: &Bound<'_, PyAny>,
    argument: &'static str,
) -> Result<(Array, Vec<usize>), Bad> {
    loans.keep(object);
    if let Some(items) = items(object) {
        // A list may lose its arrays before a call that was started has ended.
        items.iter().for_each(|item| loans.keep(item));
        let arrays =
            items.iter().map(|item| Array::of(item, argument).map_err(Bad::in_list)).collect::<Result<_, _>>()?;
        return Array::listed(arrays, argument);
    }
    Ok((Array::of(object, argument)?, Vec::new()))
}

/// Returns the counts that a caller gave, or else those of a list, unless they are even.
pub(crate) fn counts_of(given: Option<Vec<usize>>, listed: Vec<usize>) -> Option<Vec<usize>> {
    given.or(Some(listed).filter(|listed| !is_even(listed)))
}

/// Whether all counts are the same.
pub(crate) fn is_even(counts: &[usize]) -> bool {
    counts.windows(2).all(|pair| pair[0] == pair[1])
}

/// Lends `data` and `out`. If they are the same the call is in place.
pub(crate) fn pair(loans: &mut Loans, data: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> Result<Pair, Bad> {
    if data.is(out) {
        let (array, sent) = array(loans, data, "data")?;
        let of = array.of_type();
        return Ok(Pair { send: None, recv: loans.in_place(array, "out")?, of, received: sent.clone(), sent });
    }
    let (input, sent) = array(loans, data, "data")?;
    let of = input.of_type();
    let (output, received) = array(loans, out, "out")?;
    same_type(of, "out", &output)?;
    if input.is(&output) {
        return Ok(Pair { send: None, recv: loans.in_place(output, "out")?, of, sent, received });
    }
    let send = loans.input(input, Some(&output));
    Ok(Pair { send: Some(send), recv: loans.output(output, "out")?, of, sent, received })
}

/// Does what [`pair`] does for an all-gather, which is in place, too, if `data` is this rank's even
/// block of `out`.
pub(crate) fn gathered(
    loans: &mut Loans,
    world: World,
    data: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> Result<Pair, Bad> {
    if items(out).is_none()
        && items(data).is_none()
        && Array::of(data, "data")?.is_block(&Array::of(out, "out")?, world)
    {
        return pair(loans, out, out);
    }
    pair(loans, data, out)
}

/// Lends an array that is read. It is copied if it `meets` an output.
pub(crate) fn input(
    loans: &mut Loans,
    data: &Bound<'_, PyAny>,
    meets: Option<&Array>,
) -> Result<(Buf<'static>, Type), Bad> {
    let (array, _) = array(loans, data, "data")?;
    let of = array.of_type();
    Ok((loans.input(array, meets), of))
}

/// The arrays of a rank in a call with a root: the output on the root alone.
pub(crate) struct Rooted {
    pub(crate) send: Option<Buf<'static>>,
    pub(crate) recv: Option<BufMut<'static>>,
    pub(crate) of: Type,
    /// The number of elements of each array of a list.
    pub(crate) received: Vec<usize>,
}

/// Lends `data`, and on the root `out`, as [`pair`] does.
pub(crate) fn rooted(
    loans: &mut Loans,
    data: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
) -> Result<Rooted, Bad> {
    if let Some(out) = out {
        let Pair { send, recv, of, received, .. } = pair(loans, data, out)?;
        return Ok(Rooted { send, recv: Some(recv), of, received });
    }
    let (send, of) = input(loans, data, None)?;
    Ok(Rooted { send: Some(send), recv: None, of, received: Vec::new() })
}

/// Lends an array that is written.
pub(crate) fn output(
    loans: &mut Loans,
    out: &Bound<'_, PyAny>,
    argument: &'static str,
) -> Result<(BufMut<'static>, Type), Bad> {
    let (array, _) = array(loans, out, argument)?;
    let of = array.of_type();
    Ok((loans.output(array, argument)?, of))
}

/// Checks that `array` has elements of this type.
pub(crate) fn same_type(of: Type, argument: &'static str, array: &Array) -> Result<(), Bad> {
    let name = |of: Type| of.name;
    match array.of_type() == of {
        true => Ok(()),
        false => Err(Bad::value(argument, format!("elements of {}, as in data", name(of)), name(array.of_type()))),
    }
}

/// Returns a rank of the group.
pub(crate) fn rank(world: World, argument: &'static str, rank: isize) -> Result<usize, Bad> {
    let found = usize::try_from(rank).ok().filter(|&rank| rank < world.size());
    found.ok_or_else(|| Bad::value(argument, format!("a rank below {}", world.size()), rank.to_string()))
}

/// Returns counts of elements in parts of this type.
pub(crate) fn parts(
    world: World,
    argument: &'static str,
    counts: Option<Vec<usize>>,
    of: Type,
) -> Result<Vec<usize>, Bad> {
    let Some(counts) = counts else { return Ok(Vec::new()) };
    if counts.len() != world.size() {
        return Err(Bad::value(
            argument,
            format!("a count for each of {} ranks", world.size()),
            counts.len().to_string(),
        ));
    }
    let parts = counts.iter().map(|count| count.checked_mul(of.parts)).collect::<Option<Vec<usize>>>();
    parts.ok_or_else(|| Bad::value(argument, "counts that fit the address space", "more"))
}
