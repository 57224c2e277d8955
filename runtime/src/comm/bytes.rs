//! Bytes of any length: the receivers need not know how many they get.

use super::{agreement::Agreement, call::Call};
use crate::{Communicator, Error, Result};
use consonance_kernels::{cpu::duplicate::to_vec, digest::digest, os::available};
use consonance_spec::Kind;
use std::io;

/// The words by which ranks compare what they send: bytes, or an object and its type.
pub(crate) type Data<'d> = &'d str;

/// The data of a call on bytes.
const BYTES: Data<'static> = "bytes of any length";

impl Communicator {
    /// Sends `root`'s `bytes` to all ranks. The `bytes` of the other ranks are replaced: they need
    /// not know the length.
    ///
    /// # Errors
    /// As [`broadcast`](Communicator::broadcast); [`Error::System`] if there is no memory for the
    /// bytes.
    ///
    /// ```
    /// # use consonance::Communicator;
    /// std::thread::scope(|scope| {
    ///     for mut rank in Communicator::threads(2) {
    ///         scope.spawn(move || {
    ///             let mut name = if rank.rank() == 1 { b"model-7".to_vec() } else { Vec::new() };
    ///             rank.broadcast_bytes(&mut name, 1).unwrap();
    ///             assert_eq!(name, b"model-7");
    ///         });
    ///     }
    /// });
    /// ```
    pub fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
        self.broadcast_data(BYTES, bytes, root)
    }

    /// Returns the `bytes` of every rank, in rank order. The ranks need not know each other's
    /// lengths, which may differ.
    ///
    /// # Errors
    /// As [`barrier`](Communicator::barrier); [`Error::System`] if there is no memory for the
    /// bytes.
    ///
    /// ```
    /// # use consonance::Communicator;
    /// std::thread::scope(|scope| {
    ///     for mut rank in Communicator::threads(3) {
    ///         scope.spawn(move || {
    ///             let own = vec![7; rank.rank()];
    ///             assert_eq!(rank.all_gather_bytes(&own).unwrap(), [vec![], vec![7], vec![7, 7]]);
    ///         });
    ///     }
    /// });
    /// ```
    pub fn all_gather_bytes(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.all_gather_data(BYTES, bytes)
    }

    /// Executes [`broadcast_bytes`](Communicator::broadcast_bytes) on data that are described in
    /// words. First the length is sent, then the bytes.
    pub(crate) fn broadcast_data(&mut self, data: Data<'_>, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
        let mut length = [bytes.len() as u64];
        self.execute_on(data, Call::Broadcast { data: length.as_mut_slice().into(), root })?;
        if self.rank() != root {
            *bytes = self.room_for(Kind::Broadcast, length[0])?;
        }
        self.execute_on(data, Call::Broadcast { data: bytes.as_mut_slice().into(), root })
    }

    /// Executes [`all_gather_bytes`](Communicator::all_gather_bytes) on data that are described in
    /// words. First the lengths are gathered, then the bytes.
    pub(crate) fn all_gather_data(&mut self, data: Data<'_>, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let own = [bytes.len() as u64];
        let mut lengths = vec![0u64; self.size()];
        let send = Some(own.as_slice().into());
        self.execute_on(data, Call::AllGather { send, recv: lengths.as_mut_slice().into(), counts: None })?;
        let total = lengths.iter().try_fold(0u64, |total, &length| total.checked_add(length));
        let mut all = self.room_for(Kind::AllGather, total.unwrap_or(u64::MAX))?;
        // A sum that fits the memory has summands that fit an address.
        let counts: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
        let (send, recv) = (Some(bytes.into()), all.as_mut_slice().into());
        self.execute_on(data, Call::AllGather { send, recv, counts: Some(&counts) })?;
        let mut rest = all.as_slice();
        Ok(counts.into_iter().map(|count| to_vec(rest.split_off(..count).unwrap_or_default())).collect())
    }

    fn execute_on(&mut self, data: Data<'_>, call: Call<'_>) -> Result<()> {
        let describe = || vec![("data".to_owned(), data.to_owned())];
        self.execute(call, &Agreement::new(digest(data), &describe))
    }

    /// Returns room for so many bytes, a number that other ranks tell. If the system has not as
    /// many left, tells the other ranks.
    ///
    /// The number may be false. So nothing is written here: the system makes each page when data
    /// arrive for it.
    fn room_for(&mut self, kind: Kind, bytes: u64) -> Result<Vec<u8>> {
        let fits = available::bytes().is_none_or(|available| bytes <= available);
        let is_left = |count: usize| fits && Vec::<u8>::new().try_reserve_exact(count).is_ok();
        let count = usize::try_from(bytes).ok().filter(|&count| is_left(count));
        let Some(count) = count else {
            let what = format!("allocate {bytes} bytes for data of other replicas");
            let error = Error::system(what, io::ErrorKind::OutOfMemory);
            let _ = self.refuse(kind, &error);
            return Err(error);
        };
        Ok(vec![0; count])
    }
}
