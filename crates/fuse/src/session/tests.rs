use super::*;
use crate::mount::{MountSpec, mount};
use crate::transport::uring::{Parameter, turn_on};
use crate::{Handler, Replied, Reply, Transport};

fn kernel(minor: u32, flags: InitFlags) -> abi::InitIn {
    let (flags, flags2) = (flags | InitFlags::INIT_EXT).words();
    abi::InitIn { major: 7, minor, max_readahead: 131_072, flags, flags2, unused: [0; 11] }
}

fn everything() -> InitFlags {
    InitFlags::from_bits_retain(InitFlags::all().bits())
}

/// Without io_uring.
fn no(_: &Agreed) -> bool {
    false
}

fn request(init: &abi::InitIn) -> Vec<u8> {
    let header = abi::InHeader { len: 104, opcode: 26, unique: 2, ..abi::InHeader::default() };
    [header.as_bytes(), init.as_bytes()].concat()
}

#[test]
fn takes_what_is_wanted_and_offered() {
    let wish = Wish {
        flags: InitFlags::ASYNC_READ | InitFlags::PASSTHROUGH | InitFlags::ALLOW_IDMAP,
        max_stack_depth: 2,
        ..Wish::default()
    };
    let init = kernel(
        45,
        InitFlags::ASYNC_READ | InitFlags::PASSTHROUGH | InitFlags::MAX_PAGES | InitFlags::SUBMOUNTS,
    );
    let (agreed, out) = agree(&init, &wish, Limits::NONE, |pages| pages);
    let expected =
        InitFlags::ASYNC_READ | InitFlags::PASSTHROUGH | InitFlags::MAX_PAGES | InitFlags::INIT_EXT;
    assert_eq!(agreed.flags, expected);
    assert_eq!(agreed.missing, InitFlags::ALLOW_IDMAP);
    assert_eq!((out.flags, out.flags2), expected.words());
    assert_eq!((out.major, out.minor, out.max_stack_depth, out.max_readahead), (7, 45, 2, 131_072));
    assert_eq!(agreed.max_write, 1 << 20);
    let line = agreed.to_string();
    assert!(line.starts_with("FUSE 7.45: async_read, passthrough; max_write 1024 KiB"), "{line}");
    assert!(line.ends_with("not offered: allow_idmap"), "{line}");
    assert!(!line.contains('\n'));
}

#[test]
fn a_masked_kernel_is_an_old_kernel() {
    let wish = Wish { flags: everything() - InitFlags::WRITEBACK_CACHE, ..Wish::default() };
    for minor in abi::MINOR_MIN..=abi::MINOR {
        let (agreed, out) = agree(&kernel(45, everything()), &wish, Limits::minor(minor), |pages| pages);
        assert_eq!((agreed.minor, out.minor), (minor, minor));
        assert_eq!(agreed.has(InitFlags::PASSTHROUGH), minor >= 40);
        assert_eq!(agreed.has(InitFlags::SETXATTR_EXT), minor >= 33);
        assert_eq!(agreed.has(InitFlags::CREATE_SUPP_GROUP), minor >= 38);
        assert_eq!(agreed.has(InitFlags::SECURITY_CTX), minor >= 38);
        assert_eq!(out.flags2 != 0, minor >= 36, "{minor}");
        assert_eq!(out.max_stack_depth != 0, minor >= 40);
    }
}

#[test]
fn a_newer_kernel_gets_our_minor() {
    let (agreed, out) = agree(&kernel(99, everything()), &Wish::default(), Limits::NONE, |pages| pages);
    assert_eq!((agreed.minor, out.minor), (45, 45));
}

#[test]
fn passthrough_yields_to_writeback() {
    let wish = Wish { flags: InitFlags::PASSTHROUGH | InitFlags::WRITEBACK_CACHE, ..Wish::default() };
    let (agreed, out) = agree(&kernel(45, everything()), &wish, Limits::NONE, |pages| pages);
    assert!(!agreed.has(InitFlags::PASSTHROUGH));
    assert_eq!(out.max_stack_depth, 0);
}

#[test]
fn pages_follow_version_and_limit() {
    let page = page_size();
    let wish = Wish { max_write: 4 << 20, ..Wish::default() };
    let pages = |limits, offer, allowed: usize| {
        let (agreed, out) = agree(&kernel(45, offer), &wish, limits, |wished| wished.min(allowed));
        assert_eq!(agreed.max_pages, out.max_pages);
        assert_eq!(agreed.max_write as usize, usize::from(out.max_pages) * page);
        usize::from(out.max_pages)
    };
    assert_eq!(pages(Limits::NONE, everything(), 512), 512);
    assert_eq!(pages(Limits::NONE, everything(), 65_535), (4 << 20) / page);
    assert_eq!(pages(Limits::minor(41), everything(), 65_535), 256);
    assert_eq!(pages(Limits::NONE, everything() - InitFlags::MAX_PAGES, 512), 32);
}

#[test]
fn a_newer_major_is_asked_to_start_over() {
    let init = abi::InitIn { major: 8, minor: 3, ..abi::InitIn::default() };
    let (reply, verdict) = answer(&request(&init), &Wish::default(), Limits::NONE, no);
    assert!(matches!(verdict, Verdict::Again));
    let reply = reply.unwrap();
    assert_eq!(reply[..8], [80, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(reply[16..24], [7, 0, 0, 0, 45, 0, 0, 0]);
}

#[test]
fn older_versions_are_refused() {
    for (major, minor) in [(6, 40), (7, 30), (7, 0), (0, 0)] {
        let init = abi::InitIn { major, minor, ..abi::InitIn::default() };
        let (reply, verdict) = answer(&request(&init), &Wish::default(), Limits::NONE, no);
        let Verdict::Fail(error) = verdict else { panic!("{verdict:?}") };
        assert_eq!(error.errno(), 71);
        assert_eq!(reply.unwrap()[4..8], (-71i32).to_le_bytes());
    }
}

#[test]
fn anything_before_init_is_an_error() {
    let header = abi::InHeader { len: 40, opcode: 17, unique: 9, nodeid: 1, ..abi::InHeader::default() };
    let (reply, verdict) = answer(header.as_bytes(), &Wish::default(), Limits::NONE, no);
    assert!(matches!(verdict, Verdict::Again));
    assert_eq!(reply.unwrap(), [16, 0, 0, 0, 0xfb, 0xff, 0xff, 0xff, 9, 0, 0, 0, 0, 0, 0, 0]);
    let forget = abi::InHeader { len: 48, opcode: 2, unique: 9, nodeid: 1, ..abi::InHeader::default() };
    let (reply, _) = answer(&[forget.as_bytes(), &[1; 8]].concat(), &Wish::default(), Limits::NONE, no);
    assert_eq!(reply, None);
}

#[test]
fn the_short_form_has_no_second_word() {
    let header = abi::InHeader { len: 56, opcode: 26, unique: 1, ..abi::InHeader::default() };
    let init = abi::InitInCompat { major: 7, minor: 31, max_readahead: 4096, flags: u32::MAX };
    let wish = Wish { flags: everything(), ..Wish::default() };
    let (reply, verdict) = answer(&[header.as_bytes(), init.as_bytes()].concat(), &wish, Limits::NONE, no);
    let Verdict::Agreed(agreed) = verdict else { panic!("{verdict:?}") };
    assert_eq!((agreed.minor, agreed.flags.words().1), (31, 0));
    assert_eq!(reply.unwrap().len(), 80);
}

/// A root directory, and nothing else.
struct Root;

impl Handler for Root {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        match request.op {
            Op::Getattr { .. } => {
                let attr = abi::Attr { ino: 1, mode: 0o040_755, nlink: 2, ..abi::Attr::default() };
                reply.attr(&abi::AttrOut::new(attr, std::time::Duration::ZERO))
            }
            _ => reply.error(Errno::NOSYS.raw_os_error()),
        }
    }
}

#[test]
fn queues_that_the_kernel_refuses_are_done_without() {
    let _ = turn_on();
    if !rustix::process::geteuid().is_root() || Parameter::read() != Parameter::On {
        eprintln!("skipped: needs root and FUSE over io_uring (Linux 6.14)");
        return;
    }
    let point = std::env::temp_dir().join(format!("canopy-refused-{}", std::process::id()));
    fs::create_dir(&point).unwrap();
    let (device, mounted) = mount(&MountSpec::new(&point, "refused", "canopy")).unwrap();
    let wish = Wish { flags: Wish::default().flags | InitFlags::OVER_IO_URING, ..Wish::default() };
    let limits = Limits { takes_queues: false, ..Limits::NONE };
    let session = Session::negotiate(device, &wish, limits).unwrap();
    assert!(matches!(session.transport(), Transport::Uring { .. }));
    // The kernel holds this one back until there are queues, or none are to be expected.
    let path = point.clone();
    let early = std::thread::spawn(move || rustix::fs::stat(&path).map(|stat| stat.st_nlink));
    let running = session.serve(Arc::new(Root), 2).unwrap();
    assert_eq!(*running.transport(), Transport::Device(NoUring::Refused(Errno::INVAL)));
    assert_eq!(early.join().unwrap(), Ok(2));
    assert_eq!(rustix::fs::stat(&point).map(|stat| stat.st_nlink), Ok(2));
    mounted.unmount(false).unwrap();
    running.join().unwrap();
    fs::remove_dir(&point).unwrap();
}
