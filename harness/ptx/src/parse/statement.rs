//! Reads the statements of a body.

use super::{
    error::ParseError,
    parser::{Parser, space_of},
    scalar::Scalar,
    syntax::{Instruction, Operand, Space, Statement},
    token::TokenKind,
};

type Parsed<T> = Result<T, ParseError>;

impl Parser {
    /// Reads statements up to the `}` that ends them.
    pub(crate) fn statements(&mut self) -> Parsed<Vec<Statement>> {
        let mut statements = Vec::new();
        while !self.takes('}') {
            self.statement(&mut statements)?;
        }
        Ok(statements)
    }

    fn statement(&mut self, statements: &mut Vec<Statement>) -> Parsed<()> {
        let line = self.line();
        if self.takes('{') {
            let block = self.statements()?;
            statements.push(Statement::Block(block));
            return Ok(());
        }
        if self.takes(';') {
            return Ok(());
        }
        let guard = if self.takes('@') {
            let is_negated = self.takes('!');
            Some((self.word()?, is_negated))
        } else {
            None
        };
        let word = self.word()?;
        if guard.is_none() {
            if self.takes(':') {
                if self.peek() == Some(&TokenKind::Word(".branchtargets".to_owned())) {
                    self.next();
                    let mut targets = vec![self.word()?];
                    while self.takes(',') {
                        targets.push(self.word()?);
                    }
                    self.expect(';')?;
                    statements.push(Statement::Targets(word, targets));
                } else {
                    statements.push(Statement::Label(word));
                }
                return Ok(());
            }
            if word == ".loc" {
                self.skip_line(line);
                return Ok(());
            }
            if word == ".pragma" {
                return self.skip_statement();
            }
            match space_of(&word) {
                Some(Space::Register) => return self.registers(statements),
                Some(space) => {
                    statements.extend(self.variables(space)?.into_iter().map(Statement::Variable));
                    return Ok(());
                }
                None if word.starts_with('.') => {
                    return Err(self.error(format!("`{word}` is no directive that is known here")));
                }
                None => {}
            }
        }
        let mut parts = word.split('.').map(str::to_owned);
        let name = parts.next().unwrap_or_default();
        let modifiers = parts.collect();
        let mut operands = Vec::new();
        while !self.takes(';') {
            operands.push(self.operand()?);
            if !self.takes(',') {
                self.expect(';')?;
                break;
            }
        }
        statements.push(Statement::Instruction(Instruction { guard, name, modifiers, operands, line }));
        Ok(())
    }

    fn registers(&mut self, statements: &mut Vec<Statement>) -> Parsed<()> {
        let line = self.line();
        let word = self.word()?;
        let Some(scalar) = word.strip_prefix('.').and_then(Scalar::of_name) else {
            return Err(self.error(format!("`{word}` is no type of registers that is known here")));
        };
        loop {
            let name = self.word()?;
            let count = if self.takes('<') {
                let count = self.integer()?;
                self.expect('>')?;
                Some(count as u32)
            } else {
                None
            };
            statements.push(Statement::Registers { scalar, name, count, line });
            if !self.takes(',') {
                return self.expect(';');
            }
        }
    }

    fn operand(&mut self) -> Parsed<Operand> {
        let operand = self.simple_operand()?;
        if self.takes('|') {
            let second = self.simple_operand()?;
            return Ok(Operand::Pair(Box::new(operand), Box::new(second)));
        }
        Ok(operand)
    }

    fn simple_operand(&mut self) -> Parsed<Operand> {
        if self.takes('[') {
            return self.address();
        }
        if self.takes('{') {
            return Ok(Operand::Vector(self.list('}')?));
        }
        if self.takes('(') {
            return Ok(Operand::List(self.list(')')?));
        }
        if self.takes('!') {
            return Ok(Operand::Not(self.word()?));
        }
        let is_negative = self.takes('-');
        match self.next() {
            Some(TokenKind::Integer(bits)) => {
                Ok(Operand::Integer(if is_negative { bits.wrapping_neg() } else { bits }))
            }
            Some(TokenKind::Single(bits)) if !is_negative => Ok(Operand::Single(bits)),
            Some(TokenKind::Double(bits)) => Ok(Operand::Double(bits ^ u64::from(is_negative) << 63)),
            Some(TokenKind::Word(name)) if !is_negative => {
                let is_sum = matches!(self.peek(), Some(TokenKind::Sign('+' | '-')));
                Ok(if is_sum { Operand::Sum(name, self.offset()?) } else { Operand::Name(name) })
            }
            _ => Err(self.error("an operand was expected")),
        }
    }

    fn address(&mut self) -> Parsed<Operand> {
        let address = match self.peek() {
            Some(TokenKind::Word(_)) => Operand::Address(Some(self.word()?), self.offset()?),
            _ => Operand::Address(None, self.integer()? as i64),
        };
        self.expect(']')?;
        Ok(address)
    }

    fn list(&mut self, end: char) -> Parsed<Vec<Operand>> {
        let mut list = Vec::new();
        while !self.takes(end) {
            list.push(self.simple_operand()?);
            if !self.takes(',') {
                self.expect(end)?;
                break;
            }
        }
        Ok(list)
    }
}
