//! The kinds of strategies, one file each.

mod central_storage;
mod mirrored;
mod multi_worker;
mod one_device;

pub use central_storage::CentralStorageStrategy;
pub use mirrored::MirroredStrategy;
pub use multi_worker::{MultiWorkerBuilder, MultiWorkerMirroredStrategy};
pub use one_device::OneDeviceStrategy;

use crate::Strategy;
use std::fmt;

macro_rules! strategy_from {
    ($($kind:ident)*) => {
        $(
            /// The same strategy, as one of any kind.
            impl From<$kind> for Strategy {
                fn from(strategy: $kind) -> Strategy {
                    Strategy::clone(&strategy)
                }
            }

            /// Prints the same as the [`Strategy`].
            impl fmt::Display for $kind {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write!(f, "{}", **self)
                }
            }

            impl fmt::Debug for $kind {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write!(f, "{}", **self)
                }
            }
        )*
    };
}

strategy_from! { MirroredStrategy MultiWorkerMirroredStrategy CentralStorageStrategy OneDeviceStrategy }
