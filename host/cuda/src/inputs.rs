//! The integers of a step: tokens, positions, block tables and lists of tiles, in one buffer and one upload.

use std::sync::Arc;

use crate::device::{Address, Buffer, Driver, Result, Stream};

/// Lists to upload together.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    values: Vec<i32>,
}

/// Where a list begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List(usize);

impl Lists {
    /// Adds a list.
    pub(crate) fn push(&mut self, values: impl IntoIterator<Item = i32>) -> List {
        let at = self.values.len();
        self.values.extend(values);
        List(at)
    }

    /// Adds a list of sizes.
    pub(crate) fn push_sizes(&mut self, values: impl IntoIterator<Item = usize>) -> List {
        let int = |value: usize| i32::try_from(value).expect("a position fits");
        self.push(values.into_iter().map(int))
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}

/// Lists on the device.
#[derive(Debug)]
pub(crate) struct Inputs {
    buffer: Buffer<i32>,
}

impl Inputs {
    pub(crate) fn new(driver: &Arc<dyn Driver>, len: usize) -> Result<Self> {
        Ok(Self {
            buffer: Buffer::new(driver, len)?,
        })
    }

    pub(crate) fn fits(&self, lists: &Lists) -> bool {
        lists.len() <= self.buffer.len()
    }

    pub(crate) fn upload(&self, stream: &Stream, lists: &Lists) -> Result<()> {
        stream.upload(&self.buffer, 0, &lists.values)
    }

    pub(crate) fn at(&self, list: List) -> Address {
        self.buffer.at(list.0)
    }
}
