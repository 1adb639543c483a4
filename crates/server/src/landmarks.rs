//! What the transport may ask the kernel about, so that requests which wait are served and workers can leave.

use crate::control;
use canopy_control::control_file;
use canopy_fuse::request::NodeId;
use canopy_fuse::transport::Landmarks;
use canopy_pool::Pool;
use canopy_pool::ops;
use std::ffi::CString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

/// Returns them as they are now.
pub(crate) fn find(pool: &Pool) -> Landmarks {
    let files = ops::external_changes::some_files(pool).into_iter().map(|node| NodeId(node.0));
    let mountpoint = &pool.config().mountpoint;
    Landmarks {
        files: files.chain([control::NODE]).collect(),
        root: CString::new(mountpoint.as_os_str().as_bytes()).ok(),
        file: CString::new(control_file(mountpoint).into_os_string().into_vec()).ok(),
    }
}
