//! The ends of a call when a rank does not make the call of the others, and the fate of their
//! group.
//!
//! Ranks that all make a call compare their calls before any data moves, or a rank compares its own
//! with that of the rank whose data it reads: after a mismatch the group goes on. If a rank makes
//! no call, the group ends. Its first end stays: every rank that waits, and every later call, is
//! told of it. The group can begin its next [generation](crate::generations).

use crate::{
    blame::blame,
    call::{Flow, Kind, Work},
};

/// Whether a rank may be told at its next call what [`told`] says of this one, where the call moves
/// little data: a rank need not wait for those that read its data, nor for others that read the
/// same data. A rank that gets a result gets that of the rank whose data it reads.
///
/// ```
/// use consonance_spec::{Kind, ending::is_told_late};
/// assert!(is_told_late(Kind::Broadcast, true) && is_told_late(Kind::Broadcast, false));
/// assert!(is_told_late(Kind::Gather, false) && !is_told_late(Kind::Gather, true));
/// assert!(!is_told_late(Kind::AllReduce, false));
/// ```
pub fn is_told_late(kind: Kind, is_root: bool) -> bool {
    match kind.flow() {
        Flow::FromRoot | Flow::Pair => true,
        Flow::ToRoot => kind.work() == Work::Moves && !is_root,
        Flow::Control | Flow::Everyone => false,
    }
}

/// The act of a rank where its group makes a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act<C> {
    /// It makes a call; `None` for one that is invalid on its own.
    Calls(Option<C>),
    /// It leaves the group.
    Leaves,
    /// It makes no call before the deadline of the others.
    IsLate,
    /// It aborts the group: its program failed or panicked.
    Aborts,
}

/// The end of a call for a rank that makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The call's result.
    Result,
    /// Its own call is invalid.
    Invalid,
    /// This rank's call differs.
    Mismatch(usize),
    /// This rank left.
    Left(usize),
    /// These ranks are late. The rank whose deadline passes first is told so by a timeout. Another
    /// one may be told of its abort, which names one of them.
    Late(Vec<usize>),
    /// This rank aborted the group.
    Aborted(usize),
}

/// Returns what each rank is told, `None` for one that makes no call, and whether the group goes
/// on. Of ranks that make no call only the late ones can be several: which of others comes first is
/// a matter of time.
///
/// ```
/// use consonance_spec::ending::{Act, Told, told};
/// let call = Act::Calls(Some("barrier"));
/// assert_eq!(told(&[call.clone(), Act::Calls(Some("broadcast"))]), (vec![Some(Told::Mismatch(1)); 2], true));
/// assert_eq!(told(&[Act::Leaves, call.clone()]), (vec![None, Some(Told::Left(0))], false));
/// assert_eq!(told(&[call, Act::IsLate]), (vec![Some(Told::Late(vec![1])), None], false));
/// ```
///
/// # Panics
/// If several ranks leave or abort, or one does so while others are late.
pub fn told<C: Clone + PartialEq>(acts: &[Act<C>]) -> (Vec<Option<Told>>, bool) {
    let calls: Vec<Option<Option<C>>> = acts
        .iter()
        .map(|act| match act {
            Act::Calls(call) => Some(call.clone()),
            Act::Leaves | Act::IsLate | Act::Aborts => None,
        })
        .collect();
    let missing: Vec<usize> = (0..acts.len()).filter(|&rank| calls[rank].is_none()).collect();
    let ending = missing.first().map(|&rank| match &acts[rank] {
        Act::Leaves => Told::Left(rank),
        Act::Aborts => Told::Aborted(rank),
        Act::IsLate | Act::Calls(_) => Told::Late(missing.clone()),
    });
    assert!(missing.len() < 2 || missing.iter().all(|&rank| acts[rank] == Act::IsLate), "one end at a time");
    let named = if ending.is_none() { blame(&calls.iter().flatten().cloned().collect::<Vec<_>>()) } else { None };
    let of_rank = |call: &Option<C>| match (&ending, call, named) {
        (Some(ending), _, _) => ending.clone(),
        (None, None, _) => Told::Invalid,
        (None, Some(_), Some((named, _))) => Told::Mismatch(named),
        (None, Some(_), None) => Told::Result,
    };
    (calls.iter().map(|call| call.as_ref().map(of_rank)).collect(), ending.is_none())
}
