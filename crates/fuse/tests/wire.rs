//! Decoding and replying without a device: every opcode, valid, truncated, too long and mutated.

#[path = "common/corpus.rs"]
mod corpus;
#[path = "common/fake.rs"]
mod fake;

use std::path::Path;
use std::sync::atomic::Ordering;

use canopy_fuse::flags::{FattrFlags, OpenInFlags, ReleaseFlags, SetxattrFlags};
use canopy_fuse::request::{Dialect, Malformed, NodeId, Op, SetTime, Timestamp};
use canopy_fuse::transport::Outcome;
use canopy_fuse::{Opcode, Request};
use corpus::{request, seeds};
use fake::{Fake, check_decode, check_serve, dialects, with_correct_length};

const NEWEST: Dialect = Dialect { minor: 45, setxattr_ext: false };

fn seed(name: &str) -> Vec<u8> {
    seeds().into_iter().find(|seed| seed.0 == name).unwrap().3
}

fn dialect(long_xattr: bool) -> Dialect {
    Dialect { minor: 45, setxattr_ext: long_xattr }
}

#[test]
fn there_is_a_seed_for_every_opcode() {
    let seeds = seeds();
    for &opcode in Opcode::ALL {
        assert!(seeds.iter().any(|seed| seed.1 == opcode as u32), "{opcode:?}");
    }
    for (name, opcode, long, bytes) in seeds {
        let request =
            Request::decode(&bytes, dialect(long)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(request.header.opcode, opcode);
        assert_eq!((request.header.unique, request.header.node), (0x77, NodeId(3)));
        assert_eq!((request.header.uid, request.header.gid, request.header.pid), (1000, 1001, 1002));
        assert!(!matches!(request.op, Op::Unknown(_)), "{name}");
    }
}

#[test]
fn fields_are_decoded_at_their_offsets() {
    macro_rules! decoded {
        ($name:literal, $pattern:pat => $check:expr) => {
            let bytes = seed($name);
            match Request::decode(&bytes, NEWEST).unwrap().op {
                $pattern => $check,
                other => panic!("{other:?}"),
            }
        };
    }
    decoded!("lookup", Op::Lookup { name } => assert_eq!(name.as_bytes(), b"name"));
    decoded!("getattr", Op::Getattr { handle } => assert_eq!(handle, Some(5)));
    decoded!("setattr", Op::Setattr(set) => {
        assert_eq!(set.valid, FattrFlags::from_bits_retain(0x7ff));
        assert_eq!((set.handle, set.size, set.lock_owner), (Some(5), Some(100), Some(11)));
        assert_eq!((set.mode, set.uid, set.gid), (Some(0o600), Some(7), Some(8)));
        assert_eq!((set.atime, set.mtime), (Some(SetTime::Now), Some(SetTime::Now)));
        assert_eq!(set.ctime, Some(Timestamp { sec: 3, nsec: 3 }));
        assert!(!set.kill_suidgid);
    });
    decoded!("symlink", Op::Symlink { name, target } => {
        assert_eq!((name.as_bytes(), target.to_bytes()), (&b"name"[..], &b"some/where"[..]));
    });
    decoded!("mknod", Op::Mknod { name, mode, rdev, umask } => {
        assert_eq!((name.as_bytes(), mode, rdev, umask), (&b"pipe"[..], 0o10_644, 0x801, 0o22));
    });
    decoded!("rename", Op::Rename { name, newdir, newname, flags } => {
        assert_eq!((name.as_bytes(), newdir, newname.as_bytes(), flags), (&b"old"[..], NodeId(4), &b"new"[..], 0));
    });
    decoded!("rename2", Op::Rename { flags, .. } => assert_eq!(flags, 1));
    decoded!("link", Op::Link { old, name } => assert_eq!((old, name.as_bytes()), (NodeId(9), &b"second"[..])));
    decoded!("open", Op::Open { flags, open_flags } => {
        assert_eq!((flags, open_flags), (0o100_002, OpenInFlags::KILL_SUIDGID));
    });
    decoded!("read", Op::Read(io) => {
        assert_eq!((io.handle, io.offset, io.size, io.flags, io.lock_owner), (5, 4096, 512, 0o100_000, Some(11)));
    });
    decoded!("write", Op::Write(io) => {
        assert_eq!((io.handle, io.offset, io.data, io.lock_owner), (5, 4096, &b"some data"[..], Some(11)));
    });
    decoded!("release", Op::Release { handle, flags, release_flags, lock_owner } => {
        assert_eq!((handle, flags, release_flags, lock_owner), (5, 2, ReleaseFlags::all(), 11));
    });
    decoded!("fsync", Op::Fsync { handle, datasync } => assert_eq!((handle, datasync), (5, true)));
    decoded!("fsyncdir", Op::Fsyncdir { handle, datasync } => assert_eq!((handle, datasync), (6, false)));
    decoded!("setxattr", Op::Setxattr { name, value, flags, setxattr_flags } => {
        assert_eq!((name.to_bytes(), value, flags), (&b"user.a"[..], &b"value"[..], 1));
        assert!(setxattr_flags.is_empty());
    });
    decoded!("batch_forget", Op::BatchForget(items) => {
        assert_eq!(items.map(|item| (item.node.0, item.nlookup)).collect::<Vec<_>>(), [(3, 1), (4, 2)]);
    });
    decoded!("ioctl", Op::Ioctl { cmd, arg, data, out_size, .. } => {
        assert_eq!((cmd, arg, data, out_size), (0x1234, 0xdead, &b"data"[..], 8));
    });
    decoded!("statx", Op::Statx { handle, sx_flags, mask } => {
        assert_eq!((handle, sx_flags, mask), (Some(5), 0x100, 0xfff));
    });
    decoded!("copy_file_range_64", Op::CopyFileRange(range) => {
        assert_eq!((range.len, range.node_out, range.offset_out, range.reply64), (1 << 33, NodeId(4), 4096, true));
    });
    decoded!("copy_file_range", Op::CopyFileRange(range) => assert!(!range.reply64));
    let long = seed("setxattr_ext");
    let Op::Setxattr { setxattr_flags, value, .. } = Request::decode(&long, dialect(true)).unwrap().op else {
        panic!()
    };
    assert_eq!((setxattr_flags, value), (SetxattrFlags::ACL_KILL_SGID, &b"value"[..]));
}

#[test]
fn groups_are_decoded_from_extensions() {
    for name in ["create_groups", "mkdir_groups"] {
        let bytes = seed(name);
        let request = Request::decode(&bytes, NEWEST).unwrap();
        assert_eq!(request.ext.groups.unwrap().collect::<Vec<_>>(), [4242]);
    }
    assert!(Request::decode(&seed("create"), NEWEST).unwrap().ext.groups.is_none());
    for (index, value) in [(0, 0u8), (0, 12), (0, 40), (16, 24), (24, 3), (27, 255)] {
        let mut ext = corpus::groups();
        ext[index] = value;
        let bytes = request(35, &[&[0; 16], b"file\0"], &ext);
        assert_eq!(Request::decode(&bytes, NEWEST).unwrap_err(), Malformed::Extension, "{index} {value}");
    }
}

#[test]
fn every_truncation_is_an_error() {
    for (name, _, long, bytes) in seeds() {
        for cut in 0..bytes.len() {
            let short = &bytes[..cut];
            assert!(Request::decode(short, dialect(long)).is_err(), "{name} cut to {cut}");
            // An INIT of 16 bytes is the older form.
            if cut >= 40 && !(name == "init" && cut == 56) {
                let short = with_correct_length(short);
                assert!(
                    Request::decode(&short, dialect(long)).is_err(),
                    "{name} cut to {cut}, length corrected"
                );
            }
            check_decode(short);
        }
    }
}

#[test]
fn malformed_names_are_refused() {
    for bad in [&b"\0"[..], b"a/b\0", b"/\0", b"name", b"na\0me\0", b"name\0\0"] {
        for opcode in [1, 10, 11] {
            assert_eq!(Request::decode(&request(opcode, &[bad], &[]), NEWEST).unwrap_err(), Malformed::Name);
        }
    }
    for good in [&b".\0"[..], b"..\0", b"\xff\xfe\0", b" \0", &[[b'n'; 4000].as_slice(), b"\0"].concat()] {
        assert!(Request::decode(&request(1, &[good], &[]), NEWEST).is_ok());
    }
    // The name of an attribute may contain a slash, but must not be empty.
    assert!(Request::decode(&request(24, &[b"user.a/b\0"], &[]), NEWEST).is_ok());
    assert!(Request::decode(&request(24, &[b"\0"], &[]), NEWEST).is_err());
}

#[test]
fn trailing_bytes_after_data_of_known_length_are_an_error() {
    for name in
        ["write", "setxattr", "ioctl", "batch_forget", "removemapping", "notify_reply", "create", "rename"]
    {
        let long = with_correct_length(&[seed(name).as_slice(), b"x"].concat());
        assert!(Request::decode(&long, NEWEST).is_err(), "{name}");
    }
    let mut wrong = seed("batch_forget");
    wrong[40..44].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert_eq!(Request::decode(&wrong, NEWEST).unwrap_err(), Malformed::DataLength);
}

#[test]
fn opcodes_of_later_versions_are_unknown() {
    for (name, since) in [("syncfs", 34), ("tmpfile", 37), ("statx", 39), ("copy_file_range_64", 45)] {
        let bytes = seed(name);
        for dialect in dialects() {
            let op = Request::decode(&bytes, dialect).unwrap().op;
            assert_eq!(matches!(op, Op::Unknown(_)), dialect.minor < since, "{name} at {}", dialect.minor);
        }
    }
    assert!(matches!(Request::decode(&request(54, &[b"what"], &[]), NEWEST).unwrap().op, Op::Unknown(54)));
}

#[test]
fn split_requests_decode_like_contiguous_ones() {
    // As with io_uring: the operation's structure is in a separate area of 128 bytes.
    for (name, fixed) in
        [("write", 40), ("setattr", 88), ("create_groups", 16), ("lookup", 0), ("rename2", 16)]
    {
        let bytes = seed(name);
        let mut area = [0u8; 128];
        area[..fixed].copy_from_slice(&bytes[40..40 + fixed]);
        let split = Request::decode_split(&bytes[..40], &area, &bytes[40 + fixed..], NEWEST).unwrap();
        assert_eq!(format!("{split:?}"), format!("{:?}", Request::decode(&bytes, NEWEST).unwrap()), "{name}");
    }
}

fn answer(bytes: &[u8]) -> (Outcome, Vec<u8>, u64) {
    let fake = Fake { panics: true, ..Fake::default() };
    let mut out = vec![0xaa; 16 + 8192];
    let outcome = check_serve(bytes, &mut out, &fake, NEWEST);
    let len = if let Outcome::Answer { payload, .. } = outcome { 16 + payload } else { 0 };
    out.truncate(len);
    (outcome, out, fake.undelivered.load(Ordering::Relaxed))
}

fn errno(bytes: &[u8]) -> i32 {
    let (_, out, _) = answer(bytes);
    -i32::from_ne_bytes(out[4..8].try_into().unwrap())
}

#[test]
fn replies_have_the_right_length_and_references() {
    for (name, length, references) in [
        ("lookup", 128, 1),
        ("getattr", 104, 0),
        ("statx", 288, 0),
        ("open", 16, 1),
        ("create", 144, 1),
        ("write", 8, 0),
        ("statfs", 80, 0),
        ("getxattr", 6, 0),
        ("listxattr", 8, 0),
        ("read", 512, 0),
        ("ioctl", 20, 0),
        ("lseek", 8, 0),
        ("copy_file_range", 8, 0),
        ("getlk", 24, 0),
        ("release", 0, 0),
        // 24 + 9 bytes rounded up to 40; 152 + 9 rounded up to 168: as many as fit into 512.
        ("readdir", 480, 0),
        ("readdirplus", 504, 3),
    ] {
        let (_, out, undelivered) = answer(&seed(name));
        assert_eq!((out.len() - 16, undelivered), (length, references), "{name}");
    }
    for silent in ["forget", "batch_forget", "interrupt", "notify_reply"] {
        assert_eq!(answer(&seed(silent)).0, Outcome::NoReply);
    }
}

#[test]
fn directory_entries_have_the_kernels_layout() {
    let (_, out, _) = answer(&seed("readdir"));
    #[rustfmt::skip]
    let expected = [
        1, 0, 0, 0, 0, 0, 0, 0,  1, 0, 0, 0, 0, 0, 0, 0,  9, 0, 0, 0,  8, 0, 0, 0,
        b's', b'o', b'm', b'e', b' ', b'n', b'a', b'm', b'e', 0, 0, 0, 0, 0, 0, 0u8,
    ];
    if cfg!(target_endian = "little") {
        assert_eq!(out[16..56], expected);
    }
}

#[test]
fn a_backing_id_sets_the_passthrough_flag() {
    let mut bytes = seed("open");
    bytes[40] = 1;
    let (_, out, _) = answer(&bytes);
    assert_eq!(out[16 + 8..16 + 16], [(1u32 << 7 | 1 << 1).to_ne_bytes(), 9u32.to_ne_bytes()].concat());
}

#[test]
fn errnos_are_ones_the_kernel_accepts() {
    let unlink = |name: &[u8]| errno(&request(10, &[name, b"\0"], &[]));
    assert_eq!(unlink(b"panic"), 5);
    assert_eq!(unlink(b"none"), 5);
    assert_eq!(unlink(b"12345678"), 34, "0 is not an error");
    assert_eq!(unlink(b"1"), 34, "negative");
    assert_eq!(unlink(&[b'x'; 8 + 511]), 511);
    assert_eq!(unlink(&[b'x'; 8 + 512]), 34, "internal to the kernel");
    assert_eq!(unlink(&[b'x'; 8 + 524]), 95, "ENOTSUPP");
    assert_eq!(errno(&request(54, &[b"what"], &[])), 38);
    assert_eq!(errno(&seed("cuse_init")), 38);
    assert_eq!(errno(&seed("init")), 5);
    assert_eq!(errno(&request(1, &[b"a/b\0"], &[])), 22);
    assert_eq!(errno(&seed("lookup")[..43]), 22);
}

/// The files of the corpus are the seeds. `CANOPY_WRITE_CORPUS=1` rewrites them.
#[test]
fn the_fuzz_corpus_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for target in ["decode", "dispatch"] {
        for (name, _, _, bytes) in seeds() {
            let path = root.join(target).join(name);
            if std::env::var_os("CANOPY_WRITE_CORPUS").is_some() {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, &bytes).unwrap();
            }
            let stored = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(stored, bytes, "{}", path.display());
        }
    }
}

/// A bounded fuzz run for stable Rust, with the same mutations each time.
#[test]
fn mutated_requests_never_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    let seeds = seeds();
    let fake = Fake { panics: true, ..Fake::default() };
    let mut out = vec![0; 16 + 8192];
    std::panic::set_hook(Box::new(|info| {
        // The handler's planned panic is caught; all others are printed.
        if info.payload().downcast_ref::<&str>() != Some(&"as planned") {
            eprintln!("{info}");
        }
    }));
    for round in 0..60_000 {
        let mut bytes = seeds[random(seeds.len())].3.clone();
        for _ in 0..=random(4) {
            let at = random(bytes.len());
            match random(6) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes[at] ^= 1 << random(8),
                2 => bytes.truncate(at),
                3 => bytes.insert(at, random(256) as u8),
                4 => bytes.extend_from_slice(&seeds[random(seeds.len())].3[40..]),
                _ => bytes[at] = [0, 0xff, b'/', 0x7f][random(4)],
            }
            if bytes.is_empty() {
                break;
            }
        }
        if round % 2 == 0 {
            bytes = with_correct_length(&bytes);
        }
        check_decode(&bytes);
        let dialect = Dialect { minor: 31 + random(15) as u32, setxattr_ext: random(2) == 0 };
        check_serve(&bytes, &mut out, &fake, dialect);
    }
    let _ = std::panic::take_hook();
}
