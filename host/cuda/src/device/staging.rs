//! Page-locked memory through which large buffers are copied part by part: while one part is on its way, threads of the host
//! fill or read the other.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Driver, Region, Result, Stream};

/// Page-locked memory of the host.
#[derive(Debug)]
struct HostBuffer {
    driver: Arc<dyn Driver>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is this buffer's alone.
unsafe impl Send for HostBuffer {}

impl HostBuffer {
    fn new(driver: &Arc<dyn Driver>, len: usize) -> Result<Self> {
        let start = driver.allocate_host(len)?;
        // SAFETY: the allocation has these bytes.
        unsafe { start.write_bytes(0, len) };
        Ok(Self {
            driver: Arc::clone(driver),
            start,
            len,
        })
    }

    /// # Safety
    /// No copy from or to the device is under way.
    unsafe fn bytes(&mut self, count: usize) -> &mut [u8] {
        assert!(count <= self.len, "{count} bytes of {}", self.len);
        // SAFETY: the allocation has these bytes, all initialized, and the device does not use them.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), count) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: the allocation is this buffer's; the driver waits for copies.
        unsafe { self.driver.free_host(self.start) }
    }
}

/// Memory for two parts.
#[derive(Debug)]
pub(crate) struct Staging {
    parts: [HostBuffer; 2],
}

impl Staging {
    /// Two parts of this many bytes.
    pub(crate) fn new(driver: &Arc<dyn Driver>, part: usize) -> Result<Self> {
        let buffer = || HostBuffer::new(driver, part);
        Ok(Self {
            parts: [buffer()?, buffer()?],
        })
    }

    /// Bytes of a part.
    pub(crate) fn part(&self) -> usize {
        self.parts[0].len
    }

    /// The ranges of the parts of this many bytes.
    fn ranges(&self, bytes: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let part = self.part();
        let starts = (0..bytes).step_by(part);
        starts.map(move |start| start..bytes.min(start + part))
    }

    /// Writes a region; `fill` gets each of its ranges and where to write its bytes.
    pub(crate) fn upload(
        &mut self,
        stream: &Stream,
        to: Region<'_>,
        mut fill: impl FnMut(Range<usize>, &mut [u8]),
    ) -> Result<()> {
        for (number, range) in self.ranges(to.bytes).enumerate() {
            if number >= self.parts.len() {
                stream.synchronize()?;
            }
            let part = &mut self.parts[number % 2];
            // SAFETY: the stream has finished the copy before the last, and the previous one has the other part. The
            // destination lies in the region, and this returns when all copies have ended.
            unsafe {
                let bytes = part.bytes(range.len());
                fill(range.clone(), bytes);
                let at = to.start.plus(range.start);
                stream.driver.upload(stream.handle, at, bytes)?;
            }
        }
        stream.synchronize()
    }

    /// Reads a region; `read` gets each of its ranges with the bytes.
    pub(crate) fn download(
        &mut self,
        stream: &Stream,
        from: Region<'_>,
        mut read: impl FnMut(Range<usize>, &[u8]),
    ) -> Result<()> {
        let start = |part: &HostBuffer, range: &Range<usize>| {
            let at = from.start.plus(range.start);
            // SAFETY: the source lies in the region; the part is read after the stream has finished the copy, and nothing
            // else uses it until then.
            unsafe {
                let driver = &stream.driver;
                driver.download_later(stream.handle, at, part.start, range.len())
            }
        };
        let mut ranges = self.ranges(from.bytes).enumerate().peekable();
        if let Some((_, first)) = ranges.peek() {
            start(&self.parts[0], first)?;
        }
        while let Some((number, range)) = ranges.next() {
            stream.synchronize()?;
            if let Some((next, range)) = ranges.peek() {
                start(&self.parts[next % 2], range)?;
            }
            // SAFETY: the copy into this part has ended, and the next one has the other part.
            let bytes = unsafe { self.parts[number % 2].bytes(range.len()) };
            read(range, bytes);
        }
        Ok(())
    }
}
