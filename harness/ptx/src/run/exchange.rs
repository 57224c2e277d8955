//! Exchanges between the lanes of a warp: `shfl`, `vote`, `bar.warp`.

use super::{
    failure::Failure,
    warp::{Group, Warp, lanes},
};
use crate::{
    fault::FaultKind,
    program::{Action, LANES, Plane, Register, Shuffle, ShuffleMode, Vote, VoteMode},
};

impl Warp {
    /// Returns whether all lanes that the active lanes name are here. Lanes that ended need not
    /// be.
    pub(crate) fn is_complete(&self, group: &Group, active: u32, members: Register) -> Result<bool, Failure> {
        let members = &self.planes[members as usize];
        let mut named = 0;
        for lane in lanes(active) {
            if members[lane] >> lane & 1 == 0 {
                let what = format!("the lane {lane} is not in its own mask {:#010x}", members[lane]);
                return Err(Failure::new(FaultKind::Undefined, group.step, lane as u32, what));
            }
            named |= members[lane] as u32;
        }
        let missing = named & self.lanes & !self.exited & !active;
        let skipped = missing & group.lanes;
        if skipped != 0 {
            let what = format!("the predicate lets the lanes {skipped:#010x} skip it, which the mask names");
            return Err(Failure::new(FaultKind::WarpDivergence, group.step, active.trailing_zeros(), what));
        }
        Ok(missing == 0)
    }

    /// Executes an instruction for which [`is_complete`](Self::is_complete) holds.
    pub(crate) fn exchange(&mut self, action: &Action, step: usize, active: u32) -> Result<(), Failure> {
        match action {
            Action::Shuffle(shuffle) => self.shuffle(shuffle, step, active),
            Action::Vote(vote) => {
                self.vote(vote, active);
                Ok(())
            }
            _ => {
                // A barrier of some lanes alone orders only these; to tell accesses apart by it
                // would hide races of the others.
                if active == self.lanes & !self.exited {
                    self.warp_barriers += 1;
                }
                Ok(())
            }
        }
    }

    fn shuffle(&mut self, shuffle: &Shuffle, step: usize, active: u32) -> Result<(), Failure> {
        let plane = |at: Register| &self.planes[at as usize];
        let (value, by, clamp) = (plane(shuffle.value), plane(shuffle.lane), plane(shuffle.clamp));
        let members = plane(shuffle.members);
        let (mut result, mut in_range): (Plane, u32) = ([0; LANES], 0);
        for lane in lanes(active) {
            let (by, bound, segment) = (by[lane] as i64 & 31, clamp[lane] as i64 & 31, clamp[lane] as i64 >> 8 & 31);
            let own = lane as i64;
            let (lowest, highest) = (own & segment, own & segment | bound & !segment);
            let (source, is_inside) = match shuffle.mode {
                ShuffleMode::Up => (own - by, own - by >= highest),
                ShuffleMode::Down => (own + by, own + by <= highest),
                ShuffleMode::Butterfly => (own ^ by, own ^ by <= highest),
                ShuffleMode::Index => {
                    let source = lowest | by & !segment;
                    (source, source <= highest)
                }
            };
            let source = if is_inside { source } else { own };
            if active & members[lane] as u32 & 1 << source == 0 {
                let what = format!("the lane {lane} reads the lane {source}, which does not take part");
                return Err(Failure::new(FaultKind::Undefined, step, lane as u32, what));
            }
            result[lane] = value[source as usize];
            in_range |= u32::from(is_inside) << lane;
        }
        self.set_plane(shuffle.to, &result, active);
        if let Some(predicate) = shuffle.in_range {
            self.set_mask(predicate, in_range, active);
        }
        Ok(())
    }

    fn vote(&mut self, vote: &Vote, active: u32) {
        let members = self.planes[vote.members as usize];
        let source = self.holds(vote.source) & active;
        let (mut ballots, mut result): (Plane, u32) = ([0; LANES], 0);
        for lane in lanes(active) {
            let members = members[lane] as u32 & active;
            let ballot = source & members;
            ballots[lane] = ballot.into();
            let holds = match vote.mode {
                VoteMode::All => ballot == members,
                VoteMode::Any => ballot != 0,
                VoteMode::Uniform => ballot == members || ballot == 0,
                VoteMode::Ballot => false,
            };
            result |= u32::from(holds) << lane;
        }
        match vote.mode {
            VoteMode::Ballot => self.set_plane(vote.to, &ballots, active),
            _ => self.set_mask(vote.to, result, active),
        }
    }
}
