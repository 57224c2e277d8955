//! Declares the functions of a foreign library, and finds them in it.

use libloading::os::unix::{Library, RTLD_LAZY};

/// Whether the process has loaded the library with this name or path.
pub(super) fn is_loaded(name: &str) -> bool {
    // SAFETY: runs no code, since it loads nothing.
    unsafe { Library::open(Some(name), RTLD_LAZY | libc::RTLD_NOLOAD) }.is_ok()
}

/// Makes the struct `Functions`, with a field for each function of the library.
macro_rules! functions {
    ($($method:ident = $symbol:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The functions of the library, as they lie in it.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Functions {
            $(#[doc = concat!("`", stringify!($symbol), "`")]
            pub(super) $method: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)*
        }

        impl Functions {
            /// Finds the functions in a library.
            ///
            /// # Safety
            /// The library's functions of these names are those that are declared here. It stays
            /// loaded while they are used.
            ///
            /// # Errors
            /// The first name that the library lacks.
            pub(super) unsafe fn of(library: &libloading::Library) -> Result<Functions, &'static str> {
                Ok(Functions {
                    $($method: {
                        let name = concat!(stringify!($symbol), "\0").as_bytes();
                        // SAFETY: by the caller's promise the symbol is a function of this type.
                        *unsafe { library.get(name) }.map_err(|_| stringify!($symbol))?
                    },)*
                })
            }
        }
    };
}
