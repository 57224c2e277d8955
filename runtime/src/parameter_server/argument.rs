//! Arguments of closures.

use super::{chief::Chief, remote_value::RemoteValue, schedule::Part, variable::ShardedVariable};
use crate::{
    Error, Nest, Result,
    value::nest::sent::{self, Reference},
};
use std::{fmt, marker::PhantomData, sync::Arc};

/// The argument of a closure: a value, a variable, the result of another closure, a value for each
/// worker, or several of these.
///
/// ```
/// use consonance::{ClusterCoordinator, ParameterServerStrategy, parameter_server::Argument};
/// use std::time::Duration;
/// let coordinator = ClusterCoordinator::new(&ParameterServerStrategy::threads(2, 1)?);
/// let double = coordinator.function("double", |_, number: u32| Ok(2 * number))?;
/// let add = coordinator.function("add", |_, (left, right): (u32, u32)| Ok(left + right))?;
/// let doubled = coordinator.schedule(&double, 20)?;
/// let sum = coordinator.schedule(&add, Argument::from(&doubled).and(2))?;
/// assert_eq!(sum.fetch(Duration::from_secs(60))?, 42);
/// # Ok::<(), consonance::Error>(())
/// ```
pub struct Argument<A> {
    parts: Result<Vec<Part>>,
    /// The chiefs of the results among them.
    chiefs: Vec<Arc<Chief>>,
    /// The references to variables among them.
    references: Vec<Reference>,
    types: PhantomData<fn(A)>,
}

/// A value for each worker. A closure gets that of the worker that runs it.
///
/// ```
/// use consonance::{ClusterCoordinator, ParameterServerStrategy, parameter_server::PerWorker};
/// use std::time::Duration;
/// let coordinator = ClusterCoordinator::new(&ParameterServerStrategy::threads(2, 1)?);
/// let check = coordinator.function("check", |worker, number: u64| Ok(number == 10 * worker.worker_index() as u64))?;
/// let checked = coordinator.schedule(&check, PerWorker(vec![0, 10]))?;
/// assert!(checked.fetch(Duration::from_secs(60))?);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerWorker<A>(pub Vec<A>);

impl<A> Argument<A> {
    fn of(part: Result<Part>) -> Argument<A> {
        let parts = part.map(|part| vec![part]);
        Argument { parts, chiefs: Vec::new(), references: Vec::new(), types: PhantomData }
    }

    /// Adds a second argument.
    pub fn and<B>(self, other: impl Into<Argument<B>>) -> Argument<(A, B)> {
        let other = other.into();
        let parts = self.parts.and_then(|parts| Ok([parts, other.parts?].concat()));
        Argument {
            parts,
            chiefs: [self.chiefs, other.chiefs].concat(),
            references: [self.references, other.references].concat(),
            types: PhantomData,
        }
    }

    /// Returns the parts, for this chief.
    pub(super) fn parts(self, call: &'static str, chief: &Arc<Chief>) -> Result<Vec<Part>> {
        let workers = chief.program.known.workers;
        if self.chiefs.iter().any(|other| !Arc::ptr_eq(other, chief)) {
            return Err(Error::invalid(
                call,
                "argument",
                "results of this strategy since its last recovery",
                "another one",
            ));
        }
        let parts = self.parts.map_err(|error| error.of_call(call))?;
        chief.program.known.check_references(call, &self.references)?;
        for part in &parts {
            match part {
                Part::PerWorker(values) if values.len() != workers => {
                    let expected = format!("a value for each of the {workers} workers");
                    return Err(Error::invalid(call, "argument", expected, format!("{} values", values.len())));
                }
                Part::PerWorker(_) | Part::Bytes(_) | Part::Remote(_) => {}
            }
        }
        Ok(parts)
    }
}

impl Argument<()> {
    /// Makes an argument that is a value for each worker, and has nothing in it.
    pub(super) fn of_each_worker(workers: usize) -> Argument<()> {
        Argument::from(PerWorker(vec![(); workers]))
    }
}

impl<A: Nest> From<A> for Argument<A> {
    fn from(value: A) -> Argument<A> {
        let mut references = Vec::new();
        let bytes = bytes(value, &mut references);
        Argument { references, ..Argument::of(bytes.map(|bytes| Part::Bytes(bytes.into()))) }
    }
}

impl From<&ShardedVariable> for Argument<ShardedVariable> {
    fn from(variable: &ShardedVariable) -> Argument<ShardedVariable> {
        variable.clone().into()
    }
}

impl<A> From<&RemoteValue<A>> for Argument<A> {
    fn from(value: &RemoteValue<A>) -> Argument<A> {
        Argument { chiefs: vec![value.chief.clone()], ..Argument::of(Ok(Part::Remote(value.slot.clone()))) }
    }
}

impl<A: Nest> From<PerWorker<A>> for Argument<A> {
    fn from(values: PerWorker<A>) -> Argument<A> {
        let mut references = Vec::new();
        let all: Result<Vec<Vec<u8>>> = values.0.into_iter().map(|value| bytes(value, &mut references)).collect();
        Argument { references, ..Argument::of(all.map(|all| Part::PerWorker(all.into()))) }
    }
}

/// Returns the bytes of a value, and adds its references.
fn bytes<A: Nest>(value: A, references: &mut Vec<Reference>) -> Result<Vec<u8>> {
    let (bytes, own) = sent::to_bytes(value)?;
    references.extend(own);
    Ok(bytes)
}

impl<A> fmt::Debug for Argument<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Argument").finish_non_exhaustive()
    }
}
