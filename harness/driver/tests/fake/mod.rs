//! The library under this test, loaded as a driver is.

use consonance_fake_driver::control::report_of;
use consonance_kernels::cuda::{
    Absent, Access, Context, Driver,
    kernels::{Kernel, Launch},
};
use libloading::Library;
use std::{
    collections::BTreeMap,
    env::consts::{DLL_PREFIX, DLL_SUFFIX},
    ffi::{CString, c_char, c_int},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A kernel that doubles the first `count` words at an address.
pub(crate) const PTX: &str = include_str!("double.ptx");

/// Returns a launch of the kernel, and what it accesses.
pub(crate) fn double(address: u64, count: u64) -> (Launch, Access) {
    let kernel = Kernel { module: PTX, name: "double" };
    let parameters = [address, count].into_iter().flat_map(u64::to_le_bytes).collect();
    let launch = Launch { kernel, grid: 1, block: 32, shared_bytes: 0, parameters };
    (launch, Access { name: "words", index: 2, address, bytes: count * 4, alignment: 4 })
}

/// Does what the kernel does.
pub(crate) fn doubled(mut bytes: Vec<u8>, count: usize) -> Vec<u8> {
    for word in bytes.chunks_exact_mut(4).take(count) {
        let value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        word.copy_from_slice(&value.wrapping_mul(2).to_le_bytes());
    }
    bytes
}

/// The library has one state, so that the tests of a process use it in turn.
static TURN: Mutex<()> = Mutex::new(());

pub(crate) struct Fake {
    _turn: MutexGuard<'static, ()>,
    library: Library,
    path: PathBuf,
}

impl Fake {
    /// Loads the library and gives it a plan.
    #[track_caller]
    pub(crate) fn new(plan: &str) -> Fake {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let tests = std::env::current_exe().expect("the path of this test");
        let name = format!("{DLL_PREFIX}consonance_fake_driver{DLL_SUFFIX}");
        let path = tests.parent().expect("a folder").join(name);
        // SAFETY: the library runs no code when it is loaded.
        let library = unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let fake = Fake { _turn: turn, library, path };
        fake.again(plan);
        fake
    }

    /// Begins again with another plan.
    #[track_caller]
    pub(crate) fn again(&self, plan: &str) -> &Fake {
        let text = CString::new(plan).expect("a text without a zero");
        // SAFETY: the function has this type, and the text ends with a zero.
        let status = unsafe {
            let configure =
                self.library.get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"consonance_fake_configure\0");
            configure.expect("the function")(text.as_ptr())
        };
        assert_eq!(status, 0, "{plan:?} is no plan");
        self
    }

    pub(crate) fn load(&self) -> Result<Driver, Absent> {
        Driver::load_from(&self.path)
    }

    #[track_caller]
    pub(crate) fn driver(&self) -> Driver {
        self.load().expect("a driver without faults")
    }

    #[track_caller]
    pub(crate) fn context(&self) -> Context {
        Context::new(&self.driver().device(0).expect("a device")).expect("a context")
    }

    fn report(&self) -> String {
        report_of(&self.path)
    }

    /// Returns how many objects of each kind are alive.
    pub(crate) fn alive(&self) -> BTreeMap<String, u64> {
        let report = self.report();
        let pairs = report.lines().filter_map(|line| line.split_once(' '));
        pairs.filter_map(|(kind, count)| Some((kind.to_owned(), count.parse().ok()?))).collect()
    }

    /// Returns how often each function was called.
    pub(crate) fn calls(&self) -> BTreeMap<&'static str, u64> {
        let report = self.report();
        let calls = report.lines().filter_map(|line| line.strip_prefix("call ")?.split_once(' '));
        let symbol = |name: &str| {
            let known = consonance_kernels::cuda::sys::SYMBOLS.iter().find(|symbol| **symbol == name);
            *known.unwrap_or_else(|| panic!("a function {name}"))
        };
        calls.map(|(name, count)| (symbol(name), count.parse().expect("a number"))).collect()
    }

    /// Returns what a program must not do with a real driver.
    pub(crate) fn misuse(&self) -> Vec<String> {
        let report = self.report();
        report
            .lines()
            .filter(|line| line.starts_with("misuse ") || line.starts_with("fault "))
            .map(str::to_owned)
            .collect()
    }

    #[track_caller]
    pub(crate) fn assert_nothing_is_alive(&self) {
        let alive = self.alive();
        assert!(alive.values().all(|&count| count == 0), "{alive:?}");
        assert_eq!(self.misuse(), [""; 0]);
    }
}
