//! The spans of calls that a subscriber of `tracing` gets.

use consonance::{
    Communicator, MirroredStrategy, ReduceOp, Tensor, World,
    raw::{
        Abort, AbortHandle, Buffers, Call, Configuration, Copies, Engine, Explanation, Failure, Kind, Reason, Service,
        Signature, Way,
    },
};
use consonance_kernels::cuda::Uuid;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    thread,
};
use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber, dispatcher,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// A span, with its fields as text, and the events in it.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
    events: Vec<String>,
    is_closed: bool,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

/// Collects the spans of one thread.
#[derive(Clone)]
struct Collector {
    least: Level,
    spans: Arc<Mutex<Vec<Seen>>>,
    entered: Arc<Mutex<Vec<usize>>>,
}

impl Collector {
    fn new(least: Level) -> Collector {
        Collector { least, spans: Arc::default(), entered: Arc::default() }
    }

    /// Runs `work` with a collector for this thread, and returns its result and the spans. Tests do
    /// so in turn: what `tracing` remembers of a span is of all threads.
    fn around<R>(least: Level, work: impl FnOnce() -> R) -> (R, Vec<Seen>) {
        static TURN: Mutex<()> = Mutex::new(());
        // While there is one subscriber, `tracing` asks that of the thread which is the first to
        // come to a span whether anyone wants it. A thread without a subscriber would answer for
        // all.
        static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Collector::new(Level::ERROR)));
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        LazyLock::force(&ANOTHER);
        let collector = Collector::new(least);
        let result = dispatcher::with_default(&Dispatch::new(collector.clone()), work);
        (result, collector.spans())
    }

    fn at(id: &Id) -> usize {
        id.into_u64() as usize - 1
    }

    fn spans(&self) -> Vec<Seen> {
        self.spans.lock().unwrap().clone()
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "consonance" && *metadata.level() <= self.least
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut seen = Seen { name: attributes.metadata().name(), ..Seen::default() };
        attributes.record(&mut seen);
        let mut spans = self.spans.lock().unwrap();
        spans.push(seen);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut self.spans.lock().unwrap()[Collector::at(id)]);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Seen::default();
        event.record(&mut message);
        let within = *self.entered.lock().unwrap().last().expect("an event in a span");
        self.spans.lock().unwrap()[within].events.push(message.fields["message"].clone());
    }

    fn enter(&self, id: &Id) {
        self.entered.lock().unwrap().push(Collector::at(id));
    }

    fn exit(&self, id: &Id) {
        assert_eq!(self.entered.lock().unwrap().pop(), Some(Collector::at(id)), "spans are nested");
    }

    fn try_close(&self, id: Id) -> bool {
        self.spans.lock().unwrap()[Collector::at(&id)].is_closed = true;
        true
    }
}

/// Returns the fields of a span, without those whose values vary.
fn fields(seen: &Seen) -> Vec<(&str, &str)> {
    let fields = seen.fields.iter().map(|(&name, value)| (name, value.as_str()));
    fields.filter(|(name, _)| *name != "waited_us").collect()
}

#[test]
fn a_call_is_a_span_with_its_fields() {
    let mut ranks = Communicator::threads(2);
    let mut other = ranks.remove(1);
    let work = |rank: &mut Communicator| {
        rank.all_reduce(ReduceOp::Sum, &mut [1.0f32; 5])?;
        rank.barrier()
    };
    let ((), spans) = Collector::around(Level::DEBUG, || {
        thread::scope(|scope| {
            scope.spawn(move || work(&mut other).unwrap());
            work(&mut ranks[0]).unwrap();
        });
    });
    assert_eq!(spans.len(), 2, "of one thread only: {spans:?}");
    let of_all = [("path", "inline"), ("replica", "0"), ("replicas", "2"), ("transport", "threads")];
    let sum = [("bytes", "20"), ("dtype", "f32"), ("kind", "all_reduce"), ("op", "sum")];
    assert_eq!(fields(&spans[0]), [&sum[..], &of_all].concat());
    // No data move.
    assert_eq!(fields(&spans[1]), [&[("bytes", "0"), ("kind", "barrier")][..], &of_all[1..]].concat());
    for seen in &spans {
        assert!(seen.fields["waited_us"].parse::<f64>().unwrap() >= 0.0, "{seen:?}");
        assert_eq!((seen.name, seen.events.as_slice(), seen.is_closed), ("call", &["finished".to_owned()][..], true));
    }
}

#[test]
fn a_run_is_the_parent_of_its_calls_and_an_error_is_recorded() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let (failed, spans) = Collector::around(Level::DEBUG, || {
        strategy.run(|replica| {
            let size = 1 + replica.replica_id_in_sync_group();
            replica.all_reduce(ReduceOp::Sum, Tensor::from(vec![1.0f32; size]))
        })
    });
    let error = format!("{}", failed.unwrap_err());
    // Replica 0 runs on the calling thread.
    assert_eq!(spans[0].name, "run");
    assert_eq!(fields(&spans[0]), [("replica", "0"), ("replicas", "2")]);
    assert_eq!(spans.iter().map(|seen| seen.name).collect::<Vec<_>>(), ["run", "call"]);
    assert_eq!((&spans[1].fields["error"], spans[1].events.as_slice()), (&error, &["failed".to_owned()][..]));
    assert!(!spans[1].fields.contains_key("waited_us"), "{spans:?}");
}

/// The engine of a rank alone, on GPU 3. A call of more than four bytes has data there.
struct OnGpu;

const UUID: Uuid = Uuid(*b"interpreter \0\0\0\x05");

struct Never;

impl Abort for Never {
    fn abort(&self, _: Option<usize>, _: Option<u64>, _: Reason) {}

    fn is_aborted(&self) -> bool {
        false
    }
}

impl Engine for OnGpu {
    fn world(&self) -> World {
        World::new(0, 1).expect("one rank")
    }

    fn service(&self) -> Service {
        Service::Calls
    }

    fn execute(&mut self, _: Call<'_>, _: &Signature, _: Kind) -> Result<(), Failure> {
        Ok(())
    }

    fn configure(&mut self, _: &Configuration) {}

    fn abort_handle(&self) -> AbortHandle {
        (Arc::new(Never) as Arc<dyn Abort>).into()
    }

    fn explain(&self, _: Option<usize>) -> Explanation {
        Explanation { gpu: Some((3, UUID)), ..Explanation::default() }
    }

    fn way(&self, buffers: &Buffers) -> Way {
        match buffers.recv {
            Some(recv) if recv.bytes > 4 => Way::Copies(Copies { send: false, input: true, result: true }),
            Some(_) | None => Way::Host,
        }
    }
}

#[test]
fn a_call_on_a_gpu_names_it() {
    let mut alone = Communicator::from_engine(Box::new(OnGpu));
    let (done, spans) = Collector::around(Level::DEBUG, || {
        alone.all_reduce(ReduceOp::Sum, &mut [1.0f32; 2])?;
        alone.all_reduce(ReduceOp::Sum, &mut [1.0f32])?;
        alone.barrier()
    });
    done.unwrap();
    let gpus = spans.iter().map(|seen| ["gpu", "gpu_uuid"].map(|name| seen.fields.get(name).map(String::as_str)));
    let on_gpu = [Some("cuda:3"), Some("GPU-696e7465-7270-7265-7465-722000000005")];
    assert_eq!(gpus.collect::<Vec<_>>(), [on_gpu, [None; 2], [None; 2]]);
}

#[test]
fn a_subscriber_of_a_higher_level_gets_nothing() {
    let ((), spans) = Collector::around(Level::INFO, || Communicator::threads(1)[0].barrier().unwrap());
    assert!(spans.is_empty());
}
