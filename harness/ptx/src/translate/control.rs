//! Branches, calls, barriers, and what the lanes of a warp tell each other.

use super::{Translated, kernel::Translator, modifiers::Modifiers, symbols::Entity};
use crate::{
    parse::{Instruction, Operand, ParseError, Scalar, Space},
    program::{Action, Barrier, BarrierReduction, ReductionKind, Shuffle, ShuffleMode, Vote, VoteMode, unary},
};
use std::collections::HashMap;

const B32: Scalar = Scalar::Bits(32);

impl<'a> Translator<'a> {
    /// Translates `bra`.
    pub(crate) fn branch(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        m.takes("uni");
        m.end()?;
        self.count(i, 1)?;
        let target = match &i.operands[0] {
            Operand::Name(name) => self.label(name)?,
            _ => return Err(self.error("a label was expected")),
        };
        self.emit(Action::Branch { target })
    }

    /// Translates `brx.idx`.
    pub(crate) fn branch_indexed(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        m.takes("uni");
        if !m.takes("idx") {
            return Err(self.unknown("this branch"));
        }
        m.end()?;
        self.count(i, 2)?;
        let index = self.source(&i.operands[0], B32)?;
        let Operand::Name(list) = &i.operands[1] else { return Err(self.error("a list of labels was expected")) };
        let Some(Entity::Targets(names)) = self.find(list)? else {
            return Err(self.error(format!("`{list}` is no list of labels")));
        };
        let targets = names.iter().map(|name| self.label(name)).collect::<Result<_, _>>()?;
        self.emit(Action::BranchIndexed { index, targets })
    }

    fn label(&mut self, name: &str) -> Result<usize, ParseError> {
        match self.find(name)? {
            Some(Entity::Label(label)) => Ok(label),
            _ => Err(self.error(format!("`{name}` is no label"))),
        }
    }

    /// Translates `ret` and `exit`.
    pub(crate) fn leave(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        m.takes("uni");
        m.end()?;
        self.count(i, 0)?;
        match self.calls.last() {
            Some((_, end)) if i.name == "ret" => {
                let target = *end;
                self.emit(Action::Branch { target })
            }
            _ => self.emit(Action::Exit),
        }
    }

    /// Translates `call`: the function's steps come in its place.
    pub(crate) fn call(&mut self, i: &'a Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        m.takes("uni");
        m.end()?;
        let (results, name, arguments) = match i.operands.as_slice() {
            [Operand::Name(name)] => (&[][..], name, &[][..]),
            [Operand::Name(name), Operand::List(arguments)] => (&[][..], name, arguments.as_slice()),
            [Operand::List(results), Operand::Name(name)] => (results.as_slice(), name, &[][..]),
            [Operand::List(results), Operand::Name(name), Operand::List(arguments)] => {
                (results.as_slice(), name, arguments.as_slice())
            }
            _ => return Err(self.unknown("this form of call")),
        };
        let Some(function) = self.symbols.function(name) else {
            return Err(self.error(format!("`{name}` is no function of this module")));
        };
        let Some(body) = &function.body else {
            return Err(self.error(format!("the function `{name}` has no body in this module")));
        };
        if self.calls.iter().any(|(caller, _)| caller == name) {
            return Err(self.error(format!("`{name}` calls itself")));
        }
        if (results.len(), arguments.len()) != (function.results.len(), function.parameters.len()) {
            return Err(self.error(format!("`{name}` has another number of arguments or results")));
        }
        let (guard, line) = (self.guard, self.line);
        // Lanes that do not call skip the function.
        let end = self.new_label();
        if guard.predicate != 0 || guard.is_negated {
            self.guard.is_negated = !guard.is_negated;
            self.emit(Action::Branch { target: end })?;
            self.guard = crate::program::ALWAYS;
        }
        let mut names = HashMap::new();
        let mut copies = Vec::new();
        let pairs = function.results.iter().zip(results).map(|pair| (pair, true));
        let pairs = pairs.chain(function.parameters.iter().zip(arguments).map(|pair| (pair, false)));
        for ((formal, actual), is_result) in pairs {
            if formal.space == Space::Register {
                let plane = self.new_plane(formal.scalar.bits().max(16));
                names.insert(formal.name.clone(), Entity::Register { plane });
                if is_result {
                    copies.push((self.destination(actual, formal.scalar.bits())?, plane));
                } else {
                    let a = self.source(actual, formal.scalar)?;
                    self.emit(Action::Unary { to: plane, a, compute: unary(|a| a) })?;
                }
                continue;
            }
            // A parameter in memory is the caller's variable under another name.
            let entity = match actual {
                Operand::Name(name) => self.find(name)?,
                _ => None,
            };
            let Some(entity @ Entity::Variable { space: Space::Parameter, .. }) = entity else {
                return Err(self.error("an argument in memory is a variable in `.param`"));
            };
            names.insert(formal.name.clone(), entity);
        }
        // The function does not see the caller's names.
        let mut scopes = vec![std::mem::take(&mut self.scopes[0]), names];
        std::mem::swap(&mut self.scopes, &mut scopes);
        self.calls.push((name.clone(), end));
        // `ret` of a function with results in registers must still copy them.
        let inner = self.new_label();
        if let Some(last) = self.calls.last_mut() {
            last.1 = inner;
        }
        let translated = self.block(body);
        self.calls.pop();
        std::mem::swap(&mut self.scopes, &mut scopes);
        self.scopes[0] = scopes.swap_remove(0);
        translated?;
        (self.guard, self.line) = (crate::program::ALWAYS, line);
        self.place(inner);
        for (to, a) in copies {
            self.emit(Action::Unary { to, a, compute: unary(|a| a) })?;
        }
        self.place(end);
        Ok(())
    }

    /// Translates `bar` and `barrier`, and `bar.warp.sync`.
    pub(crate) fn barrier(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        if m.takes("warp") {
            m.need("`.sync`", |name| (name == "sync").then_some(()))?;
            m.end()?;
            self.count(i, 1)?;
            let members = self.source(&i.operands[0], B32)?;
            return self.emit(Action::WarpBarrier { members });
        }
        m.takes("cta");
        // Without it, lanes of one warp may wait at different places, which no kernel here does.
        m.takes("aligned");
        if m.takes("sync") {
            m.end()?;
            if i.operands.is_empty() || i.operands.len() > 2 {
                return Err(self.error("a barrier has a number, and may have a count"));
            }
            let id = self.source(&i.operands[0], B32)?;
            let threads = match i.operands.get(1) {
                Some(operand) => Some(self.source(operand, B32)?),
                None => None,
            };
            return self.emit(Action::Barrier(Barrier { id, threads, reduction: None }));
        }
        if !m.takes("red") {
            return Err(self.unknown("this barrier"));
        }
        let kind = m.need("a reduction", |name| match name {
            "popc" => Some(ReductionKind::Count),
            "and" => Some(ReductionKind::And),
            "or" => Some(ReductionKind::Or),
            _ => None,
        })?;
        m.scalar()?;
        m.end()?;
        let (threads, source) = match i.operands.len() {
            3 => (None, &i.operands[2]),
            4 => (Some(self.source(&i.operands[2], B32)?), &i.operands[3]),
            _ => return Err(self.error("3 or 4 operands were expected")),
        };
        let to = match kind {
            ReductionKind::Count => self.destination(&i.operands[0], 32)?,
            _ => self.predicate_destination(&i.operands[0])?,
        };
        let (id, source) = (self.source(&i.operands[1], B32)?, self.condition(source)?);
        let reduction = Some(BarrierReduction { kind, source, to });
        self.emit(Action::Barrier(Barrier { id, threads, reduction }))
    }

    /// Translates `shfl.sync`.
    pub(crate) fn shuffle(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        m.need("`.sync`", |name| (name == "sync").then_some(()))?;
        let mode = m.need("a mode", |name| match name {
            "up" => Some(ShuffleMode::Up),
            "down" => Some(ShuffleMode::Down),
            "bfly" => Some(ShuffleMode::Butterfly),
            "idx" => Some(ShuffleMode::Index),
            _ => None,
        })?;
        let scalar = m.scalar()?;
        m.end()?;
        self.count(i, 5)?;
        let (to, in_range) = match &i.operands[0] {
            Operand::Pair(to, predicate) => (self.destination(to, 32)?, Some(self.predicate_destination(predicate)?)),
            to => (self.destination(to, 32)?, None),
        };
        let value = self.source(&i.operands[1], scalar)?;
        let lane = self.source(&i.operands[2], B32)?;
        let clamp = self.source(&i.operands[3], B32)?;
        let members = self.source(&i.operands[4], B32)?;
        self.emit(Action::Shuffle(Shuffle { mode, to, in_range, value, lane, clamp, members }))
    }

    /// Translates `vote.sync`.
    pub(crate) fn vote(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        m.need("`.sync`", |name| (name == "sync").then_some(()))?;
        let mode = m.need("a mode", |name| match name {
            "all" => Some(VoteMode::All),
            "any" => Some(VoteMode::Any),
            "uni" => Some(VoteMode::Uniform),
            "ballot" => Some(VoteMode::Ballot),
            _ => None,
        })?;
        m.scalar()?;
        m.end()?;
        self.count(i, 3)?;
        let to = match mode {
            VoteMode::Ballot => self.destination(&i.operands[0], 32)?,
            _ => self.predicate_destination(&i.operands[0])?,
        };
        let (source, members) = (self.condition(&i.operands[1])?, self.source(&i.operands[2], B32)?);
        self.emit(Action::Vote(Vote { mode, to, source, members }))
    }

    /// Translates `activemask`.
    pub(crate) fn active_lanes(&mut self, i: &Instruction) -> Translated {
        let mut m = Modifiers::new(i);
        m.scalar()?;
        m.end()?;
        self.count(i, 1)?;
        let to = self.destination(&i.operands[0], 32)?;
        self.emit(Action::ActiveLanes { to })
    }
}
