//! The model has no forks.

#[derive(Clone, Copy)]
pub(crate) struct Origin;

impl Origin {
    pub(crate) fn here() -> Origin {
        Origin
    }

    pub(crate) fn forked(self) -> bool {
        false
    }
}
