//! Looks at the bytes of a component before any compiler does.
//!
//! Compiling is not covered by the engine's promises about time and memory, so files that are not
//! components, are cut off, or are absurdly large inside are refused here, by a walk over section
//! headers that allocates nothing. It does not validate: the engine does that next.

use crate::error::PluginError;

/// Functions in all core modules together. A Python interpreter has about 30,000.
const MAX_FUNCTIONS: u64 = 250_000;
/// Core modules and components, nested ones included.
const MAX_MODULES: u64 = 1_000;
/// Components inside components.
const MAX_DEPTH: u32 = 16;

/// Refuses what is plainly not a component that this host compiles.
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
    let mut walk = Walk {
        functions: 0,
        modules: 0,
    };
    match layer(bytes) {
        Some(Layer::Component) => walk.component(bytes, 0, 0),
        Some(Layer::Core) => Err(PluginError::CoreModule),
        None => Err(PluginError::Damaged {
            offset: 4,
            reason: "an unknown version of the binary format",
        }),
    }
}

enum Layer {
    Core,
    Component,
}

fn layer(bytes: &[u8]) -> Option<Layer> {
    match bytes.get(4..8)? {
        [1, 0, 0, 0] => Some(Layer::Core),
        [0x0d, 0, 1, 0] => Some(Layer::Component),
        _ => None,
    }
}

struct Walk {
    functions: u64,
    modules: u64,
}

impl Walk {
    /// Walks the sections of a component; `base` is its place in the file.
    fn component(&mut self, bytes: &[u8], base: usize, depth: u32) -> Result<(), PluginError> {
        self.enter(depth)?;
        let mut at = 8;
        while let Some(section) = Section::read(bytes, at, base)? {
            match section.id {
                1 => self.core_module(section.body, base + section.start)?,
                4 => match layer(section.body) {
                    Some(Layer::Component) => {
                        self.component(section.body, base + section.start, depth + 1)?;
                    }
                    _ => {
                        return Err(PluginError::Damaged {
                            offset: base + section.start,
                            reason: "a nested component without its header",
                        });
                    }
                },
                0..=12 => {}
                _ => {
                    return Err(PluginError::Damaged {
                        offset: base + at,
                        reason: "an unknown section",
                    });
                }
            }
            at = section.end;
        }
        Ok(())
    }

    fn core_module(&mut self, bytes: &[u8], base: usize) -> Result<(), PluginError> {
        self.enter(0)?;
        if !bytes.starts_with(b"\0asm") {
            return Err(PluginError::Damaged {
                offset: base,
                reason: "a core module without its header",
            });
        }
        let mut at = 8;
        while let Some(section) = Section::read(bytes, at, base)? {
            if section.id == 3 {
                let count = leb32(section.body, 0).map_or(0, |(count, _)| count);
                self.functions += u64::from(count);
                limit("functions", self.functions, MAX_FUNCTIONS)?;
            }
            at = section.end;
        }
        Ok(())
    }

    fn enter(&mut self, depth: u32) -> Result<(), PluginError> {
        self.modules += 1;
        limit("modules and components", self.modules, MAX_MODULES)?;
        limit(
            "levels of nested components",
            u64::from(depth),
            u64::from(MAX_DEPTH),
        )
    }
}

fn limit(what: &'static str, count: u64, limit: u64) -> Result<(), PluginError> {
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
    /// The section that begins at `at`, or none at the end of the bytes.
    fn read(bytes: &'a [u8], at: usize, base: usize) -> Result<Option<Section<'a>>, PluginError> {
        let Some(id) = bytes.get(at).copied() else {
            return Ok(None);
        };
        let damaged = |reason| PluginError::Damaged {
            offset: base + at,
            reason,
        };
        let (size, start) =
            leb32(bytes, at + 1).ok_or_else(|| damaged("a section without its size"))?;
        let end = start.saturating_add(size as usize);
        let body = bytes
            .get(start..end)
            .ok_or_else(|| damaged("a section that reaches beyond the end"))?;
        Ok(Some(Section {
            id,
            start,
            end,
            body,
        }))
    }
}

/// An unsigned LEB128 number of at most 32 bits and the place after it.
fn leb32(bytes: &[u8], mut at: usize) -> Option<(u32, usize)> {
    let mut value = 0u64;
    for shift in [0, 7, 14, 21, 28] {
        let byte = *bytes.get(at)?;
        at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((u32::try_from(value).ok()?, at));
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
    fn tells_what_is_wrong() {
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
            Err(PluginError::Damaged { .. })
        ));
        assert_eq!(
            check(&HEADER, 7),
            Err(PluginError::TooLarge { size: 8, limit: 7 })
        );
        let mut cut = component(&[(0, b"\x01x..........")]);
        cut.truncate(12);
        assert_eq!(
            check(&cut, 100),
            Err(PluginError::Damaged {
                offset: 8,
                reason: "a section that reaches beyond the end"
            })
        );
    }

    #[test]
    fn counts_functions_and_depth_without_compiling() {
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
