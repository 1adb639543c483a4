//! What pages show, and how they change.

use crate::rig::{HEALTHY, Screen};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

/// Opens the events of a page.
pub(crate) fn events(screen: &Screen, cookie: &str, address: &str) -> BufReader<TcpStream> {
    let mut stream = screen.connect();
    let text =
        format!("GET {address} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nCookie: {cookie}\r\n\r\n", screen.port);
    stream.write_all(text.as_bytes()).expect("a request");
    BufReader::new(stream)
}

/// Reads up to the next event, and returns it with its name and data.
pub(crate) fn next_event(stream: &mut BufReader<TcpStream>) -> String {
    let mut event = String::new();
    loop {
        let mut line = String::new();
        assert_ne!(
            stream.read_line(&mut line).expect("an event in time"),
            0,
            "the stream has ended: {event}"
        );
        if line.trim().is_empty() && event.contains("event:") {
            return event;
        }
        if line.starts_with("event:") || line.starts_with("data:") {
            event.push_str(&line);
        }
    }
}

/// Returns the first event of a page of which the browser has seen nothing.
pub(crate) fn first_event(screen: &Screen, cookie: &str, at: &str) -> String {
    next_event(&mut events(screen, cookie, &format!("/live?at={at}")))
}

#[test]
fn a_healthy_pool_says_so_on_every_page() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    screen.says("options", r#"[{"name":"minfreespace","type":"a size","default":"4G","runtime":true,"help":"how much stays free"},
        {"name":"old","ignored":true,"help":"nothing"}]"#);
    screen.says("log", r#"{"sources":[{"kind":"journal","file":null,"lines":["one","two"]}]}"#);
    for (page, all) in [
        (
            "/",
            &["/pool?at=/mnt/media", "healthy", "Nothing to do.", "233 GiB of 931 GiB used, 2 branches"][..],
        ),
        (
            "/pool?at=/mnt/media",
            &[
                "Tier all",
                "files leave it when fuller than 80 %",
                "/mnt/disk1",
                "aria-label=\"25 % used\"",
                "IronWolf",
                "31 °C",
                "SMART good",
                "Branches in no tier",
                "/mnt/disk2",
                "no new files",
                "ext4",
                "652 GiB free",
            ],
        ),
        ("/warnings", &["Nothing is wrong."]),
        (
            "/options?q=FREE",
            &["how much stays free", "4294967296", "(not the default)", "while the pool runs"],
        ),
        ("/options?q=zzz", &["No option contains"]),
        ("/log", &["of the journal", "one\ntwo"]),
        ("/files", &["Which disks have a file"]),
    ] {
        let got = screen.get(&cookie, page);
        assert_eq!(got.status, 200);
        for words in all {
            assert!(got.body.contains(words), "{page} lacks {words}: {}", got.body);
        }
        assert!(got.body.len() < 200_000 && got.body.contains("<html lang=\"en\">"));
        assert!(got.body.contains("aria-current=\"page\""), "{page} is nowhere in the menu");
    }
    assert!(!screen.get(&cookie, "/options").body.contains("o-old"));
}

#[test]
fn what_is_wrong_comes_with_what_to_do_and_the_worst_first() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    let warnings = r#""warnings":[{"code":"nearly-full","problem":false,"branch":"/mnt/disk2","text":"it fills up","fix":"add a disk"},
        {"code":"branch-gone","problem":true,"branch":"/mnt/disk1","text":"it is gone","fix":"plug it in"}]"#;
    screen.says(
        "status",
        &HEALTHY.replace("\"warnings\":[]", warnings).replacen("\"health\":\"ok\"", "\"health\":\"gone\"", 1),
    );
    let overview = screen.get(&cookie, "/").body;
    for words in ["problem", "it is gone", "plug it in", "1 more warning"] {
        assert!(overview.contains(words), "{overview}");
    }
    assert!(!overview.contains("it fills up") && !overview.contains("healthy"));
    let all = screen.get(&cookie, "/warnings").body;
    assert!(all.find("it is gone") < all.find("it fills up") && all.contains("add a disk"), "{all}");
    assert!(all.contains("/do?what=replace&amp;at=/mnt/media&amp;branch=/mnt/disk1"), "{all}");
    let pool = screen.get(&cookie, "/pool?at=/mnt/media").body;
    assert!(pool.contains("</span> gone</span>") && pool.contains("</span> attention</span>"), "{pool}");
}

#[test]
fn a_command_that_fails_is_told_and_the_page_comes_back() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    for (says, words) in
        [("", "canopy status --json says what is not understood"), ("{\"pools\":3}", "not understood")]
    {
        screen.says("status", says);
        std::thread::sleep(std::time::Duration::from_secs(1));
        let got = screen.get(&cookie, "/");
        assert!(got.status == 200 && got.body.contains(words), "{}", got.body);
    }
    assert!(screen.get(&cookie, "/log").body.contains("Not known"));
    screen.says("status", r#"{"pools":[],"unmounted":[]}"#);
    let mut live = events(&screen, &cookie, "/live?at=/");
    while !next_event(&mut live).contains("There is no pool yet") {}
    assert!(screen.get(&cookie, "/pool?at=/mnt/media").body.contains("no pool is mounted at /mnt/media"));
    let log = screen.get(&cookie, "/log").body;
    assert!(log.contains("nothing is known of log"), "{log}");
}

#[test]
fn an_open_page_changes_when_a_disk_goes_and_ends_with_its_session() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    let page = screen.get(&cookie, "/pool?at=/mnt/media");
    let (_, rest) = page.body.split_once("data-live=\"").expect("a live page");
    let address = rest.split('"').next().unwrap().replace("&amp;", "&");
    let mut live = events(&screen, &cookie, &address);
    screen.says("status", &HEALTHY.replacen("\"health\":\"ok\"", "\"health\":\"gone\"", 1));
    // What the browser has seen is not sent again: the first event is the change.
    let event = next_event(&mut live);
    assert!(event.starts_with("event: content") && event.contains("</span> gone</span>"), "{event}");
    let secret = crate::rig::secret_of(&page);
    assert_eq!(screen.post(&cookie, "/leave", &format!("secret={secret}")).status, 200);
    let event = next_event(&mut live);
    assert!(event.starts_with("event: over"), "{event}");
}

#[test]
fn where_a_file_is() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    screen.says(
        "which",
        r#"{"paths":[{"path":"/mnt/media/films","type":"directory","differ":["mode"],"copies":[
        {"branch":"/mnt/disk1","shown":true,"old":false,"type":"directory","size":1,"used":1,"mtime":0,"mode":16877,"uid":1,"gid":2},
        {"branch":"/mnt/disk2","shown":false,"old":true,"type":"file","size":2048,"used":4096,"mtime":0,"mode":33188,"uid":1,"gid":2}]}]}"#,
    );
    let entry =
        |n: u32| format!(r#"{{"name":"film {n}","type":"file","size":1048576,"branches":[1],"differ":[]}}"#);
    let entries: Vec<String> = (0..5000).map(entry).collect();
    screen.says(
        "ls",
        &format!(r#"{{"branches":["/mnt/disk1","/mnt/disk2"],"entries":[{}]}}"#, entries.join(",")),
    );
    let got = screen.get(&cookie, "/files?at=/mnt/media&path=films");
    for words in [
        "directory, on 2 branches",
        "The copies differ in mode.",
        "The pool reads this one.",
        "It is old",
        "2.0 KiB (takes 4.0 KiB)",
        "1970-01-01T00:00:00+0000",
        "path=films/film%20299",
        "And 4700 more",
        "The directory above",
    ] {
        assert!(got.body.contains(words), "{words}: {}", got.body);
    }
    assert!(got.body.len() < 200_000, "{} bytes", got.body.len());
    assert!(screen.asked().contains(&"ls --json -- /mnt/media/films".to_owned()), "{:?}", screen.asked());
}

#[test]
fn what_pools_do_and_what_is_where() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    screen.says(
        "metrics",
        "# TYPE x counter\ncanopy_operations_total{pool=\"/mnt/media\",operation=\"<b>look\"} 7\n\
         canopy_open_files{pool=\"/mnt/media\"} 3\ncanopy_open_files{pool=\"/mnt/other\"} 9\n\
         canopy_disk_read_bytes_total{pool=\"/mnt/media\",branch=\"/mnt/disk1\",disk=\"sda\"} 4096\n",
    );
    let got = screen.get(&cookie, "/activity");
    for words in ["Open files</dt><dd>3<", "&lt;b&gt;look", "/mnt/disk2"] {
        assert!(got.body.contains(words), "{words}: {}", got.body);
    }
    screen.says("du", "broken");
    screen.wait_for(&cookie, "/map?at=/mnt/media&path=films", "says nothing that is understood");
    screen.says(
        "du",
        r#"{"branches":["/mnt/disk1","/mnt/disk2"],"directories":[
        {"path":[255,60,98,62],"total":2048,"by_branch":[1024,1024]},{"path":".","total":3072,"by_branch":[2048,1024]}]}"#,
    );
    let got = screen.wait_for(&cookie, "/map?at=/mnt/media", "Counted 0 min ago.");
    for words in ["path=%FF%3Cb%3E", "files here, and smaller directories", "<svg class=\"map\"", "2.0 KiB"] {
        assert!(got.body.contains(words), "{words}: {}", got.body);
    }
    let count = || screen.asked().iter().filter(|line| line.starts_with("du ")).count();
    assert_eq!(
        (count(), screen.get(&cookie, "/map?at=/mnt/media").status, count()),
        (2, 200, 2),
        "it is counted once"
    );
    let got = screen.get(&cookie, "/map?at=/mnt/media&path=../..");
    assert!(got.body.contains("leads out of the pool") && count() == 2, "{}", got.body);
}

#[test]
fn a_count_that_takes_long_is_waited_for_and_one_runs_at_a_time() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    screen.does("du", "sleep 1");
    screen.says("du", r#"{"branches":[],"directories":[]}"#);
    let start = std::time::Instant::now();
    assert!(screen.get(&cookie, "/map?at=/mnt/media&path=a").body.contains("It is being counted"));
    assert!(
        screen.get(&cookie, "/map?at=/mnt/media&path=b").body.contains("Other directories are being counted")
    );
    assert!(start.elapsed().as_millis() < 900, "a page waits for a count");
    screen.wait_for(&cookie, "/map?at=/mnt/media&path=a", "Counted 0 min ago.");
    screen.wait_for(&cookie, "/map?at=/mnt/media&path=b", "Counted 0 min ago.");
}

#[test]
fn the_start_without_a_pool_leads_to_one() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    screen.says("status", r#"{"pools":[],"unmounted":[{"name":"old","mountpoint":"/mnt/old","described_in":"/etc/canopy/old.toml","fix":"canopy mount old"}]}"#);
    screen.does("init", "case \"$*\" in *--json*) ;; *) printf 'Disks that are mounted\\n  /mnt/<disk1>  4T\\n\\nTo be written\\n'; exit 0;; esac");
    screen.says("init", r#"{"branches":["/mnt/<disk1>","/mnt/disk2"],"warnings":["<i>careful</i>"]}"#);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let body = screen.get(&cookie, "/").body;
    assert!(body.contains("/do?what=mount&amp;name=old"), "{body}");
    let got = screen.get(&cookie, "/new");
    for words in [
        "  /mnt/&lt;disk1&gt;  4T",
        "value=\"/mnt/disk2\" checked",
        "&lt;i&gt;careful",
        "name=\"boot\"",
        "emptier",
    ] {
        assert!(got.body.contains(words), "{words}: {}", got.body);
    }
    assert!(!got.body.contains("To be written"));
    let secret = crate::rig::secret_of(&got);
    screen.does("init", "case \"$*\" in *--dry-run*) echo 'To be written';; esac; exit 0");
    let form = format!(
        "secret={secret}&name=films&branch=/mnt/disk1&branch=/mnt/disk2%0d%0a&way=fill&boot=nothing&mountpoint="
    );
    let got = screen.post(&cookie, "/do?what=init", &form);
    let page = got.header("location").to_owned();
    let line = "canopy init --yes --branch=/mnt/disk1 --branch=/mnt/disk2 --way=fill --boot=nothing -- films";
    let body = screen.wait_for(&cookie, &page, "Do it").body;
    assert!(body.contains(line) && body.contains("To be written"), "{body}");
    screen.post(&cookie, "/run/start", &format!("secret={secret}&{}", page.split_once('?').unwrap().1));
    screen.wait_for(&cookie, &page, "Next: <a href=\"/do?what=mount&amp;name=films\"");
}

#[test]
fn names_are_searched_in_the_background_and_events_are_shown() {
    let screen = Screen::start(&[]);
    let cookie = screen.enter();
    screen.does("ls", "case \"$*\" in *--named=*) sleep 1;; esac\n");
    screen.says(
        "ls",
        r#"{"path":"/mnt/media","branches":["/mnt/disk1","/mnt/disk2"],"entries":[
            {"name":"films/<b>Beach","type":"file","size":2048,"branches":[0,1],"differ":[]},
            {"name":"old/beach","type":"directory","size":0,"branches":[1],"differ":[],"missing":true}],"more":true}"#,
    );
    let address = "/files?at=/mnt/media&name=%20--yes%22%3Cb%3E&path=x";
    let got = screen.get(&cookie, address);
    assert!(got.body.contains("goes on in the background") && got.body.contains("data-live"), "{}", got.body);
    // Another one waits: more than one at a time only makes disks seek.
    let other = screen.get(&cookie, "/files?at=/mnt/media&name=other");
    assert!(other.body.contains("This one is next"), "{}", other.body);
    let escaped = address.replace('%', "%25").replace('&', "%26");
    let mut live = events(&screen, &cookie, &format!("/live?at={escaped}"));
    let mut event = next_event(&mut live);
    while !event.contains("There are more") {
        assert!(event.starts_with("event: content"), "{event}");
        event = next_event(&mut live);
    }
    // The page is whole: it is not loaded again under whoever reads it.
    let last = next_event(&mut live);
    assert!(last.starts_with("event: done"), "{last}");
    let found = screen.wait_for(&cookie, address, "There are more");
    for part in [
        "films/&lt;b&gt;Beach",
        "path=x/films/%3Cb%3EBeach",
        "missing, on",
        "2.0 KiB",
        "“--yes&quot;&lt;b&gt;”",
    ] {
        assert!(found.body.contains(part), "{part}: {}", found.body);
    }
    assert!(
        screen.asked().iter().any(|line| line == "ls --json --named=--yes\"<b> --most=300 -- /mnt/media/x")
    );
    let asked = screen.asked().len();
    for (address, words) in [
        ("/files?at=/mnt/media&name=x&path=../etc", "leads out of the pool"),
        ("/files?at=/mnt/media&name=a%0ab", "control characters"),
        (&format!("/files?at=/mnt/media&name={}", "a".repeat(256)), "no name is so long"),
    ] {
        let got = screen.get(&cookie, address);
        assert!(got.body.contains(words), "{words}: {}", got.body);
    }
    assert!(screen.asked()[asked..].iter().all(|line| !line.starts_with("ls")), "{:?}", screen.asked());

    screen.says(
        "notify",
        r#"{"events":[{"at":60,"phase":"begins","subject":{"pool":"/mnt/media","code":"branch-gone","branch":"/mnt/disk1"},
            "severity":"problem","text":"<i>disk1</i> is gone","fix":"look at it","since":50,"comes_and_goes":false},
            {"at":120,"phase":"ends","subject":{"pool":"/mnt/media","code":"branch-gone","branch":"/mnt/disk1"},
            "severity":"problem","text":"disk1 is gone","fix":"look at it","since":50}]}"#,
    );
    let page = screen.get(&cookie, "/events").body;
    for part in ["&lt;i&gt;disk1&lt;/i&gt; is gone", "What to do: ", "1970-01-01T00:01:00", "is over"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(page.find("is over") < page.find("begins"), "the newest comes first: {page}");
    assert_eq!(page.matches("What to do: ").count(), 1, "{page}");
    assert!(screen.get(&cookie, "/events?q=DISK9").body.contains("None contains"));
    screen.says("notify", r#"{"events":[]}"#);
    assert!(screen.get(&cookie, "/events").body.contains("systemctl enable --now canopy-notify"));
}
