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

#[cfg(test)]
mod tests {
    use super::*;

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
