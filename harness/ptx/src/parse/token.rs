//! The words, numbers and signs of a module's text.

use super::error::ParseError;

/// A token and its line.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) line: u32,
}

/// The kind of a token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenKind {
    /// A name, directive or instruction with its modifiers.
    Word(String),
    /// An integer. Its low 64 bits.
    Integer(u64),
    /// The bits of a number that is written as f32: `0f3F800000`.
    Single(u32),
    /// The bits of a number that is written as f64: `0d…`, or with a decimal point.
    Double(u64),
    /// A string in quotes.
    Text,
    /// A sign.
    Sign(char),
}

/// Returns the tokens of a text.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>, ParseError> {
    let mut tokens = Vec::new();
    let mut in_comment = false;
    for (number, line) in text.lines().enumerate() {
        let number = number as u32 + 1;
        let mut rest = line;
        loop {
            if in_comment {
                let Some(end) = rest.find("*/") else { break };
                rest = &rest[end + 2..];
                in_comment = false;
            }
            rest = rest.trim_start();
            if rest.starts_with("//") {
                break;
            }
            if let Some(after) = rest.strip_prefix("/*") {
                in_comment = true;
                rest = after;
                continue;
            }
            let Some(first) = rest.chars().next() else { break };
            let (kind, used) = if first == '"' {
                let end = rest[1..].find('"').ok_or_else(|| ParseError::new(number, "a string does not end"))?;
                (TokenKind::Text, end + 2)
            } else if first.is_ascii_digit() {
                let used = number_end(rest);
                let what = || ParseError::new(number, format!("`{}` is no number", &rest[..used]));
                (number_of(&rest[..used]).ok_or_else(what)?, used)
            } else if is_word(first) {
                let used = word_end(rest);
                (TokenKind::Word(rest[..used].to_owned()), used)
            } else if first.is_ascii() {
                (TokenKind::Sign(first), 1)
            } else {
                return Err(ParseError::new(number, format!("`{first}` is no character of PTX")));
            };
            tokens.push(Token { kind, line: number });
            rest = &rest[used..];
        }
    }
    Ok(tokens)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

/// Returns the length of the word at the beginning. Qualifiers such as `.L2::128B` are part of it.
fn word_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if is_word(bytes[at].into()) {
            at += 1;
        } else if bytes[at..].starts_with(b"::") && bytes.get(at + 2).is_some_and(|c| is_word((*c).into())) {
            at += 2;
        } else {
            break;
        }
    }
    at
}

fn number_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_decimal = |at: usize| at > 0 && !text.starts_with("0x") && matches!(bytes[at - 1], b'e' | b'E');
    let part = |at: usize| {
        bytes[at].is_ascii_alphanumeric()
            || bytes[at] == b'.'
            || matches!(bytes[at], b'+' | b'-') && is_decimal(at) && text[..at].contains('.')
    };
    (0..bytes.len()).find(|at| !part(*at)).unwrap_or(bytes.len())
}

fn number_of(text: &str) -> Option<TokenKind> {
    let lower = text.to_ascii_lowercase();
    if let Some(bits) = lower.strip_prefix("0f").filter(|bits| bits.len() == 8) {
        return u32::from_str_radix(bits, 16).ok().map(TokenKind::Single);
    }
    if let Some(bits) = lower.strip_prefix("0d").filter(|bits| bits.len() == 16) {
        return u64::from_str_radix(bits, 16).ok().map(TokenKind::Double);
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    let integer = if let Some(digits) = digits.strip_prefix("0x") {
        u64::from_str_radix(digits, 16)
    } else if let Some(digits) = digits.strip_prefix("0b") {
        u64::from_str_radix(digits, 2)
    } else if digits.len() > 1 && digits.starts_with('0') && !digits.contains(['.', 'e']) {
        u64::from_str_radix(digits, 8)
    } else {
        digits.parse()
    };
    match integer {
        Ok(integer) => Some(TokenKind::Integer(integer)),
        Err(_) => lower.parse().ok().map(|number: f64| TokenKind::Double(number.to_bits())),
    }
}
