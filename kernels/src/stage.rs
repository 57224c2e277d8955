//! Steps of ranks that cannot read each other's buffers: they put their data up where all can read them, a window at a time.
//!
//! Each rank has its own *staging*, in memory that all processes of the group map: two slots for data and two for results, used
//! in turn. It is never read as anything but data: where it lies, and how large it is, each process knows by itself. Two ranks
//! that both have data use each other's in turn, and one that alone has data parts of its slots in turn (`trade.rs`).
//!
//! # The protocol
//!
//! A step begins as any other: the ranks arrive and agree (`step.rs`). What follows is counted in windows, from the beginning of
//! the round; as the ranks agree on what they call, and know each other's sizes, all of them count the same.
//!
//! 1. **Stage.** The rank copies its part of window `w` into slot `w mod 2`, and says *staged* `w`; the first of a step is
//!    staged before the arrival, which says it. It may do so when every peer has said *read* `w - 2`, or has arrived at a
//!    call that came after it, which is seen without a look at another line. The next window is staged before the work on this one,
//!    so that a rank waits only for one that is more than a window behind.
//! 2. **Work**, when every peer has said *staged* `w`. Where each rank makes its block of the result for all, it puts the
//!    block up in the slot for results and says *folded* `w`; when every peer has, it copies their blocks. Of two ranks each
//!    writes its block over the peer's data of which it is made, in the peer's slot: the lines are its core's by then, and those of
//!    the peer's again when that has copied them.
//! 3. The rank says *read* `w`.
//!
//! Data that the others read where they lie, in a heap or by `direct.rs`, are not put up, or late if not all agree to that.
//!
//! No rank waits at the end of a step, but one whose data were read where they lie. A rank that gives up says so and goes: what
//! it has staged stays where it is.
//!
//! # The races, by name
//!
//! * **Overwritten window.** A slot is written again two windows later, when all have *read* it, whoever wrote there. The
//!   slot for results, and results in the slot for data, need no word of their own: who stages `w` has copied the results of `w - 2`.
//! * **Old counts, new counts.** After an abort ranks may differ in how far they had come. A new round begins at a base above
//!   all of the counts before, and no rank counts in it before all are there (`Seat::renew`). Who still waits in the old round
//!   does not take a count of the new one for what it waits for.

use crate::{
    atomics::{Ordering, fence},
    copy::{copy, put_up, take},
    flow::{Distance, Flow, Volume},
    line::Round,
    phase::{Data, Peers, Place, Slots, Source, Window},
    plan::{self, BORDER_BYTES, Ground, Path, SLOTS, Step, Windows},
    reduce::Reducer,
    segment::{Area, Segment},
    step::{Addresses, Fault, Seat, Targets},
    trade,
};
use consonance_spec::{Signature, partition};
use std::{
    ops::Range,
    ptr::{self, NonNull},
};

/// What a slot is for.
///
/// Ranks that do not call the same stage before they know that, each as its own call wants it. Data that are traded
/// have slots of their own, therefore: those for results, which nobody writes before all agree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Data, of which a window takes so much room. Windows lie in parts of a slot in turn: a line is written again
    /// when it has left the caches of who read it.
    Data { room: usize },
    /// Data, in places that the ranks trade.
    TradedData,
    /// Results.
    Results,
}

impl Use {
    fn data(trades: bool, room: usize) -> Use {
        if trades { Use::TradedData } else { Use::Data { room } }
    }

    /// The slot for this in window `window`.
    fn slot(self, window: u64) -> usize {
        (if matches!(self, Use::Data { .. }) { 0 } else { 2 }) + (window & 1) as usize
    }

    /// Where in the slot, of so many bytes, window `window` lies.
    fn start(self, window: u64, slot_bytes: usize) -> usize {
        match self {
            Use::Data { room } => (window >> 1) as usize % (slot_bytes.min(MOVING_BYTES) / room).max(1) * room,
            _ => 0,
        }
    }

    /// The rank in whose place `rank` has that slot.
    fn place(self, rank: usize, window: u64) -> usize {
        if self == Use::TradedData { trade::place(rank, window) } else { rank }
    }
}

/// So much of each slot is used in turn, and no more where slots are larger: in C, data of one way take no less time with more.
const MOVING_BYTES: usize = 256 << 10;

/// What is got from the system at a time.
const RESERVE_BYTES: usize = 64 << 10;

/// One rank's staging, as that rank sees it.
pub(crate) struct Stage {
    area: Area,
    /// The next window's number.
    window: u64,
    /// All peers have read the windows before this one: each has arrived at a call since.
    settled: u64,
    /// Bytes of each slot that the system has given, in this rank's place and in one that it trades for.
    reserved: [[usize; SLOTS]; 2],
    pub(crate) reach: Reach,
}

/// Whether this rank reads the memory of all others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// To be tried when all have arrived once.
    Untried,
    Yes,
    /// It cannot, or not all can.
    No,
}

impl Stage {
    pub(crate) fn new(area: Area, round: Round) -> Stage {
        Stage { area, window: round.base(), settled: round.base(), reserved: [[0; SLOTS]; 2], reach: Reach::Untried }
    }

    /// Whether this rank reads the memory of all others, as far as it knows.
    pub(crate) fn reads(&self) -> bool {
        self.reach == Reach::Yes
    }

    pub(crate) fn renew(&mut self, round: Round) {
        (self.window, self.settled) = (round.base(), round.base());
    }

    /// All peers have arrived at this call, and so read nothing of the windows of those before any more.
    pub(crate) fn settle(&mut self) {
        self.settled = self.window;
    }
}

/// What a rank puts up in a step: its data as `blocks` of equal size, of each of which `stride` bytes fit a window.
#[derive(Clone, Copy)]
struct Load {
    input: *const u8,
    bytes: usize,
    blocks: usize,
    /// The block that no other rank reads.
    kept: Option<usize>,
    stride: usize,
    slot: Use,
}

impl Load {
    fn slice(&self, window: usize) -> Range<usize> {
        window * self.stride..(window + 1) * self.stride
    }
}

/// What a rank tells the others of data that it has not put up: a word, in the place of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) place: Option<Shown>,
    /// Whether this rank can read the memory of all others.
    pub(crate) reads: bool,
}

/// Where data lie that are not put up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Byte of the heaps.
    Heap(usize),
    /// Address in the rank's own process.
    Own(usize),
}

impl Told {
    const READS: usize = 1 << (usize::BITS - 1);
    const HEAP: usize = Self::READS >> 1;

    pub(crate) fn to_word<T>(self) -> *mut T {
        let place = self.place.map_or(0, |place| match place {
            Shown::Heap(byte) => Self::HEAP | byte,
            Shown::Own(address) => address,
        });
        ptr::without_provenance_mut(place | if self.reads { Self::READS } else { 0 })
    }

    pub(crate) fn read<T>(word: *const T) -> Told {
        let (word, reads) = (word.addr() & !Self::READS, word.addr() & Self::READS != 0);
        let place = match word & Self::HEAP {
            0 => Some(word).filter(|&word| word != 0).map(Shown::Own),
            _ => Some(Shown::Heap(word & !Self::HEAP)),
        };
        Told { place, reads }
    }
}

impl Seat {
    /// A step in which all ranks' data are put up, and `work` is called for each window of them. Data that lie in a heap need not
    /// be put up, if the step may go in place: others read them where they lie, in one window if all do.
    ///
    /// # Safety
    /// `input` is valid for reads of `bytes` bytes, which nobody writes but `work`, and it only where it has read; nothing at
    /// all, if the step may go in place, but what only this rank reads.
    pub(crate) unsafe fn in_windows(
        &mut self,
        signature: &Signature,
        step: Step,
        input: *const u8,
        bytes: usize,
        mut work: impl FnMut(&mut Peers<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let ground = self.ground();
        let put_up = |bytes| match (Ground { reads: false, ..ground }).path(step, bytes, false) {
            Path::PutUp(windows) => windows,
            path => unreachable!("{step:?} goes {path:?}"),
        };
        let Windows { blocks, stride, .. } = put_up(bytes);
        assert!(stride > 0 && (blocks == 1 || bytes.is_multiple_of(blocks)), "{bytes} bytes in {blocks} blocks");
        let in_place = ground.path(step, bytes, true) == Path::InPlace;
        let found = if in_place { self.find(input, bytes, false) } else { None };
        let found = found.map(Shown::Heap).or_else(|| {
            let is_read = ground.path(step, bytes, false) == Path::Read && self.is_read(input);
            is_read.then_some(Shown::Own(input.addr()))
        });
        // Where there is a block for each rank, this rank's is its own.
        let kept = (blocks == self.world.size()).then_some(self.world.rank());
        let moves = trade::moves(self.world.size(), signature.kind);
        let room = if moves { blocks * stride } else { self.slot_bytes() };
        let slot = Use::data(trade::slots(self.world.size(), signature.kind), room);
        let mut load = Load { input, bytes: if found.is_some() { 0 } else { bytes }, blocks, kept, stride, slot };
        self.claim_window(0)?;
        self.stage_slices(load, 0, 0)?;
        let told = Told { place: found, reads: ground.reads }.to_word();
        let shared = self.share(signature, step.access(), bytes, told, ptr::null_mut(), Default::default())?;
        let seat = &mut *shared.seat;
        let is_late = seat.is_late();
        if is_late && matches!(found, Some(Shown::Own(_))) {
            load.bytes = bytes;
            seat.claim_window(0)?;
            seat.stage_slices(load, 0, 0)?;
        }
        if is_late {
            seat.say_staged(0);
        }
        let mut data = seat.data();
        let in_slots = data.iter().filter(|data| matches!(data.place, Source::Slot));
        let windows = put_up(in_slots.map(|data| data.bytes).max().unwrap_or(0)).count;
        if windows == 1 {
            load.stride = usize::MAX;
        }
        for index in 0..windows {
            if index + 1 < windows {
                seat.claim_window(1)?;
                seat.stage_slices(load, 1, index + 1)?;
                seat.say_staged(1);
            }
            if index > 0 || is_late {
                seat.wait_staged()?;
            }
            let slots = seat.slots(slot);
            let (slice, data) = (load.slice(index), &*data);
            let is_last = index + 1 == windows;
            let window = Window { blocks, slice, slots, stride, data, own: input, own_bytes: bytes, is_last };
            let (place, addresses) = seat.place(signature);
            // A rank that gives up waits for who reads its own memory, in its process; in another one see `still_there`.
            let enters = data.iter().any(|data| !matches!(data.place, Source::Slot));
            let place = Place { enters, ..place };
            let Addresses { sources, scratch, .. } = addresses;
            let done = work(&mut Peers { place, sources, scratch, window: Some(window) });
            seat.or_end(done)?;
            if enters {
                seat.still_there()?;
            }
            seat.say_read();
        }
        data.clear();
        seat.addresses.data = data;
        if found.is_some() {
            seat.wait_read(seat.staging().window)?;
        }
        shared.finish();
        Ok(())
    }

    /// Whether what was read in others' own memory was theirs to show until now: a rank that gives up says so before it returns.
    fn still_there(&self) -> Result<(), Fault> {
        // SYNC POINT abort: what was read comes before this look; who wrote it has ended the group before, if it was not the data.
        fence(Ordering::Acquire);
        self.hub.aborted(self.round).map_or(Ok(()), |abort| Err(Fault::Aborted(abort)))
    }

    /// Where these data lie in the heaps: on `whole` pages of their own, if others are to write there.
    fn find(&self, address: *const u8, bytes: usize, whole: bool) -> Option<usize> {
        self.segment().find(address, bytes, whole)
    }

    /// What each rank has in this step, and where it lies.
    fn data(&mut self) -> Vec<Data> {
        let mut data = std::mem::take(&mut self.addresses.data);
        data.clear();
        let all_read = self.all_read();
        data.extend(self.cards().enumerate().map(|(rank, card)| {
            let place = self.source(rank, card.input(), card.bytes(), all_read).unwrap_or(Source::Slot);
            Data { bytes: card.bytes(), place }
        }));
        data
    }

    /// Where `rank` shows `bytes` of its data, by the word that it told of them; nowhere if it has to put them up.
    fn source(&self, rank: usize, told: *const u8, bytes: usize, all_read: bool) -> Option<Source> {
        match Told::read(told).place? {
            Shown::Heap(byte) => self.segment().in_heaps(byte, bytes).map(|start| Source::Here(start.as_ptr())),
            Shown::Own(address) => {
                let process = self.hub.process(rank).filter(|_| all_read)?;
                Some(Source::There(process, address))
            }
        }
    }

    /// Sets the addresses of this step, if every rank's data lie in a heap, and every result is wanted there.
    fn locate(&mut self, bytes: usize, output_bytes: usize, targets: Targets) -> bool {
        let Addresses { inputs, outputs, .. } = &mut self.addresses;
        inputs.clear();
        outputs.clear();
        let Some((segment, _)) = self.hub.segment() else { return false };
        let address = |told: *const u8, bytes: usize| match Told::read(told).place? {
            Shown::Heap(byte) => segment.in_heaps(byte, bytes).map(NonNull::as_ptr),
            Shown::Own(_) => None,
        };
        let aligned = |address: &*mut u8| address.addr().is_multiple_of(align_of::<u64>());
        for (rank, line) in self.hub.lines().iter().enumerate() {
            let card = line.card(self.epoch);
            let Some(input) = address(card.input(), bytes).filter(aligned) else { return false };
            let output = address(card.output(), output_bytes).filter(aligned);
            if output.is_none() && targets.reach(rank) {
                return false;
            }
            inputs.push(input.cast_const());
            outputs.push(output.unwrap_or(ptr::null_mut()));
        }
        true
    }

    /// [`Seat::divided`] on staged data.
    ///
    /// # Safety
    /// `input` is valid for reads of `count` elements of the reducer's input, `output`, unless it is null, for writes of as
    /// many of its output; nobody else touches them. They are the same, where both types are, or disjoint.
    pub(crate) unsafe fn divided_on_stage(
        &mut self,
        signature: &Signature,
        reducer: &Reducer,
        targets: Targets,
        input: *const u8,
        count: usize,
        output: *mut u8,
    ) -> Result<(), Fault> {
        let (rank, size) = (self.world.rank(), self.world.size());
        let (input_size, output_size) = (reducer.input().size(), reducer.output().size());
        let bytes = count * input_size;
        let step = Step::divided(reducer, targets);
        if targets != Targets::Own {
            // SAFETY: the caller's promises are the same.
            return unsafe { self.combined(signature, reducer, targets, input, count, output) };
        }
        let own = partition::block(count, size, rank);
        let target = output.wrapping_add(own.start * output_size);
        let fold = |peers: &mut Peers<'_>| {
            // SAFETY: the target has so many elements, at the place in `output` of those that are read of `input`.
            unsafe { peers.fold(reducer, own.start, own.len(), target) }
        };
        // SAFETY: the input is valid; a part of it that is written in place has just been read, by this rank, the only one that
        // reads it there: see `Ground::path`.
        unsafe { self.in_windows(signature, step, input, bytes, fold) }
    }

    /// Every rank folds all of few data. Otherwise each window is divided among the ranks: a rank folds its block of all data, and
    /// puts the result up for the others.
    ///
    /// Then, for `n` ranks, each reads and writes about `2 - 1/n` times the bytes in copies, and once in the sum: no more than what
    /// has to cross from rank to rank, and independent of their number. Where all data lie in heaps there are no copies.
    ///
    /// # Safety
    /// As for [`divided_on_stage`](Seat::divided_on_stage), for ranks of which not each receives a block of its own.
    unsafe fn combined(
        &mut self,
        signature: &Signature,
        reducer: &Reducer,
        targets: Targets,
        input: *const u8,
        count: usize,
        output: *mut u8,
    ) -> Result<(), Fault> {
        let (rank, size) = (self.world.rank(), self.world.size());
        let (input_size, output_size) = (reducer.input().size(), reducer.output().size());
        let (bytes, output_bytes) = (count * input_size, count * output_size);
        let (ground, step) = (self.ground(), Step::divided(reducer, targets));
        let (Windows { count: windows, stride, .. }, is_divided) = match ground.path(step, bytes, false) {
            Path::Blocks(windows) => (windows, true),
            Path::PutUp(windows) => (windows, false),
            path => unreachable!("{step:?} goes {path:?}"),
        };
        let returns = is_divided && ground.returns(step);
        let trades = !is_divided && targets == Targets::All && trade::slots(size, signature.kind);
        let data = Use::data(trades, self.slot_bytes());
        // Where all receive, this rank has read a result in the place of its data before.
        let has_lines = (returns && targets == Targets::All) || data == Use::TradedData;
        let is_needed = is_divided && self.world.peers().any(|peer| targets.reach(peer));
        // In place, what is written has just been read.
        let is_apart = output.cast_const() != input;
        let most = bytes.max(output_bytes);
        let volume = Volume::new(most, || is_apart && plan::goes_past_caches(most, size * bytes, 1));
        let elements = stride / input_size;
        let unit = BORDER_BYTES / input_size.min(output_size);
        let window = |index: usize| index * elements..((index + 1) * elements).min(count);
        // What a rank folds, and the others need not.
        let block = |index: usize, of: usize| {
            let whole = window(index);
            if !is_divided {
                return whole.start..whole.start;
            }
            let block = partition::aligned_block(whole.len(), unit, size, of);
            whole.start + block.start..whole.start + block.end
        };
        // What the others fold: all but this rank's own block, each element in its place in the window.
        let stage = |seat: &mut Seat, ahead: u64, index: usize| {
            let (whole, own) = (window(index), block(index, rank));
            let slot = seat.slot(ahead, data, whole.len() * input_size)?;
            for part in [whole.start..own.start, own.end..whole.end] {
                let offset = (part.start - whole.start) * input_size;
                // SAFETY: the part lies within the input and, in its place, within the slot, which is this rank's to write: see
                // `claim_window`.
                unsafe {
                    let (part, size) = (input.add(part.start * input_size), part.len() * input_size);
                    put_up(part, slot.add(offset), size, volume, has_lines);
                }
            }
            Ok(())
        };
        let find = |address: *const u8, bytes| if address.is_null() { None } else { self.find(address, bytes, true) };
        let found = (find(input, bytes), find(output.cast_const(), output_bytes));
        let in_place = ground.path(step, bytes, true) == Path::InPlace;
        let in_heap = in_place && found.0.is_some() && (found.1.is_some() || output.is_null());
        if !in_heap {
            self.claim_window(0)?;
            stage(self, 0, 0)?;
        }
        let (input_place, output_place) = if in_heap { found } else { (None, None) };
        let open = |place: Option<usize>, bytes| place.map_or(0..0, |place| place..place + bytes);
        let open = [open(input_place, bytes), open(output_place, output_bytes)];
        let told = |place: Option<usize>| Told { place: place.map(Shown::Heap), reads: false }.to_word();
        let told = (told(input_place), told(output_place));
        let shared = self.share(signature, step.access(), bytes, told.0, told.1, open)?;
        if shared.seat.locate(bytes, output_bytes, targets) {
            // SAFETY: every rank says that its data lie there, as many as this one's; a rank that says so keeps them there, or
            // others in their place, while another is inside.
            unsafe { shared.seat.fold_block(signature, reducer, count, targets)? };
            return shared.depart();
        }
        let seat = &mut *shared.seat;
        // A rank that could have shown its data where they lie has not staged them when it arrives.
        let is_late = seat.cards().any(|card| Told::read(card.input()).place.is_some());
        if in_heap {
            seat.claim_window(0)?;
            stage(seat, 0, 0)?;
        }
        if is_late {
            seat.say_staged(0);
        }
        for index in 0..windows {
            if index + 1 < windows {
                seat.claim_window(1)?;
                stage(seat, 1, index + 1)?;
                seat.say_staged(1);
            }
            if index > 0 || is_late {
                seat.wait_staged()?;
            }
            let (whole, own) = (window(index), block(index, rank));
            let part = if is_divided { own } else { whole.clone() };
            let start = (part.start - whole.start) * input_size;
            let (data, results) = (seat.slots(data), seat.slots(Use::Results));
            let result = match is_needed {
                false => None,
                true if returns => Some(data.of(1 ^ rank).wrapping_add(start)),
                true => Some(seat.slot(0, Use::Results, part.len() * output_size)?),
            };
            let (_, addresses) = seat.place(signature);
            addresses.sources.extend((0..size).map(|peer| match peer {
                peer if peer == rank => input.wrapping_add(part.start * input_size),
                peer => data.of(peer).wrapping_add(start).cast_const(),
            }));
            addresses.targets.extend(result);
            // What is put up is read at once.
            let past = volume.past(addresses.targets.len());
            if !output.is_null() {
                addresses.targets.push(output.wrapping_add(part.start * output_size));
            }
            if !addresses.targets.is_empty() {
                let is_taken = returns || data.traded.is_some();
                let flow = Flow { from: if is_taken { Distance::Taken(1 ^ rank) } else { Distance::Far }, past };
                // SAFETY: the part lies within the input and the output, and in its place within every rank's slot, where all
                // have staged it; nobody writes it there before this rank has said that it has read this window. The slot for
                // results has room for a block, and is read by nobody before it is said to be folded, nor is this block in
                // the peer's slot, which this rank alone reads. The output is this rank's alone.
                unsafe { reducer.fold(&addresses.sources, &addresses.targets, part.len(), flow) };
            }
            if is_divided {
                seat.say_folded();
            }
            if is_divided && !output.is_null() {
                seat.wait_folded()?;
                for peer in seat.world.peers() {
                    let block = block(index, peer);
                    let (target, bytes) = (output.wrapping_add(block.start * output_size), block.len() * output_size);
                    // SAFETY: the peer has put its block up, in its slot for results or in this rank's for data, and they are
                    // written again when this rank has said that it has read this window; the block lies within the output.
                    unsafe {
                        match returns {
                            true => {
                                let result = data.of(rank).add((block.start - whole.start) * input_size);
                                take(result, target, bytes, volume);
                            }
                            false => copy(results.of(peer), target, bytes, volume),
                        }
                    }
                }
            }
            seat.say_read();
        }
        shared.finish();
        Ok(())
    }

    /// Waits until the slots of the window that comes `ahead` of this one are this rank's to write.
    fn claim_window(&self, ahead: u64) -> Result<(), Fault> {
        let Stage { window, settled, .. } = *self.staging();
        let window = window + ahead;
        // Not even a look at their lines, which they have written since.
        if window < settled + 2 {
            return Ok(());
        }
        self.wait_read(window - 1)
    }

    /// Waits until every peer reads nothing of the windows before this one any more.
    fn wait_read(&self, window: u64) -> Result<(), Fault> {
        // SYNC POINT read: pairs with `say_read`.
        self.wait_for_all(|line| Round::reached(line.progress.read.load(Ordering::Acquire), window))
    }

    /// Copies a slice of each block to this rank's slot for the window that comes `ahead`, which has been claimed.
    fn stage_slices(&mut self, load: Load, ahead: u64, index: usize) -> Result<(), Fault> {
        let Load { input, bytes, blocks, kept, stride, slot } = load;
        let block = bytes / blocks;
        let slice = load.slice(index);
        let slice = slice.start.min(block)..slice.end.min(block);
        if slice.is_empty() {
            return Ok(());
        }
        let (has_lines, volume) = (slot == Use::TradedData, Volume::new(bytes, || false));
        let slot = self.slot(ahead, slot, (blocks - 1) * stride + slice.len())?;
        for (place, index) in (0..blocks).filter(|&index| Some(index) != kept).enumerate() {
            // SAFETY: the slice lies within its block of the input, which the caller of `in_windows` promises to be readable,
            // and has a place of `stride` bytes in the slot.
            unsafe {
                let slice_of = input.add(index * block + slice.start);
                put_up(slice_of, slot.add(place * stride), slice.len(), volume, has_lines);
            }
        }
        Ok(())
    }

    /// Says that this rank's part of the window that comes `ahead` is staged.
    fn say_staged(&self, ahead: u64) {
        let window = self.staging().window + ahead;
        // SYNC POINT staged: pairs with `wait_staged`.
        self.hub.lines()[self.world.rank()].progress.staged.store(window + 1, Ordering::Release);
        self.wake();
    }

    fn wait_staged(&self) -> Result<(), Fault> {
        let window = self.staging().window;
        // SYNC POINT staged: pairs with `say_staged`.
        self.wait_for_all(|line| Round::reached(line.progress.staged.load(Ordering::Acquire), window + 1))
    }

    /// Says that this rank's block of this window's result is put up.
    fn say_folded(&self) {
        // SYNC POINT folded: pairs with `wait_folded`.
        let window = self.staging().window;
        self.hub.lines()[self.world.rank()].progress.folded.store(window + 1, Ordering::Release);
        self.wake();
    }

    fn wait_folded(&self) -> Result<(), Fault> {
        let window = self.staging().window;
        // SYNC POINT folded: pairs with `say_folded`.
        self.wait_for_all(|line| Round::reached(line.progress.folded.load(Ordering::Acquire), window + 1))
    }

    /// Says that this rank reads nothing of this window any more, and goes on to the next.
    fn say_read(&mut self) {
        let stage = self.stage.as_mut().expect("a seat with a stage");
        stage.window += 1;
        let window = stage.window;
        // SYNC POINT read: pairs with `wait_read`.
        self.hub.lines()[self.world.rank()].progress.read.store(window, Ordering::Release);
        self.wake();
    }

    fn staging(&self) -> &Stage {
        self.stage.as_ref().expect("a seat with a stage")
    }

    fn segment(&self) -> &Segment {
        self.hub.segment().expect("a seat with a stage is in a segment").0
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.segment().staging_bytes(self.staging().area) / SLOTS
    }

    /// Every rank's slot for this, of this window.
    fn slots(&self, of: Use) -> Slots {
        let Stage { area, window, .. } = *self.staging();
        let segment = self.segment();
        let slot_bytes = self.slot_bytes();
        let start = of.slot(window) * slot_bytes + of.start(window, slot_bytes);
        let first = segment.staging(area, 0).as_ptr().wrapping_add(start);
        Slots { first, apart: segment.staging_bytes(area), traded: (of == Use::TradedData).then_some(window) }
    }

    /// This rank's slot for this, of the window that comes `ahead`, with room for `bytes`.
    fn slot(&mut self, ahead: u64, of: Use, bytes: usize) -> Result<*mut u8, Fault> {
        let Stage { area, window, reserved, .. } = *self.staging();
        let (rank, slot_bytes, slot) = (self.world.rank(), self.slot_bytes(), of.slot(window + ahead));
        let start = of.start(window + ahead, slot_bytes);
        let bytes = start + bytes;
        assert!(bytes <= slot_bytes, "{bytes} bytes in a slot of {slot_bytes}");
        let place = of.place(rank, window + ahead);
        let traded = usize::from(place != rank);
        let before = reserved[traded][slot];
        if bytes > before {
            // Twice as much each time, so that the system is asked seldom.
            let wanted = bytes.next_multiple_of(RESERVE_BYTES).max(2 * before).min(slot_bytes);
            let range = slot * slot_bytes + before..slot * slot_bytes + wanted;
            let more = range.len();
            let reserved = self.segment().reserve_staging(area, place, range);
            reserved.map_err(|error| self.no_memory(more, &error))?;
            self.stage.as_mut().expect("a seat with a stage").reserved[traded][slot] = wanted;
        }
        Ok(self.segment().staging(area, place).as_ptr().wrapping_add(slot * slot_bytes + start))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::{
        buffer::Memory,
        plan::Cut,
        segment::{GroupId, Shape},
    };
    use consonance_spec::{DType, Kind, ReduceOp};
    use std::{process, sync::Arc, thread, time::Duration};

    /// Whether ranks try to read each other's memory.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Reads {
        No,
        All,
        /// All but the first rank: it does not know its peers.
        AllButOne,
    }

    const READS: [Reads; 3] = [Reads::No, Reads::All, Reads::AllButOne];

    /// Runs `body` on each rank of a group that shares a segment, each rank with a mapping of its own.
    fn each<R: Send>(ranks: usize, reads: Reads, body: impl Fn(Seat) -> R + Sync) -> Vec<R> {
        let (id, shape) = (GroupId::from_bytes([3; 16]), Shape::new(ranks, 4 * RESERVE_BYTES).unwrap());
        let segment = Segment::create(shape, id).unwrap();
        thread::scope(|scope| {
            let ranks = (0..ranks).map(|rank| {
                let (body, file) = (&body, segment.file().try_clone_to_owned().unwrap());
                let processes = match reads {
                    Reads::All => vec![process::id(); ranks],
                    Reads::AllButOne if rank > 0 => vec![process::id(); ranks],
                    _ => Vec::new(),
                };
                scope.spawn(move || {
                    let segment = Arc::new(Segment::open(file, id, shape).unwrap());
                    let local = rank..rank + 1;
                    body(Seat::in_segment(&segment, local, 2, &processes, Duration::from_secs(20)).remove(0))
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    fn signature(kind: Kind, op: Option<ReduceOp>, dtype: DType) -> Signature {
        Signature { op, dtype: Some(dtype), ..Signature::new(kind) }
    }

    fn input(rank: usize, count: usize) -> Vec<u32> {
        (0..count).map(|index| (index * 7 + rank * 1_000_003) as u32).collect()
    }

    #[test]
    fn parts_are_read_where_they_lie_or_where_they_are_put_up() {
        for (ranks, reads) in [2, 3].into_iter().flat_map(|ranks| READS.map(|reads| (ranks, reads))) {
            let counts = [1, 20, 3000, 17_000, 200_000];
            let results = each(ranks, reads, |mut seat| {
                let rank = seat.world().rank();
                let signature = signature(Kind::AllGather, None, DType::U32);
                let mut all = Vec::new();
                for (round, count) in (0..3).flat_map(|round| counts.map(|count| (round, count))) {
                    let own = input(rank + round, count + rank);
                    let mut memory = seat.alloc(DType::U32, own.len()).unwrap();
                    memory.as_buf_mut().copy_from(own.as_slice().into());
                    let is_shared = round > rank % 2;
                    let send = if is_shared { memory.as_buf() } else { own.as_slice().into() };
                    let mut parts: Vec<Vec<u32>> = (0..ranks).map(|peer| vec![0; count + peer]).collect();
                    let copy = |peers: &mut Peers<'_>| {
                        let mut parts = parts.iter_mut().enumerate();
                        parts.try_for_each(|(peer, part)| {
                            peers.copy(peer, 0..part.len(), &mut part.as_mut_slice().into())
                        })
                    };
                    seat.published(&signature, Some(send), Cut::WHOLE, copy).unwrap();
                    // What the others have read can be written again.
                    memory.as_buf_mut().into_mut_slice::<u32>().unwrap().fill(7);
                    all.push((round, count, parts));
                }
                all
            });
            for (round, count, parts) in results.into_iter().flatten() {
                let expected = (0..ranks).map(|peer| input(peer + round, count + peer));
                assert!(expected.eq(parts), "{count} in round {round} of {ranks} ranks, {reads:?}");
            }
        }
    }

    #[test]
    fn data_of_one_way_move_through_their_slots() {
        for (ranks, reads) in [2, 3].into_iter().flat_map(|ranks| READS.map(|reads| (ranks, reads))) {
            each(ranks, reads, |mut seat| {
                let rank = seat.world().rank();
                for round in 0..60 {
                    let (root, count) = (round % ranks, [1300, 4000, 17_000, 2000, 75_000][round / 2 % 5]);
                    let cut = Cut::one_way(4 * count, 1);
                    let (kind, has_data) = match round % 7 < 4 {
                        true => (Kind::Broadcast, rank == root),
                        false => (Kind::Gather, rank != root),
                    };
                    let own = input(rank + round, count);
                    // Now and then where others could read them.
                    let mut memory = (round % 5 == 0).then(|| seat.alloc(DType::U32, count).unwrap());
                    if let Some(memory) = &mut memory {
                        memory.as_buf_mut().copy_from(own.as_slice().into());
                    }
                    let send = memory.as_ref().map_or_else(|| own.as_slice().into(), Memory::as_buf);
                    let mut parts = vec![vec![0u32; count]; ranks];
                    let reads_from = |peer: usize| match kind {
                        Kind::Broadcast => rank != root && peer == root,
                        _ => rank == root && peer != root,
                    };
                    let copy = |peers: &mut Peers<'_>| {
                        let mut parts = parts.iter_mut().enumerate().filter(|(peer, _)| reads_from(*peer));
                        parts.try_for_each(|(peer, part)| peers.copy(peer, 0..count, &mut part.as_mut_slice().into()))
                    };
                    let signature = signature(kind, None, DType::U32);
                    seat.published(&signature, has_data.then_some(send), cut, copy).unwrap();
                    for (peer, part) in parts.iter().enumerate().filter(|(peer, _)| reads_from(*peer)) {
                        assert!(*part == input(peer + round, count), "{kind:?} of {count} in round {round}, {reads:?}");
                    }
                }
            });
        }
    }

    #[test]
    fn what_is_told_is_what_is_read() {
        let places = [None, Some(Shown::Heap(0)), Some(Shown::Heap(1 << 40)), Some(Shown::Own(0x7fff_1234_5678))];
        for told in places.into_iter().flat_map(|place| [false, true].map(|reads| Told { place, reads })) {
            assert_eq!(Told::read(told.to_word::<u8>()), told);
        }
        assert_eq!(Told::read(ptr::null::<u8>()), Told { place: None, reads: false });
    }

    #[test]
    fn a_block_for_each_of_more_ranks_than_a_slot_has_slices() {
        let (id, shape) = (GroupId::from_bytes([3; 16]), Shape::new(513, 4 * RESERVE_BYTES).unwrap());
        let segment = Arc::new(Segment::create(shape, id).unwrap());
        let ranks = shape.ranks();
        let reducer = Reducer::new(ReduceOp::Sum, DType::U32).unwrap();
        let signature = signature(Kind::ReduceScatter, Some(ReduceOp::Sum), DType::U32);
        thread::scope(|scope| {
            for mut seat in Seat::in_segment(&segment, 0..ranks, 2, &[], Duration::from_secs(60)) {
                let (reducer, signature) = (&reducer, &signature);
                scope.spawn(move || {
                    let rank = seat.world().rank();
                    let mut data = input(rank, ranks);
                    seat.divided(signature, reducer, None, Some(data.as_mut_slice().into()), Targets::Own).unwrap();
                    let sum = (0..ranks).map(|peer| input(peer, ranks)[rank]).fold(0, u32::wrapping_add);
                    assert_eq!(data[rank], sum);
                });
            }
        });
    }

    #[test]
    fn sums_of_any_size_in_any_memory() {
        // Among them what is large and even for each number of ranks.
        let sizes = [0, 1, 33, 2048, 2049, 16_384, 16_385, 120_000, 262_144];
        for (ranks, reads) in [1, 2, 3, 5].into_iter().flat_map(|ranks| READS.map(|reads| (ranks, reads))) {
            let results = each(ranks, reads, |mut seat| {
                let rank = seat.world().rank();
                let reducer = Reducer::new(ReduceOp::Sum, DType::U32).unwrap();
                let signature = signature(Kind::AllReduce, Some(ReduceOp::Sum), DType::U32);
                let mut sums = Vec::new();
                for round in 0..5 {
                    for targets in [Targets::All, Targets::Root(ranks - 1), Targets::Own] {
                        for count in sizes {
                            // In turn no rank's memory can be read by the others, that of some, that of all.
                            let is_shared = round % 3 > rank % 2;
                            let mut data = input(rank + round, count);
                            let mut memory = is_shared.then(|| seat.alloc(DType::U32, count).unwrap());
                            if let Some(memory) = &mut memory {
                                memory.as_buf_mut().copy_from(data.as_slice().into());
                            }
                            let apart = (round % 2 == 1).then(|| data.clone());
                            let send = apart.as_ref().map(|apart| apart.as_slice().into());
                            let recv = memory.as_mut().map_or_else(|| data.as_mut_slice().into(), Memory::as_buf_mut);
                            seat.divided(&signature, &reducer, send, Some(recv), targets).unwrap();
                            if let Some(memory) = memory {
                                data.copy_from_slice(memory.as_buf().as_slice().unwrap());
                            }
                            sums.push((targets, round, count, data));
                        }
                    }
                }
                let can = seat.is_read([0u8].as_ptr());
                assert_eq!(seat.ground().reads, reads == Reads::All && ranks > 1 && can);
                sums
            });
            for (rank, sums) in results.into_iter().enumerate() {
                for (targets, round, count, found) in sums {
                    let mut sum = vec![0u32; count];
                    for rank in 0..ranks {
                        let values = input(rank + round, count).into_iter();
                        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
                    }
                    let received = match targets {
                        Targets::All => 0..count,
                        Targets::Root(root) => 0..if root == rank { count } else { 0 },
                        Targets::Own => partition::block(count, ranks, rank),
                    };
                    let mut expected = input(rank + round, count);
                    expected[received.clone()].copy_from_slice(&sum[received]);
                    assert!(
                        expected == found,
                        "{targets:?} of {count} in round {round}, rank {rank} of {ranks}, {reads:?}"
                    );
                }
            }
        }
    }
}
