//! A device for tests without a GPU: the kernels compiled as C++, and memory of the host. Every buffer ends at a page that
//! cannot be accessed, so that a kernel that reads or writes past its end stops the test.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use clawhost_engine::ForwardError;
use clawhost_engine::backend::Device;

use super::{Address, Driver, Handle, Launch, Precision, Product, Result, StreamPriority, lock};

type LaunchKernel = unsafe extern "C" fn(
    *const c_char,
    *const c_uint,
    c_uint,
    c_uint,
    *mut *mut c_void,
    bool,
    bool,
) -> bool;
type Multiply = unsafe extern "C" fn(
    bool,
    bool,
    *const c_void,
    c_long,
    c_long,
    *const c_void,
    c_long,
    c_long,
    *mut c_void,
    c_long,
    c_long,
    c_long,
    c_long,
    f32,
    f32,
);

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
    fn mmap(
        at: *mut c_void,
        len: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(at: *mut c_void, len: usize) -> c_int;
    fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int;
    fn mprotect(at: *mut c_void, len: usize, protection: c_int) -> c_int;
}

const PAGE: usize = 4096;
/// Bytes from which a buffer takes memory only where it is used, as KV memory.
const LARGE: usize = 16 << 20;

#[derive(Clone, Copy)]
struct Library {
    launch: LaunchKernel,
    multiply: Multiply,
}

/// The library, built from the sources of the kernels; why not where there is no C++ compiler.
fn library() -> std::result::Result<Library, String> {
    static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(load).clone()
}

fn load() -> std::result::Result<Library, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let test = std::env::current_exe().map_err(|e| e.to_string())?;
    let library: PathBuf = test.with_extension("kernels.so");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
    let built = Command::new(&compiler)
        .args([
            "-std=c++20",
            "-O2",
            "-march=native",
            "-fPIC",
            "-shared",
            "-Iemulate",
        ])
        .args(["-Wno-unknown-pragmas", "emulate/emulate.cpp", "-o"])
        .arg(&library)
        .current_dir(folder)
        .output()
        .map_err(|e| format!("no C++ compiler ({compiler}): {e}"))?;
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let path = CString::new(library.to_string_lossy().as_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: the library has been built from our sources; its functions have these types.
    unsafe {
        let handle = dlopen(path.as_ptr(), 2);
        assert!(
            !handle.is_null(),
            "{}",
            CStr::from_ptr(dlerror()).to_string_lossy()
        );
        let launch = dlsym(handle, c"emulate_launch".as_ptr());
        let multiply = dlsym(handle, c"emulate_multiply".as_ptr());
        assert!(!launch.is_null() && !multiply.is_null());
        Ok(Library {
            launch: std::mem::transmute::<*mut c_void, LaunchKernel>(launch),
            multiply: std::mem::transmute::<*mut c_void, Multiply>(multiply),
        })
    }
}

pub(crate) struct EmulatedDriver {
    library: Library,
    /// Mapped bytes of each allocation, and where its mapping starts.
    allocations: Mutex<HashMap<u64, (usize, usize)>>,
    /// Runs the threads of a block in the other order.
    reversed: AtomicBool,
    /// Bytes that can be allocated.
    capacity: u64,
}

impl std::fmt::Debug for EmulatedDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EmulatedDriver")
    }
}

impl EmulatedDriver {
    /// A device, or `None` with a message where there is no C++ compiler. Authors always have one.
    pub(crate) fn new() -> Option<Arc<Self>> {
        Self::with_capacity(64 << 30)
    }

    pub(crate) fn with_capacity(capacity: u64) -> Option<Arc<Self>> {
        match library() {
            Ok(library) => Some(Arc::new(Self {
                library,
                allocations: Mutex::default(),
                reversed: AtomicBool::new(false),
                capacity,
            })),
            Err(reason) => {
                assert!(
                    std::env::var_os("CLAWHOST_AUTHOR_TOOLS").is_none(),
                    "{reason}"
                );
                let _ = std::io::Write::write_all(
                    &mut std::io::stderr(),
                    format!("skipped: {reason}\n").as_bytes(),
                );
                None
            }
        }
    }

    pub(crate) fn reverse(&self, reversed: bool) {
        self.reversed.store(reversed, Ordering::Relaxed);
    }
}

// SAFETY: addresses are those of host memory, which kernels and copies use before the functions return.
unsafe impl Driver for EmulatedDriver {
    fn device(&self) -> Device {
        Device {
            name: "emulated".to_owned(),
            memory: None,
        }
    }

    fn free_memory(&self) -> Result<u64> {
        let allocations = lock(&self.allocations);
        let used: usize = allocations.values().map(|(_, len)| len).sum();
        Ok(self.capacity.saturating_sub(used as u64))
    }

    fn processors(&self) -> usize {
        4
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        if bytes as u64 > self.free_memory()? {
            return Err(ForwardError::Device(format!(
                "emulated: no memory for {bytes} bytes"
            )));
        }
        // The end of the allocation is the start of the guard page, as far as the alignment of 16 bytes allows.
        let rounded = bytes.next_multiple_of(16);
        let len = rounded.next_multiple_of(PAGE) + PAGE;
        // SAFETY: a new private mapping.
        let start = unsafe { mmap(std::ptr::null_mut(), len, 3, 0x4022, -1, 0) } as usize;
        assert_ne!(start, usize::MAX, "memory");
        // SAFETY: the last page and the content of the mapping.
        unsafe {
            assert_eq!(mprotect((start + len - PAGE) as *mut c_void, PAGE, 0), 0);
            // Not a number, so that a value that nobody has written is seen. Large buffers are not touched.
            if rounded < LARGE {
                std::ptr::write_bytes((start + len - PAGE - rounded) as *mut u8, 0xff, rounded);
            }
        }
        let at = (start + len - PAGE - rounded) as u64;
        let mut allocations = lock(&self.allocations);
        allocations.insert(at, (start, len));
        Ok(Address(at))
    }

    unsafe fn free(&self, at: Address) {
        let mut allocations = lock(&self.allocations);
        let (start, len) = allocations.remove(&at.0).expect("allocated");
        // SAFETY: the mapping of this allocation.
        unsafe { munmap(start as *mut c_void, len) };
    }

    fn create_stream(&self, _: StreamPriority) -> Result<Handle> {
        Ok(0)
    }

    unsafe fn destroy_stream(&self, _: Handle) {}

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>> {
        let Address(at) = self.allocate(bytes)?;
        Ok(NonNull::new(at as *mut u8).expect("an allocation"))
    }

    unsafe fn free_host(&self, at: NonNull<u8>) {
        // SAFETY: the caller's.
        unsafe { self.free(Address(at.as_ptr() as u64)) }
    }

    unsafe fn upload(&self, _: Handle, to: Address, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.0 as *mut u8, bytes.len()) };
        Ok(())
    }

    unsafe fn download(&self, _: Handle, from: Address, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's.
        unsafe {
            std::ptr::copy_nonoverlapping(from.0 as *const u8, bytes.as_mut_ptr(), bytes.len());
        }
        Ok(())
    }

    unsafe fn download_later(
        &self,
        _: Handle,
        from: Address,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.as_ptr(), bytes) };
        Ok(())
    }

    unsafe fn copy(&self, _: Handle, from: Address, to: Address, bytes: usize) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy(from.0 as *const u8, to.0 as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn clear(&self, _: Handle, to: Address, bytes: usize) -> Result<()> {
        let (start, end) = (to.0 as usize, to.0 as usize + bytes);
        let pages = start.next_multiple_of(PAGE)..end / PAGE * PAGE;
        // SAFETY: the caller's. Whole pages that are given back read as zero.
        unsafe {
            if bytes < LARGE || pages.is_empty() {
                std::ptr::write_bytes(start as *mut u8, 0, bytes);
            } else {
                assert_eq!(madvise(pages.start as *mut c_void, pages.len(), 4), 0);
                std::ptr::write_bytes(start as *mut u8, 0, pages.start - start);
                std::ptr::write_bytes(pages.end as *mut u8, 0, end - pages.end);
            }
        }
        Ok(())
    }

    unsafe fn launch(
        &self,
        _: Handle,
        launch: Launch,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let name = CString::new(launch.kernel).expect("a kernel's name has no NUL");
        let grid = launch.grid.map(|size| size as c_uint);
        let reversed = self.reversed.load(Ordering::Relaxed);
        // SAFETY: the caller's.
        let known = unsafe {
            (self.library.launch)(
                name.as_ptr(),
                grid.as_ptr(),
                launch.threads as c_uint,
                launch.shared as c_uint,
                arguments.as_mut_ptr(),
                reversed,
                launch.overlaps,
            )
        };
        assert!(known, "no kernel {}", launch.kernel);
        Ok(())
    }

    unsafe fn multiply(&self, _: Handle, p: &Product) -> Result<()> {
        let long = |value: usize| value as c_long;
        // SAFETY: the caller's.
        unsafe {
            (self.library.multiply)(
                p.inputs == Precision::Bf16,
                p.output == Precision::Bf16,
                p.a.at.0 as *const c_void,
                long(p.a.row),
                long(p.a.column),
                p.b.at.0 as *const c_void,
                long(p.b.column),
                long(p.b.row),
                p.c.0 as *mut c_void,
                long(p.c_stride),
                long(p.m),
                long(p.n),
                long(p.k),
                p.alpha,
                p.beta,
            );
        }
        Ok(())
    }

    unsafe fn synchronize(&self, _: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn capture(
        &self,
        _: Handle,
        _: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<Handle>> {
        Ok(None)
    }

    unsafe fn replay(&self, _: Handle, _: Handle) -> Result<()> {
        Ok(())
    }

    unsafe fn destroy_graph(&self, _: Handle) {}
}
