//! Actions: shown before they are done, done once, by whom may.

use crate::pages::{events, next_event};
use crate::rig::{Got, HEALTHY, Screen, command, cookie_of, scratch, secret_of};
use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::{run_within, wait_until};
use std::fmt::Write as _;

const PLAN: &str = "case \"$*\" in *--dry-run*) echo 'to move: 2 files'; exit 0;; esac\n";
const DRAIN: &str = "/do?what=drain&at=/mnt/media&branch=/mnt/disk1";

/// Somebody who is let in, with the secret of their forms.
struct Visitor<'s> {
    screen: &'s Screen,
    cookie: String,
    secret: String,
}

impl<'s> Visitor<'s> {
    fn of(screen: &'s Screen, args: &[&str]) -> Visitor<'s> {
        let args = [&["token"], args].concat();
        let done = run_within(&mut command(&screen.scratch, &args), PATIENCE);
        let token = done.stdout.lines().next().and_then(|line| line.split_once("token=")).expect("a token").1;
        let cookie = cookie_of(&screen.send("GET", &format!("/enter?token={token}"), &[], ""));
        let secret = secret_of(&screen.get(&cookie, "/warnings"));
        Visitor { screen, cookie, secret }
    }

    fn post(&self, address: &str, form: &str) -> Got {
        self.screen.post(&self.cookie, address, &format!("secret={}&{form}", self.secret))
    }

    fn get(&self, address: &str) -> Got {
        self.screen.get(&self.cookie, address)
    }

    fn wait_for(&self, address: &str, words: &str) -> Got {
        self.screen.wait_for(&self.cookie, address, words)
    }

    /// Asks for an action and waits until its plan is there. Returns its number.
    fn ready(&self, address: &str, form: &str) -> String {
        let got = self.post(address, form);
        assert_eq!(got.status, 303, "{got:?}");
        let page = got.header("location").to_owned();
        self.wait_for(&page, "waits for your yes");
        page.split_once("id=").expect("a number").1.to_owned()
    }

    fn start(&self, id: &str) -> Got {
        self.post("/run/start", &format!("id={id}"))
    }
}

fn acted(screen: &Screen) -> Vec<String> {
    let reads = ["status", "options", "jobs --json", "doctor --json", "log", "trash list"];
    let is_read =
        |line: &String| reads.iter().any(|read| line.starts_with(read)) || line.contains("--dry-run");
    screen.asked().into_iter().filter(|line| !is_read(line)).collect()
}

#[test]
fn an_action_is_shown_then_done_and_recorded() {
    let screen = Screen::start(&[]);
    let visitor = Visitor::of(&screen, &[]);
    screen.does("drain", &format!("{PLAN}echo moved one; echo moved two; exit 0"));
    let form = visitor.get(DRAIN);
    for words in ["Empty a disk", "/mnt/disk1", "Show what it would do", "Nothing is done yet"] {
        assert!(form.body.contains(words), "{words}: {}", form.body);
    }
    assert!(screen.asked().iter().all(|line| !line.starts_with("drain")), "looking at a form runs nothing");
    let id = visitor.ready(DRAIN, "remove=yes&bwlimit=20M");
    let page = visitor.get(&format!("/run?id={id}"));
    for words in [
        "to move: 2 files",
        "canopy drain --yes --remove --bwlimit=20M -- /mnt/media /mnt/disk1",
        "Do it",
        "can be moved again",
    ] {
        assert!(page.body.contains(words), "{words}: {}", page.body);
    }
    assert_eq!(acted(&screen), [""; 0], "nothing is done before the yes");
    assert_eq!(visitor.start(&id).status, 303);
    let over = visitor.wait_for(&format!("/run?id={id}"), "It has ended: done");
    assert!(over.body.contains("moved one\nmoved two") && !over.body.contains("Do it"), "{}", over.body);
    // A second yes does nothing.
    assert_eq!(visitor.start(&id).status, 409);
    assert_eq!(acted(&screen), ["drain --yes --remove --bwlimit=20M -- /mnt/media /mnt/disk1"]);
    let record = visitor.get("/actions").body;
    assert!(record.contains(": begun") && record.contains(": done"), "{record}");
}

#[test]
fn only_a_form_of_the_session_changes_anything() {
    let screen = Screen::start(&[]);
    let (one, two) = (Visitor::of(&screen, &[]), Visitor::of(&screen, &[]));
    screen.does("drain", &format!("{PLAN}exit 0"));
    for form in ["", "secret=", "secret=guess", &format!("secret={}", two.secret)] {
        let got = screen.post(&one.cookie, DRAIN, form);
        assert_eq!(got.status, 403, "{form}: {got:?}");
    }
    let id = one.ready(DRAIN, "");
    for form in [format!("id={id}"), format!("id={id}&secret={}", two.secret)] {
        assert_eq!(screen.post(&one.cookie, "/run/start", &form).status, 403);
    }
    // Neither another site, nor a name that was made to point here, nor a link.
    let cookie = format!("Cookie: {}", one.cookie);
    let form = format!("id={id}&secret={}", one.secret);
    for header in ["Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Origin: null"] {
        let got = screen.send("POST", "/run/start", &[&cookie, crate::rig::FORM, header], &form);
        assert_eq!(got.status, 403, "{header}");
    }
    let got = screen.send_to("evil.example", "POST", "/run/start", &[&cookie, crate::rig::FORM], &form);
    assert_eq!(got.status, 421);
    assert_eq!(one.get(&format!("/run/start?{form}")).status, 404);
    // Nor another session, even one that may act: it has not seen the plan.
    let got = two.start(&id);
    assert!(got.status == 409 && got.body.contains("another session"), "{got:?}");
    assert!(!two.get(&format!("/run?id={id}")).body.contains("Do it"));
    assert_eq!(acted(&screen), [""; 0]);
    assert_eq!(one.start(&id).status, 303);
    one.wait_for(&format!("/run?id={id}"), "It has ended");
}

#[test]
fn who_only_reads_changes_nothing() {
    let screen = Screen::start(&[]);
    let owner = Visitor::of(&screen, &[]);
    screen.does("drain", &format!("{PLAN}sleep 30; exit 0"));
    let id = owner.ready(DRAIN, "");
    for args in [["--read-only"], ["--health-only"]] {
        let reader = Visitor::of(&screen, &args);
        for address in
            [DRAIN, "/do?what=notify", "/run/start", "/run/stop", "/run/pause", "/run/drop", "/run/kill"]
        {
            let got = reader.post(address, &format!("id={id}"));
            assert_eq!(got.status, 403, "{address}: {got:?}");
        }
        assert_eq!(reader.get(DRAIN).status, 403);
        let pool = reader.get("/pool?at=/mnt/media").body;
        assert!(!pool.contains("/do?"), "{pool}");
    }
    let reader = Visitor::of(&screen, &["--read-only"]);
    for page in ["/actions", "/options", &format!("/run?id={id}"), "/files", "/log"] {
        let got = reader.get(page);
        assert!(
            got.status == 200 && !got.body.contains("/do?") && !got.body.contains("/run/"),
            "{page}: {}",
            got.body
        );
    }
    assert_eq!(acted(&screen), [""; 0]);
    // The whole program, whatever the token.
    let screen = Screen::start(&["--read-only"]);
    let visitor = Visitor::of(&screen, &[]);
    assert_eq!(visitor.post(DRAIN, "").status, 403);
    assert!(visitor.get("/").body.contains("read only"));
    let address = format!("/enter?token={}", screen.token());
    let first = cookie_of(&screen.send("GET", &address, &[], ""));
    assert_eq!(screen.get(&first, DRAIN).status, 403);
}

#[test]
fn two_actions_of_a_pool_do_not_run_at_once_and_their_number_is_bounded() {
    let screen = Screen::start(&[]);
    let visitor = Visitor::of(&screen, &[]);
    let second =
        HEALTHY.replace("\"/mnt/media\"", "\"/mnt/other\"").split_once("\"pools\":[").unwrap().1.to_owned();
    let second = second.strip_suffix("]}").unwrap();
    screen.says("status", &HEALTHY.replace("\"warnings\":[]}]}", &format!("\"warnings\":[]}},{second}]}}")));
    // Who looks within a second sees the same.
    std::thread::sleep(std::time::Duration::from_secs(1));
    screen.does("balance", "exec sleep 60");
    screen.does("verify", "exec sleep 60");
    screen.does("drain", &format!("{PLAN}exec sleep 60"));
    let verify = visitor.ready("/do?what=verify&at=/mnt/media", "");
    let drain = visitor.ready(DRAIN, "");
    let (first, other) = (visitor.start(&verify), visitor.start(&drain));
    assert_eq!((first.status, other.status), (303, 409));
    assert!(
        other.body.contains("“Check files”") && other.body.contains("runs in the same place"),
        "{}",
        other.body
    );
    // Another pool is another place.
    let elsewhere = visitor.ready("/do?what=verify&at=/mnt/other", "");
    assert_eq!(visitor.start(&elsewhere).status, 303);
    // Plans run as well, and are bounded with them.
    let asked: Vec<Got> = (0..6).map(|_| visitor.post("/do?what=balance&at=/mnt/media", "")).collect();
    let statuses: Vec<u16> = asked.iter().map(|got| got.status).collect();
    assert_eq!(statuses, [303, 303, 303, 303, 422, 422]);
    assert!(asked[5].body.contains("6 commands run already"), "{}", asked[5].body);
    // What is stopped makes room.
    let page = asked[0].header("location").to_owned();
    let id = page.split_once("id=").unwrap().1;
    assert_eq!(visitor.post("/run/stop", &format!("id={id}")).status, 303);
    visitor.wait_for(&page, "It was given up");
    assert!(wait_until(PATIENCE, || visitor.post("/do?what=balance&at=/mnt/media", "").status == 303));
    assert_eq!(visitor.post("/run/stop", &format!("id={verify}")).status, 303);
    visitor.wait_for(&format!("/run?id={verify}"), "It has ended: stopped (ended by signal 15)");
    assert_eq!(visitor.start(&drain).status, 303);
}

#[test]
fn an_action_is_paused_continued_stopped_and_seen_live() {
    let screen = Screen::start(&[]);
    let visitor = Visitor::of(&screen, &[]);
    let count = screen.scratch.path("count").to_str().unwrap().to_owned();
    screen.does(
        "verify",
        &format!("trap 'echo it ends tidily; exit 32' TERM\nwhile :; do echo x >> {count}; sleep 0.05; done"),
    );
    let id = visitor.ready("/do?what=verify&at=/mnt/media", "");
    let page = format!("/run?id={id}");
    assert_eq!(visitor.start(&id).status, 303);
    let counted = || std::fs::read_to_string(&count).unwrap_or_default().len();
    assert!(wait_until(PATIENCE, || counted() > 4));
    let mut live = events(
        &screen,
        &visitor.cookie,
        &format!("/live?at={}", page.replace('?', "%3F").replace('=', "%3D")),
    );
    assert!(next_event(&mut live).contains("Pause"));
    let order = |what: &str| visitor.post(&format!("/run/{what}"), &format!("id={id}")).status;
    assert_eq!((order("continue"), order("kill"), order("start")), (409, 409, 409));
    assert_eq!(order("pause"), 303);
    while !next_event(&mut live).contains("Go on") {}
    std::thread::sleep(std::time::Duration::from_millis(300));
    let paused = counted();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(counted(), paused, "it goes on while it is paused");
    assert_eq!(order("continue"), 303);
    assert!(wait_until(PATIENCE, || counted() > paused));
    // Without JavaScript, the page is loaded again while it runs.
    assert!(visitor.get(&page).body.contains("http-equiv=\"refresh\""));
    assert_eq!(order("pause"), 303);
    assert_eq!(order("stop"), 303);
    visitor.wait_for(&page, "It has ended: stopped (exit status 32)");
    let over = visitor.get(&page).body;
    assert!(over.contains("it ends tidily") && !over.contains("http-equiv=\"refresh\""), "{over}");
    assert_eq!((order("stop"), order("pause")), (409, 409));
}

#[test]
fn hostile_values_reach_the_command_as_they_are_or_not_at_all() {
    let screen = Screen::start(&[]);
    let visitor = Visitor::of(&screen, &[]);
    let words = screen.scratch.path("words").to_str().unwrap().to_owned();
    let notes = format!("{PLAN}printf '%s\\0' \"$@\" >> {words}; exit 0");
    ["add", "dup", "trash"].iter().for_each(|command| screen.does(command, &notes));
    let names: [&[u8]; 6] =
        [b"--yes", b"-rf", b"$(touch x);`id`", b"a\nb\r", b"<script>alert(1)</script>", b"\xff\"'"];
    for name in names {
        let mut escaped = String::new();
        name.iter().for_each(|byte| write!(escaped, "%{byte:02x}").unwrap());
        for (what, field, before, given, behind) in [
            ("add", "dir", "add\0--yes\0--\0/mnt/media\0", "/", "/"),
            ("dup", "path", "dup\0--yes\0--\0/mnt/media\0", "", "/mnt/media/"),
            ("restore", "path", "trash\0restore\0--yes\0--\0/mnt/media\0", "", ""),
        ] {
            let _ = std::fs::remove_file(&words);
            let address = format!("/do?what={what}&at=/mnt/media&{field}={given}{escaped}");
            assert!(!visitor.get(&address).body.contains("<script>alert"));
            let id = visitor.ready(&address, "");
            let page = visitor.get(&format!("/run?id={id}"));
            assert!(!page.body.contains("<script>alert") && !page.body.contains("%ff"), "{}", page.body);
            assert_eq!(visitor.start(&id).status, 303);
            visitor.wait_for(&format!("/run?id={id}"), "It has ended: done");
            let expected = [before.as_bytes(), behind.as_bytes(), name, b"\0"].concat();
            assert_eq!(std::fs::read(&words).unwrap(), expected, "{what} {name:?}");
        }
        // What has to be known is.
        for address in [
            format!("/do?what=drain&at=/mnt/media&branch={escaped}"),
            format!("/do?what=set&at=/mnt/media&option={escaped}"),
            format!("/do?what=job&at=/mnt/media&job={escaped}"),
            format!("/do?what=fix&code={escaped}"),
            format!("/do?what=mount&name={escaped}"),
            format!("/do?what=balance&at=/mnt/media&to={escaped}"),
        ] {
            screen.says("options", "[]");
            screen.says("jobs", r#"{"watched":true,"pools":[]}"#);
            screen.says("doctor", r#"{"findings":[]}"#);
            let got = visitor.post(&address, "");
            assert!(got.status == 422 && !got.body.contains("<script>alert"), "{address}: {got:?}");
        }
        assert_eq!(visitor.post(&format!("/do?what={escaped}"), "").status, 404);
        assert_eq!(visitor.post(&format!("/do?what=drain&at={escaped}"), "branch=/mnt/disk1").status, 409);
    }
}

#[test]
fn a_plan_that_fails_is_told_and_a_pool_that_goes_ends_its_action() {
    let screen = Screen::start(&[]);
    let visitor = Visitor::of(&screen, &[]);
    screen.does("remove", "echo 'canopy: <b>it</b> is the only branch' >&2; exit 1");
    let got = visitor.post("/do?what=remove&at=/mnt/media&branch=/mnt/disk2", "");
    let page = got.header("location").to_owned();
    let shown = visitor.wait_for(&page, "It is not possible: ");
    assert!(
        shown.body.contains("&lt;b&gt;it&lt;/b&gt; is the only branch") && !shown.body.contains("Do it"),
        "{}",
        shown.body
    );
    let id = page.split_once("id=").unwrap().1;
    assert_eq!(visitor.start(id).status, 409);
    // The pool goes between the plan and the yes, and while the command runs.
    screen.does(
        "drain",
        &format!("{PLAN}sleep 0.5; echo 'canopy: /mnt/media is not the mountpoint of a pool' >&2; exit 1"),
    );
    let id = visitor.ready(DRAIN, "");
    assert_eq!(visitor.start(&id).status, 303);
    screen.says("status", r#"{"pools":[],"unmounted":[]}"#);
    let over = visitor.wait_for(&format!("/run?id={id}"), "It has ended: exit status 1");
    assert!(
        over.body.contains("is not the mountpoint of a pool") && over.body.contains("failed"),
        "{}",
        over.body
    );
    std::thread::sleep(std::time::Duration::from_secs(1));
    let got = visitor.post(DRAIN, "");
    assert!(got.status == 409 && got.body.contains("not mounted any more"), "{got:?}");
}

#[test]
fn what_cannot_be_undone_asks_twice_and_what_is_dropped_stays_undone() {
    let screen = Screen::start(&[]);
    let visitor = Visitor::of(&screen, &[]);
    screen.does("trash", &format!("{PLAN}exit 0"));
    let id = visitor.ready("/do?what=empty&at=/mnt/media", "before=7d");
    assert!(visitor.get(&format!("/run?id={id}")).body.contains("I know that this cannot be undone"));
    let got = visitor.start(&id);
    assert!(got.status == 409 && got.body.contains("say that you know it"), "{got:?}");
    assert_eq!(acted(&screen), [""; 0]);
    assert_eq!(visitor.post("/run/drop", &format!("id={id}")).status, 303);
    assert_eq!(visitor.post("/run/start", &format!("id={id}&sure=yes")).status, 409);
    let id = visitor.ready("/do?what=empty&at=/mnt/media", "before=7d");
    assert_eq!(visitor.post("/run/start", &format!("id={id}&sure=yes")).status, 303);
    visitor.wait_for(&format!("/run?id={id}"), "It has ended: done");
    assert_eq!(acted(&screen), ["trash empty --yes --before=7d -- /mnt/media"]);
}

#[test]
fn commands_end_with_the_program_and_the_record_stays() {
    let mut screen = Screen::start(&[]);
    let visitor = Visitor::of(&screen, &[]);
    let note = screen.scratch.path("note").to_str().unwrap().to_owned();
    screen.does(
        "verify",
        &format!("trap 'echo ended > {note}; exit 32' TERM\ntouch {note}\nwhile :; do sleep 0.05; done"),
    );
    let id = visitor.ready("/do?what=verify&at=/mnt/media", "");
    assert_eq!(visitor.start(&id).status, 303);
    assert!(wait_until(PATIENCE, || std::path::Path::new(&note).exists()));
    assert!(screen.end());
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "ended\n");
    let state = screen.scratch.path("state");
    let record = std::fs::read_to_string(state.join("actions")).unwrap();
    assert!(record.contains("\"begun\"") && record.contains("exit status 32"), "{record}");
    let next = scratch();
    std::fs::remove_dir(next.path("state")).ok();
    std::fs::rename(&state, next.path("state")).unwrap();
    let screen = Screen::start_in(next, &["--listen", "127.0.0.1:0"]);
    let visitor = Visitor::of(&screen, &[]);
    assert!(visitor.get("/actions").body.contains("exit status 32"));
    assert!(visitor.get(&format!("/run?id={id}")).body.contains("no longer known here"));
}

#[test]
fn pages_lead_to_actions() {
    let screen = Screen::start(&[]);
    let visitor = Visitor::of(&screen, &[]);
    screen.says("trash", r#"{"kept":[{"branch":"/mnt/disk1","path":"films/a*[b].mkv","removed":60,"user":1000,"program":"smbd","size":2048,"used":4096},
        {"branch":"/mnt/disk2","path":[255,60,98,62],"removed":120,"user":null,"program":null,"size":1,"used":1}]}"#);
    screen.says("jobs", r#"{"watched":false,"pools":[{"pool":"media","mistake":"line 3","jobs":[{"name":"verify","when":"every month",
        "command":"canopy verify","state":"rests","waits":null,"overdue":null,"next":60,"last":{"ended":60,"outcome":"held-back","text":"<b>"}}]}]}"#);
    screen.says("doctor", r#"{"findings":[{"code":"fstab-nofail","level":"warning","text":"<i>no nofail</i>","fix":"add it","fixable":true},
        {"code":"old","level":"note","text":"an old kernel","fix":"a newer one","fixable":false}]}"#);
    screen.says("options", r#"[{"name":"minfreespace","runtime":true,"help":"h"},{"name":"threads","runtime":false,"help":"h"}]"#);
    for (page, all) in [
        (
            "/pool?at=/mnt/media",
            &["/do?what=drain&amp;at=/mnt/media&amp;branch=/mnt/disk2", "/do?what=balance&amp;at=/mnt/media"]
                [..],
        ),
        (
            "/trash?at=/mnt/media",
            &["2 files, 4.0 KiB", "by smbd", "path=films/a%5B%2A%5D%5B%5B%5Db%5D.mkv", "path=%FF%3Cb%3E"],
        ),
        ("/trash?at=/mnt/media&q=FILMS", &["1 file, 4.0 KiB"]),
        (
            "/jobs",
            &[
                "line 3",
                "held back, &lt;b&gt;",
                "/do?what=job&amp;at=/mnt/media&amp;job=verify",
                "systemctl enable --now canopy-jobs",
            ],
        ),
        ("/doctor", &["&lt;i&gt;no nofail", "/do?what=fix&amp;code=fstab-nofail", "/do?what=bench"]),
        ("/do?what=bench", &["Names and attributes", "A short measurement"]),
        ("/options?at=/mnt/media", &["/do?what=set&amp;at=/mnt/media&amp;option=minfreespace"]),
        ("/do?what=set&at=/mnt/media&option=minfreespace", &["4294967296", "New value"]),
        ("/do?what=balance", &["In <span class=\"path\">/mnt/media"]),
        ("/actions", &["Nothing was done", "Even out disks"]),
    ] {
        let got = visitor.get(page);
        assert_eq!(got.status, 200);
        for words in all {
            assert!(got.body.contains(words), "{page} lacks {words}: {}", got.body);
        }
        assert!(!got.body.contains("code=old") && !got.body.contains("option=threads"), "{}", got.body);
    }
}

/// Who is told is changed without a secret in a page, a command line or the record.
#[test]
fn receivers_are_changed_and_their_secrets_shown_to_nobody() {
    let screen = Screen::start(&[]);
    let (visitor, reader) = (Visitor::of(&screen, &[]), Visitor::of(&screen, &["--read-only"]));
    let read = screen.scratch.path("read").to_str().unwrap().to_owned();
    screen.does(
        "notify",
        &format!(
            "case \"$*\" in *events*) echo '{{\"events\":[]}}'; exit 0;; *--json*) ;; *) \
             case \"$*\" in *--stdin*) cat >> {read};; esac; echo '+ ntfy = \"https://h…\"'; exit 0;; esac\n"
        ),
    );
    screen.says(
        "notify",
        r#"{"file":"/etc/canopy/notify.toml","receivers":[
            {"name":"phone","by":"ntfy","to":"https://h<b>","least":"problem","repeat":null,"pool":null,"says":{"least":"problem"}},
            {"name":"mail","by":"mail","to":"me@there","least":"warning","repeat":"daily","pool":"media","says":{}}]}"#,
    );
    let events = visitor.get("/events").body;
    for part in [
        "Who is told",
        "https://h&lt;b&gt;",
        "me@there",
        "whose file says so",
        "what=receiver&amp;name=phone",
    ] {
        assert!(events.contains(part), "{part}: {events}");
    }
    assert!(!events.contains("what=receiver&amp;name=mail"), "{events}");
    assert!(!reader.get("/events").body.contains("Who is told"));
    let form = visitor.get("/do?what=receiver&name=phone").body;
    assert!(form.contains("value=\"problem\" selected") && form.contains("It is not shown"), "{form}");
    let id = visitor.ready("/do?what=receiver&name=phone", "ntfy=https://h/s3cret&least=&repeat=daily");
    let page = visitor.get(&format!("/run?id={id}")).body;
    assert!(
        page.contains("+ ntfy = ") && page.contains("--stdin -- set phone least= repeat=daily"),
        "{page}"
    );
    assert_eq!(visitor.start(&id).status, 303);
    let over = visitor.wait_for(&format!("/run?id={id}"), "It has ended: done").body;
    // For the plan, and for the act.
    assert_eq!(std::fs::read_to_string(&read).unwrap(), "ntfy=https://h/s3cret\n".repeat(2));
    let got = visitor.post("/do?what=receiver", "name=a b&ntfy=https://h/s3cret&mail=typed@there");
    assert!(got.status == 422 && got.body.contains("value=\"typed@there\""), "{got:?}");
    let asked = screen.asked().join("\n");
    let record = std::fs::read_to_string(screen.scratch.path("state/actions")).unwrap();
    for shown in [&page, &over, &got.body, &visitor.get("/actions").body, &asked, &record] {
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    let id = visitor.ready("/do?what=unreceiver&name=phone", "");
    assert_eq!(visitor.post("/run/start", &format!("id={id}&sure=yes")).status, 303);
    visitor.wait_for(&format!("/run?id={id}"), "It has ended: done");
    assert!(screen.asked().iter().any(|line| line == "notify -- drop phone"));
    for form in ["name=mail", "name=--file"] {
        assert_eq!(visitor.post("/do?what=unreceiver", form).status, 422, "{form}");
    }
    for form in ["name=x&ntfy=https://h/t%0acommand=/bin/sh", "name=x&ntfy=https://h&token-file=/etc/shadow"]
    {
        assert_eq!(visitor.post("/do?what=receiver", form).status, 422, "{form}");
    }
}

#[test]
fn lists_are_edited_in_rows_and_jobs_in_fields() {
    let screen = Screen::start(&[]);
    let visitor = Visitor::of(&screen, &[]);
    let rules = "a/**=/mnt/disk1;<b>=ssd|copies 2";
    let options = format!("\"options\":{{\"config\":\"/etc/canopy/media.toml\",\"rules\":\"{rules}\",");
    screen.says("status", &HEALTHY.replace("\"options\":{", &options));
    screen.says(
        "jobs",
        r#"{"watched":true,"pools":[{"pool":"media","jobs":[{"name":"verify","command":"canopy verify","state":"rests",
            "says":{"do":"verify","when":"every <i>day</i>","idle":"true"}}]}]}"#,
    );
    std::thread::sleep(std::time::Duration::from_secs(1));
    for command in ["set", "jobs"] {
        screen.does(
            command,
            "case \"$*\" in *--json*) ;; *--dry-run*) echo '+ new'; exit 0;; *) exit 0;; esac\n",
        );
    }
    let form = visitor.get("/do?what=rules&at=/mnt/media").body;
    for part in [
        "value=\"a/**\"",
        "value=\"/mnt/disk1\"",
        "value=\"&lt;b&gt;\"",
        "Rule 2</legend>",
        "<legend>New",
        "name=\"persist\" value=\"yes\" checked",
    ] {
        assert!(form.contains(part), "{part}: {form}");
    }
    let id = visitor.ready(
        "/do?what=rules&at=/mnt/media",
        "path.0=a/**&branches.0=/mnt/disk1&place.0=2&path.1=b;c&tier.1=ssd&place.1=1&persist=yes",
    );
    let page = visitor.get(&format!("/run?id={id}")).body;
    assert!(page.contains("+ new") && page.contains("b\\;c=ssd;a/**=/mnt/disk1"), "{page}");
    assert_eq!(acted(&screen), [""; 0]);
    assert_eq!(visitor.start(&id).status, 303);
    visitor.wait_for(&format!("/run?id={id}"), "It has ended: done");
    let cache = "branches.0=/ssd&path.0=films/**:*.flac&size.0=200+GiB&when.0=opened";
    let id = visitor.ready("/do?what=cache&at=/mnt/media", cache);
    assert_eq!(visitor.start(&id).status, 303);
    visitor.wait_for(&format!("/run?id={id}"), "It has ended: done");
    // What is wrong is said, and what was typed stays.
    let got = visitor.post("/do?what=rules&at=/mnt/media", "path.0=typed&tier.0=a&branches.0=/b");
    assert!(
        got.status == 422 && got.body.contains("not both") && got.body.contains("value=\"typed\""),
        "{got:?}"
    );
    let form = visitor.get("/do?what=schedule&at=/mnt/media&job=verify").body;
    assert!(form.contains("value=\"every &lt;i&gt;day&lt;/i&gt;\"") && !form.contains("<i>day"), "{form}");
    let id =
        visitor.ready("/do?what=schedule&at=/mnt/media&job=verify", "do=verify&when=every+week&idle=&nice=3");
    assert_eq!(visitor.start(&id).status, 303);
    visitor.wait_for(&format!("/run?id={id}"), "It has ended: done");
    let id = visitor.ready("/do?what=unschedule&at=/mnt/media&job=verify", "");
    assert_eq!(visitor.start(&id).status, 303);
    visitor.wait_for(&format!("/run?id={id}"), "It has ended: done");
    assert_eq!(
        acted(&screen),
        [
            "set --persist -- /mnt/media rules=b\\;c=ssd;a/**=/mnt/disk1",
            "set -- /mnt/media read-cache=/ssd=films/**:*.flac|size 200 GiB|when opened",
            "jobs -- /mnt/media set verify when=every week idle= nice=3",
            "jobs -- /mnt/media drop verify"
        ]
    );
    // A form that somebody else has made.
    for form in ["path.0=a%0ab&tier.0=x", "path.0=a&tier.0=x;y", "path.0=a%5C&tier.0=x"] {
        assert_eq!(visitor.post("/do?what=rules&at=/mnt/media", form).status, 422, "{form}");
    }
    for form in ["path.0=a", "branches.0=/s&path.0=a&size.0=1&free.0=1", "branches.0=/s&path.0=a&when.0=a|b"]
    {
        assert_eq!(visitor.post("/do?what=cache&at=/mnt/media", form).status, 422, "{form}");
    }
    for form in ["job=--yes&do=verify&when=x", "job=a/b&do=verify&when=x", "job=new&do=verify"] {
        assert_eq!(visitor.post("/do?what=schedule&at=/mnt/media", form).status, 422, "{form}");
    }
}
