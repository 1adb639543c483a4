//! How attributes and names are packed into bytes that are read again, or refused.

use super::stat::{Attr, Time};

/// Bytes that grow. A number takes as many groups of seven bits as it needs.
#[derive(Default)]
pub struct Packer(pub Vec<u8>);

impl Packer {
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub fn signed(&mut self, number: i64) {
        self.number(((number << 1) ^ (number >> 63)).cast_unsigned());
    }

    pub fn time(&mut self, (sec, nsec): (i64, u32)) {
        self.signed(sec);
        self.number(u64::from(nsec));
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    pub fn attr(&mut self, attr: &Attr) {
        let Attr { ino, size, blocks, mode, nlink, uid, gid, dev, rdev, blksize, mask, .. } = *attr;
        let short = [mode, nlink, uid, gid, rdev.0, rdev.1, blksize, mask].map(u64::from);
        [ino, size, blocks, dev, attr.attributes, attr.attributes_mask]
            .into_iter()
            .chain(short)
            .for_each(|number| self.number(number));
        for Time { sec, nsec } in [attr.atime, attr.mtime, attr.ctime, attr.btime] {
            self.time((sec, nsec));
        }
    }
}

/// The bytes of a [`Packer`], less what has been read. Each part is `None` if they are not those of one.
pub struct Unpacker<'a>(pub &'a [u8]);

impl<'a> Unpacker<'a> {
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -((number & 1).cast_signed()))
    }

    pub fn time(&mut self) -> Option<(i64, u32)> {
        Some((self.signed()?, u32::try_from(self.number()?).ok()?))
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn attr(&mut self) -> Option<Attr> {
        let mut long = [0; 6];
        for number in &mut long {
            *number = self.number()?;
        }
        let mut short = [0; 8];
        for number in &mut short {
            *number = u32::try_from(self.number()?).ok()?;
        }
        let mut times = [Time::default(); 4];
        for time in &mut times {
            let (sec, nsec) = self.time()?;
            *time = Time { sec, nsec };
        }
        let [ino, size, blocks, dev, attributes, attributes_mask] = long;
        let [mode, nlink, uid, gid, major, minor, blksize, mask] = short;
        let [atime, mtime, ctime, btime] = times;
        let rdev = (major, minor);
        Some(Attr {
            ino,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            btime,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            dev,
            blksize,
            attributes,
            attributes_mask,
            mask,
        })
    }
}
