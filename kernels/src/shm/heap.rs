//! Memory for users' data that every process of a group can read and write in place.
//!
//! Each rank has a heap in the segment: many addresses, of which only the blocks in use have
//! reserved pages. Blocks are whole pages. A large block begins at a huge page, so that it can
//! consist of huge pages. The process that owns a heap keeps the account of its blocks in private
//! memory.

use super::{
    account::{Spare, Use},
    mapping::{HUGE_PAGE, PAGE},
    segment::Segment,
};
use rustix::{
    fs::{FallocateFlags, SeekFrom},
    mm::Advice,
};
use std::{
    io,
    ops::Range,
    ptr::NonNull,
    sync::{Arc, MutexGuard},
};

/// A block of a rank's heap, zero at first. The drop frees it.
pub(crate) struct Block {
    segment: Arc<Segment>,
    bytes: Range<usize>,
}

impl Block {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.segment.at(self.segment.layout.heaps().start + self.bytes.start)
    }
}

// SAFETY: no other value gives access to the block's memory.
unsafe impl Send for Block {}
// SAFETY: as above; nothing is written through a shared block.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.segment.forked() {
            self.segment.free(&self.bytes);
        }
    }
}

impl Segment {
    /// Allocates a block of at least `bytes` bytes in the heap of `rank`, which is a rank of this
    /// process.
    ///
    /// # Errors
    /// The system's, when it has no memory; `OutOfMemory` also if the heap has no addresses left.
    pub(crate) fn allocate(self: &Arc<Segment>, rank: usize, bytes: usize) -> io::Result<Block> {
        let (heap, asked) = (self.layout.heap(rank), bytes);
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let alignment = if bytes < HUGE_PAGE { PAGE } else { HUGE_PAGE };
        let mut account = self.account();
        // First fit: finds the first gap that is large enough.
        let mut start = heap.start;
        let mut place = account.partition_point(|other| other.bytes.start < heap.start);
        while let Some(next) = account.get(place).filter(|next| next.bytes.start < heap.end)
            && next.bytes.start.saturating_sub(start) < bytes
        {
            (start, place) = (next.bytes.end.next_multiple_of(alignment), place + 1);
        }
        if heap.end.saturating_sub(start) < bytes {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let heaps = self.layout.heaps().start;
        if let Err(error) = self.reserve(heaps + start..heaps + start + bytes) {
            // Frees the pages that were reserved before the error. If that fails, they serve the
            // next block.
            let _ = self.give_back(&(start..start + bytes));
            return Err(error);
        }
        let spare = match Spare::new(bytes) {
            Ok(spare) => spare,
            Err(error) => {
                let _ = self.give_back(&(start..start + bytes));
                return Err(error);
            }
        };
        account.insert(place, Use { bytes: start..start + bytes, asked, detached: false, spare });
        drop(account);
        // Saves page-table walks, and page faults in every process that touches the block.
        self.map.collapse(heaps + start..heaps + start + bytes);
        self.map.populate(heaps + start..heaps + start + bytes);
        Ok(Block { segment: self.clone(), bytes: start..start + bytes })
    }

    fn free(&self, bytes: &Range<usize>) {
        let mut account = self.account();
        if account.iter().any(|used| used.bytes == *bytes && used.detached) {
            let start = self.at(self.layout.heaps().start + bytes.start).as_ptr();
            // SAFETY: whole pages of the mapping, which only the block used.
            let _ = unsafe { rustix::mm::madvise(start.cast(), bytes.len(), Advice::LinuxDontNeed) };
        }
        account.retain(|used| used.bytes != *bytes || used.detached);
        if let Some(used) = account.iter_mut().find(|used| used.bytes == *bytes) {
            used.spare = Spare::default();
        }
        // Frees the pages. If that fails, the next block here would not be zero: the addresses are
        // never used again.
        if self.give_back(bytes).is_err() {
            account.retain(|used| used.bytes != *bytes);
            account.push(Use { bytes: bytes.clone(), asked: 0, detached: true, spare: Spare::default() });
            account.sort_by_key(|used| used.bytes.start);
        }
    }

    /// Frees the file's pages of these bytes of the heaps.
    fn give_back(&self, bytes: &Range<usize>) -> io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let start = self.layout.heaps().start + bytes.start;
        Ok(rustix::fs::fallocate(self.own_file()?, hole, start as u64, bytes.len() as u64)?)
    }

    /// Returns the offset in the heaps of `bytes` bytes at this address. `None` unless they lie in
    /// one live block of this process that peers can still see (not [detached](Segment::detach)
    /// after an abort). With `whole`, also `None` if other data of the block lie on the same pages:
    /// a detach would take them away from the peers, too.
    pub(crate) fn find(&self, address: *const u8, bytes: usize, whole: bool) -> Option<usize> {
        let heaps = self.layout.heaps();
        let start = address.addr().checked_sub(self.at(heaps.start).as_ptr().addr())?;
        if start >= heaps.len() {
            return None;
        }
        let end = start.checked_add(bytes)?;
        let account = self.account();
        let place = account.partition_point(|used| used.bytes.end <= start);
        let used = account.get(place)?;
        let is_last = end == used.bytes.start + used.asked;
        let is_whole = start.is_multiple_of(PAGE) && (is_last || end.is_multiple_of(PAGE));
        (used.bytes.start <= start && end <= used.bytes.end && !used.detached && (is_whole || !whole)).then_some(start)
    }

    /// Returns the address of `bytes` bytes at this offset in the heaps; `None` if the heaps have
    /// no such range, or if `bytes` is 0.
    pub(crate) fn in_heaps(&self, start: usize, bytes: usize) -> Option<NonNull<u8>> {
        let heaps = self.layout.heaps();
        let end = start.checked_add(bytes).filter(|&end| end <= heaps.len());
        end.filter(|_| bytes > 0).map(|_| self.at(heaps.start + start))
    }

    /// Returns how many contiguous bytes have pages, from this offset in the heaps on. A peer that
    /// refers to its data there has allocated them. Touching bytes without pages would allocate
    /// pages.
    pub(crate) fn present(&self, start: usize) -> usize {
        let heaps = self.layout.heaps();
        if start >= heaps.len() {
            return 0;
        }
        let at = (heaps.start + start) as u64;
        let hole = self.own_file().and_then(|file| rustix::fs::seek(file, SeekFrom::Hole(at)));
        hole.map_or(0, |hole| (hole - at) as usize)
    }

    /// Replaces, in this process, the pages of these bytes of the heaps by private memory with the
    /// same contents. Later writes of peers there are not seen here. The bytes lie in one block of
    /// this process.
    ///
    /// # Errors
    /// The system's, when the process has as many mappings as it may have.
    pub(crate) fn detach(&self, bytes: Range<usize>) -> io::Result<()> {
        let heaps = self.layout.heaps();
        let pages = bytes.start / PAGE * PAGE..bytes.end.next_multiple_of(PAGE);
        assert!(!bytes.is_empty() && pages.end <= heaps.len(), "{bytes:?} of {} bytes", heaps.len());
        let mut account = self.account();
        let within = |used: &&mut Use| used.bytes.start <= pages.start && pages.end <= used.bytes.end;
        let used = account.iter_mut().find(within).ok_or(io::ErrorKind::NotFound)?;
        used.detached = true;
        let block = self.at(heaps.start + used.bytes.start).as_ptr();
        let start = used.bytes.start;
        // SAFETY: the block is mapped there, and its spare is as long. The rank that lends these
        // pages to its peers touches them only after the call.
        unsafe { used.spare.replace(block, pages.start - start..pages.end - start) }
    }

    fn account(&self) -> MutexGuard<'_, Vec<Use>> {
        self.account.0.lock().expect("nobody panics holding the account")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        shm::{
            file::memory_file,
            group_id::GroupId,
            layout::{Layout, Shape},
        },
        tuning::Tuning,
    };
    use rustix::fs::SealFlags;
    use std::os::fd::AsFd;

    fn segment() -> Arc<Segment> {
        let shape = Shape::new(2, Shape::STAGING_BYTES).unwrap();
        Arc::new(Segment::create(shape, GroupId::from_bytes([1; 16])).unwrap())
    }

    fn bytes(block: &mut Block) -> &mut [u8] {
        // SAFETY: the block's own pages, to which no other value of this process gives access.
        unsafe { std::slice::from_raw_parts_mut(block.start().as_ptr(), block.bytes.len()) }
    }

    #[test]
    fn blocks_are_disjoint_zero_and_used_again() {
        let segment = segment();
        let mut blocks: Vec<Block> = [1, PAGE, PAGE + 1, 10 * PAGE]
            .into_iter()
            .flat_map(|size| [0, 1].map(|rank| segment.allocate(rank, size).unwrap()))
            .collect();
        for (index, block) in blocks.iter_mut().enumerate() {
            assert!(bytes(block).iter().all(|&byte| byte == 0));
            bytes(block).fill(index as u8 + 1);
        }
        assert!(
            blocks
                .iter_mut()
                .enumerate()
                .all(|(index, block)| bytes(block).iter().all(|&byte| byte == index as u8 + 1))
        );
        let second = blocks.remove(2);
        let (place, size) = (second.bytes.clone(), second.bytes.len());
        drop(second);
        let mut again = segment.allocate(0, size).unwrap();
        assert_eq!(again.bytes, place);
        assert!(bytes(&mut again).iter().all(|&byte| byte == 0), "what was given back is zero again");
    }

    #[test]
    fn a_refused_block_leaves_no_memory() {
        let shape = Shape::new(2, Shape::STAGING_BYTES).unwrap();
        let layout = Layout::new(shape);
        // The file ends within the first heap: no byte beyond its end can be reserved.
        let file = memory_file("heap").unwrap();
        rustix::fs::ftruncate(&file, (layout.heaps().start + 5 * HUGE_PAGE) as u64).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
        let segment =
            Arc::new(Segment::map(file, GroupId::from_bytes([1; 16]), shape, layout, Tuning::DEFAULT).unwrap());
        let error = segment.allocate(0, 8 * HUGE_PAGE).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(rustix::fs::fstat(segment.file()).unwrap().st_blocks, 0);
        assert!(segment.allocate(0, 4 * HUGE_PAGE).is_ok(), "its addresses are free");
    }

    #[test]
    fn large_blocks_begin_at_huge_pages_between_small_ones() {
        let segment = segment();
        let other = Segment::open(segment.file().try_clone_to_owned().unwrap(), segment.id(), segment.shape()).unwrap();
        let sizes = [PAGE, HUGE_PAGE, 3 * PAGE, 2 * HUGE_PAGE + 5, HUGE_PAGE - PAGE, HUGE_PAGE - PAGE + 1];
        let mut blocks = sizes.map(|size| segment.allocate(1, size).unwrap());
        for (block, size) in blocks.iter_mut().zip(sizes) {
            assert!(block.bytes.len() >= size && block.bytes.len() < size + PAGE);
            let is_huge = block.start().addr().get().is_multiple_of(HUGE_PAGE);
            assert!(is_huge || size <= HUGE_PAGE - PAGE, "{size} bytes at {:?}", block.bytes);
            assert!(bytes(block).iter().all(|&byte| byte == 0));
        }
        for (index, block) in blocks.iter_mut().enumerate() {
            bytes(block).fill(index as u8 + 1);
        }
        for (index, block) in blocks.iter().enumerate() {
            let seen = other.in_heaps(block.bytes.start, block.bytes.len()).unwrap();
            // SAFETY: the other mapping of pages that are reserved, and that nobody writes now.
            let seen = unsafe { std::slice::from_raw_parts(seen.as_ptr(), block.bytes.len()) };
            assert!(seen.iter().all(|&byte| byte == index as u8 + 1), "the block of {} bytes", sizes[index]);
        }
        let [_, first, ..] = blocks;
        let place = first.bytes.clone();
        drop(first);
        let small = segment.allocate(1, PAGE).unwrap();
        let again = segment.allocate(1, HUGE_PAGE).unwrap();
        assert_eq!(again.bytes, place, "the small one has a gap of its own size before it");
        assert!(small.bytes.end <= place.start);
    }

    #[test]
    fn a_place_is_found_within_one_block_only() {
        let segment = segment();
        let blocks = [0, 0, 1].map(|rank| segment.allocate(rank, PAGE).unwrap());
        let first = blocks[0].start().as_ptr();
        assert_eq!(segment.find(first.wrapping_add(8), 16, false), Some(8));
        assert_eq!(segment.find(first, PAGE, true), Some(0));
        assert_eq!(segment.find(first, PAGE - 8, true), None, "something else may lie on the page");
        assert_eq!(segment.find(first.wrapping_add(8), PAGE - 8, true), None);
        assert_eq!(segment.find(first.wrapping_add(8), PAGE, false), None, "it reaches into the next");
        assert_eq!(segment.find(first.wrapping_add(2 * PAGE), 1, false), None, "nobody has it");
        assert_eq!(segment.find([0u8; 4].as_ptr(), 4, false), None);
        let small = segment.allocate(1, 100).unwrap();
        assert!(segment.find(small.start().as_ptr(), 100, true).is_some(), "all that the block was asked for");
        let second = segment.find(blocks[2].start().as_ptr(), 1, false).unwrap();
        assert_eq!(segment.in_heaps(second, PAGE), Some(blocks[2].start()));
        let end = segment.layout.heaps().len();
        assert_eq!(
            [(end, 1), (end - 1, 2), (usize::MAX, 1), (0, 0)].map(|(at, bytes)| segment.in_heaps(at, bytes)),
            [None; 4]
        );
        assert_eq!(segment.allocate(0, usize::MAX).err().unwrap().kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(segment.allocate(0, 1 << 50).err().unwrap().kind(), io::ErrorKind::OutOfMemory);
    }

    #[test]
    fn detached_memory_keeps_its_content_and_sees_no_writes_of_others() {
        let segment = segment();
        let file = segment.file().as_fd().try_clone_to_owned().unwrap();
        let other = Arc::new(Segment::open(file, segment.id(), segment.shape()).unwrap());
        let mut block = segment.allocate(0, 3 * PAGE).unwrap();
        bytes(&mut block).fill(5);
        let place = segment.find(block.start().as_ptr(), 3 * PAGE, true).unwrap();
        let seen = other.in_heaps(place, 3 * PAGE).unwrap();
        segment.detach(place + PAGE..place + PAGE + 8).unwrap();
        // SAFETY: the other mapping of pages that are reserved.
        unsafe { seen.as_ptr().write_bytes(9, 3 * PAGE) };
        let firsts = [0, PAGE, 2 * PAGE].map(|at| bytes(&mut block)[at]);
        assert_eq!(firsts, [9, 5, 9], "only the page that was asked for is detached");
        assert_eq!(segment.find(block.start().as_ptr(), 1, false), None, "the others cannot be shown it any more");
        let own = block.start().as_ptr().wrapping_add(PAGE);
        drop(block);
        // SAFETY: the segment maps the page, and no block uses it any more.
        assert_eq!(unsafe { own.read() }, 0, "the copy is given back with the block");
        assert_ne!(segment.allocate(0, 3 * PAGE).unwrap().bytes.start, place, "its addresses are not used again");
    }
}
