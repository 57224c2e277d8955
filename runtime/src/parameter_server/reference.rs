//! Variables in arguments and results of closures: they travel as their numbers.

use super::{declarations::Known, variable::ShardedVariable};
use crate::{
    Nest, Result,
    nest::{Leaf, NestReader, NestWriter, Path},
    value::nest::sent::malformed,
};

/// A variable has no leaves. Another process gets its own variable of the same declaration.
impl Nest for ShardedVariable {
    fn take_leaves(&mut self, _: &Path, _: &mut Vec<Leaf>) {}

    fn put_leaves(&mut self, _: &mut dyn Iterator<Item = Leaf>) -> Result<()> {
        Ok(())
    }

    fn write(&mut self, at: &Path, to: &mut NestWriter) -> Result<()> {
        to.reference(self.layout.number, at, self.layout.clone());
        Ok(())
    }

    fn read(from: &mut NestReader<'_>) -> Result<ShardedVariable> {
        let number = from.count()?;
        let known = from.known::<Known>().ok_or_else(|| malformed("a variable is of no program"))?;
        let layout = known.variables.get(number).ok_or_else(|| malformed("there is no such variable"))?;
        Ok(ShardedVariable { layout: layout.clone(), strategy: known.strategy.clone() })
    }
}
