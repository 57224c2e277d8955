//! Files that processes give to the others when they meet.

use super::worker::{Worker, form_all, job, open_all};

/// Returns what each member of the last group has got from each member.
fn given<'a>(workers: impl IntoIterator<Item = &'a Worker>) -> Vec<String> {
    workers.into_iter().map(|worker| worker.wait_for("given")).collect()
}

#[test]
fn a_file_reaches_every_other_member() {
    let mut workers = open_all(3, job());
    workers[0].command("give zero");
    workers[2].command("give two");
    form_all(&mut workers, 0);
    assert_eq!(given(&workers), [",,two", "zero,,two", "zero,,"]);
    // In the next group, too: some of the files are others.
    workers[0].command("give nought");
    workers[1].command("give one");
    form_all(&mut workers, 0);
    assert_eq!(given(&workers), [",one,two", "nought,,two", "nought,one,"]);
}

#[test]
fn a_replacement_gives_a_file_of_its_own() {
    // The process of the lower task listens, that of the higher one connects.
    for lost in [0, 1] {
        let digest = job();
        let mut workers = open_all(2, digest);
        workers.iter_mut().zip(["zero", "one"]).for_each(|(worker, text)| worker.command(&format!("give {text}")));
        form_all(&mut workers, 0);
        assert_eq!(given(&workers), [",one", "zero,"]);
        workers.remove(lost).kill();
        let mut other = Worker::open(lost, 2, digest);
        if lost == 0 {
            other.command("give other");
        }
        workers.insert(lost, other);
        form_all(&mut workers, 10_000);
        let expected = if lost == 0 { [",one", "other,"] } else { [",", "zero,"] };
        assert_eq!(given(&workers), expected);
    }
}
