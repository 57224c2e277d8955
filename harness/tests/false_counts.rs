//! An engine of messages that changes the lengths that ranks tell each other.
#![cfg(target_os = "linux")]

use consonance::{
    Communicator, Error, World,
    raw::{AbortHandle, Call, Configuration, Engine, Failure, Kind, Service, Signature},
};
use std::{fs, thread, time::Duration};

/// A false length. The machines that run the tests have as much memory.
const LENGTH: u64 = 1 << 30;

/// Passes all calls on. Data of 8 bytes that this rank receives in a broadcast or an all-gather
/// become [`LENGTH`], also behind the descriptor of the call.
struct FalseLengths(Box<dyn Engine>);

impl Engine for FalseLengths {
    fn world(&self) -> World {
        self.0.world()
    }

    fn service(&self) -> Service {
        self.0.service()
    }

    fn begin_call(&mut self) {
        self.0.begin_call();
    }

    fn receive(&mut self, from: usize, name: Kind) -> Result<Vec<u8>, Failure> {
        const DESCRIPTOR: usize = 32;
        let mut message = self.0.receive(from, name)?;
        let data = message.split_at_mut_checked(DESCRIPTOR).map(|(_, data)| data);
        if let Some(data) = data.filter(|data| data.len() == size_of::<u64>())
            && matches!(name, Kind::Broadcast | Kind::AllGather)
        {
            data.copy_from_slice(&LENGTH.to_ne_bytes());
        }
        Ok(message)
    }

    fn execute(&mut self, call: Call<'_>, signature: &Signature, name: Kind) -> Result<(), Failure> {
        let Call::Recv { data, from } = call else { return self.0.execute(call, signature, name) };
        let mut data = data.host().expect("a buffer in host memory");
        self.0.execute(Call::Recv { data: data.reborrow().into(), from }, signature, name)?;
        if data.bytes() == size_of::<u64>() && matches!(name, Kind::Broadcast | Kind::AllGather) {
            data.copy_from_bytes(&LENGTH.to_ne_bytes());
        }
        Ok(())
    }

    fn configure(&mut self, configuration: &Configuration) {
        self.0.configure(configuration);
    }

    fn abort_handle(&self) -> AbortHandle {
        self.0.abort_handle()
    }
}

/// The most memory that this process has had at a time, in bytes.
fn most_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the status of this process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the most memory");
    let pages: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
    pages << 10
}

/// A call on bytes whose length one rank tells the others.
type BytesCall = fn(&mut Communicator) -> Result<(), Error>;

/// The time that memory takes has no deadline, so a call with a deadline of 0.4 s took 30 s.
#[test]
fn a_false_length_costs_no_memory() {
    let before = most_memory();
    let calls: [BytesCall; 2] =
        [|rank| rank.broadcast_bytes(&mut vec![1, 2, 3], 0), |rank| rank.all_gather_bytes(&[1, 2, 3]).map(drop)];
    for call in calls {
        let engines = consonance_messages::threads(2).into_iter();
        let ranks = engines.enumerate().map(|(rank, engine)| match rank {
            1 => Communicator::from_engine(Box::new(FalseLengths(engine))),
            _ => Communicator::from_engine(engine),
        });
        let results: Vec<Result<(), Error>> = thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .map(|mut rank| {
                    scope.spawn(move || {
                        rank.set_timeout(Duration::from_secs(20)).expect("a timeout that ends");
                        call(&mut rank)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
        });
        // If the system has not as much memory left, the rank says so. A message of another
        // length ends the group.
        let is_told = |error: &Error| {
            matches!(error.root(), Error::Mismatch { .. } | Error::System { .. } | Error::Aborted { replica: 1, .. })
        };
        assert!(results.iter().all(|result| result.as_ref().is_err_and(is_told)), "{results:?}");
    }
    let grown = most_memory() - before;
    assert!(grown < LENGTH / 4, "{grown} bytes");
}
