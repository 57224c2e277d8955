//! `consonance explain`.

use super::{
    Problem,
    bench::{Call, bytes},
    number, terminal,
};
use crate::{
    bench::{
        BenchError, Memory, Transport,
        case::{Case, Collective, MOST_SPREAD},
    },
    explain::{BetweenHosts, OnGpus, Question, join, start, topology_of, topology_of_threads},
    launcher::MAX_HOSTS,
    tune::Values,
};
use consonance::{Communicator, Device};
use consonance_kernels::tuning::settle;

/// Show what a call would do: its protocol, the sizes at which the protocol changes, a lower bound
/// of its time, and the value of every knob with where it comes from.
///
/// The answer comes from the functions by which the call itself chooses, so it holds on this
/// machine and in this build. The limit is measured: a copy of the bytes that every library must
/// move at least, and half of the round trip of a cache line.
///
/// `consonance explain all_reduce --device cuda:0.0,cuda:0.1` tells the way of a call between the
/// replicas of a MirroredStrategy on these devices: the kernel that reduces on the GPU, or the
/// copies in host memory; the name and the UUID of each GPU; and the bytes that cross the link of
/// each rank's GPU.
#[derive(clap::Args)]
pub(crate) struct Explain {
    /// all_reduce, all_gather, broadcast, … as for consonance bench
    #[arg(value_name = "COLLECTIVE")]
    collective: Collective,
    #[command(flatten)]
    call: Call,
    /// Bytes of the larger buffer, such as 8, 64K, 1M; several, separated by commas
    #[arg(short, long, value_name = "SIZES", default_value = "1M", value_delimiter = ',', value_parser = bytes)]
    bytes: Vec<usize>,
    /// Explain the call between this many hosts, each with --ranks ranks: the bytes that cross the
    /// link of each, and the fewest with any algorithm. Plays no hosts
    #[arg(long, value_name = "N", conflicts_with_all = ["transport", "memory"], value_parser = number::<usize>(2..=MAX_HOSTS))]
    hosts: Option<usize>,
    /// Explain the call of ranks on these devices, such as cuda:0.0,cuda:0.1 or cpu:0,cuda:1
    #[arg(long, value_name = "DEVICES", value_delimiter = ',', conflicts_with_all = ["transport", "memory", "hosts", "ranks"])]
    device: Vec<String>,
    /// Do not measure the limit
    #[arg(long)]
    no_measure: bool,
    /// Write each size as a JSON object on its own line
    #[arg(long)]
    json: bool,
    /// Run as this rank of the processes that answer
    #[arg(long, hide = true)]
    rank: Option<usize>,
}

impl Explain {
    /// Writes the answer to standard output.
    ///
    /// # Errors
    /// The reason why there is no answer, in one line.
    pub(super) fn run(&self) -> Result<(), Problem> {
        let collective = self.collective;
        let Call { ranks, transport, dtype, op, memory, in_place, spread } = self.call;
        let in_place = collective.in_place(in_place);
        let ranks = if self.device.is_empty() { ranks } else { self.device.len() };
        let (ranks, least) = (ranks.saturating_mul(self.hosts.unwrap_or(1)), collective.least_ranks());
        if !(least..=256).contains(&ranks) {
            let expected = format!("{least} to 256 ranks");
            return Err(BenchError::Invalid { argument: "--ranks <N>", expected, found: ranks.to_string() }.into());
        }
        if spread > MOST_SPREAD {
            return Err(BenchError::spread(spread).into());
        }
        let case = Case { collective, ranks, count: 0, dtype, op, in_place, spread };
        if let Some(hosts) = self.hosts {
            return self.between(case, hosts);
        }
        if !self.device.is_empty() {
            return self.on_gpus(case);
        }
        let question = Question { case, transport, memory };
        // Checks all sizes before the answer for the first is printed, and before processes are
        // started.
        self.bytes.iter().try_for_each(|&bytes| question.check(bytes))?;
        let topology = match (transport, self.rank) {
            (Transport::Threads, _) => {
                settle().map_err(|error| error.to_string())?;
                topology_of_threads(ranks)
            }
            (Transport::Processes, None) => {
                let status = start(ranks).map_err(|error| error.to_string())?;
                return if status.success() { Ok(()) } else { Err("the process of rank 0 failed".to_owned().into()) };
            }
            (Transport::Processes, Some(rank)) => {
                let (_group, mut communicator) = join().map_err(|error| error.to_string())?;
                let topology = topology_of(&mut communicator, collective).map_err(|error| error.to_string())?;
                if rank > 0 {
                    return Ok(());
                }
                topology
            }
            (Transport::Cuda, _) => return Ok(transport.check()?),
        };
        let values = Values::of_group(topology.tuning).map_err(|error| error.to_string())?;
        for (index, &bytes) in self.bytes.iter().enumerate() {
            let answer = question.explain(&topology, bytes, !self.no_measure)?;
            match (self.json, index) {
                (true, _) => {
                    let mut json = answer.json();
                    json["tuning"] = values.json();
                    println!("{json}");
                }
                (false, 0) => print!("{}", terminal::fit(&answer.to_string())),
                (false, _) => print!("\n{}", terminal::fit(&answer.to_string())),
            }
        }
        if !self.json {
            print!("\n{values}");
        }
        Ok(())
    }

    /// Writes the answer for a call of ranks on devices.
    fn on_gpus(&self, case: Case) -> Result<(), Problem> {
        let in_words = |error: consonance::Error| error.to_string();
        let devices = self.device.iter().map(|device| device.parse());
        let devices = devices.collect::<consonance::Result<Vec<Device>>>().map_err(in_words)?;
        let group = Communicator::on_devices(devices.iter().copied()).map_err(in_words)?;
        let answers = self.bytes.iter().map(|&bytes| OnGpus::explain(case.with_bytes(bytes), &devices, &group));
        for (index, answer) in answers.collect::<Result<Vec<_>, _>>()?.into_iter().enumerate() {
            match (self.json, index) {
                (true, _) => println!("{}", answer.json()),
                (false, 0) => print!("{}", terminal::fit(&answer.to_string())),
                (false, _) => print!("\n{}", terminal::fit(&answer.to_string())),
            }
        }
        Ok(())
    }

    /// Writes the answer for a call between hosts.
    fn between(&self, case: Case, hosts: usize) -> Result<(), Problem> {
        let question = Question { case, transport: Transport::Processes, memory: Memory::Slice };
        for &bytes in &self.bytes {
            question.check(bytes)?;
            BetweenHosts::check(&case.with_bytes(bytes))?;
        }
        for (index, &bytes) in self.bytes.iter().enumerate() {
            let answer = BetweenHosts::explain(case.with_bytes(bytes), hosts)?;
            match (self.json, index) {
                (true, _) => println!("{}", answer.json()),
                (false, 0) => print!("{}", terminal::fit(&answer.to_string())),
                (false, _) => print!("\n{}", terminal::fit(&answer.to_string())),
            }
        }
        Ok(())
    }
}
