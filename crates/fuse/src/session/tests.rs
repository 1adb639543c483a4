use std::fs;
use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::init::{Session, Verdict, answer};
use crate::abi;
use crate::flags::InitFlags;
use crate::mount::{MountSpec, mount};
use crate::transport::UringUnavailable;
use crate::transport::uring::{Parameter, turn_on};
use crate::{Agreed, Handler, KernelLimits, Op, Replied, Reply, Request, SessionOptions, Transport};

fn everything() -> InitFlags {
    InitFlags::from_bits_retain(InitFlags::all().bits())
}

/// Prepares no io_uring.
fn no(_: &Agreed) -> bool {
    false
}

fn request(init: &abi::InitIn) -> Vec<u8> {
    let header = abi::InHeader { len: 104, opcode: 26, unique: 2, ..abi::InHeader::default() };
    [header.as_bytes(), init.as_bytes()].concat()
}

#[test]
fn a_newer_major_version_gets_ours_and_then_sends_init_again() {
    let init = abi::InitIn { major: 8, minor: 3, ..abi::InitIn::default() };
    let (reply, verdict) = answer(&request(&init), &SessionOptions::default(), KernelLimits::NONE, no);
    assert!(matches!(verdict, Verdict::Again));
    let reply = reply.unwrap();
    assert_eq!(reply[..8], [80, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(reply[16..24], [7, 0, 0, 0, 45, 0, 0, 0]);
}

#[test]
fn versions_before_7_31_are_refused() {
    for (major, minor) in [(6, 40), (7, 30), (7, 0), (0, 0)] {
        let init = abi::InitIn { major, minor, ..abi::InitIn::default() };
        let (reply, verdict) = answer(&request(&init), &SessionOptions::default(), KernelLimits::NONE, no);
        let Verdict::Fail(error) = verdict else { panic!("{verdict:?}") };
        assert_eq!(error.errno(), 71);
        assert_eq!(reply.unwrap()[4..8], (-71i32).to_le_bytes());
    }
}

#[test]
fn a_request_before_init_gets_eio() {
    let header = abi::InHeader { len: 40, opcode: 17, unique: 9, nodeid: 1, ..abi::InHeader::default() };
    let (reply, verdict) = answer(header.as_bytes(), &SessionOptions::default(), KernelLimits::NONE, no);
    assert!(matches!(verdict, Verdict::Again));
    assert_eq!(reply.unwrap(), [16, 0, 0, 0, 0xfb, 0xff, 0xff, 0xff, 9, 0, 0, 0, 0, 0, 0, 0]);
    let forget = abi::InHeader { len: 48, opcode: 2, unique: 9, nodeid: 1, ..abi::InHeader::default() };
    let (reply, _) =
        answer(&[forget.as_bytes(), &[1; 8]].concat(), &SessionOptions::default(), KernelLimits::NONE, no);
    assert_eq!(reply, None);
}

#[test]
fn the_short_init_has_no_second_flag_word() {
    let header = abi::InHeader { len: 56, opcode: 26, unique: 1, ..abi::InHeader::default() };
    let init = abi::InitInCompat { major: 7, minor: 31, max_readahead: 4096, flags: u32::MAX };
    let options = SessionOptions { flags: everything(), ..SessionOptions::default() };
    let (reply, verdict) =
        answer(&[header.as_bytes(), init.as_bytes()].concat(), &options, KernelLimits::NONE, no);
    let Verdict::Agreed(agreed) = verdict else { panic!("{verdict:?}") };
    assert_eq!((agreed.minor, agreed.flags.words().1), (31, 0));
    assert_eq!(reply.unwrap().len(), 80);
}

/// A filesystem that has only a root directory.
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
fn requests_come_over_dev_fuse_when_the_kernel_refuses_the_queues() {
    let _ = turn_on();
    if !rustix::process::geteuid().is_root() || Parameter::read() != Parameter::On {
        eprintln!("skipped: needs root and FUSE over io_uring (Linux 6.14)");
        return;
    }
    let point = std::env::temp_dir().join(format!("canopy-refused-{}", std::process::id()));
    fs::create_dir(&point).unwrap();
    let (device, mounted) = mount(&MountSpec::new(&point, "refused", "canopy")).unwrap();
    let options = SessionOptions {
        flags: SessionOptions::default().flags | InitFlags::OVER_IO_URING,
        ..SessionOptions::default()
    };
    let limits = KernelLimits { accepts_queues: false, ..KernelLimits::NONE };
    let session = Session::negotiate(device, &options, limits).unwrap();
    assert!(matches!(session.transport(), Transport::Uring { .. }));
    // The kernel holds this request back until all queues are registered or one was refused.
    let path = point.clone();
    let early = std::thread::spawn(move || rustix::fs::stat(&path).map(|stat| stat.st_nlink));
    let running = session.serve(Arc::new(Root), 2).unwrap();
    assert_eq!(*running.transport(), Transport::Device(UringUnavailable::Refused(Errno::INVAL)));
    assert_eq!(early.join().unwrap(), Ok(2));
    assert_eq!(rustix::fs::stat(&point).map(|stat| stat.st_nlink), Ok(2));
    mounted.unmount(false).unwrap();
    running.join().unwrap();
    fs::remove_dir(&point).unwrap();
}
