//! Tensors as text.

use crate::Tensor;
use consonance_kernels::memory::HostBuf;
use consonance_spec::{DType, for_each_dtype};
use std::fmt;

/// Prints `f32[2, 2] [[1, 2], [3, 4]]`, and with `{:#}` no dtype and shape. A tensor that does not
/// fit a line has a line for each row, with its elements in columns. Long dimensions are
/// abbreviated: the first and last entries are shown. `{:.2}` sets the digits of floats. Without it
/// a float prints as the shortest text that reads as the same number, with an exponent if it is
/// tiny or huge. A tensor of more than 16 dimensions shows no element. For one on a device it
/// prints `f32[2, 2] on cuda:0`.
///
/// ```
/// use consonance::Tensor;
/// assert_eq!(format!("{:.2}", Tensor::from([1.23456f32, 20.0])), "f32[2] [1.23, 20.00]");
/// assert_eq!(format!("{:#}", Tensor::from([1e-30f64, 2.5])), "[1e-30, 2.5]");
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = if f.alternate() { String::new() } else { self.spec() };
        let Some(host) = self.buf().host() else { return write!(f, "{spec} on {}", self.space()) };
        let elements = elements(host, self.shape(), f.precision(), spec.chars().count());
        match (spec.is_empty(), elements.contains('\n')) {
            (true, _) => f.write_str(&elements),
            (false, true) => write!(f, "{spec}\n{elements}"),
            (false, false) => write!(f, "{spec} {elements}"),
        }
    }
}

/// Prints the same as `Display`.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Prints `f32[1000]` and the first and last elements, as a [`Tensor`] of them does.
pub(crate) fn write_slice(f: &mut fmt::Formatter<'_>, host: HostBuf<'_>) -> fmt::Result {
    let (spec, shape) = (format!("{}[{}]", host.dtype(), host.count()), [host.count()]);
    let elements = elements(host, &shape, f.precision(), spec.chars().count());
    write!(f, "{spec} {elements}")
}

/// Returns the elements in one line if that has room behind `used` columns, else in a line for each
/// row.
fn elements(host: HostBuf<'_>, shape: &[usize], precision: Option<usize>, used: usize) -> String {
    if shape.len() > SHOWN {
        return "…".to_owned();
    }
    if host.count() == 0 {
        // A dimension of an empty tensor may have too many entries to print.
        return "[]".to_owned();
    }
    macro_rules! text {
        (Float $elements:expr) => {
            Box::new(move |place| float(&$elements[place], f64::from($elements[place]), precision))
        };
        ($other:ident $elements:expr) => {
            Box::new(move |place| $elements[place].to_string())
        };
    }
    macro_rules! by_dtype {
        ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
            match host.dtype() {
                $(DType::$variant => {
                    let elements = host.as_slice::<$type>().unwrap_or(&[]);
                    text!($class elements)
                })*
            }
        };
    }
    let element: Box<dyn Fn(usize) -> String + '_> = for_each_dtype!(by_dtype);
    Page { shape, element }.text(used)
}

/// A dimension with more entries shows only the first and last few. A tensor with more dimensions
/// shows no element.
const SHOWN: usize = 16;

/// The limit of a dimension's entries if there are more than two dimensions.
const SHOWN_OF_MANY: usize = 6;

/// The number of columns of a line, if the shortest rows fit them.
const COLUMNS: usize = 80;

/// The fewest entries that a row shows, if it has as many, however long it gets.
const SHORTEST_ROW: usize = 8;

/// Returns a float as text: with an exponent if its digits would be mostly zeros.
fn float<T: fmt::Display + fmt::LowerExp>(element: &T, value: f64, precision: Option<usize>) -> String {
    let is_huge = value.is_finite() && value.abs() >= 1e16;
    let is_tiny = value != 0.0 && value.abs() < 1e-5;
    match precision {
        Some(digits) if is_huge => format!("{element:.digits$e}"),
        Some(digits) => format!("{element:.digits$}"),
        None if is_huge || is_tiny => format!("{element:e}"),
        None => element.to_string(),
    }
}

/// The entries of a tensor that are shown.
struct Page<'t> {
    shape: &'t [usize],
    /// Returns the text of the element at a place in row-major order.
    element: Box<dyn Fn(usize) -> String + 't>,
}

impl Page<'_> {
    /// Returns the elements in one line if that has room behind `used` columns, else in a line for
    /// each row.
    fn text(&self, used: usize) -> String {
        let limit = if self.shape.len() > 2 { SHOWN_OF_MANY } else { SHOWN };
        let limits = vec![limit; self.shape.len()];
        let line = self.part(&limits, 0, 0, None);
        let fits = used + 1 + line.chars().count() <= COLUMNS;
        if fits || self.shape.len() < 2 {
            return line;
        }
        let width = self.width(&limits, 0, 0);
        let mut limits = limits;
        if let Some(row) = limits.last_mut() {
            let brackets = 2 * self.shape.len();
            // An ellipsis takes the place of an entry.
            let fitting = (COLUMNS.saturating_sub(brackets) / (width + 2)).saturating_sub(1);
            *row = (*row).min(fitting.max(SHORTEST_ROW) & !1);
        }
        self.part(&limits, 0, 0, Some(self.width(&limits, 0, 0)))
    }

    /// Returns the part of the text below `axis` that begins with the element at `start`. With a
    /// width, elements are as wide, and each row has its line.
    fn part(&self, limits: &[usize], axis: usize, start: usize, width: Option<usize>) -> String {
        let Some(&size) = self.shape.get(axis) else {
            return format!("{:>1$}", (self.element)(start), width.unwrap_or(0));
        };
        let inner: usize = self.shape[axis + 1..].iter().product();
        let separator = match width {
            Some(_) if axis + 1 < self.shape.len() => {
                format!(",{}{}", "\n".repeat(self.shape.len() - axis - 1), " ".repeat(axis + 1))
            }
            _ => ", ".to_owned(),
        };
        let (first, last) = ends(size, limits[axis]);
        let part = |entry: usize| self.part(limits, axis + 1, start + entry * inner, width);
        let mut parts: Vec<String> = (0..first).map(part).collect();
        if first < last {
            parts.push("…".to_owned());
        }
        parts.extend((last..size).map(part));
        format!("[{}]", parts.join(&separator))
    }

    /// Returns the width of the widest element below `axis`.
    fn width(&self, limits: &[usize], axis: usize, start: usize) -> usize {
        let Some(&size) = self.shape.get(axis) else { return (self.element)(start).chars().count() };
        let inner: usize = self.shape[axis + 1..].iter().product();
        let (first, last) = ends(size, limits[axis]);
        let widths = (0..first).chain(last..size).map(|entry| self.width(limits, axis + 1, start + entry * inner));
        widths.max().unwrap_or(0)
    }
}

/// Returns the ends of the range of entries that are left out.
fn ends(size: usize, limit: usize) -> (usize, usize) {
    if size > limit { (limit / 2, size - limit / 2) } else { (size, size) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance_spec::{bf16, f16};

    /// Found by a review: the recursion had one level per dimension.
    #[test]
    fn more_dimensions_than_anybody_reads_are_not_nested() {
        let show = |rank| format!("{:#}", Tensor::new(vec![1; rank], &[2.5f32]).unwrap());
        assert_eq!(show(SHOWN), format!("{}2.5{}", "[".repeat(SHOWN), "]".repeat(SHOWN)));
        assert_eq!(show(SHOWN + 1), "…");
        assert_eq!(show(1_000_000), "…");
    }

    #[test]
    fn a_matrix_too_wide_for_a_line_has_a_line_a_row() {
        let small = Tensor::from([[1, -2], [30, 4]]);
        assert_eq!(small.to_string(), "i32[2, 2] [[1, -2], [30, 4]]");
        let matrix = Tensor::new([3, 10], &(0..30).map(|place| place * place).collect::<Vec<i32>>()).unwrap();
        let rows = [
            "i32[3, 10]",
            "[[  0,   1,   4,   9,  16,  25,  36,  49,  64,  81],",
            " [100, 121, 144, 169, 196, 225, 256, 289, 324, 361],",
            " [400, 441, 484, 529, 576, 625, 676, 729, 784, 841]]",
        ];
        assert_eq!(matrix.to_string(), rows.join("\n"));
        assert_eq!(format!("{matrix:#}"), rows[1..].join("\n"));
        let planes = matrix.reshape([3, 5, 2]).unwrap().to_string();
        assert!(planes.contains("[ 64,  81]],\n\n [[100, 121],"), "{planes}");
    }

    #[test]
    fn a_large_tensor_fits_a_screen() {
        for shape in [&[100, 100][..], &[1000, 3], &[3, 1000], &[20, 20, 20], &[9, 9, 9, 9]] {
            let count = shape.iter().product::<usize>();
            let x = Tensor::new(shape, &(0..count).map(|place| place as f32 / 3.0).collect::<Vec<_>>()).unwrap();
            let text = format!("{x:.3}");
            assert!(text.lines().all(|line| line.chars().count() <= COLUMNS + 10), "{text}");
            assert!(
                text.contains('…')
                    && text.ends_with(&format!("{:.3}{}", (count - 1) as f32 / 3.0, "]".repeat(shape.len()))),
                "{text}"
            );
        }
    }

    #[test]
    fn floats_have_the_requested_digits_and_no_rows_of_zeros() {
        let show = |tensor: Tensor| format!("{tensor:#}");
        assert_eq!(show(Tensor::from([1e-30f32, 0.0, -1e20, 0.1, 1e15])), "[1e-30, 0, -1e20, 0.1, 1000000000000000]");
        assert_eq!(show(Tensor::from([f64::NAN, f64::INFINITY, -0.0])), "[NaN, inf, -0]");
        assert_eq!(show(Tensor::from([f16::from_f32(1.5), f16::from_bits(1)])), "[1.5, 5.9604645e-8]");
        let x = Tensor::from([1.23456f32, 1e20, 1e-9]);
        assert_eq!(format!("{x:.2}"), "f32[3] [1.23, 1.00e20, 0.00]");
        assert_eq!(format!("{:#.1}", Tensor::from(bf16::from_f32(0.25))), "0.2");
        assert_eq!(format!("{:.3}", Tensor::from([1, 2])), "i32[2] [1, 2]");
    }
}
