//! Host memory that the driver has pinned: uploads from it run at the speed of the bus while the program goes on.

use std::ptr::NonNull;
use std::sync::Arc;

use super::{Buffer, Driver, Element, Result, Stream};

/// Pinned memory of the host, freed with the buffer.
#[derive(Debug)]
pub(crate) struct HostBuffer {
    driver: Arc<dyn Driver>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is this buffer's alone, and the driver may be used from any thread.
unsafe impl Send for HostBuffer {}

impl HostBuffer {
    /// Allocates zeros.
    pub(crate) fn new(driver: &Arc<dyn Driver>, len: usize) -> Result<Self> {
        let start = driver.allocate_host(len.max(1))?;
        // SAFETY: the allocation has this many bytes.
        unsafe { start.write_bytes(0, len) };
        Ok(Self {
            driver: Arc::clone(driver),
            start,
            len,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The first bytes.
    pub(crate) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.len, "{len} bytes of {}", self.len);
        // SAFETY: the memory is initialized and borrowed with the buffer. Whoever starts a copy, which is unsafe, keeps the
        // buffer until it has ended.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), len) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: the allocation is this buffer's, and no copy uses it.
        unsafe { self.driver.free_host(self.start) }
    }
}

/// Uploads that run on a stream. They own their buffers until the stream has finished.
#[derive(Debug)]
pub(crate) struct Uploads<'a> {
    stream: &'a Stream,
    running: Vec<HostBuffer>,
}

impl<'a> Uploads<'a> {
    pub(crate) fn new(stream: &'a Stream) -> Self {
        Self {
            stream,
            running: Vec::new(),
        }
    }

    /// Starts to write the bytes of `count` values, the first of a buffer, to `to` from value `index` on.
    pub(crate) fn start<T: Element>(
        &mut self,
        to: &Buffer<T>,
        index: usize,
        mut from: HostBuffer,
        count: usize,
    ) -> Result<()> {
        assert!(index + count <= to.len(), "an upload fits its buffer");
        let bytes = from.bytes_mut(count * size_of::<T>());
        // SAFETY: the destination lies in the buffer. The source stays in `running` until the stream has finished.
        let started = unsafe {
            self.stream
                .driver
                .upload(self.stream.handle, to.at(index), bytes)
        };
        self.running.push(from);
        started
    }

    /// How many run.
    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// Waits until all have finished, and returns their buffers.
    pub(crate) fn finish(&mut self) -> Result<Vec<HostBuffer>> {
        self.stream.synchronize()?;
        Ok(std::mem::take(&mut self.running))
    }
}

impl Drop for Uploads<'_> {
    fn drop(&mut self) {
        if self.stream.synchronize().is_err() {
            // The device has failed and may still read the buffers.
            self.running.drain(..).for_each(std::mem::forget);
        }
    }
}
