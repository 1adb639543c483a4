//! What to mount, and where: in Rust, and in the words of the kernel and of fusermount.

use std::path::PathBuf;

use super::flags::{FLAGS, MountFlags};

/// What to mount, where.
#[derive(Clone, Debug)]
pub struct MountSpec {
    /// A directory or a regular file; the root of the mount has to be of the same kind.
    pub mountpoint: PathBuf,
    /// Placement as the source of the mount.
    pub fsname: String,
    /// The filesystem's type is `fuse.` and this.
    pub subtype: String,
    /// Flags of mount(2) that hold for the whole mount.
    pub flags: MountFlags,
    /// The kernel checks permissions by mode (and ACL).
    pub default_permissions: bool,
    /// Others than the mounting user may use the mount. Not root: only if `/etc/fuse.conf` says `user_allow_other`.
    pub allow_other: bool,
    /// Largest READ, in bytes; `None` leaves it to what INIT agrees upon.
    pub max_read: Option<u32>,
    /// Further options in the kernel's form, `name` or `name=value`.
    pub extra: Vec<String>,
    /// It takes the place of what is mounted there, which is detached: [`Mounted::attach`](super::Mounted::attach).
    pub replaces: bool,
}

impl MountSpec {
    /// A mount with nothing special about it.
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

/// What the kernel is told of the filesystem (Documentation/filesystems/fuse).
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

/// The options that kernel and helper both take.
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

/// Puts a backslash before what the helper's option parser would take as a separator.
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

/// The options for fusermount's `-o`.
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
