//! What ranks compare beyond a call's buffers, and who is named if they differ.
//!
//! Signatures travel as 64 bits. Only after a mismatch do the ranks tell each other their calls in
//! words, argument by argument, and vote: the call that most ranks made is the one expected, of
//! equals the one with the lowest rank; the first rank that differs is the one named. A call that
//! cannot be right is never expected. All ranks have the same words, and so the same error.

use crate::{Error, comm::options::Configuration};
use consonance_spec::{
    Kind, Signature,
    call::{digest, mix},
};

/// What ranks compare of a call beyond its buffers: 64 bits that differ where it does, and the
/// words for an error then.
///
/// ```
/// use consonance::{Communicator, raw::{Agreement, Call}};
/// # use consonance::{Error, ReduceOp};
/// let mut alone = Communicator::threads(1).remove(0);
/// let (mut gradients, step) = ([1.5f32; 4], 17);
/// let describe = || vec![("step".to_owned(), step.to_string())];
/// let call = Call::AllReduce { op: ReduceOp::Sum, send: None, recv: gradients.as_mut_slice().into() };
/// alone.execute(call, &Agreement::new(step, &describe))?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Agreement<'a> {
    /// The call that the user made, where the step at hand is of another kind.
    pub(crate) call: Option<Kind>,
    /// 0 where there is nothing more to compare.
    pub(crate) digest: u64,
    /// Each argument with its value, in an order that is the same on all ranks.
    pub(crate) describe: &'a dyn Fn() -> Vec<(String, String)>,
}

impl<'a> Agreement<'a> {
    /// Nothing beyond the buffers.
    pub const NONE: Agreement<'static> = Agreement { call: None, digest: 0, describe: &Vec::new };

    /// Ranks agree if they give the same digest. If they do not, `describe` gives each argument
    /// with its value, in the same order on all ranks.
    pub fn new(digest: u64, describe: &'a dyn Fn() -> Vec<(String, String)>) -> Agreement<'a> {
        // 0 says that there is nothing to compare.
        Agreement { call: None, digest: mix(digest, 1) | 1, describe }
    }

    /// The call that errors name.
    pub(crate) fn name(&self, signature: &Signature) -> Kind {
        self.call.unwrap_or(signature.kind)
    }

    /// Adds the digest to a call's signature, if there is one.
    #[inline]
    pub(crate) fn sign(&self, signature: &mut Signature) {
        if self.digest != 0 {
            signature.detail = mix(signature.detail, self.digest);
        }
    }

    /// The call in words.
    pub(crate) fn words(&self, signature: &Signature, configuration: &Configuration) -> Words {
        let mut lines = vec![("call".to_owned(), self.name(signature).to_string())];
        lines.extend((self.describe)());
        let mut say =
            |argument: &str, value: Option<String>| lines.extend(value.map(|value| (argument.to_owned(), value)));
        say("op", signature.op.map(|op| op.to_string()));
        let root = if signature.kind == Kind::SendRecv { "sender" } else { "root" };
        say(root, signature.root.map(|root| root.to_string()));
        // What a call on a nest describes says more than the dtype and count of the step at hand.
        if self.call.is_none() {
            say("dtype", signature.dtype.map(|dtype| dtype.to_string()));
            say("count", signature.count.map(|count| count.to_string()));
        }
        if signature.kind == Kind::AllReduce {
            say("implementation", Some(format!("{:?}", configuration.implementation)));
        }
        Words(lines)
    }
}

/// The argument under which a rank tells that its own call cannot be right.
const REFUSED: &str = "refused";

/// A call in words, one argument a line, so that two calls can be compared argument by argument.
pub(crate) struct Words(Vec<(String, String)>);

impl Words {
    /// The most bytes of them that ranks tell each other: no other process's word is a bound of
    /// what is allocated.
    pub(crate) const BYTES: usize = 1 << 20;

    /// Those of a call that cannot be right, and why.
    pub(crate) fn refused(kind: Kind, why: &str) -> Words {
        Words(vec![("call".to_owned(), kind.to_string()), (REFUSED.to_owned(), why.to_owned())])
    }

    /// What a rank tells the others.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // What a user's words have of these would end a line, or an argument.
        let plain = |text: &str| text.replace(['\n', '\t'], " ");
        let lines = self.0.iter().map(|(argument, value)| format!("{}\t{}\n", plain(argument), plain(value)));
        let text: String = lines.collect();
        let mut bytes = text.into_bytes();
        bytes.truncate(Words::BYTES);
        bytes
    }
}

/// The signature of a call that cannot be right: no other call's is this one (up to one chance in
/// 2^64).
pub(crate) fn refused(kind: Kind, why: &str) -> Signature {
    Signature { detail: digest(why) | 1, ..Signature::new(kind) }
}

/// The first argument in which the first odd rank differs from what most ranks called; the same on
/// every rank.
pub(crate) fn compare(texts: &[String]) -> Error {
    let votes = |text: &String| texts.iter().filter(|other| *other == text).count();
    let refused = |text: &str| text.lines().any(|line| line.split('\t').next() == Some(REFUSED));
    // The most votes win, and of equals the lowest rank; a call that cannot be right is never the
    // one expected.
    let common = (0..texts.len()).rev().max_by_key(|&rank| (!refused(&texts[rank]), votes(&texts[rank]))).unwrap_or(0);
    let odd = texts.iter().position(|text| *text != texts[common]).unwrap_or(common);
    let split = |text: &'_ str| -> Vec<(String, String)> {
        text.lines().filter_map(|line| line.split_once('\t')).map(|(a, v)| (a.to_owned(), v.to_owned())).collect()
    };
    let (expected, found) = (split(&texts[common]), split(&texts[odd]));
    let call = expected.first().map_or_else(String::new, |(_, call)| call.clone());
    if let Some((_, why)) = found.iter().find(|(argument, _)| argument == REFUSED) {
        let (expected, found) = ("a valid call".to_owned(), why.clone());
        return Error::Mismatch { call, replica: odd, argument: "the call".to_owned(), expected, found };
    }
    let nothing = || "nothing".to_owned();
    let value = |lines: &[(String, String)], argument: &str| {
        lines.iter().find(|(other, _)| other == argument).map_or_else(nothing, |(_, value)| value.clone())
    };
    let argument = (expected.iter().chain(&found))
        .map(|(argument, _)| argument)
        .find(|argument| value(&expected, argument) != value(&found, argument))
        .map_or_else(|| "counts".to_owned(), String::clone);
    let (expected, found) = (value(&expected, &argument), value(&found, &argument));
    Error::Mismatch { call, replica: odd, argument, expected, found }
}
