//! Checks the bytes of a component before they are compiled.
//!
//! The engine does not bound the time and memory of compilation. So files that are not components, are truncated, or
//! contain too many functions or modules are rejected here, by a scan over the section headers with the engine's own
//! parser. This is not validation: the engine does that next.

use wasmparser::{BinaryReaderError, Encoding, Parser, Payload};

use crate::error::PluginError;

/// Maximum functions, summed over all core modules. A Python interpreter has about 30,000.
const MAX_FUNCTIONS: u64 = 250_000;
/// Maximum core modules and components, including nested ones.
const MAX_MODULES: u64 = 1_000;
/// Maximum nesting depth of components.
const MAX_DEPTH: u64 = 16;

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
    let malformed = |error: BinaryReaderError| PluginError::Malformed {
        offset: error.offset(),
        reason: error.message().to_owned(),
    };
    let (mut functions, mut modules, mut depth) = (0, 0, 0);
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(malformed)? {
            Payload::Version { encoding, .. } => {
                if modules == 0 && encoding == Encoding::Module {
                    return Err(PluginError::CoreModule);
                }
                modules += 1;
                check_limit("modules and components", modules, MAX_MODULES)?;
                if encoding == Encoding::Component {
                    check_limit("levels of nested components", depth, MAX_DEPTH)?;
                }
                depth += 1;
            }
            Payload::End(_) => depth -= 1,
            Payload::FunctionSection(section) => {
                functions += u64::from(section.count());
                check_limit("functions", functions, MAX_FUNCTIONS)?;
            }
            Payload::UnknownSection { range, .. } => {
                return Err(PluginError::Malformed {
                    offset: range.start,
                    reason: "unknown section".to_owned(),
                });
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_limit(what: &'static str, count: u64, limit: u64) -> Result<(), PluginError> {
    if count > limit {
        return Err(PluginError::TooMany { what, count, limit });
    }
    Ok(())
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
        assert!(matches!(
            check(&cut, 100),
            Err(PluginError::Malformed { .. })
        ));
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
