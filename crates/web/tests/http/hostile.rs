//! Names that want to be more than names.

use crate::rig::{HEALTHY, Screen};
use std::fmt::Write as _;

pub(crate) const NAME: &str =
    r#"<img src=x onerror=alert(1)>"onload="x' </main><script>alert(2)</script>&amp;"#;

/// As JSON has it.
fn json(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Looks for markup that a name has brought in.
#[track_caller]
pub(crate) fn assert_harmless(body: &str) {
    // What a field sends back is exact, and stays within the field.
    let mut seen = String::new();
    for (index, part) in body.split(" value=\"").enumerate() {
        seen.push_str(if index == 0 { part } else { part.split_once('"').expect("the end of a value").1 });
    }
    for bad in
        ["<img src=x", "onload=\"x", "<script>alert", "</main><script", "\u{202e}", "\u{1b}", "\u{200b}"]
    {
        assert!(!seen.contains(bad), "{bad:?} in {body}");
    }
    // Every script, style and image is one of ours, and nothing is styled or scripted in place.
    for part in seen.split('<').skip(1) {
        for attribute in [" src=\"", " href=\"", " action=\""] {
            if let Some((_, value)) = part.split_once(attribute) {
                assert!(value.starts_with('/') || value.starts_with('#'), "<{part}");
            }
        }
        // Without the values of attributes, which end at a quote only.
        let tag: String = part.split('"').step_by(2).collect();
        let tag = tag.split('>').next().unwrap_or_default();
        assert!(!tag.contains(" style=") && !tag.contains(" on"), "<{tag}>");
    }
}

#[test]
fn hostile_names_are_shown_harmlessly_on_every_page() {
    let hostile = format!("{NAME}\u{202e}gpj.exe\u{200b}");
    let named = json(&hostile);
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    let mut status = HEALTHY.to_owned();
    for word in [
        "/mnt/disk1",
        "media",
        "IronWolf",
        "/dev/sda1",
        "io-uring",
        "all",
        "fuller than 80 %",
        "ext4",
        "0.1.0",
    ] {
        status = status.replace(&format!("\"{word}\""), &named);
    }
    status =
        status.replace("\"/mnt/media\"", &named.replace("\"<", "\"/mnt/<")).replace("\"serving\"", &named);
    let warning = format!(
        r#""warnings":[{{"code":"x","problem":true,"branch":{named},"text":{named},"fix":{named}}}]"#
    );
    status = status.replace("\"warnings\":[]", &warning);
    let unmounted = format!(
        r#""unmounted":[{{"name":{named},"mountpoint":{named},"described_in":{named},"fix":{named}}}]"#
    );
    status = status.replace("\"unmounted\":[]", &unmounted);
    screen.says("status", &status);
    screen.says(
        "options",
        &format!(
            r#"[{{"name":"minfreespace","type":{named},"default":{named},"since":{named},"help":{named}}}]"#
        ),
    );
    screen.says(
        "which",
        &format!(
            r#"{{"paths":[{{"path":{named},"type":"directory","differ":[{named}],"copies":[{{"branch":{named},"shown":true,
            "old":true,"type":{named},"size":1,"used":2,"mtime":3,"mode":420,"uid":0,"gid":0}}]}}]}}"#
        ),
    );
    screen.says(
        "ls",
        &format!(
            r#"{{"branches":[{named}],"entries":[{{"name":{named},"type":"file","size":1,"branches":[0],"differ":[{named}]}},
            {{"name":[255,60,98,62,10],"type":"directory","size":1,"branches":[0,7]}}]}}"#
        ),
    );
    let line = json("\\u001b[31mred \u{202e}<script>alert(3)</script>").replace("\\\\u", "\\u");
    screen.says("log", &format!(r#"{{"sources":[{{"kind":{named},"file":{named},"lines":[{line}]}}]}}"#));

    let mut at = String::new();
    format!("/mnt/{hostile}").bytes().for_each(|byte| write!(at, "%{byte:02x}").unwrap());
    let escaped = "&lt;img src=x onerror=alert(1)&gt;";
    for page in [
        "/".to_owned(),
        "/warnings".into(),
        format!("/pool?at={at}"),
        format!("/options?q={at}"),
        format!("/options?at={at}"),
        format!("/files?at={at}&path={at}"),
        format!("/log?at={at}"),
        format!("/pool?at={at}%3Cb%3E"),
    ] {
        let got = screen.get(&cookie, &page);
        assert_eq!(got.status, 200, "{page}");
        assert!(got.body.contains(escaped), "{page} does not show the name: {}", got.body);
        assert_harmless(&got.body);
    }
    // A name that is no text leads on as the bytes that it is.
    let files = screen.get(&cookie, &format!("/files?at={at}&path="));
    assert!(files.body.contains("path=%FF%3Cb%3E%0A"), "{}", files.body);
    // The live page has it in one event.
    let live = crate::pages::first_event(&screen, &cookie, "/");
    assert!(live.contains(escaped), "{live}");
    assert_harmless(live.split_once("data: ").expect("data").1);
}

#[test]
fn no_address_runs_another_command_or_leaves_the_pool() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    screen.says("which", r#"{"paths":[]}"#);
    for path in ["../../etc/shadow", "/mnt/media/../../etc/shadow", "a/..%2f..", "x%00y"] {
        let got = screen.get(&cookie, &format!("/files?at=/mnt/media&path={path}"));
        assert!(got.status == 200 && got.body.contains("leads out of the pool"), "{path}: {}", got.body);
    }
    // What is no pool is asked nothing.
    for page in ["/log?at=/etc", "/log?at=--follow", "/files?at=/&path=etc/shadow", "/options?at=/etc"] {
        let got = screen.get(&cookie, page);
        assert!(got.body.contains("no pool is mounted at"), "{page}: {}", got.body);
    }
    let got = screen.get(&cookie, "/files?path=--version%20%24(touch%20x)%3B%60id%60");
    assert!(got.body.contains("has found nothing"), "{}", got.body);
    let asked = screen.asked();
    let which: Vec<&String> = asked.iter().filter(|line| !line.starts_with("status ")).collect();
    assert_eq!(which, ["which --json -- /mnt/media/--version $(touch x);`id`"], "{asked:?}");
}
