//! Tensors as text.

use crate::Tensor;
use consonance_spec::{DType, Element, for_each_dtype};
use std::fmt;

/// Prints `f32[2, 2] [[1, 2], [3, 4]]`, and with `{:#}` no dtype and shape. Long dimensions are
/// abbreviated. A tensor of more than 16 dimensions shows no element. For one on a device it prints
/// `f32[2, 2] on cuda:0`.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            write!(f, "{} ", self.spec())?;
        }
        let Some(host) = self.buf().host() else { return write!(f, "on {}", self.space()) };
        if self.rank() > SHOWN {
            return write!(f, "…");
        }
        if self.count() == 0 {
            // A dimension of an empty tensor may have too many entries to print.
            return write!(f, "[]");
        }
        macro_rules! write_elements {
            ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
                match self.dtype() {
                    $(DType::$variant => write_rows(f, self.shape(), host.as_slice::<$type>().unwrap_or(&[])),)*
                }
            };
        }
        for_each_dtype!(write_elements)
    }
}

/// Prints the same as `Display`.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A dimension with more entries shows only the first and last few. A tensor with more dimensions
/// shows no element.
const SHOWN: usize = 16;

fn write_rows<T: Element>(f: &mut fmt::Formatter<'_>, shape: &[usize], elements: &[T]) -> fmt::Result {
    let Some((&rows, inner)) = shape.split_first() else {
        return elements.iter().try_for_each(|element| write!(f, "{element}"));
    };
    let row_count = elements.len() / rows;
    write!(f, "[")?;
    let left_out = if rows > SHOWN { SHOWN / 2..rows - SHOWN / 2 } else { 0..0 };
    for row in (0..left_out.start).chain(left_out.end..rows) {
        if row > 0 && row == left_out.end {
            write!(f, ", …")?;
        }
        if row > 0 {
            write!(f, ", ")?;
        }
        write_rows(f, inner, &elements[row * row_count..(row + 1) * row_count])?;
    }
    write!(f, "]")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by a review: the recursion had one level per dimension.
    #[test]
    fn more_dimensions_than_anybody_reads_are_not_nested() {
        let show = |rank| format!("{:#}", Tensor::new(vec![1; rank], &[2.5f32]).unwrap());
        assert_eq!(show(SHOWN), format!("{}2.5{}", "[".repeat(SHOWN), "]".repeat(SHOWN)));
        assert_eq!(show(SHOWN + 1), "…");
        assert_eq!(show(1_000_000), "…");
    }
}
