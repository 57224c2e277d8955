//! The comparison of calls: properties that ranks compare beyond a call's buffers, and the choice
//! of the rank to blame.
//!
//! Signatures are compared as 64 bits. Only after a mismatch do the ranks exchange their calls in
//! words, argument by argument, and vote. The expected call is the one that most ranks made; in a
//! tie, the one of the lowest rank. The error names the first rank that differs. An invalid call is
//! never the expected one. All ranks vote on the same words, so all get the same error.

use crate::{Error, comm::options::Configuration, kind::EXTENSIONS};
use consonance_kernels::{
    digest::{digest, digest_counts, mix},
    group::PostedCall,
};
use consonance_spec::{Kind, Signature};
use std::fmt;

/// Properties of a call that ranks compare beyond its buffers: a digest of 64 bits, and the words
/// for the error if digests differ.
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
    /// The call that the user made, if the current step is of another kind.
    pub(crate) call: Option<Kind>,
    /// 0 if there is nothing more to compare.
    pub(crate) digest: u64,
    /// Each argument with its value, in an order that is the same on all ranks.
    pub(crate) describe: &'a dyn Fn() -> Vec<(String, String)>,
}

impl<'a> Agreement<'a> {
    /// Compares nothing beyond the buffers.
    pub const NONE: Agreement<'static> = Agreement { call: None, digest: 0, describe: &Vec::new };

    /// Makes an agreement: ranks agree if their digests are equal. If not, `describe` returns each
    /// argument with its value, in the same order on all ranks.
    pub fn new(digest: u64, describe: &'a dyn Fn() -> Vec<(String, String)>) -> Agreement<'a> {
        // Avoid 0, which means that there is nothing to compare.
        Agreement { call: None, digest: mix(digest, 1) | 1, describe }
    }

    /// Returns the call that errors name.
    pub(crate) fn name(&self, signature: &Signature) -> Kind {
        self.call.unwrap_or(signature.kind)
    }

    /// Mixes the digest, if there is one, into a call's signature.
    #[inline]
    pub(crate) fn sign(&self, signature: &mut Signature) {
        if self.digest != 0 {
            signature.detail = mix(signature.detail, self.digest);
        }
    }

    /// Describes the call in words.
    pub(crate) fn words(&self, signature: &Signature, configuration: &Configuration) -> Words {
        let mut lines = vec![("call".to_owned(), self.name(signature).to_string())];
        lines.extend((self.describe)());
        let mut say =
            |argument: &str, value: Option<String>| lines.extend(value.map(|value| (argument.to_owned(), value)));
        say("op", signature.op.map(|op| op.to_string()));
        let root = if signature.kind == Kind::SendRecv { "sender" } else { "root" };
        say(root, signature.root.map(|root| root.to_string()));
        // A call on a nest describes its leaves, which says more than dtype and count of the
        // current step.
        if self.call.is_none() {
            say("dtype", signature.dtype.map(|dtype| dtype.to_string()));
            say("count", signature.count.map(|count| count.to_string()));
        }
        if self.name(signature) == Kind::AllReduce {
            say("implementation", Some(format!("{:?}", configuration.implementation)));
        }
        Words(lines)
    }
}

/// The argument name under which a rank reports that its own call is invalid.
const REFUSED: &str = "refused";

/// A call in words, one argument per line, so that calls can be compared argument by argument.
pub(crate) struct Words(Vec<(String, String)>);

impl Words {
    /// The limit on the bytes of words that a rank accepts, so that no other process decides how
    /// much it allocates.
    pub(crate) const BYTES: usize = 1 << 20;

    /// Makes the words of an invalid call: the reason.
    pub(crate) fn refused(kind: Kind, why: &str) -> Words {
        Words(vec![("call".to_owned(), kind.to_string()), (REFUSED.to_owned(), why.to_owned())])
    }

    /// Encodes the words for the other ranks.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // A tab or newline in a user's text would end the argument or the line.
        let plain = |text: &str| text.replace(['\n', '\t'], " ");
        let lines = self.0.iter().map(|(argument, value)| format!("{}\t{}\n", plain(argument), plain(value)));
        let text: String = lines.collect();
        let mut bytes = text.into_bytes();
        bytes.truncate(Words::BYTES);
        bytes
    }
}

/// Returns the signature of an invalid call. It equals no other call's (but for a chance of one in
/// 2^64).
pub(crate) fn refused(kind: Kind, why: &str) -> Signature {
    Signature { detail: digest(why) | 1, ..Signature::new(kind) }
}

/// Returns the mismatch of calls that the ranks have read in each other's descriptors. The ranks
/// have compared nothing but what the descriptors say, at least in one of the calls.
pub(crate) fn compare_posted(calls: &[PostedCall], configuration: &Configuration) -> Error {
    let words = |call: &PostedCall| match (call.signature(EXTENSIONS), &call.refusal) {
        (Some(signature), Some(why)) => Words::refused(signature.kind, why),
        (Some(signature), None) => {
            let has_counts = signature.count.is_none() && matches!(signature.kind, Kind::Gather | Kind::Scatter);
            // Ranks with large parts do not tell their counts, but a digest of them.
            let told = || calls.iter().filter_map(|call| call.counts.as_ref());
            let digest =
                |counts: &[u64]| digest_counts(&counts.iter().map(|&count| count as usize).collect::<Vec<_>>());
            let found = || told().find(|counts| has_counts && digest(counts) == signature.detail);
            let counts = match call.counts.as_ref().or_else(found) {
                Some(counts) => Some(format!("{counts:?}")),
                None => has_counts.then(|| format!("those of larger parts, with digest {:016x}", signature.detail)),
            };
            let describe = || counts.iter().map(|counts| ("counts".to_owned(), counts.clone())).collect();
            Agreement { describe: &describe, ..Agreement::NONE }.words(&signature, configuration)
        }
        (None, _) => Words(vec![("call".to_owned(), "no known call".to_owned())]),
    };
    let texts = calls.iter().map(|call| String::from_utf8_lossy(&words(call).to_bytes()).into_owned());
    compare(&texts.collect::<Vec<_>>())
}

/// Returns the mismatch: the first argument in which the first deviating rank differs from the call
/// of most ranks. The result is the same on every rank.
pub(crate) fn compare(texts: &[String]) -> Error {
    let votes = |text: &String| texts.iter().filter(|other| *other == text).count();
    let refused = |text: &str| text.lines().any(|line| line.split('\t').next() == Some(REFUSED));
    // Most votes win; in a tie the lowest rank. An invalid call is never the expected one, unless
    // all are.
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

impl fmt::Debug for Agreement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agreement").field("call", &self.call).field("digest", &self.digest).finish_non_exhaustive()
    }
}
