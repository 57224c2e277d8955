//! The worked examples of TensorFlow's pages on these classes, each with the result that its page
//! gives; where the page is wrong, the right one and why. GPUs of the pages are CPUs here, and
//! numbers are of the types that TensorFlow gives them.

mod central_storage_strategy;
mod replica_context;
mod replica_context_all_gather;
mod strategy_reduce;
