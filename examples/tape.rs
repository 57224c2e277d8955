//! Collectives on a tape. A small reverse-mode tape records two collectives. Every replica's input
//! contributes to the loss of every replica. The gradient of the loss is checked against
//! differences of the loss, without a tolerance.
//!
//!     cargo run --example tape

use consonance::{
    Error, MirroredStrategy, PerReplica,
    ReduceOp::{self, Mean, Sum},
    ReplicaContext, Result, Tensor, gradient,
};
use std::{cell::RefCell, process::ExitCode};

/// A value on the tape.
type NodeId = usize;

/// The computations on one replica, in order.
struct Tape<'r> {
    replica: &'r ReplicaContext<'r>,
    nodes: RefCell<Vec<Node>>,
}

struct Node {
    value: Vec<f64>,
    step: Step,
}

/// The operation that made a value.
#[derive(Clone, Copy)]
enum Step {
    Input,
    Multiply(NodeId, NodeId),
    AllReduce(ReduceOp, NodeId),
    AllGather(NodeId),
}

impl<'r> Tape<'r> {
    fn push(&self, value: Vec<f64>, step: Step) -> NodeId {
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(Node { value, step });
        nodes.len() - 1
    }

    fn value(&self, place: NodeId) -> Vec<f64> {
        self.nodes.borrow()[place].value.clone()
    }

    fn multiply(&self, x: NodeId, y: NodeId) -> NodeId {
        self.push(times(&self.value(x), &self.value(y)), Step::Multiply(x, y))
    }

    fn all_reduce(&self, op: ReduceOp, x: NodeId) -> Result<NodeId> {
        let all = self.replica.all_reduce(op, Tensor::from(self.value(x)))?;
        Ok(self.push(all.as_slice()?.to_vec(), Step::AllReduce(op, x)))
    }

    fn all_gather(&self, x: NodeId) -> Result<NodeId> {
        let all = self.replica.all_gather(Tensor::from(self.value(x)), 0)?;
        Ok(self.push(all.as_slice()?.to_vec(), Step::AllGather(x)))
    }

    /// Returns the gradient with respect to `input` of the sum of the elements of all replicas'
    /// `output`.
    fn gradient(&self, output: NodeId, input: NodeId) -> Result<Vec<f64>> {
        let nodes = self.nodes.borrow();
        let mut gradients: Vec<Vec<f64>> = nodes.iter().map(|node| vec![0.0; node.value.len()]).collect();
        gradients[output].fill(1.0);
        // All replicas have the same tape, so all call the same collectives in the same order.
        for place in (0..=output).rev() {
            let upstream = gradients[place].clone();
            let mut add = |to: NodeId, gradient: &[f64]| {
                gradients[to].iter_mut().zip(gradient).for_each(|(sum, element)| *sum += element);
            };
            match nodes[place].step {
                Step::Input => {}
                Step::Multiply(x, y) => {
                    add(x, &times(&upstream, &nodes[y].value));
                    add(y, &times(&upstream, &nodes[x].value));
                }
                Step::AllReduce(op, x) => {
                    add(x, gradient::all_reduce(self.replica, op, Tensor::from(upstream))?.as_slice()?);
                }
                Step::AllGather(x) => {
                    let own_size = nodes[x].value.len();
                    let own = gradient::all_gather(self.replica, Tensor::from(upstream), 0, &[own_size])?;
                    add(x, own.as_slice()?);
                }
            }
        }
        Ok(gradients.swap_remove(input))
    }
}

fn times(x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| x * y).collect()
}

/// Records a replica's input and loss on a new tape. The loss has degree two and depends on all
/// replicas' inputs in three ways.
fn loss<'r>(replica: &'r ReplicaContext<'r>, x: Vec<f64>) -> Result<(Tape<'r>, NodeId, NodeId)> {
    let tape = Tape { replica, nodes: RefCell::default() };
    let x = tape.push(x, Step::Input);
    let all = tape.all_gather(x)?;
    let weight = 1.0 + replica.replica_id_in_sync_group() as f64;
    let weights = tape.push(vec![weight; tape.value(all).len()], Step::Input);
    let sum = tape.all_reduce(Sum, tape.multiply(all, weights))?;
    let mean = tape.all_reduce(Mean, tape.multiply(all, weights))?;
    let loss = tape.multiply(tape.multiply(sum, mean), weights);
    Ok((tape, x, loss))
}

/// Returns the sum of all replicas' losses.
fn total(strategy: &MirroredStrategy, inputs: &[Vec<f64>]) -> Result<f64> {
    let losses = strategy.run_with(PerReplica::new(inputs.to_vec()), |replica, x| {
        let (tape, _, loss) = loss(replica, x)?;
        Ok(tape.value(loss).iter().sum::<f64>())
    })?;
    Ok(losses.iter().sum())
}

fn main() -> Result<ExitCode, Error> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2", "cpu:3"])?;
    // One element on replica 0, four on replica 3.
    let inputs: Vec<Vec<f64>> = (1..=4).map(|size| (0..size).map(|i| f64::from(3 * i - size)).collect()).collect();
    let gradients = strategy.run_with(PerReplica::new(inputs.clone()), |replica, x| {
        let (tape, x, loss) = loss(replica, x)?;
        tape.gradient(loss, x)
    })?;

    let mut wrong = 0;
    for (replica, gradient) in gradients.iter().enumerate() {
        for (place, &found) in gradient.iter().enumerate() {
            // For a function of degree two the central difference equals the derivative. With these
            // small numbers every step is exact.
            let step = 0.5;
            let moved = |by: f64| {
                let mut inputs = inputs.clone();
                inputs[replica][place] += by;
                total(&strategy, &inputs)
            };
            let difference = (moved(step)? - moved(-step)?) / (2.0 * step);
            if found != difference {
                println!("replica {replica}, element {place}: gradient {found}, difference of the loss {difference}");
                wrong += 1;
            }
        }
    }
    println!("loss {}, gradients {:?}", total(&strategy, &inputs)?, gradients.values());
    if wrong > 0 {
        println!("{wrong} gradients are wrong");
        return Ok(ExitCode::FAILURE);
    }
    println!("every gradient through all_gather and all_reduce is exactly the difference of the loss");
    Ok(ExitCode::SUCCESS)
}
