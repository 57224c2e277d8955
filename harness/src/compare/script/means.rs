//! One rank's part of a reduction to the means of integers, which are of another type.

use super::{
    leaves::Held,
    part::{Part, Slab, judge, reduced},
};
use crate::{
    calls::{Call, Counts},
    cases::{Buffer, Collective},
    sample::{Sample, sample},
};
use consonance::{Communicator, Error, Pending, Scope};
use consonance_spec::{Kind, collective};

/// A part of a reduction whose result is in another place.
struct Means<T: Sample<Mean: Sample>> {
    call: Collective,
    send: Slab<T>,
    /// The place of the result, if this rank gets one.
    recv: Option<Slab<T::Mean>>,
    /// The leaves before the last, if ranks may have several.
    held: Option<Held<T>>,
}

/// Returns every rank's part: `all` has all contributions, and `given` the last one of each rank
/// with those before.
pub(super) fn parts<T: Sample<Mean: Sample>>(
    call: &Collective,
    all: &[Vec<T>],
    given: Vec<(Vec<T>, Option<Held<T>>)>,
) -> Vec<Box<dyn Part>> {
    let means = collective::mean(all).expect("integers have a mean");
    let results = reduced(call, means, given.len()).expect("blocks are even");
    let ranks = (0..).zip(given).zip(results);
    let part = ranks.map(|((rank, (given, held)), result)| {
        let send = Slab::new(call, rank, Buffer::Send, &given, &given);
        let fresh = |count: usize| sample::<T::Mean>(!call.seed, count);
        let recv = result.map(|result| Slab::new(call, rank, Buffer::Recv, &fresh(result.len()), &result));
        Box::new(Means { call: call.clone(), send, recv, held }) as Box<dyn Part>
    });
    part.collect()
}

impl<T: Sample<Mean: Sample>> Part for Means<T> {
    fn place(&mut self, communicator: &mut Communicator) -> Result<(), Error> {
        self.send.place(communicator)?;
        self.recv.iter_mut().try_for_each(|recv| recv.place(communicator))?;
        self.held.iter_mut().try_for_each(|held| held.place(communicator))
    }

    fn make(&mut self, communicator: &mut Communicator) -> Result<(), Error> {
        let Means { call, send, recv, held } = self;
        let call = of(call, send, recv);
        match held {
            Some(held) => call.make_apart_on(communicator, held.begin()?),
            None => call.make_apart(communicator),
        }
    }

    fn start<'env>(&'env mut self, scope: &Scope<'env>) -> Result<Option<Pending>, Error> {
        let Means { call, send, recv, held } = self;
        let call = of(call, send, recv);
        match (held, call) {
            (Some(held), call) => Ok(Some(call.start_apart_on(scope, held.begin()?))),
            (None, Call { kind: Kind::AllReduce, op, send: Some(send), recv: Some(recv), .. }) => {
                scope.all_reduce_into(op, send, recv).map(Some)
            }
            (None, call) => unreachable!("{call:?} in a scope"),
        }
    }

    fn judge(&self, result: Result<(), Error>) -> Result<(), String> {
        let after = || {
            self.send.compare("send", &self.send.after)?;
            self.recv.iter().try_for_each(|recv| recv.compare("recv", &recv.after))?;
            self.held.iter().try_for_each(|held| held.judge(true))
        };
        judge(true, result, after, || self.untouched())
    }

    fn untouched(&self) -> Result<(), String> {
        self.send.compare("a failed call wrote send", &self.send.before)?;
        self.recv.iter().try_for_each(|recv| recv.compare("a failed call wrote recv", &recv.before))?;
        self.held.iter().try_for_each(|held| held.judge(false))
    }
}

/// Returns the call on these buffers.
fn of<'a, T: Sample, R: Sample>(
    &Collective { kind, op, root, .. }: &Collective,
    send: &'a Slab<T>,
    recv: &'a mut Option<Slab<R>>,
) -> Call<'a, T, R> {
    let recv = recv.as_mut().map(Slab::get_mut);
    Call { kind, op, root, counts: Counts::Even, send: Some(send.get()), recv }
}
