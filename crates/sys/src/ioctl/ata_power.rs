//! Asking an ATA disk whether it sleeps, without waking it: CHECK POWER MODE (ACS-4, 7.3), which is carried by ATA PASS-THROUGH (16)
//! (SAT-4) in the ioctl `SG_IO`, as hdparm -C does.

use crate::errno::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// include/scsi/sg.h
const SG_IO: u64 = 0x2285;
const SG_DXFER_NONE: i32 = -1;
/// In milliseconds.
const PATIENCE: u32 = 2000;

const ATA_PASS_THROUGH_16: u8 = 0x85;
const NON_DATA: u8 = 3 << 1;
/// The answer comes as sense data, although there was no error.
const CHECK_CONDITION: u8 = 0x20;
const CHECK_POWER_MODE: u8 = 0xe5;

/// `struct sg_io_hdr` in include/scsi/sg.h.
#[repr(C)]
struct SgIoHdr {
    interface_id: i32,
    dxfer_direction: i32,
    cmd_len: u8,
    mx_sb_len: u8,
    iovec_count: u16,
    dxfer_len: u32,
    dxferp: *mut u8,
    cmdp: *const u8,
    sbp: *mut u8,
    timeout: u32,
    flags: u32,
    pack_id: i32,
    usr_ptr: *mut u8,
    status: u8,
    masked_status: u8,
    msg_status: u8,
    sb_len_wr: u8,
    host_status: u16,
    driver_status: u16,
    resid: i32,
    duration: u32,
    info: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<SgIoHdr>() == 88);

/// Returns whether a disk sleeps: whether it has to spin up to answer a read. `None` if it does not say.
///
/// # Errors
/// `EPERM` and `EACCES` without the privilege, `ENOTTY` and `EINVAL` for what is no such disk.
pub fn sleeps(disk: BorrowedFd<'_>) -> Result<Option<bool>, Errno> {
    let mut command = [0; 16];
    (command[0], command[1], command[2], command[14]) =
        (ATA_PASS_THROUGH_16, NON_DATA, CHECK_CONDITION, CHECK_POWER_MODE);
    let mut sense = [0; 32];
    let mut header = SgIoHdr {
        interface_id: i32::from(b'S'),
        dxfer_direction: SG_DXFER_NONE,
        cmd_len: command.len() as u8,
        mx_sb_len: sense.len() as u8,
        iovec_count: 0,
        dxfer_len: 0,
        dxferp: std::ptr::null_mut(),
        cmdp: command.as_ptr(),
        sbp: sense.as_mut_ptr(),
        timeout: PATIENCE,
        flags: 0,
        pack_id: 0,
        usr_ptr: std::ptr::null_mut(),
        status: 0,
        masked_status: 0,
        msg_status: 0,
        sb_len_wr: 0,
        host_status: 0,
        driver_status: 0,
        resid: 0,
        duration: 0,
        info: 0,
    };
    // SAFETY: SG_IO reads and writes one sg_io_hdr through the pointer (88 bytes, asserted above). It reads `cmd_len` bytes at
    // `cmdp` and writes at most `mx_sb_len` at `sbp`, which are as long, and transfers no data.
    let result = unsafe { libc::ioctl(disk.as_raw_fd(), SG_IO as _, &raw mut header) };
    if result < 0 {
        return Err(last_errno());
    }
    if header.host_status != 0 {
        return Ok(None);
    }
    let written = usize::from(header.sb_len_wr).min(sense.len());
    Ok(power_mode(&sense[..written]).and_then(is_asleep))
}

/// Returns the mode that a disk has answered: the count of the ATA Status Return descriptor.
fn power_mode(sense: &[u8]) -> Option<u8> {
    const DESCRIPTORS: u8 = 0x72;
    const ATA_STATUS: [u8; 2] = [0x09, 0x0c];
    (sense.first()? & 0x7f == DESCRIPTORS && sense.get(8..10)? == ATA_STATUS)
        .then(|| sense.get(13).copied())
        .flatten()
}

/// ACS-4, table "COUNT field output values" of CHECK POWER MODE.
fn is_asleep(mode: u8) -> Option<bool> {
    match mode {
        // Standby, and what an older standard calls a spun-down disk with a cache that is not volatile.
        0x00 | 0x01 | 0x40 => Some(true),
        // Active, and idle: it turns.
        0x41 | 0x80..=0x83 | 0xff => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// What disks have answered, as hdparm -C --verbose prints it.
    #[test]
    fn the_answer_is_in_the_sense_data() {
        let sense = |mode: u8| {
            let mut sense = [0; 32];
            let head = [0x72, 0x01, 0x00, 0x1d, 0, 0, 0, 0x0e, 0x09, 0x0c, 0, 0, 0, mode];
            sense[..head.len()].copy_from_slice(&head);
            (sense[20], sense[21]) = (0x40, 0x50);
            sense
        };
        for (mode, asleep) in
            [(0x00, Some(true)), (0x01, Some(true)), (0xff, Some(false)), (0x80, Some(false)), (0x22, None)]
        {
            assert_eq!(power_mode(&sense(mode)).and_then(is_asleep), asleep, "{mode:x}");
        }
        // Fixed format, as of a bridge that does not know the command; another descriptor; nothing.
        let fixed = [0x70, 0, 5, 0, 0, 0, 0, 10, 0x09, 0x0c, 0, 0, 0, 0xff];
        assert_eq!(power_mode(&fixed), None);
        assert_eq!(power_mode(&[0x72, 0, 0, 0, 0, 0, 0, 0x0e, 0x00, 0x0a, 0, 0, 0, 0xff]), None);
        assert_eq!((power_mode(&[]), power_mode(&sense(0)[..13])), (None, None));
    }

    #[test]
    fn what_is_no_disk_is_an_error() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(sleeps(null.as_fd()).is_err());
    }
}
