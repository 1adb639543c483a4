//! A valid request of every opcode, written by hand from the layout of the structures. They are the seeds of the fuzz
//! targets, and tests truncate and mutate them.
#![allow(dead_code, unreachable_pub, reason = "each user takes a part")]

/// Name, opcode, whether it uses the longer SETXATTR header, and the request.
pub type Seed = (&'static str, u32, bool, Vec<u8>);

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Returns a request with a header: unique 0x77, node 3, uid 1000, gid 1001, pid 1002.
pub fn request(opcode: u32, parts: &[&[u8]], ext: &[u8]) -> Vec<u8> {
    let body = parts.concat();
    let mut bytes = words(&[(40 + body.len() + ext.len()) as u32, opcode]);
    bytes.extend(longs(&[0x77, 3]));
    bytes.extend(words(&[1000, 1001, 1002, (ext.len() / 8) as u32]));
    bytes.extend(body);
    bytes.extend(ext);
    bytes
}

/// Returns an extension block of an unknown type, followed by one with a supplementary group.
pub fn groups() -> Vec<u8> {
    words(&[16, 99, 0, 0, 16, 32, 1, 4242])
}

pub fn seeds() -> Vec<Seed> {
    let read =
        |fh: u64| [longs(&[fh, 4096]), words(&[512, 2]), longs(&[11]), words(&[0o100_000, 0])].concat();
    let copy = longs(&[5, 0, 4, 6, 4096, 1 << 33, 0]);
    let lock = [longs(&[5, 0xabc, 0, 99]), words(&[1, 1002, 1, 0])].concat();
    let open = words(&[0o100_002, 1]);
    let release = [longs(&[5]), words(&[2, 3]), longs(&[11])].concat();
    let create = words(&[0o102, 0o644, 0o22, 0]);
    let plain: Vec<(&str, u32, Vec<u8>)> = vec![
        ("lookup", 1, b"name\0".into()),
        ("forget", 2, longs(&[3])),
        ("getattr", 3, [words(&[1, 0]), longs(&[5])].concat()),
        ("setattr", 4, {
            let mut body = words(&[0x7ff, 0]);
            body.extend(longs(&[5, 100, 11, u64::MAX, 1_700_000_000, 3]));
            body.extend(words(&[1, 2, 3, 0o600, 0, 7, 8, 0]));
            body
        }),
        ("readlink", 5, Vec::new()),
        ("symlink", 6, b"name\0some/where\0".into()),
        ("mknod", 8, [words(&[0o10_644, 0x801, 0o22, 0]), b"pipe\0".into()].concat()),
        ("mkdir", 9, [words(&[0o755, 0o22]), b"dir\0".into()].concat()),
        ("unlink", 10, b"name\0".into()),
        ("rmdir", 11, b"dir\0".into()),
        ("rename", 12, [longs(&[4]), b"old\0new\0".into()].concat()),
        ("link", 13, [longs(&[9]), b"second\0".into()].concat()),
        ("open", 14, open.clone()),
        ("read", 15, read(5)),
        ("write", 16, {
            let mut body = longs(&[5, 4096]);
            body.extend(words(&[9, 6]));
            body.extend(longs(&[11]));
            body.extend(words(&[1, 0]));
            body.extend(b"some data");
            body
        }),
        ("statfs", 17, Vec::new()),
        ("release", 18, release.clone()),
        ("fsync", 20, [longs(&[5]), words(&[1, 0])].concat()),
        ("setxattr", 21, [words(&[5, 1]), b"user.a\0value".into()].concat()),
        ("getxattr", 22, [words(&[64, 0]), b"user.a\0".into()].concat()),
        ("listxattr", 23, words(&[0, 0])),
        ("removexattr", 24, b"user.a\0".into()),
        ("flush", 25, [longs(&[5]), words(&[0, 0]), longs(&[11])].concat()),
        ("init", 26, words(&[7, 45, 131_072, 1 << 30 | 1, 1 << 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("opendir", 27, open),
        ("readdir", 28, read(6)),
        ("releasedir", 29, release),
        ("fsyncdir", 30, [longs(&[6]), words(&[0, 0])].concat()),
        ("getlk", 31, lock.clone()),
        ("setlk", 32, lock.clone()),
        ("setlkw", 33, lock),
        ("access", 34, words(&[4, 0])),
        ("create", 35, [create.clone(), b"file\0".into()].concat()),
        ("interrupt", 36, longs(&[0x55])),
        ("bmap", 37, [longs(&[8]), words(&[4096, 0])].concat()),
        ("destroy", 38, Vec::new()),
        (
            "ioctl",
            39,
            [longs(&[5]), words(&[0, 0x1234]), longs(&[0xdead]), words(&[4, 8]), b"data".into()].concat(),
        ),
        ("poll", 40, [longs(&[5, 6]), words(&[1, 4])].concat()),
        ("notify_reply", 41, [longs(&[0, 4096]), words(&[4, 0]), longs(&[0, 0]), b"data".into()].concat()),
        ("batch_forget", 42, [words(&[2, 0]), longs(&[3, 1, 4, 2])].concat()),
        ("fallocate", 43, [longs(&[5, 0, 4096]), words(&[1, 0])].concat()),
        ("readdirplus", 44, read(6)),
        ("rename2", 45, [longs(&[4]), words(&[1, 0]), b"old\0new\0".into()].concat()),
        ("lseek", 46, [longs(&[5, 10]), words(&[3, 0])].concat()),
        ("copy_file_range", 47, copy.clone()),
        ("setupmapping", 48, longs(&[5, 0, 4096, 1, 0])),
        ("removemapping", 49, [words(&[1]), longs(&[0, 4096])].concat()),
        ("syncfs", 50, longs(&[0])),
        ("tmpfile", 51, [create.clone(), b"/\0".into()].concat()),
        ("statx", 52, [words(&[1, 0]), longs(&[5]), words(&[0x100, 0xfff])].concat()),
        ("copy_file_range_64", 53, copy),
        ("cuse_init", 4096, words(&[7, 45, 0, 1])),
    ];
    let mut seeds: Vec<Seed> = plain
        .into_iter()
        .map(|(name, opcode, body)| (name, opcode, false, request(opcode, &[&body], &[])))
        .collect();
    let long = request(21, &[&words(&[5, 1, 1, 0]), b"system.posix_acl_access\0value"], &[]);
    seeds.push(("setxattr_ext", 21, true, long));
    seeds.push(("create_groups", 35, false, request(35, &[&create, b"file\0"], &groups())));
    seeds.push(("mkdir_groups", 9, false, request(9, &[&words(&[0o755, 0o22]), b"dir\0"], &groups())));
    seeds
}
