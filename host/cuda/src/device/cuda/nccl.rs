//! NCCL, which sums buffers over GPUs of one process. It is loaded when it is used; a program starts without it.
//!
//! cudarc's bindings are not used: they look for `libnccl.so`, which only development packages have, and panic without it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use clawhost_engine::ForwardError;
use cudarc::driver::sys::CUstream;
use libloading::Library;

use super::super::{Buffer, Result, Stream};
use super::recording::nothing_records;
use super::{failed, stream_of};

/// The library.
pub const LIBRARY: &str = "libnccl.so.2";

/// `ncclSuccess`.
const SUCCESS: c_int = 0;
/// `ncclFloat32`.
const FLOAT32: c_int = 7;
/// `ncclSum`.
const SUM: c_int = 0;

/// A handle of NCCL, `ncclComm_t`.
type Comm = *mut c_void;

/// The functions that are used, with their types in `nccl.h` of NCCL 2.
struct Functions {
    init_all: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> c_int,
    destroy: unsafe extern "C" fn(Comm) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Comm,
        CUstream,
    ) -> c_int,
    last_error: unsafe extern "C" fn(Comm) -> *const c_char,
}

impl Functions {
    /// Loads the library for the life of the process.
    fn load() -> std::result::Result<Self, libloading::Error> {
        // SAFETY: loads the library, whose initialization has no requirements; the types of the functions are those of its
        // header, and the library is never unloaded.
        unsafe {
            let library = Library::new(LIBRARY)?;
            let functions = Self {
                init_all: *library.get(b"ncclCommInitAll\0")?,
                destroy: *library.get(b"ncclCommDestroy\0")?,
                group_start: *library.get(b"ncclGroupStart\0")?,
                group_end: *library.get(b"ncclGroupEnd\0")?,
                all_reduce: *library.get(b"ncclAllReduce\0")?,
                last_error: *library.get(b"ncclGetLastError\0")?,
            };
            std::mem::forget(library);
            Ok(functions)
        }
    }

    fn get() -> Result<&'static Self> {
        static FUNCTIONS: OnceLock<std::result::Result<Functions, String>> = OnceLock::new();
        let loaded = FUNCTIONS.get_or_init(|| Self::load().map_err(|error| error.to_string()));
        loaded.as_ref().map_err(|error| {
            let fix = format!(
                "there is no NCCL ({error}); install it (the Python package nvidia-nccl-cu13 has {LIBRARY}), or add its \
                 folder to LD_LIBRARY_PATH"
            );
            failed("training on several GPUs", "sum gradients on them", fix)
        })
    }

    /// # Errors
    /// What NCCL reports.
    fn check(&self, what: &str, status: c_int) -> Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: returns a text of this process, without a communicator.
        let text = unsafe { (self.last_error)(ptr::null_mut()) };
        let text = match text.is_null() {
            true => String::new(),
            // SAFETY: a text of the library ends with zero.
            false => unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        };
        Err(failed("NCCL", what, format!("status {status} {text}")))
    }
}

/// Checks that NCCL can be loaded.
///
/// # Errors
/// It cannot: the error names the library and the fix.
pub fn check() -> std::result::Result<(), ForwardError> {
    Functions::get().map(drop)
}

/// A communicator for each of several GPUs.
pub(crate) struct Communicators {
    functions: &'static Functions,
    all: Vec<Comm>,
}

// SAFETY: a communicator may be used from any thread, by one at a time: `sum` takes the recording lock.
unsafe impl Send for Communicators {}
// SAFETY: as above.
unsafe impl Sync for Communicators {}

impl std::fmt::Debug for Communicators {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicators({})", self.all.len())
    }
}

impl Communicators {
    /// Connects these GPUs, by their numbers.
    pub(crate) fn new(ordinals: &[usize]) -> Result<Self> {
        let functions = Functions::get()?;
        let devices = ordinals.iter().map(|ordinal| c_int::try_from(*ordinal));
        let devices: std::result::Result<Vec<c_int>, _> = devices.collect();
        let devices = devices.map_err(|e| failed("NCCL", "connect the GPUs", e))?;
        let count = c_int::try_from(devices.len()).unwrap_or(c_int::MAX);
        let mut all = vec![ptr::null_mut(); devices.len()];
        // It allocates.
        let _quiet = nothing_records();
        // SAFETY: both arrays have `count` elements.
        let status = unsafe { (functions.init_all)(all.as_mut_ptr(), count, devices.as_ptr()) };
        functions.check("connect the GPUs", status)?;
        Ok(Self { functions, all })
    }

    /// Replaces the values of each buffer, one of each GPU with the stream that writes it, by the sums over all of them.
    /// Waits for the result.
    pub(crate) fn sum(&self, buffers: &[(&Stream, &Buffer<f32>)]) -> Result<()> {
        assert_eq!(buffers.len(), self.all.len(), "a buffer of each GPU");
        let count = buffers[0].1.len();
        assert!(buffers.iter().all(|(_, buffer)| buffer.len() == count));
        if count > 0 {
            self.start(buffers, count)?;
        }
        buffers
            .iter()
            .try_for_each(|(stream, _)| stream.synchronize())
    }

    fn start(&self, buffers: &[(&Stream, &Buffer<f32>)], count: usize) -> Result<()> {
        let functions = self.functions;
        // The first sum allocates; and memory that is freed on one GPU could wait for a kernel that waits for the other.
        let _quiet = nothing_records();
        // SAFETY: has no requirements; the group ends below.
        let status = unsafe { (functions.group_start)() };
        functions.check("start a sum", status)?;
        let mut started = SUCCESS;
        for (comm, (stream, buffer)) in self.all.iter().zip(buffers) {
            let at = buffer.address().0 as *mut c_void;
            let stream = stream_of(stream.handle());
            // SAFETY: buffer, stream and communicator are of the same GPU and alive until `sum` has waited for the stream.
            let status =
                unsafe { (functions.all_reduce)(at, at, count, FLOAT32, SUM, *comm, stream) };
            if status != SUCCESS {
                started = status;
                break;
            }
        }
        // SAFETY: ends the group.
        let ended = unsafe { (functions.group_end)() };
        functions.check("sum gradients", started)?;
        functions.check("sum gradients", ended)
    }
}

impl Drop for Communicators {
    fn drop(&mut self) {
        let _quiet = nothing_records();
        for comm in &self.all {
            // SAFETY: nothing uses it any more. A failure leaves nothing to do.
            let _ = unsafe { (self.functions.destroy)(*comm) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_the_error_names_it_and_the_fix() {
        if let Err(error) = check() {
            let error = error.to_string();
            for part in [LIBRARY, "nvidia-nccl-cu13", "LD_LIBRARY_PATH"] {
                assert!(error.contains(part), "{error}");
            }
        }
    }
}
