//! What is trained.

/// What is trained, and how. Together with the data and the number of replicas this decides every
/// bit of the result.
pub(crate) struct Plan {
    /// The layers' sizes, the input's first.
    pub(crate) sizes: Vec<usize>,
    pub(crate) epochs: usize,
    /// Samples a step, over all replicas.
    pub(crate) batch: usize,
    pub(crate) learning_rate: f32,
    pub(crate) seed: u64,
}
