//! The house is as `ARCHITECTURE.md` says: imports point only down, pure files stay pure, every file says what it is for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::node::Setup;
use crate::wire::Value;

/// Rooms that stand above all others and may import anything; the block of arrows begins with them.
const ABOVE: &str = "main -> cli -> app -> everything";

/// Files of `src` itself that are no rooms.
const DOORS: [&str; 4] = ["main", "lib", "cli", "app"];

fn project(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// Which rooms each room may import, itself apart: read from the block of arrows in `ARCHITECTURE.md`, of which every word
/// has to be understood. `with_config` are the rooms that have a section of the configuration.
fn arrows(page: &str, with_config: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let (_, rest) = page.split_once("\nArrows point only down").expect("no arrows in ARCHITECTURE.md");
    let block = rest.split("```").nth(1).expect("no block of arrows");
    let mut lines = block.trim().lines();
    assert_eq!(lines.next(), Some(ABOVE), "the first line");
    let mut arrows = BTreeMap::new();
    for line in lines {
        // Several arrows share a line, with at least three spaces between them.
        let mut statements: Vec<String> = Vec::new();
        for part in line.split("   ").map(str::trim).filter(|part| !part.is_empty()) {
            match statements.last_mut() {
                Some(before) if part.starts_with("-> ") => *before = format!("{before} {part}"),
                _ => statements.push(part.to_owned()),
            }
        }
        for statement in statements {
            let (from, to) = statement.split_once(" -> ").unwrap_or_else(|| panic!("no arrow in {statement:?}"));
            let below = targets(from, to, with_config);
            for room in from.split(' ') {
                let name = room.bytes().all(|byte| byte.is_ascii_lowercase());
                assert!(name && !room.is_empty(), "not a room: {room:?} in {statement:?}");
                assert!(arrows.insert(room.to_owned(), below.clone()).is_none(), "{room} stands there twice");
            }
        }
    }
    let unknown: Vec<&String> = arrows.values().flatten().filter(|room| !arrows.contains_key(*room)).collect();
    assert!(unknown.is_empty(), "no line says what {unknown:?} may import");
    arrows
}

/// The right side of an arrow: rooms, some with what of them is meant; `nothing`; or, for `config`, all that have a section.
fn targets(from: &str, to: &str, with_config: &BTreeSet<String>) -> BTreeSet<String> {
    if to == "nothing" {
        return BTreeSet::new();
    }
    let (sections, rooms) = match to.strip_prefix("each room's Config section, ") {
        Some(rest) => {
            assert_eq!(from, "config", "only config reads the others' sections");
            (with_config.clone(), rest)
        }
        None => (BTreeSet::new(), to),
    };
    let room = |word: &str| word.trim_end_matches("(read)").trim_end_matches("(trait)").to_owned();
    sections.into_iter().chain(rooms.split(' ').map(room)).collect()
}

#[test]
fn the_block_of_arrows_is_understood_whole() {
    let block = |lines: &str| format!("\nArrows point only down:\n```\n{ABOVE}\n{lines}\n```\n");
    let with_config = BTreeSet::from(["b".to_owned()]);
    let set = |rooms: &[&str]| rooms.iter().map(|room| (*room).to_owned()).collect::<BTreeSet<String>>();
    let read =
        arrows(&block("a    -> b(trait) c\nconfig -> each room's Config section, c     b c -> nothing"), &with_config);
    assert_eq!((&read["a"], &read["config"], &read["c"]), (&set(&["b", "c"]), &set(&["b", "c"]), &set(&[])));
    for bad in
        ["a b c", "a -> d", "a -> b, c\nb c -> nothing", "a -> nothing\na -> nothing", "a -> b (trait)\nb -> nothing"]
    {
        let text = block(bad);
        assert!(std::panic::catch_unwind(|| arrows(&text, &BTreeSet::new())).is_err(), "{bad:?} was understood");
    }
}

/// Rooms whose doors are their traits: what lies behind is chosen by `app` alone.
const BEHIND_TRAITS: [&str; 2] = ["store", "registry"];

/// Files that know neither time nor waiting.
const PURE: &[&str] = &[
    "resp/",
    "acl/",
    "limit/",
    "glob.rs",
    "engine/snowflake/layout.rs",
    "engine/snowflake/sequencer.rs",
    "engine/snowflake/window.rs",
    "engine/snowflake/exchange.rs",
    "engine/snowflake/timeline.rs",
    "engine/segment/breaker.rs",
    "engine/segment/buffer.rs",
    "engine/segment/buffer/end.rs",
    "engine/segment/gather.rs",
    "engine/segment/mark.rs",
    "engine/segment/outcome.rs",
    "engine/segment/step.rs",
];

/// The most lines of a file, without its tests: about 500.
const MOST_LINES: usize = 510;

struct Source {
    /// Below `src`.
    path: String,
    text: String,
}

impl Source {
    /// The room that the file stands in.
    fn room(&self) -> &str {
        self.path.split_once('/').map_or_else(|| self.path.trim_end_matches(".rs"), |(room, _)| room)
    }

    /// The files of the modules that this one declares for tests only.
    fn test_modules(&self) -> Vec<String> {
        let folder = match self.path.rsplit_once('/') {
            _ if ["main.rs", "lib.rs"].contains(&self.path.as_str()) => String::new(),
            Some((folder, "mod.rs")) => format!("{folder}/"),
            _ => format!("{}/", self.path.trim_end_matches(".rs")),
        };
        let declarations = self.text.split("#[cfg(test)]\n").skip(1).filter_map(|rest| {
            let mut lines = rest.lines();
            let line = lines.next()?;
            let file = match line.strip_prefix("#[path = \"") {
                Some(path) => path.trim_end_matches("\"]").to_owned(),
                None => format!("{}.rs", line.split("mod ").nth(1)?.strip_suffix(';')?),
            };
            Some(format!("{folder}{file}"))
        });
        declarations.collect()
    }

    /// The text without its tests.
    fn shipped(&self) -> &str {
        let tests = self.text.find("#[cfg(test)]\nmod tests {").unwrap_or(self.text.len());
        &self.text[..tests]
    }

    /// The shipped text without comments; strings stay, and none of ours looks like an import.
    fn code(&self) -> String {
        let strip = |line: &str| line.find("//").map_or(line, |comment| &line[..comment]).to_owned();
        self.shipped().lines().map(strip).collect::<Vec<_>>().join("\n")
    }
}

/// All files of `src` but those that exist for tests only.
fn sources() -> Vec<Source> {
    fn walk(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    paths.sort();
    let read = |path: PathBuf| Source {
        path: path.strip_prefix(&root).unwrap().display().to_string(),
        text: fs::read_to_string(&path).unwrap(),
    };
    let mut sources: Vec<Source> = paths.into_iter().map(read).collect();
    let tests: BTreeSet<String> = sources.iter().flat_map(Source::test_modules).collect();
    sources.retain(|source| !tests.contains(&source.path));
    assert!(sources.len() > 20, "only {} files were found", sources.len());
    sources
}

/// Every path that starts with `crate::` in `code`, with groups in braces taken apart: `crate::a::{b, c::d}` is `a::b`
/// and `a::c::d`.
fn crate_paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        expand("", &code[at + "crate::".len()..], &mut paths);
    }
    paths
}

/// Reads one path or group at the start of `rest` and returns how much of it was used.
fn expand(prefix: &str, rest: &str, into: &mut Vec<String>) -> usize {
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(rest.len());
    let head = format!("{prefix}{}", &rest[..end]);
    if !rest[end..].starts_with('{') {
        into.push(head.trim_end_matches("::").to_owned());
        return end;
    }
    let mut at = end + 1;
    loop {
        at += rest[at..].len() - rest[at..].trim_start_matches([' ', '\n', ',']).len();
        if at >= rest.len() || rest[at..].starts_with('}') {
            return at + 1;
        }
        let used = expand(&head, &rest[at..], into);
        // `a as b`, or a character that no path has: go on behind it.
        at += used.max(1);
        at += rest[at..].find([',', '}']).unwrap_or(0);
    }
}

#[test]
fn groups_of_imports_are_taken_apart() {
    let code = "use crate::ids::{IdRange, Tag as T};\nuse crate::{a::{b, c::{d, e}}, f};\nlet x = crate::g::h();";
    let expected = ["ids::IdRange", "ids::Tag", "a::b", "a::c::d", "a::c::e", "f", "g::h"];
    assert_eq!(crate_paths(code), expected);
}

#[test]
fn imports_point_only_down() {
    let sources = sources();
    let sections = sources.iter().filter(|source| source.code().contains("\npub struct Config {"));
    let with_config = sections.map(|source| source.room().to_owned()).filter(|room| room != "config").collect();
    let arrows = arrows(&project("ARCHITECTURE.md"), &with_config);
    let rooms: BTreeSet<&str> = sources.iter().map(Source::room).filter(|room| !DOORS.contains(room)).collect();
    assert_eq!(rooms, arrows.keys().map(String::as_str).collect(), "the rooms of src and of the block of arrows");
    let mut wrong = Vec::new();
    for source in sources.iter().filter(|source| !DOORS.contains(&source.room())) {
        let room = source.room();
        for path in crate_paths(&source.code()) {
            let target = path.split("::").next().unwrap_or_default();
            if target != room && !arrows[room].contains(target) {
                wrong.push(format!("{}: {room} may not import {target} (crate::{path})", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn stores_and_registries_are_known_by_their_traits_only() {
    let sources = sources();
    let mut wrong = Vec::new();
    for door in BEHIND_TRAITS {
        let behind: BTreeSet<&str> = sources
            .iter()
            .filter_map(|source| source.path.strip_prefix(door)?.strip_prefix('/')?.strip_suffix(".rs"))
            .filter(|name| !["mod", "identity"].contains(name) && !name.contains('/'))
            .collect();
        assert!(behind.len() >= 2, "{door} has only {behind:?}");
        for source in sources.iter().filter(|source| ![&DOORS[..], &[door]].concat().contains(&source.room())) {
            for path in crate_paths(&source.code()) {
                let mut parts = path.split("::");
                if parts.next() == Some(door) && parts.next().is_some_and(|name| behind.contains(name)) {
                    wrong.push(format!("{}: crate::{path}", source.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pure_files_know_neither_time_nor_waiting() {
    let sources = sources();
    let mut wrong = Vec::new();
    for pure in PURE {
        let found: Vec<&Source> = sources.iter().filter(|source| source.path.starts_with(pure)).collect();
        assert!(!found.is_empty(), "{pure} is gone: change the list, or bring it back");
        for source in found {
            // The name that governor's trait has for a reading.
            let code = source.code().replace("type Instant =", "");
            for word in ["async ", ".await", "tokio", "SystemTime", "Instant", "dyn Clock", ".boot()", ".wall()"] {
                if code.contains(word) {
                    wrong.push(format!("{}: {word:?}", source.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_opens_with_what_it_is_for() {
    let wrong: Vec<String> =
        sources().into_iter().filter(|source| !source.text.starts_with("//! ")).map(|source| source.path).collect();
    assert!(wrong.is_empty(), "no `//!` line opens {wrong:?}");
}

#[test]
fn no_file_is_too_long_to_read() {
    let long: Vec<String> = sources()
        .iter()
        .filter(|source| source.shipped().lines().count() > MOST_LINES)
        .map(|source| format!("{} has {} lines", source.path, source.shipped().lines().count()))
        .collect();
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn no_room_has_a_name_that_says_nothing() {
    let empty = ["util", "utils", "helper", "helpers", "common", "core", "base", "manager", "service", "misc"];
    for source in sources() {
        let name = Path::new(&source.path).file_stem().unwrap().to_string_lossy().into_owned();
        let folders = source.path.split('/').any(|part| empty.contains(&part));
        assert!(!empty.contains(&name.as_str()) && !folders, "{}", source.path);
    }
}

#[test]
fn every_command_stands_in_the_readme() {
    let readme = project("README.md");
    let node = Setup::new().start();
    let table = node.connect().call(&["COMMAND"]);
    let names: Vec<String> = table.array().iter().map(|row| row.array()[0].text().to_uppercase()).collect();
    assert!(names.contains(&"IDGET".to_owned()) && names.len() > 30, "{names:?}");
    let words: BTreeSet<&str> = readme.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let missing: Vec<&String> = names.iter().filter(|name| !words.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "README.md does not show {missing:?}");
    assert_eq!(node.connect().call(&["COMMAND", "COUNT"]), Value::Int(i64::try_from(names.len()).unwrap()));
}

#[test]
fn every_dialect_has_the_same_migrations() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let is_sql = |file: &str| Path::new(file).extension().is_some_and(|extension| extension == "sql");
    let mut dialects = BTreeMap::new();
    for folder in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        let mut files: Vec<String> = fs::read_dir(&folder).unwrap().map(|entry| name(entry.unwrap().path())).collect();
        files.sort();
        let numbers = (1..=files.len()).map(|number| format!("{number:04}_"));
        let numbered = files.iter().zip(numbers).all(|(file, number)| file.starts_with(&number) && is_sql(file));
        assert!(numbered && !files.is_empty(), "{}: not 0001_, 0002_ and so on: {files:?}", folder.display());
        dialects.insert(name(folder), files);
    }
    let sqlite = dialects.get("sqlite").expect("the embedded database");
    assert!(dialects.values().all(|files| files == sqlite), "they differ: {dialects:?}");
}
