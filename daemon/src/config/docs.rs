//! docs/configuration.md, made from the flags, their defaults and keys.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use clap::{Arg, CommandFactory, FromArgMatches};

use super::keys::{KEYS, Key, Use};
use super::{Flags, defaults, file};
use crate::pages;

const INTRODUCTION: &str = "\
# Configuration

Every setting has a flag, an environment variable, and a key in the TOML file that `--config FILE` (or `TENDERD_CONFIG`)
names. A flag wins over a variable, and a variable over the file. An unknown key, a value that cannot be read, and values
that do not fit together end the start with exit status 64 and a sentence that names the place and what would work.
`deploy/examples` has files to begin with.

Values: SIZE is bytes with a unit (`512MiB`, `64GiB`; a number alone is bytes), TIME has its unit too (`500ms`, `30s`,
`2m`), N is a whole number, SHARE one from 0 to 1, MODE is octal. In the file, text stands in quotes, also sizes and times.

## Changes while the daemon runs

On SIGHUP the file is read again, with the flags and variables of the start over it. It must be right as a whole, as at a
start; if it is not, nothing of it is used, the log says why, and `tender_reloads_total{what=\"configuration\",outcome=\"refused\"}`
counts it. Keys with *reload* below are then in force at once, for new calls; the log names each with its old and new value.
Changes of other keys are refused by name: they wait for a restart, and the log says so each time. A limit that was
lowered ends nothing that stands: it holds for what comes. SIGHUP also reads certificates and the policy again, as
docs/security.md says.

This page is made from the code by `TENDER_WRITE_DOCS=1 cargo test -p tender-daemon --lib docs`.
";

fn page() -> String {
    let command = Flags::command();
    let mut page = INTRODUCTION.to_owned();
    let mut table = None;
    for Key { id, name, takes } in KEYS {
        let arg = command.get_arguments().find(|arg| arg.get_id() == id).unwrap();
        let (this, key) = name.split_once('.').unwrap_or(("", name));
        if table != Some(this) {
            table = Some(this);
            let title = if this.is_empty() { "Outside all tables".to_owned() } else { format!("`[{this}]`") };
            _ = write!(page, "\n## {title}\n");
            if let Some(heading) = arg.get_help_heading() {
                _ = write!(page, "\n{heading}.\n");
            }
        }
        let change = if *takes == Use::Reload { "reload" } else { "restart" };
        let (flag, variable) = (arg.get_long().unwrap(), arg.get_env().unwrap().to_string_lossy());
        let default = defaults::text(id).unwrap();
        _ = write!(page, "\n### `{key}`\n\n{}\n\n", help(arg));
        _ = writeln!(page, "`--{flag} {}`, `{variable}`. Default: {default}. Changes: {change}.", value(arg));
    }
    page
}

fn help(arg: &Arg) -> String {
    arg.get_long_help().or_else(|| arg.get_help()).unwrap().to_string()
}

fn value(arg: &Arg) -> String {
    arg.get_value_names().unwrap()[0].to_string()
}

#[test]
fn the_docs_of_the_configuration_are_those_of_the_code() {
    pages::check("configuration.md", &page());
}

/// Some value of each kind, as it is typed.
fn sample(arg: &Arg) -> &'static str {
    match (arg.get_id().as_str(), value(arg).as_str()) {
        ("tls-client-auth", _) => "optional",
        ("log-format", _) => "json",
        ("eviction", _) => "lru",
        ("directory-uri", _) => "redis://localhost:1",
        (_, "ADDRESS") => "tcp://127.0.0.1:7",
        (_, "HOST:PORT") => "127.0.0.1:7",
        (_, "SIZE") => "3MiB",
        (_, "TIME") => "7s",
        (_, "MODE") => "0640",
        (_, "true|false") => "true",
        (_, "N") => "5",
        (_, "SHARE") => "0.25",
        (_, "URL") => "http://localhost:4317",
        (_, "FILE" | "DIR" | "NAME" | "LEVEL" | "URI") => "words",
        other => panic!("a kind of value that the docs do not explain: {other:?}"),
    }
}

#[test]
fn every_flag_has_a_key_that_means_the_same_in_the_file() {
    let command = Flags::command();
    let ids: BTreeSet<_> = command.get_arguments().map(|arg| arg.get_id().as_str()).collect();
    let own: BTreeSet<_> = KEYS.iter().map(|key| key.id).chain(["config", "help", "version"]).collect();
    assert_eq!(ids.difference(&own).collect::<Vec<_>>(), Vec::<&&str>::new(), "flags without a key");
    assert_eq!(KEYS.len(), KEYS.iter().map(|key| key.name).collect::<BTreeSet<_>>().len());
    for Key { id, name, .. } in KEYS {
        let arg = command.get_arguments().find(|arg| arg.get_id() == id).unwrap_or_else(|| panic!("{id}"));
        let typed = sample(arg);
        let flag = format!("--{}={typed}", arg.get_long().unwrap());
        let matches = Flags::command().try_get_matches_from(["tenderd", &flag]).unwrap();
        let by_flag = Flags::from_arg_matches(&matches).unwrap().settings;
        let written = match value(arg).as_str() {
            "N" | "SHARE" | "true|false" => typed.to_owned(),
            _ if *id == "listen" => format!("[\"{typed}\"]"),
            _ => format!("\"{typed}\""),
        };
        let text = match name.split_once('.') {
            Some((table, key)) => format!("[{table}]\n{key} = {written}\n"),
            None => format!("{name} = {written}\n"),
        };
        let by_file = file::parse("t.toml".as_ref(), &text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(by_flag, by_file, "{name}");
        let (mut none, mut changes) = (super::Settings::default(), Vec::new());
        none.adopt(&by_file, "", &|_| true, &mut changes);
        let names: Vec<_> = changes.iter().map(|change| change.key.as_str()).collect();
        assert_eq!((names, none), (vec![*name], by_flag));
    }
}
