//! Trains a linear model with candle, data-parallel over three replicas. The gradients are reduced
//! in candle's own memory, without a copy.
//!
//! ```text
//! cargo run --release
//! ```

use candle_core::{CpuStorage, Device, Error, InplaceOp1, Layout, Result, Storage, Tensor, Var};
use consonance::{Communicator, ReduceOp};
use std::{sync::Mutex, thread};

const REPLICAS: usize = 3;
const STEPS: usize = 200;

/// Combines a tensor over the replicas, in its own memory. Every replica applies it to a tensor of
/// the same shape.
struct AllReduce<'c> {
    op: ReduceOp,
    communicator: &'c Mutex<Communicator>,
}

impl InplaceOp1 for AllReduce<'_> {
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (start, end) = layout.contiguous_offsets().ok_or_else(|| Error::msg("the tensor is not contiguous"))?;
        let mut communicator = self.communicator.lock().map_err(|_| Error::msg("a call panicked"))?;
        let reduced = match storage {
            CpuStorage::F32(elements) => communicator.all_reduce(self.op, &mut elements[start..end]),
            CpuStorage::F64(elements) => communicator.all_reduce(self.op, &mut elements[start..end]),
            CpuStorage::F16(elements) => communicator.all_reduce(self.op, &mut elements[start..end]),
            CpuStorage::BF16(elements) => communicator.all_reduce(self.op, &mut elements[start..end]),
            _ => return Err(Error::msg("all_reduce takes floats")),
        };
        reduced.map_err(Error::wrap)
    }
}

/// Returns the address of a tensor's elements.
fn address(tensor: &Tensor) -> Result<usize> {
    match &*tensor.storage_and_layout().0 {
        Storage::Cpu(CpuStorage::F32(elements)) => Ok(elements.as_ptr().addr()),
        _ => Err(Error::msg("not f32 in host memory")),
    }
}

/// Fits `y = x · [2, -1] + 0.5` to this replica's samples, and returns the weights and the bias.
fn train(communicator: Communicator) -> Result<Vec<f32>> {
    let (rank, device) = (communicator.rank(), Device::Cpu);
    let communicator = Mutex::new(communicator);
    let mean = AllReduce { op: ReduceOp::Mean, communicator: &communicator };

    // Each replica has its own samples.
    let x: Vec<f32> = (0..32).map(|i| ((i * 37 + rank * 101) % 64) as f32 / 32.0 - 1.0).collect();
    let x = Tensor::from_vec(x, (16, 2), &device)?;
    let y = x.matmul(&Tensor::new(&[[2f32], [-1.0]], &device)?)?.affine(1.0, 0.5)?;

    let weights = Var::zeros((2, 1), candle_core::DType::F32, &device)?;
    let bias = Var::zeros((1, 1), candle_core::DType::F32, &device)?;
    for step in 0..STEPS {
        let errors = (x.matmul(&weights)?.broadcast_add(&bias)? - &y)?;
        let loss = errors.sqr()?.mean_all()?;
        let gradients = loss.backward()?;
        for variable in [&weights, &bias] {
            let gradient = gradients.get(variable).ok_or_else(|| Error::msg("no gradient"))?.contiguous()?;
            let before = address(&gradient)?;
            gradient.inplace_op1(&mean)?;
            assert_eq!(address(&gradient)?, before, "the gradient was reduced where it was");
            variable.set(&(variable.as_tensor() - (gradient * 0.2)?)?)?;
        }
        if step % 50 == 0 {
            loss.inplace_op1(&mean)?;
            if rank == 0 {
                println!("step {step:3}: loss {:.6}", loss.to_scalar::<f32>()?);
            }
        }
    }
    Tensor::cat(&[weights.as_tensor(), bias.as_tensor()], 0)?.flatten_all()?.to_vec1()
}

fn main() -> Result<()> {
    let trained: Vec<Vec<f32>> = thread::scope(|scope| {
        let threads: Vec<_> = (Communicator::threads(REPLICAS).into_iter())
            .map(|communicator| scope.spawn(move || train(communicator)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<_>>()
    })?;
    println!("weights and bias: {:?}", trained[0]);
    assert!(trained.iter().all(|other| *other == trained[0]), "the replicas have the same bits");
    assert!(trained[0].iter().zip([2.0, -1.0, 0.5]).all(|(found, expected)| (found - expected).abs() < 1e-3));
    Ok(())
}
