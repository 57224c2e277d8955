//! The reason why a segment was not made, opened or inspected.

use std::{fmt, io};

/// The reason why a segment was not made, opened or inspected.
#[derive(Debug)]
pub enum SegmentError {
    /// No segment has such a shape.
    Shape {
        /// The fault of the shape.
        what: &'static str,
        /// The values that are valid.
        expected: String,
        /// The value of this shape.
        found: String,
    },
    /// The file is not the group's segment.
    Foreign {
        /// The part that differs.
        what: &'static str,
        /// The value in the group's segment.
        expected: String,
        /// The value in this file.
        found: String,
    },
    /// The system refused.
    System {
        /// The action that failed. The message puts `cannot` before it.
        what: String,
        /// The system's own error.
        source: io::Error,
    },
}

impl SegmentError {
    pub(super) const VERSION: &str = "version";
    pub(super) const LAYOUT: &str = "layout hash";
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SegmentError::Shape { what, expected, found } => {
                write!(f, "a segment's {what}: expected {expected}, found {found}")
            }
            SegmentError::Foreign { what, expected, found } => {
                write!(f, "the segment's {what}: expected {expected}, found {found}")?;
                match *what {
                    SegmentError::VERSION | SegmentError::LAYOUT => f.write_str(": the processes run different builds"),
                    _ => Ok(()),
                }
            }
            SegmentError::System { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for SegmentError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SegmentError::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

pub(super) fn cannot<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> SegmentError {
    |error| SegmentError::System { what: what.into(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_texts() {
        let foreign = |what| SegmentError::Foreign { what, expected: "1".to_owned(), found: "2".to_owned() };
        let shape =
            SegmentError::Shape { what: "number of ranks", expected: "1 to 1024".to_owned(), found: "0".to_owned() };
        let system = cannot("make an anonymous file")(io::Error::from(io::ErrorKind::OutOfMemory));
        for (error, text) in [
            (shape, "a segment's number of ranks: expected 1 to 1024, found 0"),
            (foreign("size"), "the segment's size: expected 1, found 2"),
            (
                foreign(SegmentError::LAYOUT),
                "the segment's layout hash: expected 1, found 2: the processes run different builds",
            ),
            (
                foreign(SegmentError::VERSION),
                "the segment's version: expected 1, found 2: the processes run different builds",
            ),
            (system, "cannot make an anonymous file: out of memory"),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}
