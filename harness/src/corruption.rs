//! Shared memory in which a peer has written false values. Reports on this memory must still
//! succeed, and the calls of the other ranks must end in time.

use crate::{
    cases::{Script, Source},
    compare::{Verdict, corrupted_calls},
    false_values::{FalseValue, Memory},
    subjects::{self, Rank},
};
use consonance_kernels::shm::{Inspection, Segment, SegmentError};
use std::{
    process,
    sync::{LazyLock, Mutex},
};

/// Judges reports of a group whose memory is changed as `bytes` say. Each report must succeed, or
/// say that the memory is not a segment.
///
/// # Errors
/// An impossible report.
pub fn trace(bytes: &[u8]) -> Verdict {
    type Group = (Memory, Vec<Rank>);
    static GROUP: LazyLock<Mutex<Group>> = LazyLock::new(|| {
        let make = || Memory::of(|| subjects::in_processes(3, true, subjects::SMALL));
        let (mut memory, communicators) = make().expect("a group of processes");
        let mut ranks: Vec<Rank> = communicators.into_iter().map(Rank::new).collect();
        corrupted_calls::warm(&mut ranks);
        memory.look().expect("a segment that can be read");
        Mutex::new((memory, ranks))
    });
    let (memory, _ranks) = &*GROUP.lock().map_err(|_| "another case panicked")?;
    let mut source = Source::new(bytes);
    let undo: Vec<(u64, [u8; 8])> =
        FalseValue::some(&mut source).into_iter().map(|value| memory.change(value)).collect();
    let inspected = Segment::inspect(process::id());
    undo.into_iter().rev().for_each(|(place, old)| memory.write(place, old));
    let right = |inspection: &Inspection| {
        let lines = inspection.text(usize::MAX, &[]).lines().count();
        let calls: usize = inspection.ranks.iter().map(|rank| rank.calls.len()).sum();
        lines == 1 + inspection.ranks.len() + calls
    };
    match inspected {
        Ok(inspections) if inspections.iter().all(right) => Ok(()),
        Ok(inspections) => Err(format!("{inspections:?}")),
        Err(SegmentError::Foreign { .. } | SegmentError::Shape { .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Judges calls of a group whose memory a peer changes before and during the calls, as `bytes` say.
/// Each call must end in time, with a result or an error. The result may be anything, because a
/// peer can change it.
///
/// # Errors
/// If a call does not end.
pub fn corrupted_memory(bytes: &[u8]) -> Verdict {
    let mut source = Source::new(bytes);
    let size = source.pick(&[2, 3, 4]);
    let before = FalseValue::some(&mut source);
    let meanwhile = FalseValue::some(&mut source);
    let script = Script { implementation: consonance::Implementation::Auto, ..Script::read_for(&mut source, size) };
    let case = format!("{before:?}, then {meanwhile:?}, in {script:?}");
    let (mut memory, communicators) = Memory::of(|| subjects::in_processes(size, true, subjects::SMALL))?;
    let mut ranks: Vec<Rank> = communicators.into_iter().map(Rank::new).collect();
    corrupted_calls::warm(&mut ranks);
    memory.look()?;
    corrupted_calls::calls(ranks, &script, memory, before, meanwhile).map_err(|wrong| format!("{wrong}\nin {case}"))
}
