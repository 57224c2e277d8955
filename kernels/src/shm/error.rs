//! Why there is no segment.

use std::{fmt, io};

/// Why there is no segment.
#[derive(Debug)]
pub enum SegmentError {
    /// No segment has such a shape.
    Shape {
        /// What is wrong with it.
        what: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// This is not the group's segment.
    Foreign {
        /// What differs.
        what: &'static str,
        /// What the group's segment has.
        expected: String,
        /// What this one has.
        found: String,
    },
    /// The system refused.
    System {
        /// What could not be done: `cannot` stands before it.
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
