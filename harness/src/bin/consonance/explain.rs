//! `consonance explain`.

use super::bench::{bytes, dtype, op};
use consonance::{DType, ReduceOp};
use consonance_harness::{
    bench::{
        Memory, Transport,
        case::{Case, Collective, MOST_SPREAD},
    },
    explain::{Question, ground_of, ground_of_threads, join, start},
};

/// Show what a call would do: the way of its data, from which sizes on which way is taken, and what it costs at least.
///
/// It says what the call itself is decided by, so it is what happens, on this machine and in this build. The limit is measured: a copy
/// of the bytes that every library must move at least, and half of a cache line's round trip.
#[derive(clap::Args)]
pub(crate) struct Explain {
    /// all_reduce, all_gather, broadcast, … as of consonance bench
    #[arg(value_name = "COLLECTIVE")]
    collective: Collective,
    /// How many ranks there are
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2)]
    ranks: usize,
    /// How they meet: threads, processes or cuda
    #[arg(long, default_value = "threads")]
    transport: Transport,
    /// Bytes of the larger buffer, such as 8, 64K, 1M; several with commas
    #[arg(short, long, value_name = "SIZES", default_value = "1M", value_delimiter = ',', value_parser = bytes)]
    bytes: Vec<usize>,
    /// The element type: f32, bf16, i8, …
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = dtype)]
    dtype: DType,
    /// How elements are combined: sum, mean, product, min, max, and, or, xor
    #[arg(long, default_value = "sum", value_parser = op)]
    op: ReduceOp,
    /// Where the buffers are: slice (anywhere) or alloc (memory that all ranks can read)
    #[arg(long, default_value = "slice")]
    memory: Memory,
    /// Leave the result where the contribution was
    #[arg(long)]
    in_place: bool,
    /// By how many percent the least and the largest part differ from the average, in all_gather_v and its like
    #[arg(long, value_name = "PERCENT", default_value_t = 10)]
    spread: usize,
    /// Do without the limit
    #[arg(long)]
    no_measure: bool,
    /// Write each size as a JSON object on a line of its own
    #[arg(long)]
    json: bool,
    /// This process is a rank of those that are asked
    #[arg(long, hide = true)]
    rank: Option<usize>,
}

impl Explain {
    /// Writes the answer to standard output.
    ///
    /// # Errors
    /// Why there is none, in one line.
    pub(crate) fn run(&self) -> Result<(), String> {
        let Explain { collective, ranks, dtype, op, spread, .. } = *self;
        let in_place = collective.in_place(self.in_place);
        let least = collective.least_ranks();
        if !(least..=256).contains(&ranks) {
            return Err(format!("-n: expected {least} to 256 ranks, found {ranks}"));
        }
        if spread > MOST_SPREAD {
            return Err(format!("--spread: expected at most {MOST_SPREAD} %, found {spread} %"));
        }
        let case = Case { collective, ranks, count: 0, dtype, op, in_place, spread };
        let question = Question { case, transport: self.transport, memory: self.memory };
        let ground = match (self.transport, self.rank) {
            (Transport::Threads, _) => ground_of_threads(ranks),
            (Transport::Processes, None) => {
                question.check()?;
                let status = start(ranks).map_err(|error| error.to_string())?;
                return if status.success() { Ok(()) } else { Err("the processes that were asked failed".to_owned()) };
            }
            (Transport::Processes, Some(rank)) => {
                let (_group, mut communicator) = join().map_err(|error| error.to_string())?;
                let ground = ground_of(&mut communicator, collective).map_err(|error| error.to_string())?;
                if rank > 0 {
                    return Ok(());
                }
                ground
            }
            (Transport::Cuda, _) => return Err("--transport: this build has no CUDA transport".to_owned()),
        };
        for (index, &bytes) in self.bytes.iter().enumerate() {
            let answer = question.explain(&ground, bytes, !self.no_measure)?;
            match (self.json, index) {
                (true, _) => println!("{}", answer.json()),
                (false, 0) => print!("{answer}"),
                (false, _) => print!("\n{answer}"),
            }
        }
        Ok(())
    }
}
