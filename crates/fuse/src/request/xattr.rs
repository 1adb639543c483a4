//! Requests about extended attributes.

use super::decode::Body;
use super::{Dialect, Malformed, Op};
use crate::abi;
use crate::flags::SetxattrFlags;

/// The header has 8 bytes, or 16 once `FUSE_SETXATTR_EXT` has been agreed upon.
pub(super) fn decode_set<'a>(body: &mut Body<'a>, dialect: Dialect) -> Result<Op<'a>, Malformed> {
    let (size, flags, extra) = if dialect.setxattr_ext {
        let raw: abi::SetxattrIn = body.fixed()?;
        (raw.size, raw.flags, raw.setxattr_flags)
    } else {
        let raw: abi::SetxattrInCompat = body.fixed()?;
        (raw.size, raw.flags, 0)
    };
    let name = body.attribute()?;
    let value = body.data(size)?;
    Ok(Op::Setxattr { name, value, flags, setxattr_flags: SetxattrFlags::from_bits_retain(extra) })
}

pub(super) fn decode_get<'a>(body: &mut Body<'a>) -> Result<Op<'a>, Malformed> {
    let raw: abi::GetxattrIn = body.fixed()?;
    let name = body.attribute()?;
    body.end()?;
    Ok(Op::Getxattr { name, size: raw.size })
}

pub(super) fn decode_remove<'a>(body: &mut Body<'a>) -> Result<Op<'a>, Malformed> {
    let name = body.attribute()?;
    body.end()?;
    Ok(Op::Removexattr { name })
}
