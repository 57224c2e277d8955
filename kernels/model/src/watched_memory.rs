//! Memory in which the model sees every access. If two ranks touch it at the same time and one of
//! them writes, the model reports an error.

use loom::cell::UnsafeCell;
use std::cell::RefCell;

thread_local! {
    static REGIONS: RefCell<Vec<Region>> = const { RefCell::new(Vec::new()) };
}

/// Watched bytes, in pieces of `unit` bytes. An access to a part of a piece counts as an access to
/// the whole piece.
struct Region {
    start: usize,
    bytes: usize,
    unit: usize,
    pieces: Vec<UnsafeCell<()>>,
}

/// Forgets all watched memory. Called at the start of each run of a model.
pub(crate) fn begin() {
    REGIONS.take();
}

/// Watches `bytes` bytes at `start` for the rest of this run of the model.
pub(crate) fn watch(start: *const u8, bytes: usize, unit: usize) {
    let pieces = (0..bytes.div_ceil(unit)).map(|_| UnsafeCell::new(())).collect();
    REGIONS.with_borrow_mut(|regions| regions.push(Region { start: start.addr(), bytes, unit, pieces }));
}

/// Records a read by the calling rank.
pub(crate) fn read(start: *const u8, bytes: usize) {
    touch(start, bytes, |piece| piece.with(|_| ()));
}

/// Records a write by the calling rank.
pub(crate) fn write(start: *mut u8, bytes: usize) {
    touch(start, bytes, |piece| piece.with_mut(|_| ()));
}

fn touch(start: *const u8, bytes: usize, touch: impl Fn(&UnsafeCell<()>)) {
    let (start, end) = (start.addr(), start.addr() + bytes);
    REGIONS.with_borrow(|regions| {
        for region in regions {
            let (first, last) = (start.max(region.start), end.min(region.start + region.bytes));
            if first < last {
                let pieces = (first - region.start) / region.unit..(last - region.start).div_ceil(region.unit);
                region.pieces[pieces].iter().for_each(&touch);
            }
        }
    });
}
