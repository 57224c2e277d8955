//! Groups that are split from a group: pairs, and groups of any members.

use super::{end::abort::Fault, endpoint::Endpoint, state::Key};
use crate::shm::{Area, Segment, records::Generation};
use consonance_spec::{DType, Signature, World};

impl Endpoint {
    /// Returns this rank's endpoint in the group of it and `peer`. Both must call this, once in a
    /// generation. No rank waits. The new group ends when this one does.
    ///
    /// # Panics
    /// If `peer` is this rank, or this rank has its endpoint in that group already.
    pub fn pair(&self, peer: usize) -> Result<Endpoint, Fault> {
        let rank = self.world.rank();
        assert_ne!(peer, rank, "a pair of two");
        if self.state.forked() {
            return Err(Fault::Forked);
        }
        let members = [rank.min(peer), rank.max(peer)];
        let key = Key::Pair(self.generation.0, members[0], members[1]);
        match self.state.segment() {
            None => Ok(self.subgroup(key, &members)),
            Some((segment, area)) => {
                let area = segment.pair(area, members[0], members[1]);
                segment.reserve_area(area).map_err(|error| self.no_memory(segment.area_bytes(area), &error))?;
                Ok(self.seat_in(area, self.generation, &members).expect("a rank has one endpoint"))
            }
        }
    }

    /// Returns this rank's endpoint in the group of `members`, which are ranks of this group;
    /// `None` if this rank is not among them. Every rank of this group calls this at the same time,
    /// each with the members of its own new group. The new group ends when this one does.
    ///
    /// # Errors
    /// See [`Fault`].
    ///
    /// # Panics
    /// If the members are not different ranks of this group.
    pub fn split(&mut self, signature: &Signature, members: &[usize]) -> Result<Option<Endpoint>, Fault> {
        let are_ranks = |members: &[usize]| {
            let is_new = |(at, member): (usize, &usize)| !members[..at].contains(member);
            members.iter().all(|&member| member < self.world.size()) && members.iter().enumerate().all(is_new)
        };
        assert!(are_ranks(members), "{members:?} are different ranks of {}", self.world.size());
        let member = members.contains(&self.world.rank());
        if self.state.segment().is_none() {
            return Ok(member.then(|| self.subgroup(Key::Split(self.sequence, members[0]), members)));
        }
        self.check()?;
        // The first member claims an area for the group, and sends its number to the others.
        let first = member && members[0] == self.world.rank();
        let claim = if first { self.state.claim(members.len()) } else { None };
        let told = claim.map_or([u64::MAX; 2], |claim| [claim.place as u64, claim.generation.0]);
        let signature = Signature { dtype: Some(DType::U64), ..*signature };
        let mut words = [0u64; 2];
        let heard = self.exchange(&signature, Some(told.as_slice().into()));
        let heard = heard.and_then(|payloads| match member {
            true => payloads.copy(members[0], 0, &mut words.as_mut_slice().into()),
            false => Ok(()),
        });
        if let Err(fault) = heard {
            // After any other fault a member may have received the area's number, and use it.
            if let (Some(claim), Fault::Mismatch | Fault::Left(_)) = (claim, &fault) {
                self.state.unclaim(claim);
            }
            return Err(fault);
        }
        if !member {
            return Ok(None);
        }
        let place =
            usize::try_from(words[0]).ok().filter(|&place| place < Segment::SPLITS).ok_or(Fault::TooManyGroups)?;
        let (segment, _) = self.state.segment().expect("checked above");
        let area = Area::Split(place);
        segment.reserve_area(area).map_err(|error| self.no_memory(segment.area_bytes(area), &error))?;
        let generation = Generation(words[1]).below_end().ok_or_else(|| self.nonsense(members[0]))?;
        // The area has no endpoint of this rank in this process, unless the first member sent a
        // wrong number.
        let endpoint = self.seat_in(area, generation, members).ok_or_else(|| self.nonsense(members[0]))?;
        Ok(Some(endpoint))
    }

    fn world_in(&self, members: &[usize]) -> World {
        let rank = members.iter().position(|&member| member == self.world.rank()).expect("a member of the new group");
        World::new(rank, members.len()).expect("a position is below the length")
    }

    /// Returns the endpoint in the group of threads with this `key`.
    fn subgroup(&self, key: Key, members: &[usize]) -> Endpoint {
        let world = self.world_in(members);
        let state = self.state.child(self.generation, key, members, world.rank());
        let mut endpoint = Endpoint::new(state, world, Generation::default(), self.timeout());
        endpoint.keep_waiting.clone_from(&self.keep_waiting);
        endpoint
    }

    /// Returns the endpoint in the group of processes in `area`.
    fn seat_in(&self, area: Area, generation: Generation, members: &[usize]) -> Option<Endpoint> {
        let world = self.world_in(members);
        let state = self.state.child_in(self.generation, area, members);
        let mut endpoint = Endpoint::only(state, world, generation, self.timeout())?;
        endpoint.keep_waiting.clone_from(&self.keep_waiting);
        endpoint.state.take(generation, world.rank());
        Some(endpoint)
    }
}
