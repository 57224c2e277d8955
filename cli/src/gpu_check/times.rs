//! The times of PyTorch's ways to add.

/// The seconds of PyTorch's ways to add.
#[derive(Clone, Debug)]
pub struct Times {
    /// `torch.stack(inputs).sum(0)`
    pub stack_sum: Option<f64>,
    /// `inputs[0].add_(input)` for each other input
    pub adds: Option<f64>,
    /// `torch._foreach_add_`, of inputs in several tensors each
    pub foreach: Option<f64>,
}
