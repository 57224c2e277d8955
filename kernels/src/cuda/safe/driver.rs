//! The loaded driver, and the devices that it sees.

use super::absence::Absent;
use crate::cuda::{
    result::DriverError,
    sys::{CUdevice, CUresult, Functions, attribute},
};
use libloading::Library;
use std::{
    env,
    ffi::{CStr, c_char, c_int},
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// The environment variable that names the driver's library.
const VARIABLE: &str = "CONSONANCE_CUDA_DRIVER";

/// The names by which the system's loader is asked for the driver.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The name of the device of the driver that tests use on machines without a GPU.
pub const INTERPRETER: &str = "interpreter (no GPU)";

/// Upper bound on the length of a device's name, with its zero.
const NAME_BYTES: usize = 256;

/// NVIDIA's driver, loaded and started.
///
/// ```
/// use consonance_kernels::cuda::Driver;
///
/// match Driver::load() {
///     Ok(driver) => println!("CUDA {}, devices: {}", driver.version(), driver.device_count()),
///     // Says what is missing, and what to install.
///     Err(absent) => println!("{absent}"),
/// }
/// ```
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    functions: Functions,
    path: PathBuf,
    version: c_int,
    count: usize,
    leaks: Mutex<Vec<String>>,
}

/// The identity of a GPU on all machines and in all processes, which number GPUs differently. It is
/// printed as `nvidia-smi -L` prints it. An instance of MIG has its own, also after `GPU-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// A device that the driver sees.
#[derive(Clone)]
pub struct Device {
    driver: Driver,
    ordinal: usize,
    handle: CUdevice,
    name: String,
    uuid: Uuid,
    memory_bytes: usize,
    capability: (u32, u32),
    multiprocessors: u32,
}

impl Driver {
    /// Loads the driver: the library that the environment variable `CONSONANCE_CUDA_DRIVER` names;
    /// if it names none, the one that the system's loader finds.
    ///
    /// # Errors
    /// What is missing.
    pub fn load() -> Result<Driver, Absent> {
        match env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => Driver::load_from(Path::new(&path)),
            None => Driver::first_of(NAMES.iter().map(PathBuf::from).collect()),
        }
    }

    /// Loads the driver from this library.
    ///
    /// # Errors
    /// What is missing.
    pub fn load_from(path: &Path) -> Result<Driver, Absent> {
        Driver::first_of(vec![path.to_owned()])
    }

    fn first_of(tried: Vec<PathBuf>) -> Result<Driver, Absent> {
        let mut why = String::new();
        for path in &tried {
            // SAFETY: the code that runs when a library is loaded is the driver's, or that of the
            // library that the user names in its place.
            match unsafe { Library::new(path) } {
                Ok(library) => return Driver::of(library, path.clone()),
                Err(error) => why = error.to_string(),
            }
        }
        Err(Absent::Library { tried, why })
    }

    fn of(library: Library, path: PathBuf) -> Result<Driver, Absent> {
        // SAFETY: a library of the driver's name has its functions under their names. It is never
        // unloaded, see below.
        let functions = unsafe { Functions::of(&library) };
        let functions = functions.map_err(|name| Absent::Symbol { library: path.clone(), name })?;
        // The driver has threads and handlers of its own, so that it cannot be unloaded.
        std::mem::forget(library);
        let (mut version, mut count) = (0, 0);
        // SAFETY: `init` takes no flags yet; the others write one number each.
        let started = unsafe {
            (functions.init(0))
                .and_then(|()| functions.driver_version(&mut version))
                .and_then(|()| functions.device_count(&mut count))
        };
        match started {
            // A driver without devices is one.
            Err(error) if error.code == CUresult::NO_DEVICE => count = 0,
            Err(error) => return Err(Absent::Initialization { library: path, error }),
            Ok(()) => {}
        }
        let count = usize::try_from(count).unwrap_or(0);
        Ok(Driver(Arc::new(Inner { functions, path, version, count, leaks: Mutex::default() })))
    }

    /// Returns the path or name by which the library was loaded.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the version of CUDA that the driver has, such as `"12.4"`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.0.version / 1000, self.0.version % 1000 / 10)
    }

    /// Returns the number of devices.
    pub fn device_count(&self) -> usize {
        self.0.count
    }

    /// Returns a device by its number.
    ///
    /// # Errors
    /// If there is no such device, or the driver does not tell its properties.
    pub fn device(&self, ordinal: usize) -> Result<Device, Absent> {
        if ordinal >= self.0.count {
            return Err(Absent::Device { ordinal, count: self.0.count });
        }
        let refused = |error| Absent::Initialization { library: self.0.path.clone(), error };
        Device::ask(self, ordinal).map_err(refused)
    }

    /// Returns what was not freed, because the device's work did not end or freeing it failed: a
    /// line each, with the reason.
    pub fn leaks(&self) -> Vec<String> {
        self.0.leaks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note_leak(&self, leak: String) {
        self.0.leaks.lock().unwrap_or_else(PoisonError::into_inner).push(leak);
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.0.functions
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({}, CUDA {})", self.0.path.display(), self.version())
    }
}

impl Device {
    fn ask(driver: &Driver, ordinal: usize) -> Result<Device, DriverError> {
        let functions = driver.functions();
        let mut handle = 0;
        // SAFETY: writes one number.
        unsafe { functions.device(&mut handle, ordinal as c_int)? };
        let mut name = [0u8; NAME_BYTES];
        // SAFETY: writes at most `NAME_BYTES` bytes. The last byte is left as it is, a zero.
        unsafe { functions.device_name(name.as_mut_ptr().cast::<c_char>(), NAME_BYTES as c_int - 1, handle)? };
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
        let mut uuid = [0; 16];
        // SAFETY: writes 16 bytes.
        unsafe { functions.device_uuid(&mut uuid, handle)? };
        let mut memory_bytes = 0;
        // SAFETY: writes one number.
        unsafe { functions.device_memory(&mut memory_bytes, handle)? };
        let number = |attribute| {
            let mut value = 0;
            // SAFETY: writes one number.
            unsafe { functions.device_attribute(&mut value, attribute, handle) }.map(|()| value.unsigned_abs())
        };
        Ok(Device {
            driver: driver.clone(),
            ordinal,
            handle,
            name,
            uuid: Uuid(uuid),
            memory_bytes,
            capability: (number(attribute::COMPUTE_CAPABILITY_MAJOR)?, number(attribute::COMPUTE_CAPABILITY_MINOR)?),
            multiprocessors: number(attribute::MULTIPROCESSOR_COUNT)?,
        })
    }

    /// Returns the driver.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the device's number.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Returns the name of the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the device's identity.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Whether the device is the interpreter of this project's tests, and no GPU.
    pub fn is_interpreter(&self) -> bool {
        self.name == INTERPRETER
    }

    /// Returns the size of the memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Returns the compute capability: (8, 0) for `sm_80`.
    pub fn capability(&self) -> (u32, u32) {
        self.capability
    }

    /// Returns the number of multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    pub(super) fn handle(&self) -> CUdevice {
        self.handle
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device(cuda:{}, {})", self.ordinal, self.name)
    }
}
