//! Units of systemd that mount with mergerfs: services that start it, and mounts of its type.

use super::{Change, Migration, WAS, options, with_implied};
use crate::unit::{self, Assignment, Word, assignments, has_variable, quote};
use canopy_config::source::command_line::pieces;
use std::path::Path;

const VARIABLE: &str = "a variable: Canopy cannot see what is in it; check it by hand";

/// What becomes of an assignment.
enum Fate {
    Stays,
    Becomes(String),
    /// Why it has to be changed by hand.
    ByHand(String),
}

pub(super) fn convert(text: &str, program: &str) -> Option<Migration> {
    let found = assignments(text);
    let is_mount = is_mount(&found);
    let last_options =
        found.iter().rposition(|one| is_mount && one.section == "Mount" && one.key == "Options");
    let (mut changes, mut lines, mut by_hand) = (Vec::new(), Vec::new(), Vec::new());
    let physical: Vec<&str> = text.split_inclusive('\n').collect();
    let (mut new_text, mut copied) = (String::new(), 0);
    for (index, one) in found.iter().enumerate() {
        let fate = match one.key.as_str() {
            "Options" if last_options.is_some() && one.section == "Mount" => {
                Fate::Becomes(mount_options(one, Some(index) == last_options, &mut changes))
            }
            "Type" if is_mount && one.section == "Mount" => Fate::Becomes("canopy".into()),
            "What" if is_mount && one.section == "Mount" => match one.value.strip_prefix("mergerfs#") {
                Some(branches) => Fate::Becomes(branches.to_owned()),
                None => Fate::Stays,
            },
            "ExecStart" => commands(&one.value, program, &mut changes),
            key if key.starts_with("Exec") => mentioned(&one.value),
            _ => Fate::Stays,
        };
        let new = match fate {
            Fate::Stays => continue,
            Fate::ByHand(why) => {
                by_hand.push(format!("line {}: {} {why}", one.lines.start + 1, one.key));
                continue;
            }
            Fate::Becomes(value) => format!("{}={value}", one.key),
        };
        new_text.extend(physical[copied..one.lines.start].iter().copied());
        for old in &physical[one.lines.clone()] {
            new_text.push_str(&format!("{WAS} {}\n", old.trim_end_matches('\n')));
        }
        new_text.push_str(&format!("{new}\n"));
        copied = one.lines.end;
        lines.push((format!("{}={}", one.key, one.value), new));
        if is_mount && one.key == "Type" && last_options.is_none() {
            let implied = format!("Options={}", with_implied(Vec::new(), &mut changes).join(","));
            new_text.push_str(&format!("{WAS}\n{implied}\n"));
        }
    }
    new_text.extend(physical[copied..].iter().copied());
    let concerns_us = !lines.is_empty() || !by_hand.is_empty();
    concerns_us.then_some(Migration { text: new_text, lines, changes, by_hand, mounts: true })
}

/// Returns whether a unit is a mount of mergerfs's. Of several assignments, the last one counts.
fn is_mount(found: &[Assignment]) -> bool {
    let value = |key: &str| {
        let mut these = found.iter().rev().filter(|one| one.section == "Mount" && one.key == key);
        these.next().map_or("", |one| one.value.as_str())
    };
    match value("Type") {
        "mergerfs" | "fuse.mergerfs" => true,
        kind => kind == "fuse" && value("What").starts_with("mergerfs#"),
    }
}

fn mount_options(one: &Assignment, is_last: bool, changes: &mut Vec<Change>) -> String {
    // Blanks are where lines were continued.
    let list: Vec<&str> = one.value.split(',').map(str::trim).filter(|option| !option.is_empty()).collect();
    let kept = options(&list.join(","), changes);
    if is_last { with_implied(kept, changes).join(",") } else { kept.join(",") }
}

/// Judges a command that Canopy does not convert.
fn mentioned(command: &str) -> Fate {
    let programs = unit::words(command).unwrap_or_default();
    let stops = programs.first().is_some_and(|word| {
        let program = Path::new(&word.value).file_name();
        program.is_some_and(|name| {
            ["umount", "fusermount", "fusermount3", "pkill"].iter().any(|one| name == *one)
        })
    });
    if command.contains("mergerfs") && !stops {
        Fate::ByHand("mentions mergerfs inside a script or another command; change it by hand".into())
    } else {
        Fate::Stays
    }
}

/// Converts the commands of one `ExecStart`, which semicolons separate.
fn commands(value: &str, program: &str, changes: &mut Vec<Change>) -> Fate {
    let Some(words) = unit::words(value) else {
        return if value.contains("mergerfs") {
            Fate::ByHand("has a quote that is not closed; change it by hand".into())
        } else {
            Fate::Stays
        };
    };
    let (mut new, mut converted) = (Vec::new(), false);
    for command in words.split(|word| word.raw == ";") {
        let raw = || command.iter().map(|word| word.raw.as_str()).collect::<Vec<_>>().join(" ");
        match exec_start(command, program, changes) {
            Some(command) => {
                converted = true;
                new.push(command);
            }
            None => match mentioned(&raw()) {
                Fate::ByHand(why) => return Fate::ByHand(why),
                _ => new.push(raw()),
            },
        }
    }
    if converted { Fate::Becomes(new.join(" ; ")) } else { Fate::Stays }
}

/// Converts a command that starts mergerfs; `None` if it is another's.
fn exec_start(words: &[Word], program: &str, changes: &mut Vec<Change>) -> Option<String> {
    let (first, mut words) = words.split_first()?;
    let old = first.value.trim_start_matches(['-', '@', ':', '+', '!', '|']);
    if Path::new(old).file_name()? != "mergerfs" {
        return None;
    }
    let prefix = &first.value[..first.value.len() - old.len()];
    let replaces = !prefix.contains(':');
    if prefix.contains('@') {
        // The name that the program is told follows. Canopy takes its manners from it.
        words = words.get(1..).unwrap_or_default();
    }
    let mut new = vec![quote(&format!("{}{program}", prefix.replace('@', ""))), "mount".into()];
    let (mut given, mut rest) = (Vec::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.value.as_str() {
            "-f" => new.push(word.raw.clone()),
            "-o" => {
                let list = words.next();
                take_options(list.map_or("", |word| &word.value), replaces, &mut given, changes);
            }
            value if value.starts_with("-o") => take_options(&value[2..], replaces, &mut given, changes),
            value if value.starts_with('-') && value.len() > 1 => changes.push(Change {
                old: value.into(),
                new: None,
                why: "a switch that does nothing in mergerfs, or that Canopy does not need".into(),
            }),
            // With its quotes, specifiers and variables.
            value => {
                if replaces && has_variable(value) {
                    changes.push(Change {
                        old: word.raw.clone(),
                        new: Some(word.raw.clone()),
                        why: VARIABLE.into(),
                    });
                }
                rest.push(word.raw.clone());
            }
        }
    }
    // What a variable holds may end with anything, so the others are apart from it.
    let (hidden, given): (Vec<String>, Vec<String>) =
        given.into_iter().partition(|option| replaces && has_variable(option));
    for option in hidden {
        new.extend(["-o".into(), quote(&option)]);
    }
    new.extend(["-o".into(), quote(&with_implied(given, changes).join(","))]);
    new.extend(rest);
    Some(new.join(" "))
}

/// Converts a list of options, except for those with a variable.
fn take_options(list: &str, replaces: bool, given: &mut Vec<String>, changes: &mut Vec<Change>) {
    for piece in pieces(list.as_bytes()) {
        let piece = String::from_utf8_lossy(piece).into_owned();
        if replaces && has_variable(&piece) {
            let why = VARIABLE.into();
            changes.push(Change { old: piece.clone(), new: Some(piece.clone()), why });
            given.push(piece);
        } else {
            given.extend(options(&piece, changes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ALLOW_MISSING, undo};
    use super::*;

    const PROGRAM: &str = "/usr/local/bin/canopy";

    fn started(command: &str) -> Option<String> {
        let text = format!("[Service]\nExecStart={command}\n");
        let done = convert(&text, PROGRAM)?;
        assert_eq!(undo(&done.text), text);
        let found = assignments(&done.text);
        let new = found.iter().find(|one| one.key == "ExecStart").map(|one| one.value.clone());
        new.filter(|new| !new.contains("mergerfs"))
    }

    #[test]
    fn commands_keep_their_meaning() {
        let table = [
            ("/usr/bin/mergerfs -s /a:/b /p", "-o allow-missing-branches=true /a:/b /p"),
            (
                r#"mergerfs -f -o "ro,nonempty" "/mnt/disk 1:/b" '/p q'"#,
                r#"-f -o ro,nonempty,allow-missing-branches=true "/mnt/disk 1:/b" '/p q'"#,
            ),
            (
                "mergerfs -o category.create=mfs,allow_missing_branches=false /a /p",
                "-o category.create=mfs,allow_missing_branches=false /a /p",
            ),
            ("mergerfs -oro /a /p", "-o ro,allow-missing-branches=true /a /p"),
            ("mergerfs -o ${OPTS},ro /a /p", "-o ${OPTS} -o ro,allow-missing-branches=true /a /p"),
            (
                "mergerfs -o $OPTS ${BRANCHES} /p/%i",
                "-o $OPTS -o allow-missing-branches=true ${BRANCHES} /p/%i",
            ),
            ("mergerfs -o \"fsname=a b\" /a /p", "-o \"fsname=a b,allow-missing-branches=true\" /a /p"),
        ];
        for (old, new) in table {
            assert_eq!(started(old), Some(format!("{PROGRAM} mount {new}")), "{old}");
        }
        let new = started("-@/usr/bin/mergerfs mergerfs-media -o ro /a /p").expect("a command");
        assert!(new.starts_with(&format!("-{PROGRAM} mount -o ro,")), "{new}");
        let new =
            started("/bin/mkdir -p /p ; /usr/bin/mergerfs /a /p ; /bin/true \"x y\"").expect("commands");
        assert!(
            new.starts_with("/bin/mkdir -p /p ; /usr/local/") && new.ends_with(" /p ; /bin/true \"x y\""),
            "{new}"
        );
    }

    #[test]
    fn what_cannot_be_converted_is_told_and_left() {
        for command in [
            "/bin/sh -c \"/usr/bin/mergerfs -o ro /a:/b /p\"",
            "/bin/mount -t fuse.mergerfs /a:/b /p",
            "/usr/bin/env FOO=1 mergerfs /a /p",
            "/usr/bin/mergerfs -o \"ro /a /p",
        ] {
            let text = format!("[Service]\nExecStart={command}\n");
            let done = convert(&text, PROGRAM).expect(command);
            assert!(done.by_hand.len() == 1 && done.by_hand[0].contains("by hand"), "{:?}", done.by_hand);
            assert_eq!(done.text, text);
        }
        for other in [
            "[Service]\nExecStart=/usr/bin/true\n",
            "[Unit]\nDescription=waits for mergerfs\nAfter=mergerfs.service\n[Service]\nExecStart=/usr/bin/true\n",
            "[Service]\nExecStop=/bin/umount /p # mergerfs\n",
            "[Mount]\nWhat=/dev/sda\nType=ext4\nOptions=ro\n",
        ] {
            assert_eq!(convert(other, PROGRAM), None, "{other}");
        }
    }

    #[test]
    fn continued_lines_and_their_comments_go_and_come_back_together() {
        let text = "[Service]\nType=forking\nExecStart=/usr/bin/mergerfs \\\n# the options\n  -o category.create=mfs \\\n  /a:/b /p\nExecStop=/bin/fusermount -u /p\n";
        let done = convert(text, PROGRAM).expect("a service");
        let line =
            format!("\nExecStart={PROGRAM} mount -o category.create=mfs,{ALLOW_MISSING} /a:/b /p\nExecStop=");
        assert!(done.text.contains(&line), "{}", done.text);
        assert_eq!(undo(&done.text), text);
        let edited =
            done.text.replace("create=mfs,", "create=ff,").replace("[Service]", "[Unit]\nAfter=x\n[Service]");
        assert_eq!(undo(&edited), text.replace("[Service]", "[Unit]\nAfter=x\n[Service]"));
        // The value is there once more, as it was and as it is.
        assert_eq!(convert(&done.text, PROGRAM), None);
    }

    #[test]
    fn mounts_keep_their_options() {
        let table = [
            (
                "What=/a:/b\nWhere=/p\nType=fuse.mergerfs\nOptions=allow_other,\\\n  category.create=mfs,use_ino\n",
                "What=/a:/b",
                "Options=allow_other,category.create=mfs,allow-missing-branches=true",
            ),
            (
                "What=mergerfs#/a:/b\nWhere=/p\nType=fuse\nOptions=ro\n",
                "What=/a:/b",
                "Options=ro,allow-missing-branches=true",
            ),
            ("What=/a\nType=fuse.mergerfs\n", "What=/a", "Options=allow-missing-branches=true"),
            (
                "What=/a\nType=mergerfs\nOptions=ro\nOptions=\n",
                "What=/a",
                "Options=allow-missing-branches=true",
            ),
        ];
        for (body, what, options) in table {
            let text =
                format!("[Unit]\nDescription=p\n\n[Mount]\n{body}\n[Install]\nWantedBy=local-fs.target\n");
            let done = convert(&text, PROGRAM).expect(body);
            let lines: Vec<&str> = done.text.lines().collect();
            for line in [what, options, "Type=canopy"] {
                assert!(lines.contains(&line), "no {line} in {}", done.text);
            }
            assert_eq!(undo(&done.text), text);
        }
    }
}
