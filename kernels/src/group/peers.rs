//! Access to the peers' data while a rank is in a step.

use super::{
    call_context::CallContext,
    end::abort::{Fault, Reason},
    plan::{self, BORDER_BYTES, chunks, pieces},
    scratch::{Data, Source},
    staging::Slots,
};
use crate::{
    cpu::{
        cache_hints::{self, CacheHints, CopySize, Locality},
        copy::{copy, take},
        prefetch::fetch_to_write,
        reduce::Reducer,
    },
    memory::{HostBufMut, make_valid},
    os::{available, process_memory::Process},
    tuning,
};
use consonance_spec::DType;
use std::{ops::Range, ptr};

/// Bytes of a result of a size that peers announce which are allocated without asking the system
/// for free memory: any process has as much.
const SURE_BYTES: usize = 16 << 20;

/// Every rank's data in a [`published`](crate::group::Step::published) step, or the part of it
/// that can be read now. Elements beyond that part are left for the next call of the step's work.
pub struct PeerBuffers<'s> {
    pub(super) context: CallContext<'s>,
    pub(super) sources: &'s mut Vec<*const u8>,
    /// Buffer for data that the system reads out of other processes.
    pub(super) scratch: &'s mut Vec<u64>,
    /// The part that is copied in; `None` where all memory can be read in place.
    pub(super) window: Option<Window<'s>>,
}

/// A slice of each block of every rank's data.
pub(super) struct Window<'s> {
    /// Number of blocks that each rank's data consist of.
    pub(super) blocks: usize,
    /// The slice's bytes within a block.
    pub(super) slice: Range<usize>,
    /// The slot with each rank's slices, one after the other, each with room for `stride` bytes.
    pub(super) slots: Slots,
    pub(super) stride: usize,
    /// Each rank's data.
    pub(super) data: &'s [Data],
    /// This rank's own data, in place.
    pub(super) own: *const u8,
    pub(super) own_bytes: usize,
    /// Whether this is the last window of the step.
    pub(super) is_last: bool,
}

/// The location of the bytes of one rank's data that can be read.
struct View {
    /// The first byte of the slice of the first block.
    start: *const u8,
    /// The process whose memory it is, if it is not this one.
    process: Option<Process>,
    /// Bytes of a block; `slice` of them can be read.
    block: usize,
    blocks: usize,
    slice: Range<usize>,
    /// Bytes from the slice of a block to that of the next.
    stride: usize,
    /// The only block that is present, where each rank's block is copied in for that rank alone.
    only: Option<usize>,
    /// Whether the bytes lie in the place that this rank writes next.
    taken: bool,
}

impl View {
    /// Returns the parts of `range` that can be read, each with its address, in order.
    fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = (*const u8, Range<usize>)> + '_ {
        let first = if range.is_empty() { self.blocks } else { range.start / self.block };
        let slice_end = self.slice.end.min(self.block);
        (first..self.blocks)
            .filter(|&index| self.only.is_none_or(|only| index == only))
            .map_while(move |index| {
                let block = index.checked_mul(self.block).filter(|&start| start < range.end)?;
                let start = range.start.max(block.saturating_add(self.slice.start));
                let end = range.end.min(block.saturating_add(slice_end));
                Some((index, block, start..end))
            })
            .filter(|(_, _, piece)| piece.start < piece.end)
            .map(|(index, block, piece)| {
                // The piece lies in the slice of block `index`. The slices lie at the addresses
                // that `start` and `stride` give: see `PeerBuffers::view`.
                let address = self.start.wrapping_add(index * self.stride + (piece.start - block - self.slice.start));
                (address, piece)
            })
    }
}

/// The location of rows in a buffer: `rows` of them, each `stride` elements after the one before,
/// the first at `start`.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The number of rows.
    pub rows: usize,
    /// Elements from the start of a row to the start of the next.
    pub stride: usize,
    /// The first element of the first row.
    pub start: usize,
}

impl PeerBuffers<'_> {
    /// Returns the bytes that `rank` published.
    pub fn bytes(&self, rank: usize) -> usize {
        match &self.window {
            Some(window) if rank == self.context.rank() => window.own_bytes,
            Some(window) => window.data[rank].bytes,
            None => self.context.descriptor(rank).bytes(),
        }
    }

    /// Writes the number of elements that each rank published to `counts`, and returns their sum.
    /// Every rank is about to allocate room for all of them. If the total exceeds 16 MiB, the
    /// process asks the system how much memory is left for all ranks.
    ///
    /// # Errors
    /// [`Fault::Oversize`] if less memory is left.
    pub fn counts(&self, dtype: DType, counts: &mut Vec<usize>) -> Result<usize, Fault> {
        let ranks = self.context.ranks();
        let bytes = (0..ranks).map(|rank| self.bytes(rank)).fold(0usize, usize::saturating_add);
        let room =
            || available::bytes().map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)) / ranks;
        if bytes > SURE_BYTES && bytes > room() {
            return Err(self.oversize());
        }
        counts.clear();
        counts.extend((0..ranks).map(|rank| self.bytes(rank) / dtype.size()));
        Ok(counts.iter().sum())
    }

    /// Ends the group because there is no memory for all the data that the ranks published.
    pub fn oversize(&self) -> Fault {
        self.context.member.abort(self.context.rank(), Reason::Memory);
        let ranks = self.context.ranks();
        let bytes = (0..ranks).map(|rank| self.bytes(rank)).fold(0usize, usize::saturating_add);
        let rank = (0..ranks).max_by_key(|&rank| self.bytes(rank)).unwrap_or_default();
        Fault::Oversize { rank, bytes }
    }

    /// Returns the size class of copies of the data of `rank`.
    fn volume(&self, rank: usize) -> CopySize {
        let (ranks, bytes) = (self.context.ranks(), self.bytes(rank));
        CopySize::new(bytes, || {
            let all = (0..ranks).map(|rank| self.bytes(rank)).fold(0, usize::saturating_add);
            let is_whole = self.context.kind.copies_to_all();
            cache_hints::goes_past_caches(bytes, all, if is_whole { ranks } else { 1 })
        })
    }

    fn view(&self, rank: usize) -> View {
        let Some(window) = &self.window else {
            // All the data, of `bytes` bytes, are one block.
            let start = self.context.descriptor(rank).input();
            let (block, slice) = (usize::MAX, 0..usize::MAX);
            return View { start, process: None, block, blocks: 1, slice, stride: 0, only: None, taken: false };
        };
        let Window { blocks, stride, .. } = *window;
        let slice = window.slice.clone();
        let block = |bytes: usize| if blocks == 1 { usize::MAX } else { (bytes / blocks).max(1) };
        let block = block(self.bytes(rank));
        let own = rank == self.context.rank();
        let (whole, process) = match window.data[rank].place {
            _ if own => (window.own, None),
            Source::Here(start) => (start, None),
            Source::There(process, start) => (ptr::without_provenance(start), Some(process)),
            // A slice in a slot has room for `stride` bytes, which are not fewer than the slice's.
            // There are `blocks` slices. If each is for one rank, there is one less: the rank's own
            // block is absent, and the blocks behind it move up.
            Source::Slot => {
                let only = (blocks == self.context.ranks()).then_some(self.context.rank());
                let moved = if only > Some(rank) { stride } else { 0 };
                let (start, taken) = (window.slots.of(rank).wrapping_sub(moved), window.slots.swapped.is_some());
                return View { start, process: None, block, blocks, slice, stride, only, taken };
            }
        };
        // There are as many windows as the longest of the data that are copied in has: data that
        // are read in place may be longer, and the last window has the rest of them.
        let slice = if window.is_last { slice.start..usize::MAX } else { slice };
        // Callers ask for bytes within the data only, and the slices up to there lie within them.
        let start = whole.wrapping_add(slice.start);
        View { start, process, block, blocks, slice, stride: block, only: None, taken: false }
    }

    /// Whether this is the last part of the data: this rank has nothing more to copy in for the
    /// others.
    pub fn is_last(&self) -> bool {
        self.window.as_ref().is_none_or(|window| window.is_last)
    }

    /// Copies elements `range` of the data that `rank` published.
    ///
    /// # Errors
    /// [`Fault::Aborted`] if the group ended meanwhile, [`Fault::CorruptPeer`] if `rank` published
    /// fewer elements.
    ///
    /// # Panics
    /// If `target` has another number of elements than the range, or is of another dtype.
    pub fn copy(&self, rank: usize, range: Range<usize>, target: &mut HostBufMut<'_>) -> Result<(), Fault> {
        assert_eq!(range.len(), target.count(), "the range fits its target");
        assert_eq!(Some(target.dtype()), self.context.dtype, "the target is of the agreed dtype");
        let size = target.dtype().size();
        let count = self.bytes(rank) / size;
        if range.start > range.end || range.end > count {
            return Err(self.context.member.corrupt(rank));
        }
        let view = self.view(rank);
        self.copy_pieces(rank, &view, range.start * size..range.end * size, target)?;
        let own_place = self.window.as_ref().map(|window| window.data[self.context.rank()].place);
        if view.taken && view.blocks == 1 && matches!(own_place, Some(Source::Slot)) {
            // Prefetches these lines: this rank's part is longer than the peer's, and is written
            // there next.
            let copy_in = |rank: usize| self.bytes(rank).min(view.slice.end).saturating_sub(view.slice.start);
            let (theirs, own) = (copy_in(rank), copy_in(self.context.rank()));
            fetch_to_write(
                view.start.wrapping_add(theirs),
                own.saturating_sub(theirs).min(tuning::current().fetched_bytes),
            );
        }
        Ok(())
    }

    /// Copies this rank's block of the data that `rank` published, whose first element is element
    /// `start` of these data.
    ///
    /// # Errors
    /// As [`copy`](PeerBuffers::copy).
    ///
    /// # Panics
    /// If `target` is of another dtype than the data.
    pub fn copy_block(&self, rank: usize, start: usize, target: &mut HostBufMut<'_>) -> Result<(), Fault> {
        let Some(window) = self.window.as_ref().filter(|window| window.blocks > 1) else {
            return self.copy(rank, start..start + target.count(), target);
        };
        assert_eq!(Some(target.dtype()), self.context.dtype, "the target is of the agreed dtype");
        let (size, own) = (target.dtype().size(), self.context.rank());
        let count = self.bytes(rank) / size;
        if start > count || target.count() > count - start {
            return Err(self.context.member.corrupt(rank));
        }
        let whole = View { block: usize::MAX, blocks: 1, only: None, ..self.view(rank) };
        let view = match window.data[rank].place {
            Source::Slot if rank != own => {
                // A rank's own block is not staged: the blocks behind it move up.
                let place = own - usize::from(own > rank);
                View { start: window.slots.of(rank).wrapping_add(place * window.stride), ..whole }
            }
            _ => View { start: whole.start.wrapping_add(start * size), ..whole },
        };
        self.copy_pieces(rank, &view, 0..target.count() * size, target)
    }

    /// Copies the bytes of `range` that can be read to their places in `target`, which has room for
    /// the whole range.
    fn copy_pieces(
        &self,
        rank: usize,
        view: &View,
        range: Range<usize>,
        target: &mut HostBufMut<'_>,
    ) -> Result<(), Fault> {
        for (source, piece) in view.pieces(range.clone()) {
            for chunk in chunks(0..piece.len(), 1) {
                let _inside = self.context.enter()?;
                // SAFETY: the piece lies within the data that the rank published, which stay valid
                // and unwritten while this rank is inside, and are of the type on which all ranks
                // agree. The target is exclusive and has room for the piece.
                unsafe {
                    let (dtype, target) = (target.dtype(), target.as_mut_ptr());
                    let target = target.add(piece.start - range.start + chunk.start);
                    self.fetch(view, rank, source.wrapping_add(chunk.start), target, chunk.len())?;
                    make_valid(dtype, target, chunk.len());
                }
            }
        }
        Ok(())
    }

    /// Copies `bytes` bytes at `source` of the data that `rank` published.
    ///
    /// # Safety
    /// `source` and the `bytes` bytes from there lie in the view, which can be read now; `target`
    /// is valid for writes of as many and exclusive.
    unsafe fn fetch(
        &self,
        view: &View,
        rank: usize,
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> Result<(), Fault> {
        match &view.process {
            // SAFETY: the caller's promises are the same.
            None if view.taken => unsafe { take(source, target, bytes, self.volume(rank)) },
            // SAFETY: as above.
            None => unsafe { copy(source, target, bytes, self.volume(rank)) },
            Some(process) => {
                // SAFETY: as above.
                let read = unsafe { process.read(source.addr(), target, bytes) };
                read.map_err(|why| self.context.unread(rank, why))?;
            }
        }
        Ok(())
    }

    /// Copies all the data that `rank` published, as `place.rows` consecutive rows, to the places
    /// of these rows in `target`.
    ///
    /// # Errors
    /// [`Fault::Aborted`] if the group ended meanwhile, [`Fault::CorruptPeer`] if the rows are not
    /// of equal size or do not lie within `target`.
    ///
    /// # Panics
    /// If `target` is of another dtype.
    pub fn copy_rows(&self, rank: usize, target: &mut HostBufMut<'_>, place: Rows) -> Result<(), Fault> {
        let size = target.dtype().size();
        let count = self.bytes(rank) / size;
        if count == 0 {
            return Ok(());
        }
        assert_eq!(Some(target.dtype()), self.context.dtype, "the target is of the agreed dtype");
        let row = count / place.rows.max(1);
        let last =
            place.rows.saturating_sub(1).checked_mul(place.stride).and_then(|last| last.checked_add(place.start));
        let fits = last.and_then(|last| last.checked_add(row)).is_some_and(|end| end <= target.count());
        if !fits || row * place.rows != count {
            return Err(self.context.member.corrupt(rank));
        }
        let row = row * size;
        let (view, volume) = (self.view(rank), self.volume(rank));
        let mut here: Vec<u8> = Vec::new();
        for (source, piece) in view.pieces(0..count * size) {
            for chunk in chunks(piece.clone(), 1) {
                let _inside = self.context.enter()?;
                let mut source = source.wrapping_add(chunk.start - piece.start);
                if view.process.is_some() {
                    // Reads the whole chunk at once: a read for each row may be of a few bytes
                    // only.
                    here.reserve(chunk.len());
                    // SAFETY: the chunk lies within the piece, as below. The reserved room is this
                    // rank's alone.
                    unsafe { self.fetch(&view, rank, source, here.as_mut_ptr(), chunk.len())? };
                    source = here.as_ptr();
                }
                let (mut index, mut within, mut at) = (chunk.start / row, chunk.start % row, chunk.start);
                while at < chunk.end {
                    let bytes = (row - within).min(chunk.end - at);
                    // SAFETY: byte `at` of the published data is byte `within` of row `index`,
                    // which lies within the target, as the check of the last row says; otherwise as
                    // in `copy`.
                    unsafe {
                        let (dtype, target) = (target.dtype(), target.as_mut_ptr());
                        let target = target.add((place.start + index * place.stride) * size + within);
                        copy(source.add(at - chunk.start), target, bytes, volume);
                        make_valid(dtype, target, bytes);
                    }
                    (index, within, at) = (index + 1, 0, at + bytes);
                }
            }
        }
        Ok(())
    }

    /// Folds elements `offset..` of the data that every rank published into `target`, in canonical
    /// order.
    ///
    /// # Errors
    /// [`Fault::Aborted`] if the group ended meanwhile, [`Fault::CorruptPeer`] if a rank published
    /// too few elements.
    ///
    /// # Panics
    /// If `target` does not fit the reducer.
    pub fn reduce(&mut self, reducer: &Reducer, offset: usize, target: &mut HostBufMut<'_>) -> Result<(), Fault> {
        assert_eq!(reducer.output(), target.dtype(), "the target fits the reducer");
        // SAFETY: the target is exclusive, so it is disjoint from the sources.
        unsafe { self.fold(reducer, offset, target.count(), target.as_mut_ptr()) }
    }

    /// Like [`reduce`](PeerBuffers::reduce), for `count` elements.
    ///
    /// # Safety
    /// `target` is valid for writes of `count` elements of the reducer's output, and no other code
    /// touches them. They are disjoint from every rank's data, or are this rank's own elements
    /// where both types are the same.
    pub(super) unsafe fn fold(
        &mut self,
        reducer: &Reducer,
        offset: usize,
        count: usize,
        target: *mut u8,
    ) -> Result<(), Fault> {
        assert_eq!(Some(reducer.input()), self.context.dtype, "the reducer is of the agreed dtype");
        let size = reducer.input().size();
        let (own, blocks) = (self.context.rank(), self.window.as_ref().map_or(1, |window| window.blocks));
        let (own_bytes, past) = (self.bytes(own), self.volume(own).past(0));
        let (mut remote, mut taken) = (0, None);
        for rank in 0..self.context.ranks() {
            let view = self.view(rank);
            remote += usize::from(view.process.is_some());
            taken = taken.or(view.taken.then_some(rank));
            let (bytes, published) = (self.bytes(rank), self.bytes(rank) / size);
            let fits = offset <= published && count <= published - offset && (blocks == 1 || bytes == own_bytes);
            if !fits {
                return Err(self.context.member.corrupt(rank));
            }
        }
        let flow = CacheHints { from: taken.map_or(Locality::Far, Locality::Taken), past };
        let range = offset * size..(offset + count) * size;
        let step = plan::piece_bytes(remote).min(range.len().next_multiple_of(BORDER_BYTES)).max(BORDER_BYTES);
        self.scratch.resize(self.scratch.len().max(remote * step / size_of::<u64>()), 0);
        for (_, piece) in self.view(own).pieces(range.clone()) {
            for chunk in pieces(piece.start / size..piece.end / size, size, step) {
                let _inside = self.context.enter()?;
                let bytes = chunk.start * size..chunk.end * size;
                let mut room = self.scratch.as_mut_ptr().cast::<u8>();
                self.sources.clear();
                for rank in 0..self.context.ranks() {
                    // Every rank's view has the same slices, so the first piece has all the bytes.
                    let view = self.view(rank);
                    let source = view.pieces(bytes.clone()).next().filter(|(_, piece)| *piece == bytes);
                    let (mut source, _) = source.ok_or_else(|| self.context.member.corrupt(rank))?;
                    if view.process.is_some() {
                        // SAFETY: the bytes lie within the data that the rank published; the
                        // scratch has room for a step of each such rank.
                        unsafe { self.fetch(&view, rank, source, room, bytes.len())? };
                        source = room;
                        room = room.wrapping_add(step);
                    }
                    self.sources.push(source);
                }
                // SAFETY: the sources stay valid and unwritten while this rank is inside, and are
                // of the type on which all ranks agree; the target is as the caller promises.
                unsafe {
                    let target = target.add((chunk.start - offset) * reducer.output().size());
                    reducer.fold(self.sources, &[target], chunk.len(), flow);
                    make_valid(reducer.output(), target, chunk.len() * reducer.output().size());
                }
            }
        }
        Ok(())
    }
}
