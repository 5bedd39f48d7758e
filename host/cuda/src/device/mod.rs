//! A device as the backend uses it: memory, streams, kernel launches, matrix products and graphs.
//!
//! [`Driver`] is the seam: `cuda.rs` implements it for NVIDIA GPUs, and the tests implement it for the kernels compiled as
//! C++. Its functions take addresses, so calling them is unsafe; [`Stream`] and [`Buffer`] own what they are called with.
#![allow(
    unsafe_code,
    reason = "this module is the boundary to device memory; every call states why its addresses are valid"
)]

pub(crate) mod cuda;
#[cfg(test)]
pub(crate) mod emulated;
mod host_memory;
mod staging;

use std::ffi::c_void;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawhost_engine::ForwardError;
use clawhost_engine::backend::Device;

pub(crate) use host_memory::{HostBuffer, Uploads};
pub(crate) use staging::Staging;

pub(crate) type Result<T> = std::result::Result<T, ForwardError>;

/// Values that are rounded at once for an upload, which bounds the copy in host memory.
const UPLOAD_VALUES: usize = 64 << 20;

/// An address in device memory; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    pub(crate) const NULL: Self = Self(0);

    /// The address this many bytes further.
    pub(crate) fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// How weights and activations are stored. All arithmetic is in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Precision {
    /// As in memory of the host: for tests, and for models small enough that speed does not matter.
    F32,
    /// Half the memory, and tensor cores.
    #[default]
    Bf16,
}

impl Precision {
    /// Bytes of a value.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// The values of these bytes.
    #[cfg(test)]
    pub(crate) fn decode(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Self::F32 => {
                let (values, _) = bytes.as_chunks::<4>();
                values.iter().map(|v| f32::from_ne_bytes(*v)).collect()
            }
            Self::Bf16 => {
                let (values, _) = bytes.as_chunks::<2>();
                let value = |v: &[u8; 2]| half::bf16::from_ne_bytes(*v).to_f32();
                values.iter().map(value).collect()
            }
        }
    }

    /// As [`Self::encode`], in consecutive parts.
    fn encode_on_all_processors(self, values: &[f32]) -> Vec<Vec<u8>> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let part = values.len().div_ceil(threads).max(1 << 16);
        std::thread::scope(|scope| {
            let parts = values.chunks(part);
            let threads: Vec<_> = parts
                .map(|part| scope.spawn(move || self.encode(part)))
                .collect();
            let encoded = threads.into_iter().map(|thread| thread.join());
            encoded
                .map(|part| part.expect("rounding does not panic"))
                .collect()
        })
    }

    /// The values in this precision, rounded to nearest even.
    pub(crate) fn encode(self, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; values.len() * self.bytes()];
        self.encode_into(values, &mut bytes);
        bytes
    }

    /// As [`Self::encode`], into bytes of the same number of values.
    pub(crate) fn encode_into(self, values: &[f32], bytes: &mut [u8]) {
        assert_eq!(bytes.len(), values.len() * self.bytes());
        match self {
            Self::F32 => bytes.copy_from_slice(bytes_of(values)),
            Self::Bf16 => {
                for (bytes, value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    *bytes = half::bf16::from_f32(*value).to_ne_bytes();
                }
            }
        }
    }
}

/// A kernel launch. `shared` is the dynamic shared memory in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch {
    pub(crate) kernel: &'static str,
    pub(crate) grid: [usize; 3],
    pub(crate) threads: usize,
    pub(crate) shared: usize,
    /// Starts before the kernels ahead of it in the stream have ended: it waits for them itself.
    pub(crate) overlaps: bool,
}

/// An operand of a product: its address and the distances in values between two rows and between two values of a row.
/// One of the two is 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) at: Address,
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl Operand {
    /// A row-major matrix with rows this far apart.
    pub(crate) fn rows(at: Address, stride: usize) -> Self {
        Self {
            at,
            row: stride,
            column: 1,
        }
    }

    /// The transpose of a row-major matrix with rows this far apart.
    pub(crate) fn transposed(at: Address, stride: usize) -> Self {
        Self {
            at,
            row: 1,
            column: stride,
        }
    }
}

/// `c [m, n] = alpha a [m, k] b [k, n] + beta c`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: Operand,
    pub(crate) b: Operand,
    pub(crate) c: Address,
    /// Distance between two rows of c.
    pub(crate) c_stride: usize,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    /// Precision of a and b.
    pub(crate) inputs: Precision,
    /// Precision of c: that of the inputs, or f32.
    pub(crate) output: Precision,
}

/// Whose kernels run first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamPriority {
    /// Steps of requests.
    Serving,
    /// Scoring and training.
    Background,
}

/// A stream or a graph of a driver.
pub(crate) type Handle = u64;

/// A device. Work on one stream runs in order.
///
/// # Safety
/// Addresses given to the unsafe functions lie in live allocations of this driver that are large enough for what the
/// function or kernel does with them, and stay there until the stream has finished the work. Kernel arguments have the
/// types that the kernel declares. Handles come from this driver and have not been destroyed.
pub(crate) unsafe trait Driver: Debug + Send + Sync {
    fn device(&self) -> Device;
    /// Bytes that can still be allocated.
    fn free_memory(&self) -> Result<u64>;
    /// Multiprocessors, which bound how many blocks run at the same time.
    fn processors(&self) -> usize;
    fn allocate(&self, bytes: usize) -> Result<Address>;
    unsafe fn free(&self, at: Address);
    /// Page-locked memory of the host, which copies from and to the device neither wait for nor copy again.
    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>>;
    unsafe fn free_host(&self, at: NonNull<u8>);
    fn create_stream(&self, priority: StreamPriority) -> Result<Handle>;
    unsafe fn destroy_stream(&self, stream: Handle);
    /// Returns when `bytes` may change, unless they are page-locked: the stream reads those later.
    unsafe fn upload(&self, stream: Handle, to: Address, bytes: &[u8]) -> Result<()>;
    /// Waits for the copy.
    unsafe fn download(&self, stream: Handle, from: Address, bytes: &mut [u8]) -> Result<()>;
    /// Writes page-locked memory when the stream gets there.
    unsafe fn download_later(
        &self,
        stream: Handle,
        from: Address,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<()>;
    unsafe fn copy(&self, stream: Handle, from: Address, to: Address, bytes: usize) -> Result<()>;
    unsafe fn clear(&self, stream: Handle, to: Address, bytes: usize) -> Result<()>;
    unsafe fn launch(
        &self,
        stream: Handle,
        launch: Launch,
        arguments: &mut [*mut c_void],
    ) -> Result<()>;
    unsafe fn multiply(&self, stream: Handle, product: &Product) -> Result<()>;
    unsafe fn synchronize(&self, stream: Handle) -> Result<()>;
    /// Records the work that `record` puts on the stream, which does not run. `None` where the driver has no graphs:
    /// nothing was called then.
    unsafe fn capture(
        &self,
        stream: Handle,
        record: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<Handle>>;
    unsafe fn replay(&self, stream: Handle, graph: Handle) -> Result<()>;
    unsafe fn destroy_graph(&self, graph: Handle);
}

/// A type of values in device memory: any bit pattern is a value, and it has no padding.
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {}
impl Element for u8 {}
impl Element for f32 {}
impl Element for f64 {}
impl Element for i32 {}
impl Element for u32 {}
impl Element for u64 {}

/// The values of bytes that are aligned for them.
pub(crate) fn values_of<T: Element>(bytes: &[u8]) -> &[T] {
    // SAFETY: any bit pattern is a value.
    let (before, values, after) = unsafe { bytes.align_to() };
    assert!(before.is_empty() && after.is_empty(), "whole values");
    values
}

/// The bytes of values without padding.
pub(crate) fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: an element has no padding, so all its bytes are initialized.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_of_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and any bit pattern is a value.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Device memory for `len` values, freed with the buffer.
#[derive(Debug)]
pub(crate) struct Buffer<T> {
    driver: Arc<dyn Driver>,
    start: Address,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Allocates; the content is undefined.
    pub(crate) fn new(driver: &Arc<dyn Driver>, len: usize) -> Result<Self> {
        let bytes = (len * size_of::<T>()).max(1);
        Ok(Self {
            driver: Arc::clone(driver),
            start: driver.allocate(bytes)?,
            len,
            values: PhantomData,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of a value; one past the last is allowed.
    pub(crate) fn at(&self, index: usize) -> Address {
        assert!(index <= self.len, "value {index} of {}", self.len);
        self.start.plus(index * size_of::<T>())
    }

    pub(crate) fn address(&self) -> Address {
        self.start
    }

    /// All of it.
    pub(crate) fn region(&self) -> Region<'_> {
        Region {
            start: self.start,
            bytes: self.len * size_of::<T>(),
            buffer: PhantomData,
        }
    }
}

/// The bytes of a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Region<'a> {
    start: Address,
    bytes: usize,
    buffer: PhantomData<&'a ()>,
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: the allocation is this buffer's. The driver gives it to nobody before the work that uses it has ended.
        unsafe { self.driver.free(self.start) }
    }
}

/// Values in the precision of a backend.
#[derive(Debug)]
pub(crate) struct Values {
    buffer: Buffer<u8>,
    pub(crate) precision: Precision,
}

impl Values {
    pub(crate) fn new(driver: &Arc<dyn Driver>, precision: Precision, len: usize) -> Result<Self> {
        Ok(Self {
            buffer: Buffer::new(driver, len * precision.bytes())?,
            precision,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.buffer.len() / self.precision.bytes()
    }

    pub(crate) fn at(&self, index: usize) -> Address {
        self.buffer.at(index * self.precision.bytes())
    }

    pub(crate) fn address(&self) -> Address {
        self.buffer.address()
    }

    /// All of it.
    pub(crate) fn region(&self) -> Region<'_> {
        self.buffer.region()
    }

    pub(crate) fn bytes(&self) -> &Buffer<u8> {
        &self.buffer
    }
}

/// Locks a table of a driver, also after a panic: its entries are inserted and removed whole.
pub(crate) fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue of work on a device.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) driver: Arc<dyn Driver>,
    handle: Handle,
}

impl Stream {
    pub(crate) fn new(driver: &Arc<dyn Driver>, priority: StreamPriority) -> Result<Self> {
        Ok(Self {
            driver: Arc::clone(driver),
            handle: driver.create_stream(priority)?,
        })
    }

    /// For work of other libraries.
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Writes the first values of a buffer from `index` on.
    pub(crate) fn upload<T: Element>(
        &self,
        to: &Buffer<T>,
        index: usize,
        values: &[T],
    ) -> Result<()> {
        assert!(index + values.len() <= to.len, "an upload fits its buffer");
        // SAFETY: the destination lies in the buffer, and the driver reads the source before it returns.
        unsafe {
            self.driver
                .upload(self.handle, to.at(index), bytes_of(values))
        }
    }

    /// Writes values from `index` on in the precision of the buffer.
    pub(crate) fn upload_values(&self, to: &Values, index: usize, values: &[f32]) -> Result<()> {
        let mut from = index * to.precision.bytes();
        for part in values.chunks(UPLOAD_VALUES) {
            let bytes = to.precision.encode_on_all_processors(part);
            for bytes in bytes {
                self.upload(&to.buffer, from, &bytes)?;
                from += bytes.len();
            }
        }
        Ok(())
    }

    /// Reads values from `index` on.
    pub(crate) fn download<T: Element>(
        &self,
        from: &Buffer<T>,
        index: usize,
        values: &mut [T],
    ) -> Result<()> {
        assert!(
            index + values.len() <= from.len,
            "a download lies in its buffer"
        );
        // SAFETY: the source lies in the buffer, and the driver waits until it has written.
        unsafe {
            self.driver
                .download(self.handle, from.at(index), bytes_of_mut(values))
        }
    }

    /// Reads values from `index` on.
    #[cfg(test)]
    pub(crate) fn download_values(
        &self,
        from: &Values,
        index: usize,
        count: usize,
    ) -> Result<Vec<f32>> {
        let size = from.precision.bytes();
        let mut bytes = vec![0u8; count * size];
        self.download(&from.buffer, index * size, &mut bytes)?;
        Ok(from.precision.decode(&bytes))
    }

    /// Copies bytes between buffers.
    ///
    /// # Safety
    /// As for [`Driver`].
    pub(crate) unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.driver.copy(self.handle, from, to, bytes) }
    }

    /// Sets bytes to zero.
    ///
    /// # Safety
    /// As for [`Driver`].
    pub(crate) unsafe fn clear(&self, to: Address, bytes: usize) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.driver.clear(self.handle, to, bytes) }
    }

    /// Sets all bytes of a buffer to zero.
    pub(crate) fn clear_buffer<T: Element>(&self, buffer: &Buffer<T>) -> Result<()> {
        // SAFETY: the whole buffer.
        unsafe { self.clear(buffer.start, buffer.len * size_of::<T>()) }
    }

    /// Sets all values to zero.
    pub(crate) fn clear_values(&self, values: &Values) -> Result<()> {
        self.clear_buffer(&values.buffer)
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// As for [`Driver`].
    pub(crate) unsafe fn launch(
        &self,
        launch: Launch,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        // SAFETY: the caller's.
        unsafe { self.driver.launch(self.handle, launch, arguments) }
    }

    /// Multiplies.
    ///
    /// # Safety
    /// As for [`Driver`].
    pub(crate) unsafe fn multiply(&self, product: &Product) -> Result<()> {
        if product.m == 0 || product.n == 0 {
            return Ok(());
        }
        // SAFETY: the caller's.
        unsafe { self.driver.multiply(self.handle, product) }
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        unsafe { self.driver.synchronize(self.handle) }
    }

    /// Records work as a graph; `None` where the device has none.
    pub(crate) fn capture(&self, record: &mut dyn FnMut() -> Result<()>) -> Result<Option<Graph>> {
        // SAFETY: the stream is alive.
        let handle = unsafe { self.driver.capture(self.handle, record) }?;
        Ok(handle.map(|handle| Graph {
            driver: Arc::clone(&self.driver),
            handle,
        }))
    }

    /// Runs a graph.
    ///
    /// # Safety
    /// The buffers that the recorded work uses are alive.
    pub(crate) unsafe fn replay(&self, graph: &Graph) -> Result<()> {
        // SAFETY: stream and graph are alive; the buffers are the caller's.
        unsafe { self.driver.replay(self.handle, graph.handle) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is this one's.
        unsafe { self.driver.destroy_stream(self.handle) }
    }
}

/// Recorded work.
#[derive(Debug)]
pub(crate) struct Graph {
    driver: Arc<dyn Driver>,
    handle: Handle,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is this one's.
        unsafe { self.driver.destroy_graph(self.handle) }
    }
}
