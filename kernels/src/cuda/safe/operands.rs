//! The parts of memory that a kernel reads and writes.

use super::{
    context::Context,
    failure::{Failure, LoadError},
    kernels::Kernels,
    launch::Access,
    memory::DeviceSlice,
    stream::Stream,
};
use crate::cuda::kernels::{Launch, Unsupported};

/// The parts of memory that a kernel reads and writes.
pub(super) struct Operands<'m> {
    reads: Vec<Operand<'m>>,
    writes: Vec<Operand<'m>>,
    /// Whether what is written may be what is read.
    in_place: bool,
}

struct Operand<'m> {
    slice: DeviceSlice<'m>,
    access: Access,
}

impl<'m> Operands<'m> {
    pub(super) fn new() -> Operands<'m> {
        Operands { reads: Vec::new(), writes: Vec::new(), in_place: false }
    }

    /// Allows that a part is read and written.
    pub(super) fn in_place(self) -> Operands<'m> {
        Operands { in_place: true, ..self }
    }

    /// Adds a part that is read: `count` elements of `size` bytes, or none.
    ///
    /// # Errors
    /// If they do not fit the address space.
    pub(super) fn read(
        mut self,
        name: &'static str,
        slice: DeviceSlice<'m>,
        count: Option<u64>,
        size: usize,
    ) -> Result<Operands<'m>, Unsupported> {
        let operand = Operand::new(name, self.reads.len(), slice, count, size)?;
        self.reads.push(operand);
        Ok(self)
    }

    /// Adds a part that is written.
    ///
    /// # Errors
    /// As for [`read`](Operands::read).
    pub(super) fn write(
        mut self,
        name: &'static str,
        slice: DeviceSlice<'m>,
        count: Option<u64>,
        size: usize,
    ) -> Result<Operands<'m>, Unsupported> {
        let operand = Operand::new(name, self.writes.len(), slice, count, size)?;
        self.writes.push(operand);
        Ok(self)
    }

    /// Checks the parts, and launches.
    ///
    /// # Errors
    /// If a part has too few bytes, is of another context, is not aligned, or overlaps another; the
    /// driver's.
    ///
    /// # Safety
    /// The table made the launch for the addresses of these parts. Its kernel reads and writes only
    /// them, besides memory of its own.
    pub(super) unsafe fn launch(self, kernels: &Kernels, stream: &Stream, launch: &Launch) -> Result<(), LoadError> {
        let plain = |failure| LoadError { failure, log: String::new() };
        self.check().map_err(|why| plain(stream.context().refuse(format!("kernel {}: {why}", launch.kernel.name))))?;
        let parts = || self.reads.iter().chain(&self.writes);
        let own = |operand: &Operand<'_>| stream.expect_own("memory", operand.slice.context());
        parts().try_for_each(own).map_err(plain)?;
        let accesses: Vec<Access> = parts().map(|operand| operand.access).collect();
        let function = kernels.function(launch.kernel)?;
        // SAFETY: the function is the launch's kernel, whose table made the launch. By the caller's
        // promise it accesses only these parts.
        unsafe { stream.launch(&function, launch, &accesses) }.map_err(plain)
    }

    /// Checks that no part is written that another access needs.
    fn check(&self) -> Result<(), String> {
        for (index, written) in self.writes.iter().enumerate() {
            for (other, may_be_same) in (self.reads.iter().map(|read| (read, self.in_place)))
                .chain(self.writes[..index].iter().map(|write| (write, true)))
            {
                let (one, two) = (&written.access, &other.access);
                let end = |access: &Access| access.address.saturating_add(access.bytes);
                let overlaps = one.address < end(two) && two.address < end(one);
                let is_same = (one.address, one.bytes) == (two.address, two.bytes);
                if overlaps && !(is_same && may_be_same) {
                    let expected = if may_be_same { "the same bytes or others" } else { "other bytes" };
                    let (name, number) = (two.name, two.index);
                    return Err(format!("{} {index} overlaps {name} {number}; expected {expected}", one.name));
                }
            }
        }
        Ok(())
    }
}

impl<'m> Operand<'m> {
    fn new(
        name: &'static str,
        index: usize,
        slice: DeviceSlice<'m>,
        count: Option<u64>,
        size: usize,
    ) -> Result<Operand<'m>, Unsupported> {
        let bytes = count.and_then(|count| count.checked_mul(size as u64)).ok_or(Unsupported::TooLarge)?;
        let access = Access { name, index, address: slice.address(), bytes, alignment: size as u64 };
        Ok(Operand { slice, access })
    }
}

/// Names the device in a refusal of the table.
pub(super) fn refused(context: &Context) -> impl Fn(Unsupported) -> LoadError + '_ {
    |why| {
        let failure: Failure = context.refuse(why.to_string());
        LoadError { failure, log: String::new() }
    }
}
