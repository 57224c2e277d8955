//! Errors of user code on their way through replicas: they convert by `?`, keep what they are, and
//! print each cause once.

mod fields;

use consonance::{BoxError, Error, MirroredStrategy, PerReplica, Result};
use fields::own;
use std::{error, fmt};

fn mirrored() -> MirroredStrategy {
    MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap()
}

/// An error of user code with a source.
#[derive(Debug)]
struct Shard(u32, BoxError);

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reading shard {}", self.0)
    }
}

impl error::Error for Shard {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&*self.1)
    }
}

impl From<Shard> for Error {
    fn from(error: Shard) -> Error {
        Error::other(error)
    }
}

fn read(shard: u32) -> Result<f32, Shard> {
    Err(Shard(shard, "bad record 17".into()))
}

/// Returns the loss of a replica, as each of its forms prints it.
fn forms(error: &Error) -> [String; 3] {
    [format!("{error}"), format!("{error:#}"), format!("{error:?}")]
}

#[test]
fn a_replica_s_function_may_use_errors_of_any_kind() {
    let strategy = mirrored();
    let of_first = |result: Result<PerReplica<f32>>, said: &str| {
        assert_eq!(own(&result.unwrap_err()), (0, said.to_owned()));
    };
    of_first(strategy.run(|_| Ok("x".parse::<f32>()?)), "invalid float literal");
    of_first(strategy.run(|_| Err("no data")?), "no data");
    of_first(strategy.run(|_| Err(format!("no {}", "data"))?), "no data");
    let boxed = || -> Result<f32, BoxError> { Ok("x".parse()?) };
    of_first(strategy.run(|_| Ok(boxed()?)), "invalid float literal");
    of_first(strategy.run(|replica| Ok(replica.all_reduce("sum", 1.0f32)? + read(3)?)), "reading shard 3");
    let merged = strategy.run(|replica| replica.merge_call((), |strategy, _| Ok(strategy.mirror(read(3)?))));
    of_first(merged, "reading shard 3");
    let scoped = strategy.scope(|| Ok("x".parse::<f32>()?)).unwrap_err();
    assert!(matches!(&scoped, Error::Other(own) if own.is::<std::num::ParseFloatError>()), "{scoped}");
}

#[test]
fn each_cause_is_printed_once() {
    let error = mirrored().run(|_| Ok(read(3)?)).unwrap_err();
    let whole = "replica 0: reading shard 3: bad record 17".to_owned();
    assert_eq!(forms(&error), ["replica 0: reading shard 3".to_owned(), whole.clone(), whole]);
    // An error that prints its source itself.
    let error = Error::other(Shard(3, Box::new(Error::other("reading shard 3"))));
    assert_eq!(format!("{error:?}"), "reading shard 3");
    let missing = std::fs::read("/nonexistent/file").unwrap_err();
    let system = Error::system("open the file", missing);
    assert_eq!(format!("{system:#}"), system.to_string());
    assert!(system.to_string().starts_with("open the file: "), "{system}");
}

#[test]
fn an_error_of_the_library_stays_one() {
    let lost = || Error::Left { call: "barrier".to_owned(), replica: 1, last: "no call".to_owned(), lost: true };
    let boxed: BoxError = lost().into();
    assert!(matches!(Error::from(boxed), Error::Left { replica: 1, lost: true, .. }));
    let wrapped = Error::other(Shard(3, lost().into()));
    assert!(wrapped.is_loss() && matches!(wrapped.root(), Error::Left { replica: 1, .. }), "{wrapped}");
    let twice = Error::Replica { replica: 0, source: Box::new(Error::other(Shard(3, Box::new(wrapped)))) };
    assert!(twice.is_loss());
    assert!(!Error::other(Shard(3, "bad".into())).is_loss());
}

/// An own error that only tells of another replica's failure is not the one that a run returns.
#[test]
fn a_wrapped_consequence_does_not_hide_its_cause() {
    let error = mirrored().run(|replica| match replica.replica_id_in_sync_group() {
        0 => Ok(replica.barrier().map_err(|error| Shard(3, error.into()))?),
        _ => Err("no data")?,
    });
    assert_eq!(own(&error.unwrap_err()), (1, "no data".to_owned()));
}

#[cfg(feature = "anyhow")]
#[test]
fn anyhow_passes_through() {
    use anyhow::Context;
    let strategy = mirrored();
    let step = |fails: bool| -> anyhow::Result<f32> {
        anyhow::ensure!(!fails, "no data");
        read(3).context("training step 4")
    };
    let error = strategy.run(|_| Ok(step(true)?)).unwrap_err();
    assert_eq!(own(&error), (0, "no data".to_owned()));
    let error = strategy.run(|_| Ok(step(false)?)).unwrap_err();
    assert_eq!(format!("{error:?}"), "replica 0: training step 4: reading shard 3: bad record 17");
    let outer = anyhow::Error::from(error).context("epoch 2");
    assert_eq!(format!("{outer:#}"), "epoch 2: replica 0: training step 4: reading shard 3: bad record 17");
    // The library's own errors are still themselves, with and without context.
    let bare = || -> anyhow::Result<()> { Err(Error::Panic { replica: 2, message: "oh".to_owned() })? };
    assert!(matches!(Error::from(bare().unwrap_err()), Error::Panic { replica: 2, .. }));
    let context = Error::from(bare().context("step 4").unwrap_err());
    assert_eq!(format!("{context:#}"), "step 4: replica 2 panicked: oh");
    assert!(matches!(context.root(), Error::Panic { replica: 2, .. }));
}
