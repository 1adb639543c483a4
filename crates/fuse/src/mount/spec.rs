//! What to mount and where, and the options for the kernel and for fusermount.

use std::path::PathBuf;

use super::flags::{FLAGS, MountFlags};

/// What to mount, and where.
#[derive(Clone, Debug)]
pub struct MountSpec {
    /// A directory or a regular file. The root of the mounted filesystem must be of the same type.
    pub mountpoint: PathBuf,
    /// The source of the mount, as listed in the mount table.
    pub fsname: String,
    /// The filesystem type is `fuse.` followed by this.
    pub subtype: String,
    /// Mount flags.
    pub flags: MountFlags,
    /// Whether the kernel checks permissions by mode (and ACL).
    pub default_permissions: bool,
    /// Whether other users than the one who mounts can use the mount. Only root can set this, unless `/etc/fuse.conf` has
    /// `user_allow_other`.
    pub allow_other: bool,
    /// The largest READ, in bytes; `None` means the result of the negotiation.
    pub max_read: Option<u32>,
    /// Further options for the kernel, `name` or `name=value`.
    pub extra: Vec<String>,
    /// Whether it replaces what is mounted there, with [`Mounted::attach`](super::Mounted::attach).
    pub replaces: bool,
}

impl MountSpec {
    /// Returns a spec with `nosuid`, `nodev` and no other options.
    pub fn new(
        mountpoint: impl Into<PathBuf>,
        fsname: impl Into<String>,
        subtype: impl Into<String>,
    ) -> MountSpec {
        MountSpec {
            mountpoint: mountpoint.into(),
            fsname: fsname.into(),
            subtype: subtype.into(),
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            default_permissions: false,
            allow_other: false,
            max_read: None,
            extra: Vec::new(),
            replaces: false,
        }
    }
}

/// Returns the options of the filesystem for the kernel (Documentation/filesystems/fuse).
pub(super) fn kernel_options(spec: &MountSpec, fd: i32, mode: u32) -> Vec<String> {
    const S_IFMT: u32 = 0o170_000;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut options = vec![
        format!("fd={fd}"),
        format!("rootmode={:o}", mode & S_IFMT),
        format!("user_id={uid}"),
        format!("group_id={gid}"),
    ];
    options.extend(common_options(spec));
    options
}

/// Returns the options that both kernel and helper understand.
fn common_options(spec: &MountSpec) -> Vec<String> {
    let mut options = Vec::new();
    if spec.default_permissions {
        options.push("default_permissions".into());
    }
    if spec.allow_other {
        options.push("allow_other".into());
    }
    if let Some(max_read) = spec.max_read {
        options.push(format!("max_read={max_read}"));
    }
    options.extend(spec.extra.iter().cloned());
    options
}

/// Escapes commas and backslashes for the helper's option parser.
fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, ',' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Returns the argument of fusermount's `-o`.
pub(super) fn helper_options(spec: &MountSpec) -> String {
    let mut options: Vec<String> = Vec::new();
    if !spec.flags.contains(MountFlags::RDONLY) {
        options.push("rw".into());
    }
    options.extend(
        FLAGS.iter().filter(|(flag, ..)| spec.flags.contains(*flag)).map(|(_, _, word)| (*word).into()),
    );
    options.push(format!("fsname={}", escape(&spec.fsname)));
    options.push(format!("subtype={}", escape(&spec.subtype)));
    options.extend(common_options(spec));
    options.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_for_kernel_and_helper() {
        let mut spec = MountSpec::new("/mnt", "a,b\\c", "canopy");
        spec.default_permissions = true;
        spec.allow_other = true;
        spec.max_read = Some(131_072);
        spec.extra.push("group_id=7".into());
        let data = kernel_options(&spec, 5, 0o40_755).join(",");
        assert!(data.starts_with("fd=5,rootmode=40000,user_id="), "{data}");
        assert!(data.ends_with(",default_permissions,allow_other,max_read=131072,group_id=7"), "{data}");
        assert_eq!(
            helper_options(&spec),
            "rw,nosuid,nodev,fsname=a\\,b\\\\c,subtype=canopy,default_permissions,allow_other,max_read=131072,group_id=7"
        );
        spec.flags = MountFlags::RDONLY | MountFlags::NOATIME;
        assert!(helper_options(&spec).starts_with("ro,noatime,fsname="));
    }
}
