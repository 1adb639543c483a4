//! Checks that generated pages are up to date, that references in documents resolve, and that help fits a screen.

#![forbid(unsafe_code)]

#[path = "../examples/gen-docs/pages.rs"]
mod pages;

use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::run_within;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn generated_pages_are_committed() {
    let pages = pages::all().expect("pages");
    let stale: Vec<&str> = pages
        .iter()
        .filter(|(path, content)| fs::read_to_string(root().join(path)).ok().as_ref() != Some(content))
        .map(|(path, _)| path.as_str())
        .collect();
    assert!(stale.is_empty(), "{stale:?} are out of date: run cargo run -p canopy --example gen-docs");
    let generated: BTreeSet<PathBuf> = pages.iter().map(|(path, _)| root().join(path)).collect();
    for entry in fs::read_dir(root().join("man")).expect("man") {
        let path = entry.expect("an entry").path();
        assert!(generated.contains(&path), "{} is no longer generated: remove it", path.display());
    }
}

#[test]
fn every_option_is_in_the_table_and_in_the_manual() {
    let (table, manual) =
        (fs::read_to_string(root().join("docs/options.md")), fs::read_to_string(root().join("man/canopy.8")));
    let (table, manual) = (table.expect("docs/options.md"), manual.expect("man/canopy.8"));
    for option in canopy::commands::options::entries() {
        let name = &option.name;
        assert!(table.contains(&format!("`{name}`")), "{name}");
        let roff = format!("\n\\fB{}\\fR", name.replace('-', "\\-"));
        assert_eq!(manual.contains(&roff), !option.ignored, "{name}: {roff:?}");
    }
}

#[test]
fn manual_pages_format_without_warnings() {
    for (path, content) in pages::all().expect("pages") {
        if let Some(page) = content.strip_prefix(".so man8/") {
            assert!(root().join("man").join(page.trim_end()).exists(), "{path}");
        }
        if !path.ends_with(".8") || content.starts_with(".so ") {
            continue;
        }
        let mut groff = Command::new("groff");
        groff.args(["-man", "-Tutf8", "-ww", "-rLL=80n"]).arg(root().join(&path));
        let done = run_within(&mut groff, PATIENCE);
        assert!(done.success() && done.stderr.is_empty(), "{path}: {}", done.describe());
    }
}

#[test]
fn help_fits_a_screen() {
    let canopy = |args: &[&str]| {
        let done = run_within(Command::new(env!("CARGO_BIN_EXE_canopy")).args(args), PATIENCE);
        assert!(done.success() && done.stderr.is_empty(), "{args:?}: {}", done.describe());
        done.stdout
    };
    let top = canopy(&["--help"]);
    let indented = top.lines().filter(|line| line.starts_with("  ") && !line.trim_start().starts_with('-'));
    let commands: Vec<&str> = indented.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() >= 25 && !commands.contains(&"probe"), "{top}");
    for help in commands.iter().map(|command| canopy(&[command, "--help"])) {
        assert!(help.lines().count() <= 44, "{} lines:\n{help}", help.lines().count());
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }
    assert!(top.lines().all(|line| line.chars().count() <= 80), "{top}");
    let options = canopy(&["options"]);
    assert!(options.lines().all(|line| line.chars().count() <= 80), "{options}");
}

/// Returns the words of a text, without the punctuation around them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c.is_whitespace() || "`()[]|,;\"'".contains(c))
        .map(|word| word.trim_end_matches(['.', ':']))
}

/// Returns the text files below these directories, and the documents in the root of the repository.
fn texts(dirs: &[&str]) -> Vec<(PathBuf, String)> {
    let in_root = fs::read_dir(root()).expect("the root").flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        in_root.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect();
    dirs.iter().for_each(|dir| collect_files(&root().join(dir), "", &mut files));
    files.into_iter().filter_map(|path| Some((path.clone(), fs::read_to_string(&path).ok()?))).collect()
}

/// Checks the references to Canopy's manual pages in manual pages, documents and units.
#[test]
fn referenced_manual_pages_exist() {
    let mut named = 0;
    for (path, text) in texts(&["man", "docs", "dist"]) {
        // In roff a hyphen has a backslash before it; in a unit a page follows `man:`.
        let text = text.replace("\\-", "-").replace("man:", " ");
        for (at, _) in text.match_indices("canopy") {
            let name = &text[at..];
            let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(name.len());
            let Some((section, _)) = name[end..].strip_prefix('(').and_then(|rest| rest.split_once(')'))
            else {
                continue;
            };
            if section.parse::<u32>().is_ok() {
                let page = format!("man/{}.{section}", &name[..end]);
                assert!(root().join(&page).exists(), "{}: there is no {page}", path.display());
                named += 1;
            }
        }
    }
    assert!(named > 10, "{named}");
}

/// Documents refer to files by paths that are relative to the document, to the root of the repository, or to one of the
/// directories in `bases`.
#[test]
fn referenced_files_exist() {
    let bases =
        ["", "crates", "crates/canopy/src", "crates/canopy/tests", "crates/pool/src", "crates/pool/tests"];
    let bases = bases.map(|base| root().join(base));
    let (mut named, mut missing) = (0, Vec::new());
    for (path, text) in texts(&["docs", "benches", "dist"]) {
        let is_file = |word: &&str| {
            word.contains('/')
                && !word.starts_with('/')
                && !word.contains(['{', '*', '$', '%'])
                && [".rs", ".md", ".sh", ".toml"].iter().any(|ending| word.ends_with(ending))
        };
        for word in words(&text).map(|word| word.split('#').next().unwrap_or(word)).filter(is_file) {
            let linked = path.parent().expect("a directory").join(word);
            let exists = linked.exists() || bases.iter().any(|base| base.join(word).exists());
            named += 1;
            if !exists {
                missing.push(format!("{}: {word}", path.strip_prefix(root()).unwrap_or(&path).display()));
            }
        }
    }
    assert!(named > 50 && missing.is_empty(), "{named}, {missing:#?}");
}

/// Collects the files below a directory whose names end in `ending`.
fn collect_files(dir: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.path()) {
        match path.is_dir() {
            true => collect_files(&path, ending, found),
            false if path.to_str().is_some_and(|name| name.ends_with(ending)) => found.push(path),
            false => {}
        }
    }
}

/// A long word in snake case and in backquotes is the name of a test.
#[test]
fn referenced_tests_exist() {
    let mut sources = Vec::new();
    collect_files(&root().join("crates"), ".rs", &mut sources);
    let sources: String =
        sources.iter().map(|path| fs::read_to_string(path).expect("a source file")).collect();
    let (mut named, mut missing) = (0, Vec::new());
    for (path, text) in texts(&["docs"]) {
        let is_test = |word: &&str| {
            word.matches('_').count() > 3
                && !word.starts_with("canopy_") // a metric
                && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        };
        // The page about testing has a made-up name as an example.
        for word in text.split('`').filter(is_test).filter(|_| !path.ends_with("testing.md")) {
            named += 1;
            if !sources.contains(&format!("fn {word}()")) {
                missing.push(format!("{}: {word}", path.strip_prefix(root()).unwrap_or(&path).display()));
            }
        }
    }
    assert!(named > 2 && missing.is_empty(), "{named}, {missing:#?}");
}

/// Returns the anchors of a Markdown document: those that GitHub derives from its headings, and those that it names itself.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let derived = headings.map(|line| {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|&c| c.is_alphanumeric() || c == ' ' || c == '-' || c == '_');
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    });
    let named = text.split("<a id=\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()));
    derived.chain(named).collect()
}

#[test]
fn links_between_documents_lead_to_a_file_and_a_heading() {
    let (mut links, mut broken) = (0, Vec::new());
    for (path, text) in texts(&["docs", "benches"]) {
        for (at, _) in text.match_indices("](") {
            let Some((target, _)) = text[at + 2..].split_once(')') else { continue };
            if target.contains("://") {
                continue;
            }
            links += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file =
                if file.is_empty() { path.clone() } else { path.parent().expect("a directory").join(file) };
            let heading_exists =
                || fs::read_to_string(&file).is_ok_and(|text| anchors(&text).contains(anchor));
            if !file.exists() || !(anchor.is_empty() || heading_exists()) {
                broken.push(format!("{}: {target}", path.strip_prefix(root()).unwrap_or(&path).display()));
            }
        }
    }
    assert!(links > 50 && broken.is_empty(), "{links}, {broken:#?}");
}

/// Each decision has its number as an anchor, which code and documents cite, stands in the list with its title, and has all
/// parts that the list promises.
#[test]
fn every_decision_is_listed_and_complete() {
    let dir = root().join("docs/decisions");
    let list = fs::read_to_string(dir.join("README.md")).expect("the list of decisions");
    let listed: BTreeSet<&str> = list.lines().filter(|line| line.starts_with("- [")).collect();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(&dir).expect("decisions").flatten() {
        let page = entry.file_name().into_string().expect("a name");
        let text = fs::read_to_string(entry.path()).expect("a page of decisions");
        for decision in text.split("\n## ").skip(1).filter(|_| page != "README.md") {
            let heading = decision.lines().next().unwrap_or_default();
            let anchor = heading.strip_prefix("<a id=\"").and_then(|rest| rest.split_once("\"></a>"));
            let (number, rest) = anchor.unwrap_or_else(|| panic!("{page}: {heading} has no anchor"));
            let title = rest.strip_prefix(number).and_then(|rest| rest.strip_prefix(". "));
            let title = title.unwrap_or_else(|| panic!("{page}: {heading} does not begin with its number"));
            let parts = ["Status", "Context", "Decision", "Cost", "Rejected"];
            // Of what is superseded nothing is left but the reason.
            let expected = if decision.contains("**Status:** superseded by ") { 1 } else { parts.len() };
            for part in &parts[..expected] {
                assert!(decision.contains(&format!("\n- **{part}:** ")), "{page}: {number} has no {part}");
            }
            assert!(
                found.insert(format!("- [{number}]({page}#{number}) {title}")),
                "{number} is there twice"
            );
        }
    }
    assert!(found.len() > 100, "{}", found.len());
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    let differ: Vec<&&str> = listed.symmetric_difference(&found).collect();
    assert!(differ.is_empty(), "only in the list, or only on the pages: {differ:#?}");
}

/// Comments cite a decision by its page and number.
#[test]
fn decisions_that_the_code_cites_exist() {
    let mut sources = Vec::new();
    collect_files(&root().join("crates"), ".rs", &mut sources);
    let mut cited = 0;
    for path in sources {
        let text = fs::read_to_string(&path).expect("a source file");
        for (at, _) in text.match_indices("docs/decisions/") {
            let Some((page, rest)) = text[at..].split_once('#') else { continue };
            let Some(number) = rest.get(..3).filter(|_| page.ends_with(".md") && page.len() < 40) else {
                continue;
            };
            let page = fs::read_to_string(root().join(page)).unwrap_or_default();
            assert!(anchors(&page).contains(number), "{}: {number}", path.display());
            cited += 1;
        }
    }
    assert!(cited > 0);
}

/// What the tree answers by its names is not asked on the page about the architecture.
#[test]
fn the_architecture_answers_few_questions() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).expect("docs/architecture.md");
    let (_, table) = page.split_once("\n| question | place |\n").expect("the questions");
    let questions = table.lines().take_while(|line| line.starts_with('|')).count() - 1;
    assert!((10..=25).contains(&questions), "{questions}");
    assert!(!table.contains("| question |"), "a second table");
}

/// `docs/locking.md` lists the ranks of all locks, in order.
#[test]
fn locks_are_documented_in_order() {
    let list = |file: &str| fs::read_to_string(root().join(file)).expect("the ranks");
    // The server's locks are outside of the pool's.
    let ranks = [list("crates/server/src/lock_rank.rs"), list("crates/base/src/lock/rank.rs")].concat();
    let ranks = ranks.lines().filter_map(|line| line.trim().strip_suffix(';')?.split_once(" = "));
    let ranks: Vec<String> = ranks.map(|(name, rank)| format!("| {rank} | `{name}` |")).collect();
    let page = fs::read_to_string(root().join("docs/locking.md")).expect("docs/locking.md");
    let is_rank = |line: &&str| line.split(' ').nth(1).is_some_and(|word| word.parse::<u16>().is_ok());
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).filter(is_rank).collect();
    assert!(ranks.len() > 15);
    assert_eq!(rows.len(), ranks.len(), "docs/locking.md and the lists of ranks differ");
    for (row, rank) in rows.iter().zip(&ranks) {
        assert!(row.starts_with(rank.as_str()), "docs/locking.md has {row:?} where {rank:?} is expected");
    }
}

/// Returns the names of the threads that a source file starts, and of its lines of calls.
fn threads_of(text: &str) -> Vec<String> {
    let text = text.split("\nmod tests {").next().unwrap_or_default();
    let quoted = |after: &str| after.split('"').next().map(str::to_owned);
    let line = |(at, begin): (usize, &str)| quoted(&text[at + begin.len()..]);
    let lines: Vec<_> =
        if text.contains("tend::") { text.match_indices("c\"").collect() } else { Vec::new() };
    let is_literal = |at: usize| !text[..at].ends_with(|before: char| before.is_alphanumeric());
    let lines = lines.into_iter().filter(|(at, _)| is_literal(*at)).filter_map(line);
    let named = text.match_indices(".name(").filter_map(|(at, begin)| {
        let name = text[at + begin.len()..].trim_start_matches("format!(");
        match name.strip_prefix('"') {
            Some(name) => quoted(name),
            None => {
                let (constant, _) = name.split_once(".into()")?;
                let (_, value) = text.split_once(&format!("const {constant}: &str = \""))?;
                quoted(value)
            }
        }
    });
    let stem = |name: String| name.split("-{").next().map(str::to_owned);
    named.chain(lines).filter_map(stem).filter(|name| name.starts_with(char::is_alphabetic)).collect()
}

/// `docs/threads.md` has a row for each thread of the process that serves, and for each line of calls that may wait.
#[test]
fn threads_are_documented() {
    let page = fs::read_to_string(root().join("docs/threads.md")).expect("docs/threads.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented =
        rows.map(|name| name.trim_end_matches("-N").to_owned()).filter(|name| name != "canopy-fuse");
    let documented: BTreeSet<String> = documented.collect();
    let mut sources = Vec::new();
    for room in ["branch", "config", "fuse", "pool", "server", "sys", "canopy/src/daemon"] {
        collect_files(&root().join("crates").join(room), ".rs", &mut sources);
    }
    let texts = sources.iter().filter_map(|path| fs::read_to_string(path).ok());
    let started: BTreeSet<String> = texts.flat_map(|text| threads_of(&text)).collect();
    assert!(started.len() > 20, "{started:?}");
    assert_eq!(started, documented);
}

/// The table of contents of the manual has each page once, and leads to no other file.
#[test]
fn every_page_is_in_the_manual() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).expect("the table of contents");
    let listed =
        summary.lines().filter_map(|line| Some(line.split_once("](")?.1.split_once(')')?.0.to_owned()));
    let listed: Vec<String> = listed.collect();
    let mut pages = Vec::new();
    collect_files(&docs, ".md", &mut pages);
    let pages = pages.iter().map(|page| page.strip_prefix(&docs).expect("a page").to_str().expect("a name"));
    let pages: BTreeSet<&str> = pages.filter(|page| *page != "SUMMARY.md").collect();
    assert!(pages.len() > 15);
    assert_eq!(listed.iter().map(String::as_str).collect::<BTreeSet<_>>(), pages);
    assert_eq!(listed.len(), pages.len(), "a page is listed twice");
}

/// Files in the manual have the syntax that they say, and no container gets a single disk of a pool.
#[test]
fn files_in_the_manual_parse() {
    let check = r#"
import sys, tomllib, yaml
kind, where, text = sys.argv[1:]
read = (tomllib.loads if kind == "toml" else yaml.safe_load)(text)
for name, service in (read.get("services", {}).items() if isinstance(read, dict) else ()):
    disks = [volume for volume in service.get("volumes", []) if str(volume).startswith("/mnt/disk")]
    assert not disks, f"{where}: {name} has {disks}"
"#;
    let (mut parsed, mut faults) = (0, Vec::new());
    for (path, text) in texts(&["docs", "dist"]) {
        let name = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
        let whole = |ending: &str| path.extension().is_some_and(|found| found == ending);
        let blocks: Vec<(&str, &str)> = match &name {
            _ if whole("md") => text
                .split("\n```")
                .filter_map(|block| block.split_once('\n'))
                .filter(|(kind, _)| ["toml", "yaml"].contains(kind))
                .collect(),
            _ if whole("toml") => vec![("toml", text.as_str())],
            _ if whole("yaml") || whole("yml") => vec![("yaml", text.as_str())],
            _ => Vec::new(),
        };
        for (kind, block) in blocks {
            let mut python = Command::new("python3");
            python.args(["-c", check, kind, &name, block]);
            let done = run_within(&mut python, PATIENCE);
            parsed += 1;
            if !done.success() {
                faults.push(format!("{name}: {}\n{block}", done.describe()));
            }
        }
    }
    assert!(parsed > 20 && faults.is_empty(), "{parsed}, {}", faults.join("\n"));
}

/// A page can be read in one sitting. Those that are longer are reference, or wait for being split.
#[test]
fn pages_are_short() {
    let long = ["architecture", "glossary", "json", "locking", "options", "survival", "testing"];
    let mut pages = Vec::new();
    collect_files(&root().join("docs"), ".md", &mut pages);
    pages.retain(|page| !page.starts_with(root().join("docs/decisions")));
    for page in pages {
        let name = page.file_stem().expect("a name").to_string_lossy().into_owned();
        let words = fs::read_to_string(&page).expect("a page").split_whitespace().count();
        assert!(words <= 1200 || long.contains(&name.as_str()), "{name} has {words} words");
    }
}
