//! What a rank may do with the others' data while it is in a step.

use crate::{
    atomics::{Ordering, fence},
    buffer::BufMut,
    copy::copy,
    hub::Hub,
    line::{Card, PAYLOAD_BYTES},
    reduce::Reducer,
    step::Fault,
};
use consonance_spec::{DType, World};
use std::{mem::MaybeUninit, ops::Range};

/// How many bytes of one buffer a rank works on before it looks whether the group has ended: at memory speed with many
/// inputs, still well under a millisecond.
const CHUNK_BYTES: usize = 1 << 20;

/// Cuts a range of elements of `size` bytes into chunks.
pub(crate) fn chunks(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let step = CHUNK_BYTES / size;
    range.clone().step_by(step).map(move |start| start..range.end.min(start + step))
}

/// The step that a rank is in: all have arrived, and agree.
#[derive(Clone, Copy)]
pub(crate) struct Place<'s> {
    pub(crate) hub: &'s Hub,
    pub(crate) world: World,
    pub(crate) epoch: u64,
    /// The element type on which all ranks agree, where data moves.
    pub(crate) dtype: Option<DType>,
}

impl<'s> Place<'s> {
    /// Every rank's card, in rank order.
    pub(crate) fn cards(self) -> impl Iterator<Item = &'s Card> {
        self.hub.lines.iter().map(move |line| line.card(self.epoch))
    }

    fn card(self, rank: usize) -> &'s Card {
        self.hub.lines[rank].card(self.epoch)
    }

    /// Until the result is dropped, no rank leaves this step, so that every published address stays valid.
    pub(crate) fn enter(self) -> Result<Inside<'s>, Fault> {
        let inside = Inside(self);
        self.hub.lines[self.world.rank()].progress.inside.store(1, Ordering::Relaxed);
        // SYNC POINT abort: pairs with the fence of a rank that leaves (`Shared::drop`).
        fence(Ordering::SeqCst);
        match self.hub.aborted() {
            Some(abort) => Err(Fault::Aborted(abort)),
            None => Ok(inside),
        }
    }
}

/// This rank is in a chunk of others' memory.
pub(crate) struct Inside<'s>(Place<'s>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // What was read and written inside happens before the leaving rank's return, which acquires this.
        self.0.hub.lines[self.0.world.rank()].progress.inside.store(0, Ordering::Release);
    }
}

/// Every rank's payload of an [`exchange`](crate::step::Seat::exchange).
pub struct Payloads<'s> {
    pub(crate) place: Place<'s>,
    pub(crate) sources: &'s mut Vec<*const u8>,
}

impl Payloads<'_> {
    /// Bytes of `rank`'s payload.
    pub fn bytes(&self, rank: usize) -> usize {
        self.place.card(rank).bytes()
    }

    /// Copies `rank`'s payload.
    ///
    /// # Panics
    /// If `target` has not as many bytes, or is of another dtype.
    pub fn copy(&self, rank: usize, target: &mut BufMut<'_>) {
        let card = self.place.card(rank);
        assert_eq!(Some(target.dtype()), self.place.dtype, "the target is of the agreed dtype");
        assert_eq!(card.bytes(), target.bytes(), "the payload fits its target");
        // SAFETY: a payload has so many bytes (asserted by its rank), of the element type on which all ranks agree; nobody
        // writes it before this rank's next call. The target is exclusive.
        unsafe { copy(card.payload(), target.as_mut_ptr(), target.bytes()) }
    }

    /// Folds all payloads into `target`, in canonical order.
    ///
    /// # Panics
    /// If `target` does not fit the reducer, or has not as many elements as every payload.
    pub fn reduce(&mut self, reducer: &Reducer, target: &mut BufMut<'_>) {
        assert_eq!(reducer.output(), target.dtype(), "the target fits the reducer");
        assert_eq!(Some(reducer.input()), self.place.dtype, "the reducer is of the agreed dtype");
        for card in self.place.cards() {
            assert_eq!(card.bytes(), target.count() * reducer.input().size(), "every payload fits the target");
        }
        self.sources.clear();
        self.sources.extend(self.place.cards().map(Card::payload));
        const { assert!(PAYLOAD_BYTES.is_multiple_of(Reducer::SMALL_BYTES)) };
        let mut result = MaybeUninit::<[u8; RESULT_BYTES]>::uninit();
        // SAFETY: the payloads have as many elements as the target, of the type on which all ranks agree, and room for a
        // multiple of a small tile; the result has room for as many. Nobody writes the payloads before this rank's next call.
        // The target is exclusive, and not larger than the result.
        unsafe {
            reducer.fold_small(self.sources, result.as_mut_ptr().cast(), target.count());
            copy(result.as_ptr().cast(), target.as_mut_ptr(), target.bytes());
        }
    }
}

/// Bytes of the largest result of payloads: the mean of bytes is an f32.
const RESULT_BYTES: usize = PAYLOAD_BYTES * size_of::<f32>();

/// Every rank's memory in a [`published`](crate::step::Seat::published) step.
pub struct Peers<'s> {
    pub(crate) place: Place<'s>,
    pub(crate) sources: &'s mut Vec<*const u8>,
}

/// Where rows lie in a buffer: `rows` of them, each `stride` elements after the one before, the first at `start`.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The number of rows.
    pub rows: usize,
    /// Elements from the start of a row to the start of the next.
    pub stride: usize,
    /// The first element of the first row.
    pub start: usize,
}

impl Peers<'_> {
    /// Bytes that `rank` published.
    pub fn bytes(&self, rank: usize) -> usize {
        self.place.card(rank).bytes()
    }

    /// Copies elements `range` of what `rank` published.
    ///
    /// # Errors
    /// [`Fault::Aborted`] if the group ended meanwhile.
    ///
    /// # Panics
    /// If `rank` published less, or `target` has not as many elements or is of another dtype.
    pub fn copy(&self, rank: usize, range: Range<usize>, target: &mut BufMut<'_>) -> Result<(), Fault> {
        assert_eq!(range.len(), target.count(), "the range fits its target");
        let card = self.place.card(rank);
        assert_eq!(Some(target.dtype()), self.place.dtype, "the target is of the agreed dtype");
        let size = target.dtype().size();
        let count = card.bytes() / size;
        assert!(range.start <= range.end && range.end <= count, "{range:?} of {count} elements");
        for chunk in chunks(0..range.len(), size) {
            let _inside = self.place.enter()?;
            // SAFETY: the range lies within what the rank published, which stays valid and unwritten while we are inside, and
            // is of the type on which all ranks agree; the target is exclusive and as long.
            unsafe {
                let source = card.input().add((range.start + chunk.start) * size);
                copy(source, target.as_mut_ptr().add(chunk.start * size), chunk.len() * size);
            }
        }
        Ok(())
    }

    /// Spreads all that `rank` published, as `place.rows` rows one after the other, over the places in `target`.
    ///
    /// # Errors
    /// [`Fault::Aborted`] if the group ended meanwhile.
    ///
    /// # Panics
    /// If the rows are not even or do not lie within `target`.
    pub fn copy_rows(&self, rank: usize, target: &mut BufMut<'_>, place: Rows) -> Result<(), Fault> {
        let size = target.dtype().size();
        let count = self.bytes(rank) / size;
        if count == 0 {
            return Ok(());
        }
        assert_eq!(Some(target.dtype()), self.place.dtype, "the target is of the agreed dtype");
        let row = count / place.rows;
        let last = (place.rows - 1).checked_mul(place.stride).and_then(|last| last.checked_add(place.start));
        let fits = last.and_then(|last| last.checked_add(row)).is_some_and(|end| end <= target.count());
        assert!(fits && row * place.rows == count, "{place:?} of {row} elements");
        if row * size >= CHUNK_BYTES {
            return (0..place.rows).try_for_each(|index| {
                let start = place.start + index * place.stride;
                self.copy(rank, index * row..(index + 1) * row, &mut target.reborrow().slice(start..start + row))
            });
        }
        let input = self.place.card(rank).input();
        let at_once = CHUNK_BYTES / (row * size);
        for first in (0..place.rows).step_by(at_once) {
            let _inside = self.place.enter()?;
            for index in first..place.rows.min(first + at_once) {
                // SAFETY: row `index` lies within what the rank published (its bytes are exactly the rows) and, by the
                // assertion on the last row, within the target; otherwise as in `copy`.
                unsafe {
                    let row_target = target.as_mut_ptr().add((place.start + index * place.stride) * size);
                    copy(input.add(index * row * size), row_target, row * size);
                }
            }
        }
        Ok(())
    }

    /// Folds elements `offset..` of what every rank published into `target`, in canonical order.
    ///
    /// # Errors
    /// [`Fault::Aborted`] if the group ended meanwhile.
    ///
    /// # Panics
    /// If `target` does not fit the reducer, or a rank published too little.
    pub fn reduce(&mut self, reducer: &Reducer, offset: usize, target: &mut BufMut<'_>) -> Result<(), Fault> {
        assert_eq!(reducer.output(), target.dtype(), "the target fits the reducer");
        assert_eq!(Some(reducer.input()), self.place.dtype, "the reducer is of the agreed dtype");
        let size = reducer.input().size();
        for card in self.place.cards() {
            let count = card.bytes() / size;
            assert!(offset <= count && target.count() <= count - offset, "offset {offset} of {count} elements");
        }
        for chunk in chunks(0..target.count(), size) {
            let _inside = self.place.enter()?;
            self.sources.clear();
            // SAFETY: asserted above to lie within what every rank published.
            self.sources
                .extend(self.place.cards().map(|card| unsafe { card.input().add((offset + chunk.start) * size) }));
            // SAFETY: the sources stay valid and unwritten while we are inside, and are of the type on which all ranks agree;
            // the target is exclusive, so it is disjoint from them.
            unsafe {
                let target = target.as_mut_ptr().add(chunk.start * reducer.output().size());
                reducer.fold(self.sources, &[target], chunk.len());
            }
        }
        Ok(())
    }
}
