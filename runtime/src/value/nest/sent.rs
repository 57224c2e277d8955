//! Nests as bytes, for other processes: what a value must have to take its leaves, and the leaves.

use super::{Nest, Path};
use crate::{DType, Error, IndexedSlices, Result, Tensor, error::NEST};
use consonance_kernels::memory::HostMemory;
use consonance_spec::for_each_dtype;
use std::{any::Any, fmt, io, sync::Arc};

/// The bytes of nests, one after the other.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct NestWriter {
    bytes: Vec<u8>,
    references: Vec<Reference>,
}

/// The rest of the bytes of nests.
#[doc(hidden)]
#[derive(Debug)]
pub struct NestReader<'b> {
    bytes: &'b [u8],
    /// The declarations of this process to which nests refer.
    known: Option<&'b dyn Any>,
}

/// A reference of a nest to a declaration, which does not travel: all processes have it.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    /// Its path in the nest.
    pub(crate) path: Path,
    /// The declaration of this process.
    pub(crate) to: Arc<dyn Any + Send + Sync>,
}

/// Returns a nest as bytes, and its references, which the caller checks.
///
/// # Errors
/// [`Error::InvalidCall`] for a value that cannot be sent.
pub(crate) fn to_bytes<N: Nest>(mut nest: N) -> Result<(Vec<u8>, Vec<Reference>)> {
    let mut writer = NestWriter::default();
    nest.write(&Path::default(), &mut writer)?;
    Ok((writer.bytes, writer.references))
}

/// Makes a nest of its bytes. It refers to declarations among those that are known.
///
/// # Errors
/// [`Error::System`] if they are not those of such a nest, and nothing else.
pub(crate) fn from_bytes<N: Nest>(bytes: &[u8], known: &dyn Any) -> Result<N> {
    let mut reader = NestReader { bytes, known: Some(known) };
    let nest = N::read(&mut reader)?;
    if reader.bytes.is_empty() { Ok(nest) } else { Err(malformed("bytes are left over")) }
}

impl NestWriter {
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn numbers(&mut self, numbers: &[usize]) {
        self.number(numbers.len() as u64);
        numbers.iter().for_each(|&number| self.number(number as u64));
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.raw(text.as_bytes());
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes the number of a declaration.
    pub(crate) fn reference(&mut self, number: usize, path: &Path, to: Arc<dyn Any + Send + Sync>) {
        self.number(number as u64);
        self.references.push(Reference { path: path.clone(), to });
    }

    /// # Errors
    /// [`Error::InvalidCall`] for a tensor outside of host memory.
    pub(crate) fn tensor(&mut self, tensor: &Tensor) -> Result<()> {
        let elements = tensor.host()?;
        self.number(tensor.dtype() as u64);
        self.numbers(tensor.shape());
        self.bytes.extend_from_slice(elements.as_bytes());
        Ok(())
    }

    /// # Errors
    /// [`Error::InvalidCall`] for rows outside of host memory.
    pub(crate) fn slices(&mut self, slices: &IndexedSlices) -> Result<()> {
        self.tensor(&slices.values)?;
        self.tensor(&slices.indices)?;
        self.number(u64::from(slices.dense_shape.is_some()));
        if let Some(shape) = &slices.dense_shape {
            self.numbers(shape);
        }
        Ok(())
    }
}

impl<'b> NestReader<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> NestReader<'b> {
        NestReader { bytes, known: None }
    }

    /// Returns the declarations of this process, if they are known and of this type.
    pub(crate) fn known<K: Any>(&self) -> Option<&'b K> {
        self.known?.downcast_ref()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take(&mut self, count: usize) -> Result<&'b [u8]> {
        let (taken, left) = self.bytes.split_at_checked(count).ok_or_else(|| malformed("bytes are missing"))?;
        self.bytes = left;
        Ok(taken)
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        let bytes = self.take(size_of::<u64>())?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    /// Returns a number of things of which each takes a byte at least, or is a size in memory.
    pub(crate) fn count(&mut self) -> Result<usize> {
        usize::try_from(self.number()?).map_err(|_| malformed("a number is too large"))
    }

    pub(crate) fn flag(&mut self) -> Result<bool> {
        match self.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(malformed("a truth value is neither 0 nor 1")),
        }
    }

    pub(crate) fn raw(&mut self) -> Result<&'b [u8]> {
        let count = self.count()?;
        self.take(count)
    }

    pub(crate) fn text(&mut self) -> Result<&'b str> {
        std::str::from_utf8(self.raw()?).map_err(|_| malformed("a text is not UTF-8"))
    }

    fn shape(&mut self) -> Result<Vec<usize>> {
        self.numbers_below(usize::MAX)
    }

    /// Returns numbers, each below `end`.
    pub(crate) fn numbers_below(&mut self, end: usize) -> Result<Vec<usize>> {
        let count = self.count()?;
        // Each number takes bytes, so a false count ends at the end of the bytes.
        let mut numbers = Vec::new();
        for _ in 0..count {
            let number = self.count()?;
            if number >= end {
                return Err(malformed("a number is too large"));
            }
            numbers.push(number);
        }
        Ok(numbers)
    }

    pub(crate) fn tensor(&mut self) -> Result<Tensor> {
        let dtype = self.number()?;
        let dtype = dtype_of(dtype).ok_or_else(|| malformed("a tensor is of no element type"))?;
        let shape = self.shape()?;
        let bytes = shape.iter().try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size));
        let bytes = self.take(bytes.ok_or_else(|| malformed("a tensor is too large"))?)?;
        if dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(malformed("a truth value is neither 0 nor 1"));
        }
        let count = bytes.len() / dtype.size();
        let mut memory = HostMemory::try_unspecified(dtype, count).map_err(Error::no_memory(dtype, count))?;
        memory.as_buf_mut().copy_from_bytes(bytes);
        Tensor::from_memory(shape, memory)
    }

    pub(crate) fn slices(&mut self) -> Result<IndexedSlices> {
        let (values, indices) = (self.tensor()?, self.tensor()?);
        let dense_shape = if self.flag()? { Some(self.shape()?) } else { None };
        IndexedSlices::new(values, indices, dense_shape)
    }
}

/// Writes how many nests there are, and each.
pub(super) fn write_each<N: Nest>(nests: &mut [N], at: &Path, to: &mut NestWriter) -> Result<()> {
    to.number(nests.len() as u64);
    nests.iter_mut().enumerate().try_for_each(|(index, nest)| {
        let before = to.bytes();
        nest.write(&at.join(index), to)?;
        // A reader could not bound the length of a list of nothing.
        if to.bytes() == before { Err(refused(at, "a list of nests without leaves")) } else { Ok(()) }
    })
}

/// Reads what [`write_each`] has written.
pub(super) fn read_each<N: Nest>(from: &mut NestReader<'_>) -> Result<Vec<N>> {
    let count = from.count()?;
    let mut nests = Vec::new();
    for _ in 0..count {
        if from.is_empty() {
            return Err(malformed("bytes are missing"));
        }
        nests.push(N::read(from)?);
    }
    Ok(nests)
}

/// Returns the key of a map that prints as this text, if keys of this type can be read.
pub(super) fn key<K: fmt::Display + 'static>(text: &str) -> Result<K> {
    fn parsed<K: 'static, P: std::str::FromStr + 'static>(text: &str) -> Option<K> {
        let mut parsed = Some(text.parse::<P>().ok()?);
        (&mut parsed as &mut dyn Any).downcast_mut::<Option<K>>()?.take()
    }
    macro_rules! first_of {
        ($($type:ty)*) => { None$(.or_else(|| parsed::<K, $type>(text)))* };
    }
    let key: Option<K> = first_of!(String char bool u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);
    key.ok_or_else(|| refused(&Path::default(), std::any::type_name::<K>()))
}

/// Returns the error for a value that cannot be sent to another process.
pub(super) fn refused(path: &Path, found: &str) -> Error {
    let expected = "a value that can be sent to another process: tensors, numbers, tuples, lists, options, maps with keys \
                    of text or whole numbers, or a struct of them with #[derive(Nest)]";
    Error::invalid(NEST, path.to_string(), expected, found)
}

/// Returns the error for bytes that are not those of a nest.
pub(crate) fn malformed(problem: &'static str) -> Error {
    Error::system("read a value of another process", io::Error::new(io::ErrorKind::InvalidData, problem))
}

fn dtype_of(number: u64) -> Option<DType> {
    macro_rules! by_number {
        ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
            [$(DType::$variant),*].into_iter().find(|&dtype| dtype as u64 == number)
        };
    }
    for_each_dtype!(by_number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nest;
    use quickcheck::quickcheck;
    use std::collections::BTreeMap;

    /// Returns the bytes of a nest without references.
    fn to_bytes<N: Nest>(nest: N) -> Result<Vec<u8>> {
        super::to_bytes(nest).map(|(bytes, _)| bytes)
    }

    fn from_bytes<N: Nest>(bytes: &[u8]) -> Result<N> {
        super::from_bytes(bytes, &())
    }

    #[derive(Clone, Debug, Nest, PartialEq)]
    struct Step {
        loss: f32,
        rows: Option<IndexedSlices>,
        layers: Vec<(Tensor, [u16; 2])>,
        names: BTreeMap<String, Vec<i64>>,
    }

    #[derive(Nest)]
    struct Odd(BTreeMap<&'static str, u8>);

    fn step() -> Step {
        let rows = IndexedSlices::new(Tensor::from([[1.5f64]]), Tensor::from([3i64]), Some(vec![5, 1])).unwrap();
        Step {
            loss: f32::NAN.copysign(-1.0),
            rows: Some(rows),
            layers: vec![(Tensor::from([[true], [false]]), [7, 8]), (Tensor::zeros(DType::Bf16, [0, 3]), [9, 10])],
            names: [("b".to_owned(), vec![1, -2]), ("a".to_owned(), vec![])].into(),
        }
    }

    #[test]
    fn a_nest_comes_out_of_its_bytes_as_it_was() {
        let bytes = to_bytes(step()).unwrap();
        let read: Step = from_bytes(&bytes).unwrap();
        assert_eq!(read.loss.to_bits(), step().loss.to_bits());
        assert_eq!(Step { loss: 0.0, ..read }, Step { loss: 0.0, ..step() });
        assert_eq!(
            from_bytes::<(Vec<Tensor>, Option<u8>)>(&to_bytes((Vec::<Tensor>::new(), None::<u8>)).unwrap()).unwrap(),
            (vec![], None)
        );
        // Tuples are their members one after the other.
        let both = [to_bytes(1u8).unwrap(), to_bytes(vec![[2.5f32; 3]]).unwrap()].concat();
        assert_eq!(from_bytes::<(u8, Vec<[f32; 3]>)>(&both).unwrap(), (1, vec![[2.5; 3]]));
    }

    #[test]
    fn truncated_and_longer_bytes_are_refused() {
        let bytes = to_bytes(step()).unwrap();
        for count in 0..bytes.len() {
            assert!(matches!(from_bytes::<Step>(&bytes[..count]), Err(Error::System { .. })), "{count} bytes");
        }
        assert!(matches!(from_bytes::<Step>(&[&bytes[..], &[0]].concat()), Err(Error::System { .. })));
    }

    #[test]
    fn a_value_of_an_opaque_type_is_refused_by_its_sender() {
        let expected = |error| matches!(error, Error::InvalidCall { argument, .. } if argument == "value/0");
        assert!(to_bytes(Odd([("x", 1)].into())).is_ok(), "only its receiver knows that no such key can be made");
        assert!(from_bytes::<Odd>(&to_bytes(Odd([("x", 1)].into())).unwrap()).is_err());
        assert!(expected(to_bytes((super::super::Opaque(3), 1u8)).unwrap_err()));
    }

    quickcheck! {
        /// Bytes of any kind are refused or read, without a panic and without more memory than they
        /// have.
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, place: usize, byte: u8) -> bool {
            let _ = from_bytes::<Step>(&bytes);
            let mut changed = to_bytes(step()).unwrap();
            let place = place % changed.len();
            changed[place] = byte;
            let _ = from_bytes::<Step>(&changed);
            true
        }
    }
}
