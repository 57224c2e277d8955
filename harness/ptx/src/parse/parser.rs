//! Reads a module's tokens: directives, variables and functions.

use super::{
    error::ParseError,
    scalar::Scalar,
    syntax::{Function, Initial, Space, Syntax, Variable},
    token::{Token, TokenKind, tokens},
};

/// Tokens, and how many of them were read.
pub(crate) struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

type Parsed<T> = Result<T, ParseError>;

impl Parser {
    /// Returns the parts of a module.
    pub(crate) fn module(text: &str) -> Parsed<Syntax> {
        let mut parser = Parser { tokens: tokens(text)?, at: 0 };
        let mut syntax = Syntax::default();
        while parser.peek().is_some() {
            parser.item(&mut syntax)?;
        }
        Ok(syntax)
    }

    fn item(&mut self, syntax: &mut Syntax) -> Parsed<()> {
        let line = self.line();
        let mut is_external = false;
        loop {
            let word = self.word()?;
            match word.as_str() {
                ".version" | ".address_size" => {
                    let Some(TokenKind::Integer(_) | TokenKind::Double(_)) = self.next() else {
                        return Err(self.error("a number was expected"));
                    };
                    return Ok(());
                }
                ".target" => {
                    self.word()?;
                    while self.takes(',') {
                        self.word()?;
                    }
                    return Ok(());
                }
                ".file" | ".loc" => {
                    self.skip_line(line);
                    return Ok(());
                }
                ".section" => {
                    while self.next().is_some_and(|kind| kind != TokenKind::Sign('}')) {}
                    return Ok(());
                }
                ".pragma" => return self.skip_statement(),
                ".extern" => is_external = true,
                ".visible" | ".weak" | ".common" => {}
                ".entry" | ".func" => {
                    let function = self.function(word == ".entry", line)?;
                    syntax.functions.push(function);
                    return Ok(());
                }
                _ => {
                    let Some(space) = space_of(&word) else {
                        return Err(ParseError::new(line, format!("`{word}` is no directive that is known here")));
                    };
                    let variables = self.variables(space)?;
                    if is_external && variables.iter().any(|variable| !variable.is_dynamic) {
                        return Err(ParseError::new(line, "the variable is in another module"));
                    }
                    syntax.variables.extend(variables);
                    return Ok(());
                }
            }
        }
    }

    fn function(&mut self, is_kernel: bool, line: u32) -> Parsed<Function> {
        let results = if self.takes('(') { self.parameters()? } else { Vec::new() };
        let name = self.word()?;
        let parameters = if self.takes('(') { self.parameters()? } else { Vec::new() };
        let mut function = Function {
            name,
            is_kernel,
            results,
            parameters,
            required_block: None,
            largest_block: None,
            body: None,
            line,
        };
        loop {
            if self.takes(';') {
                return Ok(function);
            }
            if self.takes('{') {
                function.body = Some(self.statements()?);
                return Ok(function);
            }
            let word = self.word()?;
            match word.as_str() {
                ".reqntid" | ".maxntid" => {
                    let sides = self.integers()?;
                    let side = |at: usize| sides.get(at).map_or(1, |side| *side as u32);
                    let block = [side(0), side(1), side(2)];
                    if word == ".reqntid" {
                        function.required_block = Some(block);
                    } else {
                        function.largest_block = Some(block.iter().copied().fold(1, u32::saturating_mul));
                    }
                }
                ".minnctapersm" | ".maxnreg" | ".maxclusterrank" => drop(self.integers()?),
                ".noreturn" => {}
                ".pragma" => self.skip_statement()?,
                _ => return Err(self.error(format!("`{word}` is no directive of a function that is known here"))),
            }
        }
    }

    fn parameters(&mut self) -> Parsed<Vec<Variable>> {
        let mut parameters = Vec::new();
        while !self.takes(')') {
            let word = self.word()?;
            let Some(space) = space_of(&word) else {
                return Err(self.error(format!("`{word}` begins no parameter")));
            };
            parameters.push(self.variable(space)?);
            self.takes(',');
        }
        Ok(parameters)
    }

    /// Reads what follows the space: `.align 4 .b8 a[4], b = 1;`
    pub(crate) fn variables(&mut self, space: Space) -> Parsed<Vec<Variable>> {
        let first = self.variable(space)?;
        let mut variables = vec![first];
        while self.takes(',') {
            let like = variables[0].clone();
            let declared = self.declarator(space, like.scalar, like.align)?;
            variables.push(declared);
        }
        self.expect(';')?;
        Ok(variables)
    }

    fn variable(&mut self, space: Space) -> Parsed<Variable> {
        let (mut scalar, mut align, mut elements) = (None, None, 1);
        let scalar = loop {
            let word = self.word()?;
            match word.as_str() {
                ".align" => align = Some(self.integer()? as u32),
                ".v2" => elements = 2,
                ".v4" => elements = 4,
                // The space that a parameter points to. Nothing here depends on it.
                ".ptr" | ".global" | ".shared" | ".const" | ".local" => {}
                _ => match word.strip_prefix('.').and_then(Scalar::of_name) {
                    Some(found) if scalar.is_none() => {
                        scalar = Some(found);
                        if !matches!(self.peek(), Some(TokenKind::Word(word)) if word.starts_with('.')) {
                            break found;
                        }
                    }
                    _ => return Err(self.error(format!("`{word}` is no type that is known here"))),
                },
            }
            // `.param .u64 .ptr .global .align 4 name`: the type came first.
            if let (Some(found), Some(TokenKind::Word(word))) = (scalar, self.peek())
                && !word.starts_with('.')
            {
                break found;
            }
        };
        // An alignment behind `.ptr` is that of the data pointed to: larger than any of a number.
        let natural = scalar.bytes() * elements;
        let align = align.filter(|align| space != Space::Parameter || scalar.bytes() == 1 || *align <= natural);
        let mut variable = self.declarator(space, scalar, align.unwrap_or(natural).max(natural))?;
        variable.bytes *= elements;
        Ok(variable)
    }

    fn declarator(&mut self, space: Space, scalar: Scalar, align: u32) -> Parsed<Variable> {
        let line = self.line();
        let name = self.word()?;
        if !align.is_power_of_two() {
            return Err(self.error(format!("the alignment {align} is no power of two")));
        }
        let (mut elements, mut is_dynamic) = (1u32, false);
        while self.takes('[') {
            if self.takes(']') {
                is_dynamic = true;
                continue;
            }
            let count = self.integer()?;
            elements = (u32::try_from(count).ok())
                .and_then(|count| elements.checked_mul(count))
                .ok_or_else(|| self.error("the array is too large"))?;
            self.expect(']')?;
        }
        let bytes = elements.checked_mul(scalar.bytes()).ok_or_else(|| self.error("the array is too large"))?;
        let initial = if self.takes('=') { self.initial(scalar)? } else { Vec::new() };
        let (bytes, is_dynamic) = match (is_dynamic, initial.len() as u32) {
            (true, 0) => (0, true),
            (true, count) => (count * scalar.bytes(), false),
            (false, _) => (bytes, false),
        };
        if initial.len() as u32 * scalar.bytes() > bytes {
            return Err(self.error("more initial values than elements"));
        }
        Ok(Variable { name, space, scalar, align, bytes, is_dynamic, initial, line })
    }

    fn initial(&mut self, scalar: Scalar) -> Parsed<Vec<Initial>> {
        if self.takes('{') {
            let mut all = Vec::new();
            while !self.takes('}') {
                all.extend(self.initial(scalar)?);
                self.takes(',');
            }
            return Ok(all);
        }
        let is_negative = self.takes('-');
        let sign = |bits: u64| if is_negative { bits.wrapping_neg() } else { bits };
        let is_single = scalar == Scalar::Float(crate::number::F32);
        let one = match self.next() {
            Some(TokenKind::Integer(bits)) => Initial::Number(sign(bits)),
            Some(TokenKind::Single(bits)) => Initial::Number(bits.into()),
            Some(TokenKind::Double(bits)) => {
                let number = f64::from_bits(bits) * if is_negative { -1.0 } else { 1.0 };
                Initial::Number(if is_single { u64::from((number as f32).to_bits()) } else { number.to_bits() })
            }
            Some(TokenKind::Word(name)) if name == "generic" => {
                self.expect('(')?;
                let (name, offset) = (self.word()?, self.offset()?);
                self.expect(')')?;
                Initial::Address(name, offset)
            }
            Some(TokenKind::Word(name)) => Initial::Address(name, self.offset()?),
            _ => return Err(self.error("an initial value was expected")),
        };
        Ok(vec![one])
    }

    /// Reads `+4`, `-4`, `+-4` or nothing.
    pub(crate) fn offset(&mut self) -> Parsed<i64> {
        let is_negative = match (self.takes('+'), self.takes('-')) {
            (false, false) => return Ok(0),
            (_, is_negative) => is_negative,
        };
        let magnitude = self.integer()? as i64;
        Ok(if is_negative { magnitude.wrapping_neg() } else { magnitude })
    }

    fn integers(&mut self) -> Parsed<Vec<u64>> {
        let mut integers = vec![self.integer()?];
        while self.takes(',') {
            integers.push(self.integer()?);
        }
        Ok(integers)
    }

    pub(crate) fn integer(&mut self) -> Parsed<u64> {
        match self.next() {
            Some(TokenKind::Integer(integer)) => Ok(integer),
            _ => Err(self.error("an integer was expected")),
        }
    }

    pub(crate) fn word(&mut self) -> Parsed<String> {
        match self.next() {
            Some(TokenKind::Word(word)) => Ok(word),
            _ => Err(self.error("a name was expected")),
        }
    }

    pub(crate) fn peek(&self) -> Option<&TokenKind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    pub(crate) fn next(&mut self) -> Option<TokenKind> {
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        Some(token.kind.clone())
    }

    /// Reads a sign if it comes next.
    pub(crate) fn takes(&mut self, sign: char) -> bool {
        let is_next = self.peek() == Some(&TokenKind::Sign(sign));
        self.at += usize::from(is_next);
        is_next
    }

    pub(crate) fn expect(&mut self, sign: char) -> Parsed<()> {
        if self.takes(sign) { Ok(()) } else { Err(self.error_at_next(format!("`{sign}` was expected"))) }
    }

    /// Returns the line of the next token.
    pub(crate) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    /// Returns an error at the token that was read last.
    pub(crate) fn error(&self, what: impl Into<String>) -> ParseError {
        let token = self.tokens.get(self.at.saturating_sub(1));
        ParseError::new(token.map_or(1, |token| token.line), what)
    }

    fn error_at_next(&self, what: impl Into<String>) -> ParseError {
        ParseError::new(self.line(), what)
    }

    pub(crate) fn skip_statement(&mut self) -> Parsed<()> {
        loop {
            match self.next() {
                Some(TokenKind::Sign(';')) => return Ok(()),
                Some(_) => {}
                None => return Err(self.error("`;` was expected")),
            }
        }
    }

    pub(crate) fn skip_line(&mut self, line: u32) {
        while self.tokens.get(self.at).is_some_and(|token| token.line == line) {
            self.at += 1;
        }
    }
}

/// Returns the space that a directive names.
pub(crate) fn space_of(word: &str) -> Option<Space> {
    Some(match word {
        ".global" => Space::Global,
        ".shared" => Space::Shared,
        ".local" => Space::Local,
        ".const" => Space::Constant,
        ".param" => Space::Parameter,
        ".reg" => Space::Register,
        _ => return None,
    })
}
