//! The examples of TensorFlow's pages on these classes, each with the result on its page. If the
//! page is wrong, the test has the right result and the reason. GPUs of the pages are CPUs here,
//! and numbers have TensorFlow's dtypes.

mod central_storage_strategy;
mod replica_context;
mod replica_context_all_gather;
mod strategy_reduce;
