//! Damaged and hostile headers.

use proptest::prelude::*;

use super::*;

/// Writes headers field by field.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn begin(version: u32, tensors: u64, entries: u64) -> Self {
        let mut writer = Self(b"GGUF".to_vec());
        writer.u32(version).u64(tensors).u64(entries);
        writer
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
        self
    }

    fn tensor(&mut self, name: &str, shape: &[u64], kind: u32, offset: u64) -> &mut Self {
        self.text(name).u32(shape.len() as u32);
        for size in shape {
            self.u64(*size);
        }
        self.u32(kind).u64(offset)
    }
}

fn parse(bytes: &[u8]) -> Result<Header, String> {
    Header::parse(bytes, bytes.len() as u64, "m.gguf".to_owned()).map_err(|error| error.to_string())
}

/// Two metadata entries and two tensors, with data.
fn small() -> Vec<u8> {
    let mut writer = Writer::begin(3, 2, 3);
    writer.text("general.name").u32(8).text("small");
    writer.text("ids").u32(9).u32(4).u64(3).u32(7).u32(8).u32(9);
    writer
        .text("words")
        .u32(9)
        .u32(8)
        .u64(2)
        .text("a")
        .text("b");
    writer.tensor("one", &[4], 0, 0);
    writer.tensor("two", &[64, 2], 8, 32);
    let data = writer.0.len().next_multiple_of(32);
    writer.0.resize(data + 32 + 4 * 34, 0);
    writer.0
}

#[test]
fn metadata_and_tensors_are_read() {
    let header = parse(&small()).unwrap();
    assert_eq!(header.text("general.name").unwrap(), Some("small"));
    assert_eq!(
        header.numbers("ids").unwrap(),
        Some([7.0, 8.0, 9.0].as_slice())
    );
    assert_eq!(header.texts("words").unwrap().unwrap(), ["a", "b"]);
    assert_eq!(header.text("missing").unwrap(), None);
    assert!(
        header
            .integer("general.name")
            .unwrap_err()
            .to_string()
            .contains("general.name is not")
    );
    let two = &header.tensors["two"];
    assert_eq!(
        (two.shape.as_slice(), two.range),
        ([2, 64].as_slice(), (32, 32 + 4 * 34))
    );
    assert_eq!(header.data % 32, 0);
}

#[test]
fn damaged_headers_are_rejected_with_the_reason() {
    let one = |shape: &[u64], kind: u32, offset: u64| {
        let mut writer = Writer::begin(3, 1, 0);
        writer.tensor("t", shape, kind, offset);
        let data = writer.0.len().next_multiple_of(32);
        writer.0.resize(data + 64, 0);
        parse(&writer.0).unwrap_err()
    };
    let entry = |kind: u32, value: &[u8]| {
        let mut writer = Writer::begin(3, 0, 1);
        writer.text("key").u32(kind);
        writer.0.extend(value);
        parse(&writer.0).unwrap_err()
    };
    let mut twice = Writer::begin(3, 0, 2);
    twice.text("key").u32(4).u32(1).text("key").u32(4).u32(1);
    for (error, words) in [
        (parse(b"").unwrap_err(), "not a GGUF file"),
        (
            parse(b"PK\x03\x04 and more").unwrap_err(),
            "not a GGUF file",
        ),
        (
            parse(&Writer::begin(1, 0, 0).0).unwrap_err(),
            "version 1; convert",
        ),
        (parse(&Writer::begin(9, 0, 0).0).unwrap_err(), "version 9"),
        (
            parse(&Writer::begin(3u32.swap_bytes(), 0, 0).0).unwrap_err(),
            "big-endian",
        ),
        (
            parse(&Writer::begin(3, u64::MAX, 0).0).unwrap_err(),
            "the limit is",
        ),
        (
            parse(&Writer::begin(3, 0, 1 << 40).0).unwrap_err(),
            "the limit is",
        ),
        (parse(&twice.0).unwrap_err(), "key twice"),
        (entry(99, &[]), "99 is not a type of metadata"),
        (entry(7, &[2]), "2 is not a boolean"),
        (entry(8, &u64::MAX.to_le_bytes()), "truncated"),
        (entry(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]), "not UTF-8"),
        (
            entry(9, &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
            "the limit is",
        ),
        (
            entry(9, &[9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
            "arrays of arrays",
        ),
        (one(&[], 0, 0), "has 0 dimensions"),
        (one(&[1; 5], 0, 0), "has 5 dimensions"),
        (one(&[0], 0, 0), "empty or too large"),
        (one(&[1 << 32, 1 << 32], 0, 0), "empty or too large"),
        (
            one(&[33], 8, 0),
            "rows of 33 values, which Q8_0 cannot have",
        ),
        (one(&[8], 0, 1), "not aligned"),
        (one(&[64], 0, 0), "truncated: download it again"),
        (one(&[8], 0, u64::MAX - 31), "invalid offset"),
        (
            one(&[256], 16, 0),
            "type IQ2_XXS, which is not supported; use a file in",
        ),
        (one(&[256], 77, 0), "type number 77"),
    ] {
        assert!(error.contains(words), "{error}");
        assert!(error.contains("m.gguf"), "{error}");
    }
}

proptest! {
    #[test]
    fn a_damaged_file_never_panics(cut in 0usize..400, at in 0usize..400, value in any::<u8>()) {
        let mut bytes = small();
        let at = at % bytes.len();
        bytes[at] = value;
        bytes.truncate(bytes.len() - cut % bytes.len());
        if let Ok(header) = parse(&bytes) {
            for entry in header.tensors.values() {
                prop_assert!(header.data + entry.range.1 <= bytes.len() as u64);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut all = b"GGUF\x03\0\0\0".to_vec();
        all.extend(&bytes);
        let _ = parse(&all);
        // Few entries, so that the parser gets to them.
        let mut all = Writer::begin(3, 2, 2).0;
        all.extend(bytes);
        let _ = parse(&all);
    }
}
