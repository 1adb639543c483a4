//! The nodes of a BATCH_FORGET.

use zerocopy::FromBytes;

use super::body::Body;
use super::header::NodeId;
use super::malformed::Malformed;
use crate::abi;

/// An iterator over the nodes of a BATCH_FORGET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

/// A node and the lookups that the kernel releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForgetItem {
    /// The node.
    pub node: NodeId,
    /// How many lookups the kernel releases.
    pub nlookup: u64,
}

impl<'a> Forgets<'a> {
    pub(super) fn decode(body: &mut Body<'a>) -> Result<Forgets<'a>, Malformed> {
        let raw: abi::BatchForgetIn = body.fixed()?;
        let items = body.remaining();
        let expected = (raw.count as usize).checked_mul(size_of::<abi::ForgetOne>());
        if Some(items.len()) == expected { Ok(Forgets(items)) } else { Err(Malformed::DataLength) }
    }
}

impl Iterator for Forgets<'_> {
    type Item = ForgetItem;

    fn next(&mut self) -> Option<ForgetItem> {
        let (one, rest) = abi::ForgetOne::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(ForgetItem { node: NodeId(one.nodeid), nlookup: one.nlookup })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.0.len() / size_of::<abi::ForgetOne>();
        (count, Some(count))
    }
}

impl ExactSizeIterator for Forgets<'_> {}
