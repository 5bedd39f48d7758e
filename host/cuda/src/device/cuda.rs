//! NVIDIA GPUs through the CUDA driver and cuBLASLt, both loaded when they are used: a machine without them has no devices.

mod blas;
pub(crate) mod nccl;
mod pool;
mod recording;

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use clawhost_engine::ForwardError;
use clawhost_engine::backend::{Device, DeviceMemory};
use cudarc::cublaslt::sys as lt_sys;
use cudarc::driver::{result as cu, sys};

use super::{Address, Driver, Handle, Launch, Product, Result, StreamPriority, lock};
use blas::Blas;
pub(crate) use blas::WORKSPACE as PRODUCT_WORKSPACE;
use pool::MemoryPool;
use recording::nothing_records;

/// The compiled kernels: machine code for compute capabilities 8.0 and 9.0, and PTX for later ones.
static KERNELS: &[u8] = include_bytes!("../../kernels/built/kernels.fatbin");

/// Shared memory above this must be asked for.
const DEFAULT_SHARED: usize = 48 << 10;

/// A GPU that the program can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, as in `cuda:N`.
    pub ordinal: usize,
    /// Name and memory.
    pub device: Device,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
}

impl DeviceInfo {
    /// Whether the kernels run on it.
    pub fn is_supported(&self) -> bool {
        self.compute_capability >= (8, 0)
    }
}

/// The library of the driver.
pub const DRIVER: &str = "libcuda.so.1";

/// The GPUs of this machine; none without a driver.
///
/// # Errors
/// The driver is there but does not work: the error has its reason.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    if !has_driver() {
        return Ok(Vec::new());
    }
    cu::init().map_err(|e| failed("the CUDA driver", "start", e))?;
    let count = cu::device::get_count().map_err(|e| failed("the CUDA driver", "count GPUs", e))?;
    (0..count).map(describe).collect()
}

/// Whether [`DRIVER`] is there.
pub fn has_driver() -> bool {
    // SAFETY: loads the driver library, whose initialization has no requirements.
    unsafe { sys::is_culib_present() }
}

/// The newest version of CUDA that the driver runs, such as (13, 0).
///
/// # Errors
/// There is no driver, or it does not work.
pub fn driver_version() -> Result<(i32, i32)> {
    if !has_driver() {
        return Err(failed("the CUDA driver", "load it", DRIVER));
    }
    let mut version = 0;
    // SAFETY: writes one number.
    let result = unsafe { sys::cuDriverGetVersion(&raw mut version) }.result();
    result.map_err(|e| failed("the CUDA driver", "read its version", e))?;
    Ok((version / 1000, version % 1000 / 10))
}

/// Checks the library of matrix products.
///
/// # Errors
/// It is missing: the error names the fix.
pub fn check_libraries() -> Result<()> {
    // SAFETY: loads the library, whose initialization has no requirements.
    if unsafe { lt_sys::is_culib_present() } {
        return Ok(());
    }
    Err(failed(
        "the CUDA backend",
        "multiply matrices",
        "there is no cuBLASLt (libcublasLt.so); install CUDA's libraries, or add them to LD_LIBRARY_PATH",
    ))
}

fn failed(device: &str, what: &str, error: impl std::fmt::Display) -> ForwardError {
    ForwardError::Device(format!("{device}: cannot {what}: {error}"))
}

fn describe(ordinal: c_int) -> Result<DeviceInfo> {
    let label = format!("cuda:{ordinal}");
    let error = |e| failed(&label, "read its properties", e);
    let device = cu::device::get(ordinal).map_err(error)?;
    let attribute = |attribute| {
        // SAFETY: the device exists.
        unsafe { cu::device::get_attribute(device, attribute) }.map_err(error)
    };
    use sys::CUdevice_attribute as Attribute;
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    // SAFETY: the device exists.
    let total = unsafe { cu::device::total_mem(device) }.map_err(error)?;
    Ok(DeviceInfo {
        ordinal: usize::try_from(ordinal).unwrap_or_default(),
        device: Device {
            name: cu::device::get_name(device).map_err(error)?,
            memory: Some(DeviceMemory {
                total: total as u64,
                used: 0,
            }),
        },
        compute_capability: (major, minor),
    })
}

/// The memory of a GPU as of now. Starts the driver's context of this process there, which takes some tenths of a second once.
///
/// # Errors
/// There is no such GPU, or the driver does not work.
pub fn memory(ordinal: usize) -> Result<DeviceMemory> {
    let label = format!("cuda:{ordinal}");
    let error = |e| failed(&label, "read its memory", e);
    if !devices()?.iter().any(|info| info.ordinal == ordinal) {
        return Err(failed(&label, "read its memory", "there is no such GPU"));
    }
    let device = cu::device::get(c_int::try_from(ordinal).unwrap_or(c_int::MAX)).map_err(error)?;
    // SAFETY: the device exists, and what is retained is released.
    unsafe {
        let context = cu::primary_ctx::retain(device).map_err(error)?;
        let free = cu::ctx::set_current(context).and_then(|()| cu::mem_get_info());
        let _ = cu::primary_ctx::release(device);
        let (free, total) = free.map_err(error)?;
        Ok(DeviceMemory {
            total: total as u64,
            used: (total - free) as u64,
        })
    }
}

/// A GPU with the kernels loaded.
pub(crate) struct CudaDriver {
    label: String,
    name: String,
    device: sys::CUdevice,
    context: sys::CUcontext,
    processors: usize,
    /// Whether a kernel can start before the one ahead of it has ended.
    overlaps: bool,
    module: sys::CUmodule,
    /// Each kernel's handle, and the dynamic shared memory that it may use.
    functions: Mutex<HashMap<&'static str, (usize, usize)>>,
    /// Dropped while the context is there.
    blas: Option<Blas>,
    memory: Mutex<MemoryPool>,
    /// cuBLASLt's workspace of each stream.
    workspaces: Mutex<HashMap<Handle, sys::CUdeviceptr>>,
}

// SAFETY: the driver's and cuBLASLt's handles may be used from any thread at the same time.
unsafe impl Send for CudaDriver {}
// SAFETY: as above.
unsafe impl Sync for CudaDriver {}

impl std::fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaDriver({})", self.label)
    }
}

impl CudaDriver {
    /// Opens a GPU and loads the kernels.
    ///
    /// # Errors
    /// There is no driver, no such GPU, no cuBLASLt, or the GPU is older than compute capability 8.0.
    pub(crate) fn open(ordinal: usize) -> Result<Arc<dyn Driver>> {
        let label = format!("cuda:{ordinal}");
        if !has_driver() {
            return Err(failed(
                &label,
                "open it",
                "there is no CUDA driver (libcuda.so.1); install NVIDIA's driver, or use the CPU backend",
            ));
        }
        let all = devices()?;
        let info = all.into_iter().find(|info| info.ordinal == ordinal);
        let info = info.ok_or_else(|| failed(&label, "open it", "there is no such GPU"))?;
        if !info.is_supported() {
            let (major, minor) = info.compute_capability;
            return Err(failed(
                &label,
                "run the kernels",
                format!("compute capability {major}.{minor} is below 8.0"),
            ));
        }
        check_libraries()?;
        // Loading allocates, and may wait for the context.
        let _quiet = nothing_records();
        let device = cu::device::get(c_int::try_from(ordinal).unwrap_or(c_int::MAX))
            .map_err(|e| failed(&label, "open it", e))?;
        // SAFETY: the device exists; the primary context is released with the driver.
        let context = unsafe { cu::primary_ctx::retain(device) };
        let context = context.map_err(|e| failed(&label, "make a context", e))?;
        // SAFETY: the context is alive.
        unsafe { cu::ctx::set_current(context) }
            .map_err(|e| failed(&label, "set its context", e))?;
        // SAFETY: the bytes are a fat binary that nvcc has written.
        let module = unsafe { cu::module::load_data(KERNELS.as_ptr().cast()) };
        let module = module.map_err(|e| failed(&label, "load the kernels", e))?;
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as COUNT;
        // SAFETY: the device exists.
        let processors = unsafe { cu::device::get_attribute(device, COUNT) };
        let processors = processors.map_err(|e| failed(&label, "read its properties", e))?;
        let blas = Blas::new().map_err(|e| failed(&label, "start cuBLASLt", e))?;
        Ok(Arc::new(Self {
            name: info.device.name,
            device,
            context,
            processors: usize::try_from(processors).unwrap_or(1),
            overlaps: info.compute_capability >= (9, 0),
            module,
            functions: Mutex::default(),
            memory: Mutex::default(),
            blas: Some(blas),
            workspaces: Mutex::default(),
            label,
        }))
    }

    fn failed(&self, what: &str, error: impl std::fmt::Display) -> ForwardError {
        failed(&format!("{} ({})", self.label, self.name), what, error)
    }

    /// Makes the context current on this thread, as the driver's functions need it.
    fn bind(&self) -> Result<()> {
        // SAFETY: the context lives as long as the driver.
        unsafe { cu::ctx::set_current(self.context) }.map_err(|e| self.failed("set its context", e))
    }

    /// A kernel that may use this much dynamic shared memory, and what keeps other threads from recording while it is
    /// launched, if it never was or never with so much: the driver loads or changes it then.
    ///
    /// The table is locked from the look-up to the entry, because a limit that is set later must not be the lower one. A
    /// thread that records locks the table as well, so the recording lock comes first.
    fn function(
        &self,
        name: &'static str,
        shared: usize,
    ) -> Result<(sys::CUfunction, Option<MutexGuard<'static, ()>>)> {
        let known = lock(&self.functions).get(name).copied();
        let is_ready = known.is_some_and(|(_, allowed)| shared <= allowed);
        let quiet = if is_ready { None } else { nothing_records() };
        let mut functions = lock(&self.functions);
        let (function, allowed) = match functions.get(name) {
            Some((function, allowed)) => (*function as sys::CUfunction, *allowed),
            None => {
                let symbol = CString::new(name).map_err(|e| self.failed("find a kernel", e))?;
                // SAFETY: the module is loaded.
                let function = unsafe { cu::module::get_function(self.module, symbol) };
                let function =
                    function.map_err(|e| self.failed(&format!("find the kernel {name}"), e))?;
                (function, DEFAULT_SHARED)
            }
        };
        if shared > allowed {
            use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as MAX;
            let bytes = c_int::try_from(shared).unwrap_or(c_int::MAX);
            // SAFETY: the function is of the loaded module.
            unsafe { cu::function::set_function_attribute(function, MAX, bytes) }.map_err(|e| {
                self.failed(&format!("give {name} {shared} bytes of shared memory"), e)
            })?;
        }
        functions.insert(name, (function as usize, shared.max(allowed)));
        Ok((function, quiet))
    }

    fn workspace(&self, stream: Handle) -> sys::CUdeviceptr {
        lock(&self.workspaces)
            .get(&stream)
            .copied()
            .unwrap_or_default()
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        // Freeing waits for the context, in cuBLASLt as well.
        let _quiet = nothing_records();
        self.blas = None;
        // SAFETY: buffers, streams and graphs keep the driver, so nothing uses these any more. A failure of the device
        // leaves nothing to do.
        unsafe {
            let _ = lock(&self.memory).release();
            let _ = cu::module::unload(self.module);
            let _ = cu::primary_ctx::release(self.device);
        }
    }
}

fn stream_of(handle: Handle) -> sys::CUstream {
    handle as usize as sys::CUstream
}

/// Launches a kernel that may start before those ahead of it in the stream have ended (programmatic dependent launch).
///
/// # Safety
/// As for [`Driver::launch`]; the kernel waits for those ahead of it.
unsafe fn launch_overlapping(
    function: sys::CUfunction,
    (grid, threads, shared): ((u32, u32, u32), u32, u32),
    stream: sys::CUstream,
    arguments: &mut [*mut c_void],
) -> std::result::Result<(), cu::DriverError> {
    let mut attribute = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue {
            programmaticStreamSerializationAllowed: 1,
        },
    };
    let config = sys::CUlaunchConfig {
        gridDimX: grid.0,
        gridDimY: grid.1,
        gridDimZ: grid.2,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared,
        hStream: stream,
        attrs: &raw mut attribute,
        numAttrs: 1,
    };
    let none = std::ptr::null_mut();
    // SAFETY: the caller's; the driver reads the configuration before it returns.
    unsafe { sys::cuLaunchKernelEx(&raw const config, function, arguments.as_mut_ptr(), none) }
        .result()
}

// SAFETY: every function only passes on what its caller promises.
unsafe impl Driver for CudaDriver {
    fn device(&self) -> Device {
        let memory = self.bind().ok().and_then(|()| cu::mem_get_info().ok());
        Device {
            name: self.name.clone(),
            memory: memory.map(|(free, total)| DeviceMemory {
                total: total as u64,
                used: (total - free) as u64,
            }),
        }
    }

    fn free_memory(&self) -> Result<u64> {
        self.bind()?;
        let (free, _) = cu::mem_get_info().map_err(|e| self.failed("read its memory", e))?;
        Ok((free + lock(&self.memory).kept()) as u64)
    }

    fn processors(&self) -> usize {
        self.processors
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.bind()?;
        let memory = {
            let _quiet = nothing_records();
            // SAFETY: the context is current. The memory is written before it is read.
            unsafe { lock(&self.memory).allocate(bytes) }
        };
        let memory = memory.map_err(|e| {
            let free = self.free_memory().unwrap_or_default() >> 20;
            let what = format!(
                "allocate {} MiB; {free} MiB are free",
                bytes.div_ceil(1 << 20)
            );
            self.failed(&what, e)
        })?;
        Ok(Address(memory))
    }

    unsafe fn free(&self, at: Address) {
        lock(&self.memory).free(at.0);
    }

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>> {
        self.bind()?;
        let memory = {
            let _quiet = nothing_records();
            // SAFETY: the context is current.
            unsafe { cu::malloc_host(bytes, 0) }
        };
        let what = format!("pin {} MiB of host memory", bytes.div_ceil(1 << 20));
        let memory = memory.map_err(|e| self.failed(&what, e))?;
        NonNull::new(memory.cast()).ok_or_else(|| self.failed(&what, "there is none"))
    }

    unsafe fn free_host(&self, at: NonNull<u8>) {
        if self.bind().is_ok() {
            // The driver may wait for the context.
            let _quiet = nothing_records();
            // SAFETY: the caller's.
            let _ = unsafe { cu::free_host(at.as_ptr().cast()) };
        }
    }

    fn create_stream(&self, priority: StreamPriority) -> Result<Handle> {
        self.bind()?;
        let error = |e| self.failed("make a stream", e);
        // Lower numbers go first; a device bounds them to its range.
        let priority = match priority {
            StreamPriority::Serving => -1,
            StreamPriority::Background => 0,
        };
        let kind = cu::stream::StreamKind::NonBlocking;
        let _quiet = nothing_records();
        let stream = cu::stream::create_with_priority(kind, priority).map_err(error)?;
        // SAFETY: the context is current.
        let workspace = unsafe { cu::malloc_sync(PRODUCT_WORKSPACE) }.map_err(error)?;
        lock(&self.workspaces).insert(stream as usize as Handle, workspace);
        Ok(stream as usize as Handle)
    }

    unsafe fn destroy_stream(&self, stream: Handle) {
        let workspace = lock(&self.workspaces).remove(&stream);
        if self.bind().is_err() {
            return;
        }
        let _quiet = nothing_records();
        // SAFETY: the caller's; the driver waits for work that uses the workspace, and may wait for the context.
        unsafe {
            let _ = cu::stream::synchronize(stream_of(stream));
            if let Some(workspace) = workspace {
                let _ = cu::free_sync(workspace);
            }
            let _ = cu::stream::destroy(stream_of(stream));
        }
    }

    unsafe fn upload(&self, stream: Handle, to: Address, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the caller's. The driver copies from memory that it has not pinned before it returns.
        unsafe { cu::memcpy_htod_async(to.0, bytes, stream_of(stream)) }
            .map_err(|e| self.failed("upload", e))
    }

    unsafe fn download(&self, stream: Handle, from: Address, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the caller's.
        unsafe {
            cu::memcpy_dtoh_async(bytes, from.0, stream_of(stream))
                .and_then(|()| cu::stream::synchronize(stream_of(stream)))
        }
        .map_err(|e| self.failed("run the kernels", e))
    }

    unsafe fn download_later(
        &self,
        stream: Handle,
        from: Address,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the caller's; nobody reads the bytes before the copy has ended.
        unsafe {
            let bytes = std::slice::from_raw_parts_mut(to.as_ptr(), bytes);
            cu::memcpy_dtoh_async(bytes, from.0, stream_of(stream))
        }
        .map_err(|e| self.failed("run the kernels", e))
    }

    unsafe fn copy(&self, stream: Handle, from: Address, to: Address, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the caller's.
        unsafe { cu::memcpy_dtod_async(to.0, from.0, bytes, stream_of(stream)) }
            .map_err(|e| self.failed("copy", e))
    }

    unsafe fn clear(&self, stream: Handle, to: Address, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the caller's.
        unsafe { cu::memset_d8_async(to.0, 0, bytes, stream_of(stream)) }
            .map_err(|e| self.failed("clear memory", e))
    }

    unsafe fn launch(
        &self,
        stream: Handle,
        launch: Launch,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.bind()?;
        let (function, _quiet) = self.function(launch.kernel, launch.shared)?;
        let size = |value: usize| {
            u32::try_from(value).map_err(|e| self.failed(&format!("launch {}", launch.kernel), e))
        };
        let [x, y, z] = launch.grid;
        let grid = (size(x)?, size(y)?, size(z)?);
        let block = (size(launch.threads)?, 1, 1);
        let shared = size(launch.shared)?;
        let stream = stream_of(stream);
        let launched = if launch.overlaps && self.overlaps {
            // SAFETY: the caller's.
            unsafe { launch_overlapping(function, (grid, block.0, shared), stream, arguments) }
        } else {
            // SAFETY: the caller's.
            unsafe { cu::launch_kernel(function, grid, block, shared, stream, arguments) }
        };
        launched.map_err(|e| self.failed(&format!("launch {}", launch.kernel), e))
    }

    unsafe fn multiply(&self, stream: Handle, product: &Product) -> Result<()> {
        self.bind()?;
        let blas = self
            .blas
            .as_ref()
            .expect("it is there until the driver is dropped");
        let at = (stream_of(stream), self.workspace(stream));
        // SAFETY: the caller's.
        unsafe { blas.product(at, product) }.map_err(|e| {
            let Product { m, n, k, .. } = product;
            self.failed(&format!("multiply [{m}, {k}] by [{k}, {n}]"), e)
        })
    }

    unsafe fn synchronize(&self, stream: Handle) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's.
        unsafe { cu::stream::synchronize(stream_of(stream)) }
            .map_err(|e| self.failed("run the kernels", e))
    }

    unsafe fn capture(
        &self,
        stream: Handle,
        record: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<Handle>> {
        self.bind()?;
        let error = |e| self.failed("record a graph", e);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        recording::record(|| {
            // SAFETY: the caller's. The capture ends whether recording fails or not.
            unsafe {
                cu::stream::begin_capture(stream_of(stream), mode).map_err(error)?;
                let recorded = record();
                let graph = cu::stream::end_capture(stream_of(stream));
                recorded?;
                let graph = graph.map_err(error)?;
                let executable = cu::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
                let _ = cu::graph::destroy(graph);
                Ok(Some(executable.map_err(error)? as usize as Handle))
            }
        })
    }

    unsafe fn replay(&self, stream: Handle, graph: Handle) -> Result<()> {
        self.bind()?;
        let graph = graph as usize as sys::CUgraphExec;
        // SAFETY: the caller's.
        unsafe { cu::graph::launch(graph, stream_of(stream)) }
            .map_err(|e| self.failed("run a graph", e))
    }

    unsafe fn destroy_graph(&self, graph: Handle) {
        if self.bind().is_ok() {
            let _quiet = nothing_records();
            // SAFETY: the caller's.
            let _ = unsafe { cu::graph::exec_destroy(graph as usize as sys::CUgraphExec) };
        }
    }
}
