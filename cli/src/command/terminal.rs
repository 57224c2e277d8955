//! The terminal that standard output goes to.

use crate::bench::fold;
use console::Term;

/// The least width for which text is folded. In a narrower terminal its own folding is no worse.
const LEAST: usize = 40;

/// Returns the columns of the terminal; as many as there can be if the output goes elsewhere, such
/// as to a file or a program.
pub(super) fn width() -> usize {
    let size = Term::stdout().size_checked();
    size.map_or(usize::MAX, |(_, columns)| usize::from(columns).max(LEAST))
}

/// Returns a text with lines that fit the terminal.
pub(super) fn fit(text: &str) -> String {
    match width() {
        usize::MAX => text.to_owned(),
        width => fold(text, width),
    }
}
