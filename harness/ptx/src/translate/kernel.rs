//! Translates one kernel: names, operands and the steps that instructions become.

use super::{
    Translated,
    symbols::{Entity, Symbols},
};
use crate::{
    memory_map,
    number::F32,
    parse::{Function, Instruction, Operand, ParseError, Scalar, Space, Statement, Variable},
    program::{
        ALWAYS, Action, Binary, Condition, Constant, LaneOrder, Parameter, Predicate, Program, Register, Special, Step,
        Ternary, Unary,
    },
};
use std::collections::HashMap;

/// The translation of one kernel, with the functions that it calls in place of their calls.
pub(crate) struct Translator<'a> {
    pub(crate) symbols: &'a Symbols<'a>,
    pub(crate) program: Program,
    pub(crate) scopes: Vec<HashMap<String, Entity>>,
    /// The place of each label, once known.
    labels: Vec<Option<usize>>,
    constants: Vec<(Constant, u32, Register)>,
    shared_next: u32,
    /// The functions around the current place, and where their `ret` goes.
    pub(crate) calls: Vec<(String, usize)>,
    pub(crate) guard: Condition,
    pub(crate) line: u32,
}

impl<'a> Translator<'a> {
    /// Returns a kernel's program.
    pub(crate) fn kernel(symbols: &'a Symbols<'a>, function: &'a Function) -> Result<Program, ParseError> {
        let mut translator = Translator {
            symbols,
            program: Program { name: function.name.clone(), predicates: 1, ..Program::default() },
            scopes: vec![HashMap::new(), HashMap::new()],
            labels: Vec::new(),
            constants: Vec::new(),
            shared_next: 0,
            calls: Vec::new(),
            guard: ALWAYS,
            line: function.line,
        };
        translator.program.required_block = function.required_block;
        translator.program.largest_block = function.largest_block;
        translator.parameters(&function.parameters)?;
        let Some(body) = &function.body else { return Err(translator.error("the kernel has no body")) };
        translator.block(body)?;
        translator.guard = ALWAYS;
        translator.emit(Action::Exit)?;
        translator.finish()
    }

    fn parameters(&mut self, parameters: &[Variable]) -> Translated {
        let mut next = 0u32;
        for parameter in parameters {
            self.line = parameter.line;
            if parameter.space != Space::Parameter || parameter.is_dynamic {
                return Err(self.error("a kernel's parameter is in `.param`, with a size"));
            }
            let offset = next.next_multiple_of(parameter.align);
            next = offset.checked_add(parameter.bytes).ok_or_else(|| self.error("the parameters are too large"))?;
            let entity = Entity::Variable { space: Space::Parameter, address: offset.into() };
            self.declare(&parameter.name, entity)?;
            self.program.parameters.push(Parameter {
                name: parameter.name.clone(),
                offset: offset as usize,
                bytes: parameter.bytes as usize,
                align: parameter.align as usize,
            });
        }
        if u64::from(next) > memory_map::CALL_PARAMETERS {
            return Err(self.error("the parameters are too large"));
        }
        self.program.parameter_bytes = next;
        Ok(())
    }

    /// Translates statements in a scope of their own.
    pub(crate) fn block(&mut self, statements: &'a [Statement]) -> Translated {
        self.scopes.push(HashMap::new());
        for statement in statements {
            match statement {
                Statement::Label(name) => {
                    let label = self.new_label();
                    self.declare(name, Entity::Label(label))?;
                }
                Statement::Targets(name, targets) => self.declare(name, Entity::Targets(targets.clone()))?,
                _ => {}
            }
        }
        for statement in statements {
            self.statement(statement)?;
        }
        self.scopes.pop();
        Ok(())
    }

    fn statement(&mut self, statement: &'a Statement) -> Translated {
        match statement {
            Statement::Block(statements) => self.block(statements),
            Statement::Label(name) => {
                if let Some(Entity::Label(label)) = self.find(name)? {
                    self.place(label);
                }
                Ok(())
            }
            Statement::Registers { scalar, name, count, line } => {
                self.line = *line;
                match count {
                    None => self.declare_register(*scalar, name),
                    Some(count) => {
                        (0..*count).try_for_each(|at| self.declare_register(*scalar, &format!("{name}{at}")))
                    }
                }
            }
            Statement::Variable(variable) => {
                self.line = variable.line;
                let entity = self.variable(variable)?;
                self.declare(&variable.name, entity)
            }
            Statement::Targets(..) => Ok(()),
            Statement::Instruction(instruction) => {
                self.line = instruction.line;
                self.guard = ALWAYS;
                if let Some((register, is_negated)) = &instruction.guard {
                    let condition = self.condition(&Operand::Name(register.clone()))?;
                    self.guard = Condition { is_negated: *is_negated, ..condition };
                }
                self.instruction(instruction)
            }
        }
    }

    /// Declares a register with a plane or mask of its own.
    pub(crate) fn declare_register(&mut self, scalar: Scalar, name: &str) -> Translated {
        let entity = match scalar {
            Scalar::Predicate => Entity::Predicate(self.new_predicate()),
            // A register of 8 bits holds what one of 16 bits does.
            _ => Entity::Register { plane: self.new_plane(scalar.bits().max(16)) },
        };
        self.declare(name, entity)
    }

    /// Gives a variable its place.
    pub(crate) fn variable(&mut self, variable: &Variable) -> Result<Entity, ParseError> {
        if !variable.initial.is_empty() {
            return Err(self.error("a variable of a function has an initial value"));
        }
        let place = |next: u32, gap: u32| {
            let offset = next.checked_add(gap)?.checked_next_multiple_of(variable.align)?;
            Some((offset, offset.checked_add(variable.bytes)?))
        };
        let too_large = || ParseError::new(variable.line, "the variables are too large");
        match variable.space {
            Space::Shared if variable.is_dynamic => Ok(Entity::Dynamic),
            Space::Shared => {
                // Bytes between two variables belong to none, so that no overrun reaches the next.
                let gap = if self.shared_next == 0 { 0 } else { memory_map::GAP };
                let (offset, end) = place(self.shared_next, gap).ok_or_else(too_large)?;
                self.shared_next = end;
                self.program.shared.push((offset, variable.bytes));
                Ok(Entity::Variable { space: Space::Shared, address: offset.into() })
            }
            Space::Local | Space::Parameter => {
                let (offset, end) = place(self.program.local_bytes, 0).ok_or_else(too_large)?;
                self.program.local_bytes = end;
                let base = if variable.space == Space::Parameter { memory_map::CALL_PARAMETERS } else { 0 };
                Ok(Entity::Variable { space: variable.space, address: base + u64::from(offset) })
            }
            _ => Err(self.error("a variable of this space in a function is not known here")),
        }
    }

    pub(crate) fn declare(&mut self, name: &str, entity: Entity) -> Translated {
        let scope = self.scopes.last_mut().expect("a kernel has a scope");
        match scope.insert(name.to_owned(), entity) {
            None => Ok(()),
            Some(_) => Err(self.error(format!("`{name}` is declared twice"))),
        }
    }

    /// Returns what a name means. A variable of the module gets its place when it is first used.
    pub(crate) fn find(&mut self, name: &str) -> Result<Option<Entity>, ParseError> {
        if let Some(entity) = self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Ok(Some(entity.clone()));
        }
        let symbols = self.symbols;
        if let Some(entity) = symbols.entity(name) {
            return Ok(Some(entity));
        }
        let Some(variable) = symbols.shared(name) else { return Ok(None) };
        let entity = self.variable(variable)?;
        self.scopes[0].insert(name.to_owned(), entity.clone());
        Ok(Some(entity))
    }

    pub(crate) fn emit(&mut self, action: Action) -> Translated {
        self.program.code.push(Step { guard: self.guard, action });
        self.program.lines.push(self.line);
        Ok(())
    }

    pub(crate) fn unary(&mut self, i: &Instruction, to: Scalar, from: Scalar, compute: Unary) -> Translated {
        self.count(i, 2)?;
        let to = self.destination(&i.operands[0], to.bits())?;
        let a = self.source(&i.operands[1], from)?;
        self.emit(Action::Unary { to, a, compute })
    }

    /// Emits a step with two operands, whose types may differ.
    pub(crate) fn binary(&mut self, i: &Instruction, to: Scalar, a: Scalar, b: Scalar, compute: Binary) -> Translated {
        self.count(i, 3)?;
        let to = self.destination(&i.operands[0], to.bits())?;
        let (a, b) = (self.source(&i.operands[1], a)?, self.source(&i.operands[2], b)?);
        self.emit(Action::Binary { to, a, b, compute })
    }

    /// Emits a step with three operands, of which the last one has the result's type.
    pub(crate) fn ternary(&mut self, i: &Instruction, to: Scalar, from: Scalar, compute: Ternary) -> Translated {
        self.count(i, 4)?;
        let (a, b) = (self.source(&i.operands[1], from)?, self.source(&i.operands[2], from)?);
        let c = self.source(&i.operands[3], to)?;
        let to = self.destination(&i.operands[0], to.bits())?;
        self.emit(Action::Ternary { to, a, b, c, compute })
    }

    /// Returns an error unless the instruction has `count` operands.
    pub(crate) fn count(&self, i: &Instruction, count: usize) -> Translated {
        let found = i.operands.len();
        if found == count { Ok(()) } else { Err(self.error(format!("{count} operands were expected, {found} found"))) }
    }

    /// Returns the plane of an operand whose register has exactly the type's bits.
    pub(crate) fn source(&mut self, operand: &Operand, scalar: Scalar) -> Result<Register, ParseError> {
        let plane = self.wide_source(operand, scalar)?;
        let (found, bits) = (self.bits_of_register(plane), scalar.bits());
        if found != bits.max(16) {
            return Err(self.error(format!("an operand of {bits} bits was expected, {operand:?} has {found}")));
        }
        Ok(plane)
    }

    /// Returns the plane of an operand whose register has the type's bits, or more.
    pub(crate) fn wide_source(&mut self, operand: &Operand, scalar: Scalar) -> Result<Register, ParseError> {
        let bits = scalar.bits().max(16);
        let cut = |value: u64| value & (u64::MAX >> (64 - bits));
        let constant = match operand {
            Operand::Integer(value) if !matches!(scalar, Scalar::Float(_) | Scalar::Predicate) => {
                Constant::Value(cut(*value))
            }
            Operand::Single(_) | Operand::Double(_) => Constant::Value(self.float_bits_of(operand, scalar)?),
            Operand::Name(name) | Operand::Sum(name, _) => {
                let offset = if let Operand::Sum(_, offset) = operand { *offset } else { 0 };
                match self.find(name)? {
                    Some(Entity::Register { plane }) if matches!(operand, Operand::Name(_)) => {
                        let found = self.bits_of_register(plane);
                        if found < bits {
                            return Err(self.error(format!("`{name}` has {found} bits, too few for {bits}")));
                        }
                        return Ok(plane);
                    }
                    Some(Entity::Variable { address, .. }) => Constant::Value(cut(address.wrapping_add_signed(offset))),
                    Some(Entity::Dynamic) => Constant::DynamicShared(offset),
                    Some(Entity::Global(index)) => Constant::Global(index, offset),
                    _ => match special(name) {
                        Some((special, 32)) if bits == 32 => Constant::Special(special),
                        Some(_) => return Err(self.error(format!("`{name}` has other bits than {bits}"))),
                        None => return Err(self.error(format!("`{name}` is no value that is known here"))),
                    },
                }
            }
            _ => return Err(self.error(format!("{operand:?} is no operand of this type"))),
        };
        Ok(self.constant(constant, bits))
    }

    fn float_bits_of(&self, operand: &Operand, scalar: Scalar) -> Result<u64, ParseError> {
        let double = |bits: u64| f64::from_bits(bits);
        match (operand, scalar.bits()) {
            (Operand::Single(bits), 32) => Ok((*bits).into()),
            (Operand::Double(bits), 64) => Ok(*bits),
            (Operand::Single(bits), 64) => Ok(f64::from(f32::from_bits(*bits)).to_bits()),
            (Operand::Double(bits), 32) if scalar == Scalar::Float(F32) => {
                Ok(u64::from((double(*bits) as f32).to_bits()))
            }
            _ => Err(self.error("a float constant has 32 or 64 bits")),
        }
    }

    /// Returns the plane that holds a constant.
    pub(crate) fn constant(&mut self, constant: Constant, bits: u32) -> Register {
        let known = self.constants.iter().find(|(known, size, _)| *known == constant && *size == bits);
        if let Some((.., plane)) = known {
            return *plane;
        }
        let plane = self.new_plane(bits);
        self.constants.push((constant, bits, plane));
        self.program.constants.push((plane, constant));
        plane
    }

    /// Returns the plane of a result whose register has exactly these bits. `_` ignores it.
    pub(crate) fn destination(&mut self, operand: &Operand, bits: u32) -> Result<Register, ParseError> {
        let (plane, found) = self.wide_destination(operand, Scalar::Bits(bits))?;
        if found != bits.max(16) {
            return Err(self.error(format!("a register of {bits} bits was expected, {operand:?} has {found}")));
        }
        Ok(plane)
    }

    /// Returns the plane and bits of a result whose register has the type's bits, or more.
    pub(crate) fn wide_destination(
        &mut self,
        operand: &Operand,
        scalar: Scalar,
    ) -> Result<(Register, u32), ParseError> {
        let bits = scalar.bits().max(16);
        let Operand::Name(name) = operand else { return Err(self.error("the result needs a register")) };
        if name == "_" {
            return Ok((self.new_plane(bits), bits));
        }
        match self.find(name)? {
            Some(Entity::Register { plane }) => {
                let found = self.bits_of_register(plane);
                if found < bits {
                    return Err(self.error(format!("`{name}` has {found} bits, too few for {bits}")));
                }
                Ok((plane, found))
            }
            _ => Err(self.error(format!("`{name}` is no register for this result"))),
        }
    }

    pub(crate) fn predicate_destination(&mut self, operand: &Operand) -> Result<Predicate, ParseError> {
        let Operand::Name(name) = operand else { return Err(self.error("the result needs a predicate")) };
        if name == "_" {
            return Ok(self.new_predicate());
        }
        match self.find(name)? {
            Some(Entity::Predicate(predicate)) => Ok(predicate),
            _ => Err(self.error(format!("`{name}` is no predicate"))),
        }
    }

    pub(crate) fn condition(&mut self, operand: &Operand) -> Result<Condition, ParseError> {
        let (name, is_negated) = match operand {
            Operand::Name(name) => (name, false),
            Operand::Not(name) => (name, true),
            Operand::Integer(value) => return Ok(Condition { predicate: 0, is_negated: *value == 0 }),
            _ => return Err(self.error("a predicate was expected")),
        };
        match self.find(name)? {
            Some(Entity::Predicate(predicate)) => Ok(Condition { predicate, is_negated }),
            _ => Err(self.error(format!("`{name}` is no predicate"))),
        }
    }

    pub(crate) fn bits_of_register(&self, plane: Register) -> u32 {
        self.program.planes[plane as usize]
    }

    pub(crate) fn new_plane(&mut self, bits: u32) -> Register {
        self.program.planes.push(bits);
        self.program.planes.len() as Register - 1
    }

    fn new_predicate(&mut self) -> Predicate {
        self.program.predicates += 1;
        self.program.predicates - 1
    }

    pub(crate) fn new_label(&mut self) -> usize {
        self.labels.push(None);
        self.labels.len() - 1
    }

    /// Puts a label before the next step.
    pub(crate) fn place(&mut self, label: usize) {
        self.labels[label] = Some(self.program.code.len());
    }

    pub(crate) fn error(&self, what: impl Into<String>) -> ParseError {
        ParseError::new(self.line, what)
    }

    pub(crate) fn unknown(&self, what: &str) -> ParseError {
        self.error(format!("{what} is not known here"))
    }

    /// Puts the places of labels into branches.
    fn finish(mut self) -> Result<Program, ParseError> {
        let labels = self.labels;
        let place = |label: &mut usize| {
            *label = labels[*label].expect("each label is placed with its block");
        };
        for step in &mut self.program.code {
            match &mut step.action {
                Action::Branch { target } => place(target),
                Action::BranchIndexed { targets, .. } => targets.iter_mut().for_each(place),
                _ => {}
            }
        }
        // Dynamic shared memory has the largest alignment that a vector access needs.
        let gap = if self.shared_next == 0 { 0 } else { memory_map::GAP };
        self.program.dynamic_shared = (self.shared_next + gap).next_multiple_of(128);
        Ok(self.program)
    }
}

/// Returns a special register and its bits.
fn special(name: &str) -> Option<(Special, u32)> {
    let axis = |suffix: &str| ["x", "y", "z"].iter().position(|axis| *axis == suffix);
    let found = match name.rsplit_once('.') {
        Some(("%tid", suffix)) => Special::Thread(axis(suffix)?),
        Some(("%ntid", suffix)) => Special::BlockShape(axis(suffix)?),
        Some(("%ctaid", suffix)) => Special::Block(axis(suffix)?),
        Some(("%nctaid", suffix)) => Special::GridShape(axis(suffix)?),
        _ => match name {
            "%laneid" => Special::Lane,
            "%warpid" => Special::Warp,
            "%nwarpid" => Special::Warps,
            "%lanemask_lt" => Special::LaneMask(LaneOrder::Less),
            "%lanemask_le" => Special::LaneMask(LaneOrder::LessOrEqual),
            "%lanemask_eq" => Special::LaneMask(LaneOrder::Equal),
            "%lanemask_ge" => Special::LaneMask(LaneOrder::GreaterOrEqual),
            "%lanemask_gt" => Special::LaneMask(LaneOrder::Greater),
            "%dynamic_smem_size" => Special::DynamicSharedBytes,
            "%total_smem_size" => Special::TotalShared,
            _ => return None,
        },
    };
    Some((found, 32))
}
