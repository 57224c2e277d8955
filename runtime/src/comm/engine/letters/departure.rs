//! The last letters of a rank that leaves its group.

use super::{
    Messages,
    letter::{Content, End, Generation, Last},
};

/// The rank leaves: it tells the peers that wait for it. If its group was aborted, or an error has
/// named a lost rank, it tells them of that first: they may not have heard of it, and would name
/// this rank.
impl Drop for Messages {
    fn drop(&mut self) {
        let group = &*self.group;
        let ends_of = |of: &Generation| (group.inbox.ends_of(*of).into_iter(), *of);
        let ends = group.line.iter().map(ends_of);
        let ends = ends.flat_map(|(ends, of)| ends.map(move |(number, end)| (Generation { number, ..of }, end)));
        let ends: Vec<(Generation, End)> = ends.collect();
        let last = Last { of: group.generation(), splits: self.splits };
        // A rank that leaves after a loss in a part of its group has no end of the group itself.
        let dead = group.inbox.named_deaths(&group.members, &group.line);
        for &member in &group.members {
            for &(of, end) in &ends {
                group.tell(member, Content::End { of, end });
            }
            if !dead.is_empty() && dead.iter().all(|&(rank, _)| rank != member) {
                group.tell(member, Content::Lost { last, ranks: dead.clone() });
            }
            group.tell(member, Content::Leave { last });
        }
    }
}
