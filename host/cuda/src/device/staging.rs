//! Page-locked memory through which large buffers are copied part by part: while one part is on its way, threads of the host
//! fill or read the other.

use std::ops::Range;
use std::sync::Arc;

use super::{Driver, HostBuffer, Region, Result, Stream};

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
        self.parts[0].len()
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
            // The stream has finished the copy before the last, and the previous one has the other part.
            let bytes = part.bytes_mut(range.len());
            fill(range.clone(), bytes);
            let at = to.start.plus(range.start);
            // SAFETY: the destination lies in the region, and this returns when all copies have ended.
            unsafe { stream.driver.upload(stream.handle, at, bytes)? };
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
                driver.download_later(stream.handle, at, part.start(), range.len())
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
            // The copy into this part has ended, and the next one has the other part.
            read(range.clone(), self.parts[number % 2].bytes_mut(range.len()));
        }
        Ok(())
    }
}
