//! A recommender, trained with parameter servers, that loses a worker and ends with the same bits.
//!
//! ```text
//! cargo run --release --example recommender
//! ```
//!
//! This process starts a chief, workers and servers, each a process of this program, and kills one
//! of the workers midway. The chief gives its closure to another worker, and goes on. A process in
//! the place of the lost one joins by itself.
//!
//! The data have a known answer: the ratings are the products of the rows of two random tables,
//! which the training does not see. It finds two tables of its own, which lie on the servers, and
//! its error on ratings that it has not seen is compared with that of a guess.
//!
//! Closures are in windows, so all bits are a function of the program. The chief prints the digest
//! of both tables. At the end it is compared with that of the same training, undisturbed, by
//! threads of one process.

#[path = "digits/random.rs"]
mod random;

use clap::Parser;
use consonance::{
    ClusterCoordinator, Element, Error, IndexedSlices, ParameterServerStrategy, Result, ShardedVariable, Tensor,
    TfConfigClusterResolver,
    parameter_server::{FixedShardsPartitioner, Order, ParameterServerBuilder},
};
use random::Random;
use std::{
    collections::BTreeMap,
    env,
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufRead, BufReader},
    num::NonZeroUsize,
    process::{self, Child, Command, Stdio},
    sync::mpsc::{self, Sender},
    thread,
    time::{Duration, Instant},
};

const USERS: usize = 2000;
const ITEMS: usize = 500;
/// The numbers that describe a user, or an item.
const FEATURES: usize = 8;
/// The ratings of a user: these, and one to measure the error.
const RATED: usize = 40;
const BATCH: usize = 250;
const LEARNING_RATE: f32 = 0.05;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Finds the tables behind ratings, with a chief, workers and servers, one of which is killed
/// midway.
#[derive(Parser)]
#[command(name = "recommender")]
struct Options {
    /// Number of workers
    #[arg(short, long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    workers: u64,
    /// Number of servers
    #[arg(short, long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    servers: u64,
    /// Times that all ratings are used
    #[arg(short, long, value_name = "COUNT", default_value_t = 20)]
    epochs: usize,
    /// Closures that read the same values, and whose effects commit together
    #[arg(long, value_name = "COUNT", default_value_t = NonZeroUsize::new(8).expect("not zero"))]
    window: NonZeroUsize,
    /// Let all workers live
    #[arg(long)]
    undisturbed: bool,
    /// Play all roles by threads of this process
    #[arg(long)]
    threads: bool,
}

fn main() {
    let options = Options::parse();
    let done = match env::var("TF_CONFIG") {
        Ok(_) => work(&options).map(|()| true),
        Err(_) if options.threads => play(all_roles(&options), &options).map(|_| true),
        Err(_) => supervise(&options),
    };
    process::exit(match done {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            eprintln!("error: {error}");
            1
        }
    })
}

/// Plays the role that `TF_CONFIG` gives this process.
fn work(options: &Options) -> Result<()> {
    let builder = ParameterServerStrategy::builder(TfConfigClusterResolver::new()?)?;
    play(builder, options).map(drop)
}

/// Returns a builder that plays all roles by threads of this process.
fn all_roles(options: &Options) -> ParameterServerBuilder {
    ParameterServerStrategy::builder_of_threads(options.workers as usize, options.servers as usize)
}

/// Ratings: the user, the item, and the rating of each.
#[derive(Clone, Default)]
struct Ratings {
    users: Vec<i64>,
    items: Vec<i64>,
    ratings: Vec<f32>,
}

/// Returns the elements of a table of so many rows, from `-scale` to `scale`.
fn table(random: &mut Random, rows: usize, scale: f32) -> Vec<f32> {
    (0..rows * FEATURES).map(|_| scale * random.uniform()).collect()
}

impl Ratings {
    /// Returns ratings to learn from, and others to measure the error.
    fn generate() -> (Ratings, Ratings) {
        let mut random = Random::new(1);
        let (users, items) = (table(&mut random, USERS, 1.0), table(&mut random, ITEMS, 1.0));
        let (mut learned, mut measured) = (Ratings::default(), Ratings::default());
        for user in 0..USERS {
            for place in 0..=RATED {
                let item = random.below(ITEMS);
                let rating = dot(&users[user * FEATURES..][..FEATURES], &items[item * FEATURES..][..FEATURES]);
                let ratings = if place == RATED { &mut measured } else { &mut learned };
                ratings.users.push(user as i64);
                ratings.items.push(item as i64);
                ratings.ratings.push(rating);
            }
        }
        (learned, measured)
    }

    /// Returns the ratings at these places.
    fn select(&self, places: &[usize]) -> (Tensor, Tensor, Tensor) {
        fn at<T: Element>(of: &[T], places: &[usize]) -> Tensor {
            Tensor::from(places.iter().map(|&place| of[place]).collect::<Vec<T>>())
        }
        (at(&self.users, places), at(&self.items, places), at(&self.ratings, places))
    }
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

/// The tables that are trained.
#[derive(Clone)]
struct Tables {
    users: ShardedVariable,
    items: ShardedVariable,
}

/// Plays the role of this process. Returns the digest of the tables, in the chief.
fn play(builder: ParameterServerBuilder, options: &Options) -> Result<Option<u64>> {
    let partitioner = FixedShardsPartitioner::new(options.servers as usize)?;
    let order = Order::Scheduled { window: options.window };
    let strategy = builder.partitioner(partitioner).order(order).timeout(TIMEOUT).build()?;
    let mut random = Random::new(2);
    let mut start = |rows| Tensor::new([rows, FEATURES], &table(&mut random, rows, 0.5));
    let (users, items) = (start(USERS)?, start(ITEMS)?);
    let tables = Tables { users: strategy.variable(|| users)?, items: strategy.variable(|| items)? };
    let coordinator = ClusterCoordinator::new(&strategy);
    let step = coordinator.function("step", {
        let tables = tables.clone();
        move |worker, (users, items, ratings): (Tensor, Tensor, Tensor)| {
            let mut rows = [worker.lookup(&tables.users, &users)?, worker.lookup(&tables.items, &items)?];
            let error = gradients(&mut rows, ratings.as_slice()?)?;
            let [of_users, of_items] = rows;
            worker.scatter_sub(&tables.users, &IndexedSlices::new(of_users, users, None)?)?;
            worker.scatter_sub(&tables.items, &IndexedSlices::new(of_items, items, None)?)?;
            Ok((error, worker.worker_index() as u64))
        }
    })?;
    if !strategy.is_chief() {
        return strategy.serve().map(|()| None);
    }
    let (learned, measured) = Ratings::generate();
    let mut random = Random::new(3);
    for epoch in 1..=options.epochs {
        let begin = Instant::now();
        let order = random.permutation(learned.ratings.len());
        let steps = order.chunks(BATCH).map(|batch| coordinator.schedule(&step, learned.select(batch)));
        let steps = steps.collect::<Result<Vec<_>>>()?;
        let joined = coordinator.join(TIMEOUT)?;
        for lost in joined.lost {
            let closure = lost.closure.map(|closure| format!(", and closure {closure} ran again"));
            println!("worker {} was lost{}", lost.worker, closure.unwrap_or_default());
        }
        let mut error = 0.0;
        let mut of_workers = BTreeMap::<u64, usize>::new();
        for step in steps {
            let (squares, worker) = step.fetch(TIMEOUT)?;
            error += squares;
            *of_workers.entry(worker).or_default() += 1;
        }
        let work: Vec<String> = of_workers.iter().map(|(worker, count)| format!("worker {worker} {count}")).collect();
        println!(
            "epoch {epoch:2}: error {:.4}, {:.0} ratings a second; closures: {}",
            (error / order.len() as f64).sqrt(),
            order.len() as f64 / begin.elapsed().as_secs_f64(),
            work.join(", ")
        );
    }
    let (users, items) = (tables.users.read()?, tables.items.read()?);
    let [found, guess] = [Some((&users, &items)), None].map(|tables| measured.error(tables));
    println!("error {:.4} on ratings that it has not seen; {:.4} if each is guessed as 0", found?, guess?);
    let mut digest = DefaultHasher::new();
    for table in [users, items] {
        table.as_slice::<f32>()?.iter().for_each(|x| x.to_bits().hash(&mut digest));
    }
    println!("digest of the tables {:016x}", digest.finish());
    for (name, table) in [("users", &tables.users), ("items", &tables.items)] {
        let shards = table.shards().into_iter().map(|(rows, server)| format!("server {server} rows {rows:?}"));
        println!("table of {name}: {}", shards.collect::<Vec<_>>().join(", "));
    }
    Ok(Some(digest.finish()))
}

/// Replaces rows of users and of items by their gradients times the learning rate. Returns the sum
/// of the squared errors.
fn gradients([users, items]: &mut [Tensor; 2], ratings: &[f32]) -> Result<f64> {
    let (users, items) = (users.as_mut_slice::<f32>()?, items.as_mut_slice::<f32>()?);
    let mut squares = 0.0;
    for ((user, item), rating) in users.chunks_mut(FEATURES).zip(items.chunks_mut(FEATURES)).zip(ratings) {
        let error = dot(user, item) - rating;
        squares += f64::from(error * error);
        for (user, item) in user.iter_mut().zip(item) {
            (*user, *item) = (LEARNING_RATE * error * *item, LEARNING_RATE * error * *user);
        }
    }
    Ok(squares)
}

impl Ratings {
    /// Returns the root of the mean squared error of these tables, or of zeros.
    fn error(&self, tables: Option<(&Tensor, &Tensor)>) -> Result<f64> {
        let mut squares = 0.0;
        for ((&user, &item), rating) in self.users.iter().zip(&self.items).zip(&self.ratings) {
            let found = match tables {
                None => 0.0,
                Some((users, items)) => {
                    let row = |of: &Tensor, row: i64| {
                        Ok::<_, Error>(of.as_slice::<f32>()?[row as usize * FEATURES..][..FEATURES].to_vec())
                    };
                    dot(&row(users, user)?, &row(items, item)?)
                }
            };
            squares += f64::from((found - rating) * (found - rating));
        }
        Ok((squares / self.ratings.len() as f64).sqrt())
    }
}

// The supervisor
// -------------------------------------------------------------------------------------------------

/// Starts all roles, and kills a worker. Returns whether the tables have the bits of an undisturbed
/// training.
fn supervise(options: &Options) -> Result<bool> {
    let Options { workers, servers, epochs, undisturbed, .. } = *options;
    let (tell, lines) = mpsc::channel();
    let start = |job: &'static str, index: u64| start(options, job, index, tell.clone());
    let mut others: Vec<Child> = Vec::new();
    for server in 0..servers {
        others.push(start("ps", server)?);
    }
    let mut of_workers = (0..workers).map(|worker| start("worker", worker)).collect::<Result<Vec<_>>>()?;
    let mut chief = start("chief", 0)?;
    let last = workers as usize - 1;
    let (middle, mut digest) = (format!("epoch {:2}:", epochs / 2), None);
    // The chief's lines end with it.
    while let Ok(Some(line)) = lines.recv() {
        println!("{line}");
        if line.starts_with(&middle) && !undisturbed {
            // In the midst of the next epoch.
            thread::sleep(Duration::from_millis(50));
            println!("kill -9 {}, which is worker {last}", of_workers[last].id());
            of_workers[last].kill().map_err(Error::other)?;
            of_workers[last].wait().map_err(Error::other)?;
            of_workers[last] = start("worker", last as u64)?;
        }
        digest = line.strip_prefix("digest of the tables ").map(str::to_owned).or(digest);
    }
    let mut succeeded = chief.wait().map_err(Error::other)?.success();
    for mut other in others.into_iter().chain(of_workers) {
        succeeded &= other.wait().map_err(Error::other)?.success();
    }
    println!("the same, undisturbed, by threads of one process:");
    let right = play(all_roles(options), options)?.map(|digest| format!("{digest:016x}"));
    let is_same = digest.is_some() && digest == right;
    println!("{}", if is_same { "same bits" } else { "OTHER BITS" });
    Ok(succeeded && is_same)
}

/// Starts a process of this program with this task. The lines of the chief are told, and `None`
/// after the last.
fn start(options: &Options, job: &str, index: u64, tell: Sender<Option<String>>) -> Result<Child> {
    // Nothing listens at these addresses. Together with the job id they only tell processes apart.
    let of_job = |first: u64, count: u64| {
        let addresses = (first..first + count).map(|port| format!("\"localhost:{port}\"")).collect::<Vec<_>>();
        addresses.join(", ")
    };
    let (chief, workers, servers) = (of_job(2000, 1), of_job(2001, options.workers), of_job(3000, options.servers));
    let cluster = format!(r#"{{"chief": [{chief}], "worker": [{workers}], "ps": [{servers}]}}"#);
    let config = format!(r#"{{"cluster": {cluster}, "task": {{"type": "{job}", "index": {index}}}}}"#);
    let mut command = Command::new(env::current_exe().map_err(Error::other)?);
    command.args(env::args_os().skip(1)).env("TF_CONFIG", config);
    command.env("CONSONANCE_JOB", format!("recommender-{}", process::id())).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(Error::other)?;
    let (output, is_chief) = (child.stdout.take(), job == "chief");
    thread::spawn(move || {
        let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(|line| line.ok());
        for line in lines {
            let _ = tell.send(Some(line));
        }
        if is_chief {
            let _ = tell.send(None);
        }
    });
    Ok(child)
}
