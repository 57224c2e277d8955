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

macro_rules! strategy_from {
    ($($kind:ident)*) => {
        $(
            /// The same strategy, as one of any kind.
            impl From<$kind> for Strategy {
                fn from(strategy: $kind) -> Strategy {
                    Strategy::clone(&strategy)
                }
            }
        )*
    };
}

strategy_from! { MirroredStrategy MultiWorkerMirroredStrategy CentralStorageStrategy OneDeviceStrategy }
