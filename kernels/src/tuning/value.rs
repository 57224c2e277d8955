//! The types of a knob's value. Each value is also a word, for the header of a segment.

use super::{pipelines::Pipeline, way::Way};
use std::fmt;

/// A value of any knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number of bytes.
    Bytes(usize),
    /// A way to copy.
    Way(Way),
    /// A whole way of staged data.
    Pipeline(Pipeline),
}

impl Value {
    /// Returns the value as a word.
    pub(crate) fn word(self) -> u64 {
        match self {
            Value::Bytes(bytes) => bytes as u64,
            Value::Way(way) => way as u64,
            Value::Pipeline(pipeline) => pipeline as u64,
        }
    }

    /// Returns the value of the same type that has this word.
    pub(crate) fn with_word(self, word: u64) -> Option<Value> {
        let index = usize::try_from(word).ok()?;
        Some(match self {
            Value::Bytes(_) => Value::Bytes(index),
            Value::Way(_) => Value::Way(*Way::ALL.get(index)?),
            Value::Pipeline(_) => Value::Pipeline(*Pipeline::ALL.get(index)?),
        })
    }

    /// Reads a value of the same type.
    pub(crate) fn with_text(self, text: &str) -> Option<Value> {
        match self {
            Value::Bytes(_) => text.parse().ok().map(Value::Bytes),
            Value::Way(_) => Way::ALL.into_iter().find(|way| way.name() == text).map(Value::Way),
            Value::Pipeline(_) => {
                let pipeline = Pipeline::ALL.into_iter().find(|pipeline| pipeline.name() == text);
                pipeline.map(Value::Pipeline)
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bytes(bytes) => f.pad(&bytes.to_string()),
            Value::Way(way) => f.pad(way.name()),
            Value::Pipeline(pipeline) => f.pad(pipeline.name()),
        }
    }
}

/// A type of a field of [`Tuning`](super::Tuning).
pub(super) trait Field: Copy {
    fn value(self) -> Value;
    fn of(value: Value) -> Option<Self>;
}

macro_rules! field {
    ($($type:ty: $variant:ident),*) => {
        $(impl Field for $type {
            fn value(self) -> Value {
                Value::$variant(self)
            }

            fn of(value: Value) -> Option<$type> {
                if let Value::$variant(value) = value { Some(value) } else { None }
            }
        })*
    };
}

field!(usize: Bytes, Way: Way, Pipeline: Pipeline);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back_from_words_and_texts() {
        let values = Way::ALL.map(Value::Way).into_iter().chain([0, 1, usize::MAX].map(Value::Bytes));
        for value in values.chain(Pipeline::ALL.map(Value::Pipeline)) {
            assert_eq!(value.with_word(value.word()), Some(value));
            assert_eq!(value.with_text(&value.to_string()), Some(value));
        }
        assert_eq!(Value::Way(Way::Vector).with_word(7), None);
        assert_eq!(Value::Pipeline(Pipeline::Plain).with_word(8), None);
        assert_eq!(Value::Bytes(0).with_text("-1"), None);
        assert_eq!(Value::Pipeline(Pipeline::Plain).with_text("1"), None);
    }
}
