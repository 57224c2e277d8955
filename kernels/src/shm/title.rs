//! The titles of links, in the names of their files.

use super::file::NAME;

/// The title of a link between two processes. It is in the name of the link's file, so that a
/// report about one of the processes can say what the other one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTitle {
    /// The roles of the processes, by rank: `chief`, `worker 1`, `ps 0`. They have no commas.
    pub roles: [String; 2],
    /// A word for what the link carries.
    pub carries: String,
}

impl LinkTitle {
    /// Returns the name of the file of a link.
    pub(super) fn file_name(&self) -> String {
        let LinkTitle { roles: [first, second], carries } = self;
        format!("{NAME} link, {first}, {second}, {carries}")
    }

    /// Returns the title in the name of a file; `None` if it is none of a link.
    pub(super) fn in_file_name(name: &str) -> Option<LinkTitle> {
        let mut fields = name.strip_prefix(NAME)?.strip_prefix(" link, ")?.splitn(3, ", ").map(str::to_owned);
        let mut next = || fields.next();
        Some(LinkTitle { roles: [next()?, next()?], carries: next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_read_from_its_file_name() {
        let title = LinkTitle { roles: ["chief".to_owned(), "ps 12".to_owned()], carries: "rows, of ps 3".to_owned() };
        assert_eq!(title.file_name(), "consonance link, chief, ps 12, rows, of ps 3");
        assert_eq!(LinkTitle::in_file_name(&title.file_name()), Some(title));
        for name in ["consonance", "consonance link, chief, ps 12", "consonance rows", "link, a, b, c"] {
            assert_eq!(LinkTitle::in_file_name(name), None, "{name}");
        }
    }
}
