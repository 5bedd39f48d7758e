//! Checks the bytes of a component before they are compiled.
//!
//! The engine does not bound the time and memory of compilation. So files that are not components, are truncated, or
//! contain too many functions or modules are rejected here, by a scan over the section headers that does not allocate.
//! This is not validation: the engine does that next.

use crate::error::PluginError;

/// Maximum functions, summed over all core modules. A Python interpreter has about 30,000.
const MAX_FUNCTIONS: u64 = 250_000;
/// Maximum core modules and components, including nested ones.
const MAX_MODULES: u64 = 1_000;
/// Maximum nesting depth of components.
const MAX_DEPTH: u32 = 16;

/// Rejects files that are not components or are too large to compile.
pub(crate) fn check(bytes: &[u8], max_bytes: usize) -> Result<(), PluginError> {
    if bytes.len() > max_bytes {
        return Err(PluginError::TooLarge {
            size: bytes.len(),
            limit: max_bytes,
        });
    }
    if wasmtime::Engine::detect_precompiled(bytes).is_some() || bytes.starts_with(b"\x7fELF") {
        return Err(PluginError::Precompiled);
    }
    if !bytes.starts_with(b"\0asm") {
        let start: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
        let start = if start.is_empty() {
            "nothing (the file is empty)".to_owned()
        } else {
            start.join(" ")
        };
        return Err(PluginError::NotWasm { start });
    }
    let mut scan = SectionScan {
        functions: 0,
        modules: 0,
    };
    match binary_kind(bytes) {
        Some(BinaryKind::Component) => scan.component(bytes, 0, 0),
        Some(BinaryKind::Core) => Err(PluginError::CoreModule),
        None => Err(PluginError::Malformed {
            offset: 4,
            reason: "unknown version of the binary format",
        }),
    }
}

enum BinaryKind {
    Core,
    Component,
}

fn binary_kind(bytes: &[u8]) -> Option<BinaryKind> {
    match bytes.get(4..8)? {
        [1, 0, 0, 0] => Some(BinaryKind::Core),
        [0x0d, 0, 1, 0] => Some(BinaryKind::Component),
        _ => None,
    }
}

struct SectionScan {
    functions: u64,
    modules: u64,
}

impl SectionScan {
    /// Scans the sections of a component; `base` is its offset in the file.
    fn component(&mut self, bytes: &[u8], base: usize, depth: u32) -> Result<(), PluginError> {
        self.count_module(depth)?;
        let mut offset = 8;
        while let Some(section) = Section::read(bytes, offset, base)? {
            match section.id {
                1 => self.core_module(section.body, base + section.start)?,
                4 => match binary_kind(section.body) {
                    Some(BinaryKind::Component) => {
                        self.component(section.body, base + section.start, depth + 1)?;
                    }
                    _ => {
                        return Err(PluginError::Malformed {
                            offset: base + section.start,
                            reason: "nested component without header",
                        });
                    }
                },
                0..=12 => {}
                _ => {
                    return Err(PluginError::Malformed {
                        offset: base + offset,
                        reason: "unknown section",
                    });
                }
            }
            offset = section.end;
        }
        Ok(())
    }

    fn core_module(&mut self, bytes: &[u8], base: usize) -> Result<(), PluginError> {
        self.count_module(0)?;
        if !bytes.starts_with(b"\0asm") {
            return Err(PluginError::Malformed {
                offset: base,
                reason: "core module without header",
            });
        }
        let mut offset = 8;
        while let Some(section) = Section::read(bytes, offset, base)? {
            if section.id == 3 {
                let count = leb32(section.body, 0).map_or(0, |(count, _)| count);
                self.functions += u64::from(count);
                check_limit("functions", self.functions, MAX_FUNCTIONS)?;
            }
            offset = section.end;
        }
        Ok(())
    }

    fn count_module(&mut self, depth: u32) -> Result<(), PluginError> {
        self.modules += 1;
        check_limit("modules and components", self.modules, MAX_MODULES)?;
        check_limit(
            "levels of nested components",
            u64::from(depth),
            u64::from(MAX_DEPTH),
        )
    }
}

fn check_limit(what: &'static str, count: u64, limit: u64) -> Result<(), PluginError> {
    if count > limit {
        return Err(PluginError::TooMany { what, count, limit });
    }
    Ok(())
}

struct Section<'a> {
    id: u8,
    start: usize,
    end: usize,
    body: &'a [u8],
}

impl<'a> Section<'a> {
    /// The section that begins at `offset`, or none at the end of the bytes.
    fn read(
        bytes: &'a [u8],
        offset: usize,
        base: usize,
    ) -> Result<Option<Section<'a>>, PluginError> {
        let Some(id) = bytes.get(offset).copied() else {
            return Ok(None);
        };
        let malformed = |reason| PluginError::Malformed {
            offset: base + offset,
            reason,
        };
        let (size, start) =
            leb32(bytes, offset + 1).ok_or_else(|| malformed("section without size"))?;
        let end = start.saturating_add(size as usize);
        let body = bytes
            .get(start..end)
            .ok_or_else(|| malformed("section beyond the end of the file"))?;
        Ok(Some(Section {
            id,
            start,
            end,
            body,
        }))
    }
}

/// Reads an unsigned LEB128 number of at most 32 bits and returns it with the offset after it.
fn leb32(bytes: &[u8], mut offset: usize) -> Option<(u32, usize)> {
    let mut value = 0u64;
    for shift in [0, 7, 14, 21, 28] {
        let byte = *bytes.get(offset)?;
        offset += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((u32::try_from(value).ok()?, offset));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: [u8; 8] = [0, b'a', b's', b'm', 0x0d, 0, 1, 0];

    fn component(sections: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = HEADER.to_vec();
        for (id, body) in sections {
            bytes.push(*id);
            let mut size = body.len();
            while size >= 0x80 {
                bytes.push(0x80 | (size & 0x7f) as u8);
                size >>= 7;
            }
            bytes.push(size as u8);
            bytes.extend_from_slice(body);
        }
        bytes
    }

    #[test]
    fn malformed_files_are_rejected_with_a_reason() {
        assert_eq!(check(&HEADER, 100), Ok(()));
        assert_eq!(check(b"\0asm\x01\0\0\0", 100), Err(PluginError::CoreModule));
        assert_eq!(
            check(b"\x7fELF\x02\x01\x01\0", 100),
            Err(PluginError::Precompiled)
        );
        assert!(matches!(
            check(b"hello there", 100),
            Err(PluginError::NotWasm { .. })
        ));
        assert!(matches!(check(b"", 100), Err(PluginError::NotWasm { .. })));
        assert!(matches!(
            check(b"\0asm\x07\0\0\0", 100),
            Err(PluginError::Malformed { .. })
        ));
        assert_eq!(
            check(&HEADER, 7),
            Err(PluginError::TooLarge { size: 8, limit: 7 })
        );
        let mut cut = component(&[(0, b"\x01x..........")]);
        cut.truncate(12);
        assert_eq!(
            check(&cut, 100),
            Err(PluginError::Malformed {
                offset: 8,
                reason: "section beyond the end of the file"
            })
        );
    }

    #[test]
    fn functions_and_depth_are_limited_without_compiling() {
        let mut module = b"\0asm\x01\0\0\0".to_vec();
        module.extend([3, 4, 0xc0, 0x84, 0x3d, 0]); // a function section that claims 1,000,000
        assert_eq!(
            check(&component(&[(1, &module)]), 1000),
            Err(PluginError::TooMany {
                what: "functions",
                count: 1_000_000,
                limit: MAX_FUNCTIONS
            })
        );
        let mut nested = component(&[]);
        for _ in 0..=MAX_DEPTH {
            nested = component(&[(4, &nested)]);
        }
        assert!(matches!(
            check(&nested, 10_000),
            Err(PluginError::TooMany { .. })
        ));
    }

    proptest! {
        #[test]
        fn never_panics(mut tail in proptest::collection::vec(any::<u8>(), 0..200), with_header in any::<bool>()) {
            let mut bytes = if with_header { HEADER.to_vec() } else { Vec::new() };
            bytes.append(&mut tail);
            let _ = check(&bytes, 1 << 20);
        }
    }
}
