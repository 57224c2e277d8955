//! The macro that declares a function of the library, and the text of its prototype.

/// Declares functions with C's calling convention. Each has a `body` that returns a `Result`. Its
/// errors, and panics, become codes. Also lists the functions, for the test of the header.
macro_rules! functions {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) of $comm:expr; $body:block
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Pointers are null or valid as `consonance.h` says.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> ::std::ffi::c_int {
                $crate::last_error::guard(stringify!($name), $comm, || $body)
            }
        )*

        pub(crate) const PROTOTYPES: &[&str] = &[$(
            concat!(stringify!($name), "(", $(stringify!($arg), ": ", stringify!($type), ", ",)* ")")
        ),*];
    };
}

/// Lists the size of a struct and the places of its fields in the words of C, for the test of the
/// header.
macro_rules! layout {
    ($struct:ident, $name:literal, [$($field:ident),*]) => {
        &[
            (concat!("sizeof(", $name, ")"), size_of::<$struct>()),
            $((concat!("offsetof(", $name, ", ", stringify!($field), ")"), ::std::mem::offset_of!($struct, $field))),*
        ]
    };
}

/// Returns the prototype in C of a function whose arguments have these types in Rust.
pub(crate) fn in_c(text: &str) -> String {
    let (name, arguments) = text.trim_end_matches(')').split_once('(').expect("a list of arguments");
    let argument = |argument: &str| {
        let (name, rust) = argument.split_once(": ").expect("a name and a type");
        let c = match rust.replace("* ", "*").as_str() {
            "u64" => "uint64_t ",
            "Comm" => "cons_comm ",
            "Handle" => "cons_request ",
            "Accumulator" => "cons_accumulator ",
            "usize" => "size_t ",
            "c_int" => "int ",
            "i64" => "int64_t ",
            "*const c_void" => "const void *",
            "*mut c_void" => "void *",
            "*mut *mut c_void" => "void **",
            "*const *mut c_void" => "void *const *",
            "*const usize" => "const size_t *",
            "*mut c_int" => "int *",
            "*mut Comm" => "cons_comm *",
            "*mut Handle" => "cons_request *",
            "*mut Accumulator" => "cons_accumulator *",
            "*mut usize" => "size_t *",
            "*mut ConsId" => "cons_id *",
            "*const ConsId" => "const cons_id *",
            "*const ConsConfig" => "const cons_config *",
            "*mut ConsError" => "cons_error *",
            "ConsDone" => "cons_done ",
            other => panic!("no type in C for {other}"),
        };
        format!("{c}{name}")
    };
    let arguments: Vec<String> = arguments.split(", ").filter(|text| !text.is_empty()).map(argument).collect();
    format!("int {name}({});", if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") })
}
