//! The laws of the spec, as properties.

mod sample;

mod words;
mod traffic;
mod order;
mod numbers;
mod exact;
mod collectives;
mod arrays;
mod sparse;
mod adjoints;
mod nests;
mod strategies;
mod datasets;
mod variables;
mod blame;
mod training;
mod endings;
mod generations;
mod messages;
mod servers;
mod coordinators;
