//! The disks of this machine, as `canopy init` lists them.

use crate::machine;
use crate::proposal::Candidate;
use crate::unused_disks::{Unused, unused};
use canopy_config::fstab::{self, Line};
use canopy_sys::mountinfo;
use canopy_sys::shown::Show as _;
use canopy_terminal::{BOLD, bytes, paragraph, styled, table};
use std::io;
use std::path::Path;

/// Lists all disks, with headings.
pub(super) fn overview(candidates: &[Candidate], lines: &[Line]) -> io::Result<String> {
    let mounted = match candidates {
        [] => "  none besides the system disk\n".to_owned(),
        _ => listing(candidates),
    };
    let mut text = format!("{}\n{mounted}", styled(BOLD, "Disks that are mounted"));
    let others = not_mounted(lines)?;
    if !others.is_empty() {
        text.push_str(&format!("\n{}\n{others}", styled(BOLD, "Disks that are not mounted")));
    }
    Ok(text)
}

fn listing(candidates: &[Candidate]) -> String {
    let row = |one: &Candidate| {
        let filesystem = &one.filesystem;
        let disks: Vec<&str> = filesystem.disks.iter().map(String::as_str).collect();
        vec![
            filesystem.path.shown().to_string(),
            filesystem.label.clone().unwrap_or_default(),
            filesystem.fstype.clone(),
            bytes(filesystem.size),
            bytes(filesystem.available),
            disks.join(" "),
            one.left_out.map_or_else(|| "proposed".into(), |why| format!("skipped: {why}")),
        ]
    };
    let rows = candidates.iter().map(row).collect();
    table(&["MOUNTED AT", "LABEL", "TYPE", "SIZE", "FREE", "DISK", ""], rows, 2, &[3, 4])
}

/// Lists disks that are not mounted: those of fstab, and others, each with what to do.
fn not_mounted(lines: &[Line]) -> io::Result<String> {
    let mounts = mountinfo::list()?;
    let mut text = String::new();
    for line in fstab::disks_away(lines, &mounts) {
        let place = &line.mountpoint;
        text.push_str(&paragraph("  ", &format!("{place} is in fstab ({}): mount {place}", line.source)));
    }
    for disk in unused(&mounts, &machine::system_disks(&mounts)) {
        // What fstab mounts is listed above.
        let label = disk.label.as_ref().map(|label| format!("LABEL={label}"));
        let device = format!("/dev/{}", disk.name);
        let of_fstab = |line: &Line| {
            Some(&line.source) == label.as_ref()
                || Path::new(&line.source).canonicalize().is_ok_and(|source| source == Path::new(&device))
        };
        if !lines.iter().any(of_fstab) {
            text.push_str(&paragraph("  ", &described(&disk)));
        }
    }
    Ok(text)
}

fn described(disk: &Unused) -> String {
    let (name, size) = (&disk.name, bytes(disk.size));
    let label = disk.label.as_ref().map_or_else(String::new, |label| format!(" '{label}'"));
    match disk.fstype.as_deref() {
        None => format!(
            "{name} ({size}) has no filesystem: mkfs.ext4 /dev/{name} makes one, and erases what is there"
        ),
        Some("crypto_LUKS") => {
            format!("{name} ({size}{label}) is encrypted: open it (cryptsetup), and mount it")
        }
        Some(fstype) => format!("{name} ({size}, {fstype}{label}): mount it, with a line in fstab"),
    }
}
