//! Stands for segments on systems without the shared memory that they need: there is no segment.

use super::{
    call_log::CallLog,
    local::Locals,
    records::{Head, RankRecord},
    ring::{Cell, RingEnds},
};
use crate::tuning::Tuning;
use std::{io, ops::Range, ptr::NonNull, sync::Arc};

/// The memory that the processes of one group share. It does not exist on this system.
pub enum Segment {}

/// The size of a segment.
pub enum Shape {}

/// Memory that every process can read and write in place.
pub(crate) enum Block {}

impl Block {
    pub(crate) fn start(&self) -> NonNull<u8> {
        match *self {}
    }
}

/// The part of a segment that one group shares.
#[derive(Clone, Copy)]
pub(crate) enum Area {
    Split(usize),
}

impl Shape {
    pub(crate) fn ranks(&self) -> usize {
        match *self {}
    }
}

impl Segment {
    /// Limit on the groups that are split off and live at a time.
    pub const SPLITS: usize = 0;

    pub(crate) fn shape(&self) -> Shape {
        match *self {}
    }

    pub(crate) fn tuning(&self) -> &'static Tuning {
        match *self {}
    }

    pub(crate) fn forked(&self) -> bool {
        match *self {}
    }

    pub(crate) fn mark(&self) -> usize {
        match *self {}
    }

    pub(crate) fn name(&self) -> [u8; 16] {
        match *self {}
    }

    pub(crate) fn root(&self) -> Area {
        match *self {}
    }

    pub(crate) fn pair(&self, _: Area, _: usize, _: usize) -> Area {
        match *self {}
    }

    pub(crate) fn area(&self, _: Area) -> (NonNull<Head>, NonNull<RankRecord>) {
        match *self {}
    }

    pub(crate) fn locals(&self, _: Area) -> Arc<Locals> {
        match *self {}
    }

    pub(crate) fn reserve_area(&self, _: Area) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn area_bytes(&self, _: Area) -> usize {
        match *self {}
    }

    pub(crate) fn staging(&self, _: Area, _: usize) -> NonNull<u8> {
        match *self {}
    }

    pub(crate) fn staging_bytes(&self, _: Area) -> usize {
        match *self {}
    }

    pub(crate) fn staging_apart(&self, _: Area) -> usize {
        match *self {}
    }

    pub(crate) fn reserve_staging(&self, _: Area, _: usize, _: Range<usize>) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn ring(&self, _: Area, _: usize, _: usize) -> (NonNull<RingEnds>, NonNull<[Cell]>) {
        match *self {}
    }

    pub(crate) fn reserve_ring_ends(&self, _: Area, _: usize) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn reserve_ring(&self, _: Area, _: usize, _: usize) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn call_log(&self, _: usize) -> &CallLog {
        match *self {}
    }

    pub(crate) fn allocate(self: &Arc<Segment>, _: usize, _: usize) -> io::Result<Block> {
        match **self {}
    }

    pub(crate) fn find(&self, _: *const u8, _: usize, _: bool) -> Option<usize> {
        match *self {}
    }

    pub(crate) fn in_heaps(&self, _: usize, _: usize) -> Option<NonNull<u8>> {
        match *self {}
    }

    pub(crate) fn present(&self, _: usize) -> usize {
        match *self {}
    }

    pub(crate) fn detach(&self, _: Range<usize>) -> io::Result<()> {
        match *self {}
    }
}
