//! Asynchronous calls on an engine that only enqueues: their results come after `synchronize`.

use consonance::{
    CommunicationOptions, Communicator, Device, Error, MirroredStrategy, Queue, ReduceOp, Result, World,
    raw::{Abort, AbortHandle, Call, Configuration, Engine, Failure, Kind, Reason, Role, Service, Signature},
};
use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq)]
enum Event {
    Enqueued,
    Synchronizes,
    Synchronized,
}

/// The engine of one rank. It enqueues each all-reduce and barrier, and changes no data. A
/// broadcast fails after a part of it is enqueued. `synchronize` waits until the test lets the
/// device finish.
struct Enqueues {
    events: mpsc::Sender<Event>,
    finish: mpsc::Receiver<Result<()>>,
    enqueued: usize,
}

/// The test's end of the engine.
struct Pretended {
    events: mpsc::Receiver<Event>,
    finish: mpsc::Sender<Result<()>>,
}

struct Never;

impl Abort for Never {
    fn abort(&self, _: Option<usize>, _: Option<u64>, _: Reason) {}

    fn is_aborted(&self) -> bool {
        false
    }
}

impl Engine for Enqueues {
    fn world(&self) -> World {
        World::new(0, 1).expect("one rank")
    }

    fn service(&self) -> Service {
        Service::Calls
    }

    fn execute(&mut self, call: Call<'_>, _: &Signature, _: Kind) -> Result<(), Failure> {
        if let Call::AllReduce { .. } | Call::Barrier | Call::Broadcast { .. } = call {
            self.enqueued += 1;
            self.events.send(Event::Enqueued).unwrap();
        }
        match call {
            Call::Broadcast { .. } => Err(failed().into()),
            _ => Ok(()),
        }
    }

    fn synchronize(&mut self) -> Result<()> {
        if std::mem::take(&mut self.enqueued) == 0 {
            return Ok(());
        }
        self.events.send(Event::Synchronizes).unwrap();
        let finished = self.finish.recv_timeout(LONG).expect("the test lets the device finish");
        self.events.send(Event::Synchronized).unwrap();
        finished
    }

    fn configure(&mut self, _: &Configuration) {}

    fn abort_handle(&self) -> AbortHandle {
        (Arc::new(Never) as Arc<dyn Abort>).into()
    }
}

fn engine() -> (Box<dyn Engine>, Pretended) {
    let (sender, events) = mpsc::channel();
    let (finish, finishes) = mpsc::channel();
    (Box::new(Enqueues { events: sender, finish: finishes, enqueued: 0 }), Pretended { events, finish })
}

impl Pretended {
    #[track_caller]
    fn expect(&self, event: Event) {
        assert_eq!(self.events.recv_timeout(LONG).unwrap(), event);
    }
}

fn failed() -> Error {
    Error::system("the device", std::io::ErrorKind::InvalidData)
}

#[track_caller]
fn is_of_device<T>(result: Result<T>) -> bool {
    matches!(result.err().expect("the device failed").root(), Error::System { what, .. } if what == "the device")
}

#[test]
fn a_pending_call_is_finished_after_the_engine_has_synchronized() {
    let (engine, device) = engine();
    let mut lent = [1.0f32];
    let end = Communicator::from_engine(engine).scope(|scope| {
        let owned = scope.all_reduce_owned(ReduceOp::Sum, vec![1.0f32; 3])?;
        for event in [Event::Enqueued, Event::Synchronizes] {
            device.expect(event);
            assert!(!owned.is_finished());
        }
        device.finish.send(Ok(())).unwrap();
        assert_eq!(owned.wait()?, [1.0; 3]);
        device.expect(Event::Synchronized);
        // The error of a call that nobody waits for comes from the end of the scope.
        let failing = scope.all_reduce(ReduceOp::Sum, &mut lent)?;
        [Event::Enqueued, Event::Synchronizes].into_iter().for_each(|event| device.expect(event));
        assert!(!failing.is_finished());
        device.finish.send(Err(failed())).unwrap();
        Ok(())
    });
    assert!(is_of_device(end));
    device.expect(Event::Synchronized);
}

/// Found by a review: the buffers were dropped when the call had failed.
#[test]
fn buffers_of_a_failed_call_outlive_its_enqueued_work() {
    struct Buffer([f32; 2], mpsc::Sender<()>);
    impl Drop for Buffer {
        fn drop(&mut self) {
            self.1.send(()).unwrap();
        }
    }
    let (engine, device) = engine();
    let (dropped, drops) = mpsc::channel();
    let end = Communicator::from_engine(engine).scope(|scope| {
        let call = scope.start_owned(Buffer([1.0; 2], dropped), |buffer| Call::Broadcast {
            data: buffer.0.as_mut_slice().into(),
            root: 0,
        });
        [Event::Enqueued, Event::Synchronizes].into_iter().for_each(|event| device.expect(event));
        assert!(!call.is_finished() && drops.try_recv().is_err());
        device.finish.send(Ok(())).unwrap();
        assert!(is_of_device(call.wait().map(drop)));
        Ok(())
    });
    assert!(end.is_ok() && drops.recv().is_ok());
}

#[test]
fn a_request_has_ended_after_the_engine_has_synchronized() {
    let (engine, device) = engine();
    let queue = Queue::new(Communicator::from_engine(engine));
    for fails in [false, true] {
        let request = queue.start(vec![Call::Barrier, Call::Barrier], None);
        let told = Arc::new(Mutex::new(None));
        let tell = told.clone();
        request.on_finish(move |result| *tell.lock().unwrap() = Some(result.is_err()));
        for event in [Event::Enqueued, Event::Enqueued, Event::Synchronizes] {
            device.expect(event);
            assert!(!request.is_finished() && !request.wait(Some(Duration::ZERO)).unwrap());
        }
        device.finish.send(if fails { Err(failed()) } else { Ok(()) }).unwrap();
        match fails {
            // A second wait gets the error, too.
            true => assert!(is_of_device(request.wait(None)) && is_of_device(request.wait(None))),
            false => assert!(request.wait(None).unwrap()),
        }
        assert_eq!(*told.lock().unwrap(), Some(fails));
        device.expect(Event::Synchronized);
    }
}

#[test]
fn a_pending_nest_comes_after_the_engine_has_synchronized() {
    for (background_threads, fails) in [(false, false), (false, true), (true, false), (true, true)] {
        let (engine, device) = engine();
        let (returns, returned) = mpsc::channel();
        let engine = Mutex::new(Some(engine));
        let engines = move |_: &[Device], _: &Role| Ok(vec![engine.lock().unwrap().take().expect("one run")]);
        let options = CommunicationOptions::new().background_threads(background_threads);
        let strategy = MirroredStrategy::builder(["cpu:0"]).engines(engines).options(options).build().unwrap();
        let run = std::thread::spawn(move || {
            strategy.run(|replica| {
                replica.overlap(|buckets| {
                    let sum = buckets.all_reduce(ReduceOp::Sum, vec![1.5f32, 2.5])?.wait();
                    returns.send(()).unwrap();
                    sum
                })
            })
        });
        [Event::Enqueued, Event::Synchronizes].into_iter().for_each(|event| device.expect(event));
        assert!(returned.try_recv().is_err(), "{background_threads}");
        device.finish.send(if fails { Err(failed()) } else { Ok(()) }).unwrap();
        returned.recv_timeout(LONG).unwrap();
        device.expect(Event::Synchronized);
        let sums = run.join().unwrap();
        match fails {
            true => assert!(is_of_device(sums)),
            false => assert_eq!(sums.unwrap().values(), [vec![1.5, 2.5]]),
        }
    }
}
