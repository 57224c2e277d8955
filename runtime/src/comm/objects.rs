//! Objects of any type that `serde` can serialize, in the format MessagePack.

use crate::{Communicator, Error, Result};
use consonance_spec::Kind;
use serde::{Serialize, de::DeserializeOwned};
use std::any::type_name;

impl Communicator {
    /// Sends `root`'s `object` to all ranks. The other ranks pass `None` and need not know its
    /// size. The type is the same on all ranks. Needs the feature `serde`.
    ///
    /// # Errors
    /// As [`broadcast_bytes`](Communicator::broadcast_bytes); [`Error::InvalidCall`] if the root
    /// has no object, or the object cannot be serialized, or cannot be read again.
    ///
    /// ```
    /// # use consonance::Communicator;
    /// use std::collections::HashMap;
    /// std::thread::scope(|scope| {
    ///     for mut rank in Communicator::threads(2) {
    ///         scope.spawn(move || {
    ///             let settings = HashMap::from([("rate".to_owned(), 0.1f64)]);
    ///             let own = (rank.rank() == 0).then_some(&settings);
    ///             assert_eq!(rank.broadcast_object(own, 0).unwrap(), settings);
    ///         });
    ///     }
    /// });
    /// ```
    pub fn broadcast_object<T: Serialize + DeserializeOwned>(&mut self, object: Option<&T>, root: usize) -> Result<T> {
        let mut bytes = Vec::new();
        if self.rank() == root {
            let missing = || Error::invalid("broadcast_object", "object", "an object on the root", "none");
            let written = object.ok_or_else(missing).and_then(|object| write("broadcast_object", object));
            bytes = self.or_tell(Kind::Broadcast, written)?;
        }
        self.broadcast_data(&words::<T>(), &mut bytes, root)?;
        self.read("broadcast_object", &bytes, root)
    }

    /// Returns the `object` of every rank, in rank order. The type is the same on all ranks. Needs
    /// the feature `serde`.
    ///
    /// # Errors
    /// As [`all_gather_bytes`](Communicator::all_gather_bytes); [`Error::InvalidCall`] if the
    /// object cannot be serialized, or one cannot be read again.
    ///
    /// ```
    /// # use consonance::Communicator;
    /// std::thread::scope(|scope| {
    ///     for mut rank in Communicator::threads(2) {
    ///         scope.spawn(move || {
    ///             let name = format!("worker {}", rank.rank());
    ///             assert_eq!(rank.all_gather_object(&name).unwrap(), ["worker 0", "worker 1"]);
    ///         });
    ///     }
    /// });
    /// ```
    pub fn all_gather_object<T: Serialize + DeserializeOwned>(&mut self, object: &T) -> Result<Vec<T>> {
        let bytes = self.or_tell(Kind::AllGather, write("all_gather_object", object))?;
        let all = self.all_gather_data(&words::<T>(), &bytes)?;
        all.iter().enumerate().map(|(rank, bytes)| self.read("all_gather_object", bytes, rank)).collect()
    }

    /// Returns the value. For an error, tells the other ranks, which make the same call, and
    /// returns the error.
    fn or_tell<T>(&mut self, kind: Kind, checked: Result<T>) -> Result<T> {
        checked.map_err(|error| {
            let error = error.of_replica(self.rank());
            let _ = self.refuse(kind, &error);
            error
        })
    }

    fn read<T: DeserializeOwned>(&self, call: &'static str, bytes: &[u8], from: usize) -> Result<T> {
        rmp_serde::from_slice(bytes).map_err(|error| {
            let expected = format!("an object that reads again as {}", type_name::<T>());
            Error::invalid(call, "object", expected, format!("{} bytes: {error}", bytes.len())).of_replica(from)
        })
    }
}

/// Serializes with the names of fields, so that every type that `serde` derives can be read again.
fn write<T: Serialize>(call: &'static str, object: &T) -> Result<Vec<u8>> {
    let unwritten = |error: rmp_serde::encode::Error| {
        let expected = format!("a {} that can be serialized", type_name::<T>());
        Error::invalid(call, "object", expected, error.to_string())
    };
    rmp_serde::to_vec_named(object).map_err(unwritten)
}

/// Returns the words by which ranks compare the types of their objects.
fn words<T>() -> String {
    format!("an object of type {}", type_name::<T>())
}
