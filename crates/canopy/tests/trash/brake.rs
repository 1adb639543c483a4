//! Programs that remove too much are told of and stopped.

use super::{BINARY, Rig, canopy, kept, trash};
use canopy_testkit::cmd::run_within;
use canopy_testkit::{PATIENCE, as_user};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_program_that_removes_too_much_is_told_of_and_stopped_until_somebody_lets_it_go() {
    let rig = Rig::with(BINARY, &["a", "b"], |builder| {
        builder.option("trash=calm/**=1 day;**=1 day|except *.tmp|alarm 20 in a minute|freeze")
    });
    let path = rig.pool.path();
    let fill = || {
        for number in 0..60 {
            rig.put("a", &format!("photos/{}/f{number}", number % 3), "text");
            rig.put("b", &format!("photos/{number}.tmp"), "text");
            rig.put("b", &format!("calm/{number}"), "text");
        }
    };
    fill();
    let shell = |uid, line: &str| {
        let mut command = as_user(uid, uid, &[], "sh");
        run_within(command.args(["-c", line]).current_dir(path), PATIENCE)
    };
    let left =
        || (0..60).filter(|number| rig.at(&format!("photos/{}/f{number}", number % 3)).exists()).count();
    let alarms = || -> Vec<String> {
        let status = canopy([OsStr::new("status"), path.as_ref(), "--json".as_ref()]);
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        let warnings = status["pools"][0]["warnings"].as_array().unwrap().clone();
        let of_trash = warnings.into_iter().filter(|it| it["code"] == "trash-alarm");
        of_trash.map(|it| it["text"].as_str().unwrap().to_owned()).collect()
    };
    // What the rule is not for does not count.
    assert!(shell(0, "rm photos/*.tmp calm/*").success());
    assert_eq!((left(), alarms()), (60, Vec::new()));
    // A process for each file.
    let done = shell(0, "for f in photos/*/*; do rm \"$f\" || exit 3; done");
    assert!(done.stderr.contains("Read-only file system"), "{}", done.describe());
    assert_eq!((left(), done.code()), (40, Some(3)));
    let told = alarms();
    assert!(
        told.len() == 1
            && told[0].starts_with("rm of user 0 has removed or overwritten 20 files below photos"),
        "{told:?}"
    );
    let by_rename = shell(0, "echo > new.tmp; mv new.tmp photos/0/f57");
    assert!(by_rename.success(), "another program goes on: {}", by_rename.describe());
    fs::create_dir(rig.at("photos/bare")).unwrap();
    for line in ["rm photos/0/f57", "rm -r photos/bare"] {
        let done = shell(0, line);
        assert!(done.stderr.contains("Read-only file system"), "{}", done.describe());
    }
    assert_eq!(kept(path).len(), 60 + 20);
    let refused = trash(path, "thaw", ["photos"]);
    assert!(
        !refused.success() && refused.stderr.contains("is for no path and no time"),
        "{}",
        refused.describe()
    );
    for other in [["--program", "cp"], ["--user", "4321"]] {
        let done = trash(path, "thaw", other);
        assert!(!done.success() && done.stderr.contains("no alarm is about that"), "{}", done.describe());
    }
    assert_eq!(alarms().len(), 1);
    let done = trash(path, "thaw", ["--program", "rm", "--user", "0"]);
    assert!(done.success() && alarms().is_empty(), "{}", done.describe());
    assert!(shell(0, "rm photos/*/f1*").success());
    // Without freeze it goes on, and is told of.
    rig.pool.set("trash", "**=1 day|alarm 20 in a minute");
    trash(path, "thaw", [""; 0]);
    fill();
    fs::set_permissions(rig.on("a", "photos"), fs::Permissions::from_mode(0o777)).unwrap();
    let done = shell(0, "for f in photos/*/*; do echo new > x; mv x \"$f\"; done");
    assert!(done.success(), "{}", done.describe());
    let told = alarms();
    assert!(
        told.len() == 1 && told[0].starts_with("mv of user 0 has removed or overwritten 60 "),
        "{told:?}"
    );
    rig.pool.set("trash", "");
    assert_eq!(alarms(), [] as [String; 0]);
}
