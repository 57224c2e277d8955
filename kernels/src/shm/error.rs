//! Why a segment was not made, opened or inspected.

use std::{fmt, io};

/// Why a segment was not made, opened or inspected.
#[derive(Debug)]
pub enum SegmentError {
    /// No segment has such a shape.
    Shape {
        /// What is wrong with the shape.
        what: &'static str,
        /// The values that are valid.
        expected: String,
        /// The value of this shape.
        found: String,
    },
    /// The file is not the group's segment.
    Foreign {
        /// What differs.
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
