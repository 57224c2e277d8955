//! The parameters of a training.

/// The parameters of a training. Together with the data and the number of grains they determine
/// every bit of the result.
pub(crate) struct Plan {
    /// The layers' sizes, the input's first.
    pub(crate) sizes: Vec<usize>,
    pub(crate) epochs: usize,
    /// Samples in a step, over all replicas.
    pub(crate) batch: usize,
    pub(crate) learning_rate: f32,
    pub(crate) seed: u64,
}
