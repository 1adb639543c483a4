//! Byte sizes as written in options.

/// Why a size cannot be parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SizeError {
    /// EINVAL: no digits, a sign, too many digits, or a unit other than B K M G T.
    #[error("not a size: expected digits and at most one of B, K, M, G, T")]
    Invalid,
    /// EOVERFLOW: digits times unit is more than 2^64 - 1.
    #[error("size is more than 2^64 - 1 bytes")]
    Overflow,
}

/// Parses decimal digits and an optional unit `B K M G T` (either case, powers of 1024) into bytes.
///
/// Anything after the unit is ignored (`1Kib` is 1024), because existing configurations rely on it.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().map_err(|_| SizeError::Invalid)?;
    let unit: u64 = match text.as_bytes().get(end) {
        None | Some(b'b' | b'B') => 1,
        Some(b'k' | b'K') => 1 << 10,
        Some(b'm' | b'M') => 1 << 20,
        Some(b'g' | b'G') => 1 << 30,
        Some(b't' | b'T') => 1 << 40,
        Some(_) => return Err(SizeError::Invalid),
    };
    number.checked_mul(unit).ok_or(SizeError::Overflow)
}

/// Formats bytes in the largest unit that divides them exactly: 1024 is `1K`, 1536 stays `1536`.
pub fn format_size(bytes: u64) -> String {
    for (unit, letter) in [(1u64 << 40, 'T'), (1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')] {
        if bytes != 0 && bytes.is_multiple_of(unit) {
            return format!("{}{letter}", bytes / unit);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_sizes() {
        for (text, expected) in [
            ("0", Ok(0)),
            ("512", Ok(512)),
            ("7b", Ok(7)),
            ("7B", Ok(7)),
            ("1k", Ok(1 << 10)),
            ("1K", Ok(1 << 10)),
            ("3m", Ok(3 << 20)),
            ("4G", Ok(4 << 30)),
            ("2t", Ok(2 << 40)),
            ("1Kxyz", Ok(1024)),
            ("1Kib", Ok(1024)),
            ("18446744073709551615", Ok(u64::MAX)),
            ("16777215T", Ok(16777215 << 40)),
            ("16777216T", Err(SizeError::Overflow)),
            ("18446744073709551615K", Err(SizeError::Overflow)),
            ("18446744073709551616", Err(SizeError::Invalid)),
            ("1P", Err(SizeError::Invalid)),
            ("1 K", Err(SizeError::Invalid)),
            ("", Err(SizeError::Invalid)),
            ("K", Err(SizeError::Invalid)),
            ("x", Err(SizeError::Invalid)),
            ("-1", Err(SizeError::Invalid)),
            ("+1", Err(SizeError::Invalid)),
            (" 1", Err(SizeError::Invalid)),
        ] {
            assert_eq!(parse_size(text), expected, "{text:?}");
        }
    }

    #[test]
    fn formats_sizes() {
        for (bytes, expected) in [
            (0, "0"),
            (1, "1"),
            (512, "512"),
            (1024, "1K"),
            (1536, "1536"),
            (1 << 20, "1M"),
            ((1 << 20) + 1024, "1025K"),
            (1 << 30, "1G"),
            (1 << 40, "1T"),
            (1 << 50, "1024T"),
            (4294967295, "4294967295"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(format_size(bytes), expected);
            assert_eq!(parse_size(expected), Ok(bytes), "parses back");
        }
    }
}
