//! Arbitrary bytes as a checkpoint: restoring must fail and leave the variables unchanged, or give
//! values that can be saved again.

use super::{Verdict, file::Temporary};
use crate::cases::Source;
use consonance::{Error, OneDeviceStrategy, Result, Tensor, Variable, checkpoint::restore, checkpoint::save};
use std::{fs, sync::LazyLock};

/// Variables of three dtypes, tensor ranks and widths.
struct Variables([Variable; 3]);

impl Variables {
    fn new(values: [Tensor; 3]) -> Result<Variables> {
        let strategy = OneDeviceStrategy::new("cpu:0")?;
        let [weights, step, flags] = values.map(|value| strategy.variable(|| value));
        Ok(Variables([weights?, step?, flags?]))
    }

    fn first() -> Result<Variables> {
        let weights = Tensor::new([2, 3], &[0.25f32, -1.5, 0.0, 1e9, f32::MIN_POSITIVE, 7.0])?;
        Variables::new([weights, Tensor::from(100u64), Tensor::from([true, false, true])])
    }

    fn others() -> Result<Variables> {
        let weights = Tensor::new([2, 3], &[3.0f32; 6])?;
        Variables::new([weights, Tensor::from(5u64), Tensor::from([false; 3])])
    }

    fn named(&self) -> [(&'static str, &Variable); 3] {
        let [weights, step, flags] = &self.0;
        [("weights", weights), ("step", step), ("flags", flags)]
    }

    /// Returns the values as text, in which a NaN equals a NaN.
    fn text(&self) -> Result<String> {
        let values: Vec<Tensor> = self.0.iter().map(Variable::read).collect::<Result<_>>()?;
        Ok(format!("{values:?}"))
    }
}

static SAVED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let file = Temporary::new(&[]);
    let variables = Variables::first().expect("a strategy of one device");
    save(&file.0, variables.named()).expect("a folder for temporary files");
    fs::read(&file.0).expect("the file that was saved")
});

/// Returns inputs of [`checkpoint`]: a checkpoint as all bytes of the input, and changes to a
/// checkpoint.
pub fn checkpoints() -> Vec<Vec<u8>> {
    vec![[&[0], &SAVED[..]].concat(), vec![1], vec![1, 1, 0, 9, 0xff]]
}

/// Judges a file. If the first byte is 0, the file is the rest of `bytes`. Otherwise the file is a
/// checkpoint with changes, three bytes for each change: an offset in two bytes, and the new byte
/// there; 0xff truncates the file there.
///
/// # Errors
/// The variables, if an error changed them, or if saving and restoring them changes them.
pub fn checkpoint(bytes: &[u8]) -> Verdict {
    let mut source = Source::new(bytes);
    let content = match source.byte() {
        0 => bytes.get(1..).unwrap_or_default().to_vec(),
        _ => {
            let mut content = SAVED.clone();
            while !source.has_ended() {
                let place = usize::from(source.byte()) | usize::from(source.byte()) << 8;
                match (source.byte(), content.get_mut(place % (SAVED.len() + 1))) {
                    (0xff, _) => content.truncate(place % (SAVED.len() + 1)),
                    (byte, Some(old)) => *old = byte,
                    (byte, None) => content.push(byte),
                }
            }
            content
        }
    };
    judge(&content).map_err(|wrong| format!("{wrong}\nof {}", content.escape_ascii()))
}

fn judge(content: &[u8]) -> Verdict {
    let failed = |error: Error| format!("failed: {error}");
    let variables = Variables::others().map_err(failed)?;
    let before = variables.text().map_err(failed)?;
    let file = Temporary::new(content);
    let restored = restore(&file.0, variables.named());
    let after = variables.text().map_err(failed)?;
    match restored {
        Err(Error::InvalidCall { .. } | Error::System { .. }) if after == before => Ok(()),
        Err(error) => Err(format!("{error:?}, and the variables are {after}")),
        Ok(()) => {
            save(&file.0, variables.named()).map_err(failed)?;
            let again = Variables::others().map_err(failed)?;
            restore(&file.0, again.named()).map_err(failed)?;
            match again.text().map_err(failed)? {
                again if again == after => Ok(()),
                again => Err(format!("restored as {after}, and when it was saved as {again}")),
            }
        }
    }
}
