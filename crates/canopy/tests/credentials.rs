//! Who may do what, and whose the result is: the same table is run on plain ext4 and on pools, and every cell must be
//! alike. Real mounts, so root is needed.

#![forbid(unsafe_code)]

mod credentials {
    mod acl;
    mod attributes;
    mod clearing;
    mod creating;
    mod defects;
    mod denied;
    mod flags;
    mod judged;
    mod namespaces;
    mod rig;
    mod unwritable;
}
