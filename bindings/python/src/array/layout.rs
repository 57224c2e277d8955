//! Arrays whose elements do not follow each other.

/// The places of an array's elements: its shape and, in bytes, its strides. No dimension is 1, and
/// there are elements.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    shape: Vec<usize>,
    strides: Vec<isize>,
}

impl Layout {
    /// Returns the layout of elements of `bytes` bytes; `None` if they follow each other in order.
    pub(super) fn new(shape: &[usize], strides: impl Fn(usize) -> isize, bytes: usize) -> Option<Layout> {
        let mut next = bytes as isize;
        let mut follows = true;
        for (axis, &size) in shape.iter().enumerate().rev() {
            if size == 0 {
                return None;
            }
            if size > 1 {
                follows &= strides(axis) == next;
                next = next.wrapping_mul(size as isize);
            }
        }
        let axes = || (0..shape.len()).filter(|&axis| shape[axis] > 1);
        (!follows)
            .then(|| Layout { shape: axes().map(|axis| shape[axis]).collect(), strides: axes().map(strides).collect() })
    }

    /// Returns the layout of `count` elements of `bytes` bytes that follow each other at an address
    /// that does not fit their type.
    pub(super) fn misaligned(count: usize, bytes: usize) -> Layout {
        Layout { shape: vec![count], strides: vec![bytes as isize] }
    }

    /// Returns the layout of pairs of these elements. The two of a pair follow each other: they are
    /// the last dimension, or a part of it.
    pub(super) fn of_pairs(mut self) -> Layout {
        let (size, stride) = (self.shape.pop(), self.strides.pop());
        if let (Some(size @ 3..), Some(stride)) = (size, stride) {
            self.shape.push(size / 2);
            self.strides.push(stride * 2);
        }
        self
    }

    /// Calls `each` with the offset of each element in bytes, in order.
    #[inline(always)]
    pub(super) fn each(&self, mut each: impl FnMut(isize)) {
        let Some((&size, outer)) = self.shape.split_last() else { return each(0) };
        let (stride, mut index) = (self.strides[outer.len()], vec![0; outer.len()]);
        let mut row = 0;
        loop {
            (0..size as isize).for_each(|column| each(row + column * stride));
            // The next row: the last index that is not at its end grows, and those after it begin
            // again.
            let Some(axis) = (0..outer.len()).rev().find(|&axis| {
                if index[axis] + 1 < outer[axis] {
                    return true;
                }
                row -= index[axis] as isize * self.strides[axis];
                index[axis] = 0;
                false
            }) else {
                return;
            };
            index[axis] += 1;
            row += self.strides[axis];
        }
    }

    /// Returns the offsets of the first byte and of the end.
    pub(super) fn extent(&self, bytes: usize) -> (isize, isize) {
        let last = |axis: usize| (self.shape[axis] as isize - 1) * self.strides[axis];
        let below: isize = (0..self.shape.len()).map(|axis| last(axis).min(0)).sum();
        let above: isize = (0..self.shape.len()).map(|axis| last(axis).max(0)).sum();
        (below, above + bytes as isize)
    }

    /// Whether two elements share a byte.
    pub(super) fn overlaps(&self, bytes: usize) -> bool {
        // They do not if each stride goes past all that the smaller ones reach.
        let mut axes: Vec<usize> = (0..self.shape.len()).collect();
        axes.sort_by_key(|&axis| self.strides[axis].unsigned_abs());
        let mut reach = bytes;
        let nested = axes.iter().all(|&axis| {
            let stride = self.strides[axis].unsigned_abs();
            let goes_past = stride >= reach;
            reach = reach.saturating_add((self.shape[axis] - 1).saturating_mul(stride));
            goes_past
        });
        if nested {
            return false;
        }
        let mut offsets = Vec::new();
        self.each(|offset| offsets.push(offset));
        offsets.sort_unstable();
        offsets.windows(2).any(|pair| pair[1].abs_diff(pair[0]) < bytes)
    }
}
