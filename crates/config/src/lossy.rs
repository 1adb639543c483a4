//! Filesystems that cannot store all that a file of a pool has.

/// The types, as in mountinfo without `fuse.`, and what they lose.
const TYPES: &[(&[&str], &str)] = &[
    (&["vfat", "msdos", "exfat", "exfat-fuse"], "owners, modes, links, attributes and some names"),
    (&["ntfs", "ntfs3", "ntfs-3g", "fuseblk", "lowntfs-3g"], "Unix owners and modes, and some names"),
    (&["hfs", "iso9660", "udf"], "owners, modes and attributes"),
    (&["cifs", "smb3", "smbfs"], "owners, modes and links, unless the server has POSIX extensions"),
    (&["mtpfs", "jmtpfs", "simple-mtpfs", "gvfsd-fuse", "rclone"], "owners, modes, links and attributes"),
];

/// Returns what a filesystem of this type loses; `None` if it keeps everything.
pub fn loses(fstype: &str) -> Option<&'static str> {
    let bare = fstype.strip_prefix("fuse.").unwrap_or(fstype);
    TYPES.iter().find(|(types, _)| types.contains(&bare)).map(|(_, what)| *what)
}

/// Returns the mode that such a filesystem shows of every file, if its options of mountinfo tell it.
pub fn file_mode(options: &str) -> Option<u32> {
    let value = |key: &str| options.split(',').find_map(|option| option.strip_prefix(key)?.strip_prefix('='));
    let octal = |key| u32::from_str_radix(value(key)?, 8).ok();
    let masked = ["fmask", "umask"].into_iter().find_map(octal).map(|mask| 0o777 & !mask);
    masked.or_else(|| octal("file_mode"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_tell_the_mode_of_files() {
        let table = [
            ("rw,fmask=0022,dmask=0077,codepage=437", Some(0o755)),
            ("rw,umask=0137", Some(0o640)),
            ("rw,uid=1000,file_mode=0644,dir_mode=0755", Some(0o644)),
            ("rw,user_id=0,group_id=0,allow_other,blksize=4096", None),
        ];
        for (options, mode) in table {
            assert_eq!(file_mode(options), mode, "{options}");
        }
    }

    #[test]
    fn types_are_found_under_each_name() {
        for lossy in ["vfat", "fuse.vfat", "exfat", "ntfs3", "fuseblk", "fuse.ntfs-3g", "cifs"] {
            assert!(loses(lossy).is_some(), "{lossy}");
        }
        for whole in ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "nfs4", "fuse.canopy", "fuse.sshfs", "f2fs"] {
            assert_eq!(loses(whole), None, "{whole}");
        }
    }
}
