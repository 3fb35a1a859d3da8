//! What a user may do: the part of Redis' rule language that an id server needs.
//!
//! Rules are read from left to right and the last one that speaks of a command decides, as in Redis. Two differences,
//! both on purpose: what every client sends while it connects stays allowed unless it is taken away by its own name
//! (`-@all +idget` still gives a usable user), and nothing here sets passwords, which belong to `token_sha256`.

use std::fmt;

use crate::glob::{MAX_PATTERN_LEN, glob};

/// What clients send while they connect. Only `-NAME` takes one of these away.
pub const HANDSHAKE: [&str; 19] = [
    "ping",
    "echo",
    "hello",
    "auth",
    "quit",
    "reset",
    "select",
    "info",
    "command",
    "cluster",
    "readonly",
    "client|setinfo",
    "client|setname",
    "client|getname",
    "client|id",
    "client|tracking",
    "client|caching",
    "client|capa",
    "client|maint_notifications",
];

/// The rules of one user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    text: String,
    off: bool,
    commands: Vec<Command>,
    tags: Vec<String>,
    all_tags: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Command {
    allow: bool,
    scope: Scope,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Category(String),
    /// A command, or with a bar a subcommand, in lower case.
    Name(String),
}

/// A rule that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule '{rule}': {problem}")]
pub struct RuleError {
    /// The rule as it was written.
    pub rule: String,
    /// What is wrong with it and what to write instead.
    pub problem: &'static str,
}

impl Rules {
    /// Everything is allowed.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            text: "~* &* +@all".into(),
            off: false,
            commands: vec![Command { allow: true, scope: Scope::All }],
            tags: Vec::new(),
            all_tags: true,
        }
    }

    /// Reads rules separated by blanks.
    ///
    /// # Errors
    /// The first rule that means nothing here.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let mut rules = Self { text: text.split_whitespace().collect::<Vec<_>>().join(" "), ..Self::default() };
        for rule in text.split_whitespace() {
            rules.add(rule).map_err(|problem| RuleError { rule: rule.into(), problem })?;
        }
        Ok(rules)
    }

    fn add(&mut self, rule: &str) -> Result<(), &'static str> {
        match rule.to_ascii_lowercase().as_str() {
            "on" => self.off = false,
            "off" => self.off = true,
            "allkeys" | "~*" => self.all_tags = true,
            "resetkeys" => {
                self.all_tags = false;
                self.tags.clear();
            }
            "allcommands" => self.command(true, &Scope::All),
            "nocommands" => self.command(false, &Scope::All),
            // Nothing is ever published here, so a rule over channels has nothing to forbid.
            "allchannels" | "resetchannels" | "sanitize-payload" | "skip-sanitize-payload" => {}
            _ => return self.add_pattern(rule),
        }
        Ok(())
    }

    fn add_pattern(&mut self, rule: &str) -> Result<(), &'static str> {
        match (rule.as_bytes().first(), rule.get(1..).unwrap_or_default()) {
            (Some(b'~'), pattern) if pattern.is_empty() || pattern.len() > MAX_PATTERN_LEN => {
                return Err("a pattern of tags has 1 to 128 bytes");
            }
            (Some(b'~'), pattern) => self.tags.push(pattern.into()),
            (Some(b'&'), _) => {}
            (Some(sign @ (b'+' | b'-')), name) => {
                let name = name.to_ascii_lowercase();
                let scope = match name.strip_prefix('@') {
                    Some("all") => Scope::All,
                    Some("") => return Err("the category is missing"),
                    Some(category) => Scope::Category(category.into()),
                    None if name.is_empty() => return Err("the command is missing"),
                    None => Scope::Name(name),
                };
                self.command(*sign == b'+', &scope);
            }
            (Some(b'>' | b'<' | b'#' | b'!'), _) => return Err("tokens are given in token_sha256"),
            (Some(b'%'), _) => return Err("reading and writing a tag are not told apart: use ~pattern"),
            (Some(b'('), _) => return Err("selectors are not known: use a second user"),
            _ if matches!(rule, "nopass" | "resetpass") => return Err("every user has a token: use token_sha256"),
            _ => return Err("not a rule: use on, off, ~pattern, allkeys, +command, -command, +@category, -@category"),
        }
        Ok(())
    }

    fn command(&mut self, allow: bool, scope: &Scope) {
        if *scope == Scope::All {
            // Everything said so far about commands is overruled, except a handshake command taken away by name.
            self.commands.retain(|command| !command.allow && matches!(command.scope, Scope::Name(_)) && !allow);
        }
        self.commands.push(Command { allow, scope: scope.clone() });
    }

    /// The rules as they were written, with single blanks between them.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the user is switched off by its rules.
    #[must_use]
    pub const fn off(&self) -> bool {
        self.off
    }

    /// Whether `command` (in lower case, `container|subcommand` where it is one) with `categories` (without `@`) may be
    /// used at all.
    #[must_use]
    pub fn allow(&self, command: &str, categories: &[&str]) -> bool {
        let container = command.split('|').next().unwrap_or(command);
        let handshake = HANDSHAKE.contains(&command) || HANDSHAKE.contains(&container);
        let mut allowed = handshake;
        for rule in &self.commands {
            let named = match &rule.scope {
                Scope::Name(name) => name == command || name == container,
                Scope::All => !handshake,
                Scope::Category(category) => !handshake && categories.contains(&category.as_str()),
            };
            if named {
                allowed = rule.allow;
            }
        }
        allowed
    }

    /// Whether `tag` may be used.
    #[must_use]
    pub fn allow_tag(&self, tag: &[u8]) -> bool {
        self.all_tags || self.tags.iter().any(|pattern| glob(pattern.as_bytes(), tag))
    }

    /// The patterns of tags as Redis shows them, such as `~order.* ~bill`.
    #[must_use]
    pub fn tags_text(&self) -> String {
        let mut shown: Vec<String> = self.tags.iter().map(|pattern| format!("~{pattern}")).collect();
        if self.all_tags {
            shown.insert(0, "~*".into());
        }
        shown.join(" ")
    }

    /// The rules over commands as Redis shows them, such as `-@all +idget`.
    #[must_use]
    pub fn commands_text(&self) -> String {
        let mut shown: Vec<String> = self.commands.iter().map(ToString::to_string).collect();
        if self.commands.first().is_none_or(|first| first.scope != Scope::All) {
            shown.insert(0, "-@all".into());
        }
        shown.join(" ")
    }

    /// The commands and the categories (with `@`) that the rules name: to be compared with those that exist.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.commands.iter().filter_map(|command| match &command.scope {
            Scope::All => None,
            Scope::Category(name) => Some(format!("@{name}")),
            Scope::Name(name) => Some(name.clone()),
        })
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.allow { "+" } else { "-" })?;
        match &self.scope {
            Scope::All => f.write_str("@all"),
            Scope::Category(name) => write!(f, "@{name}"),
            Scope::Name(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::parse(text).expect("valid rules")
    }

    #[test]
    fn the_last_rule_that_speaks_of_a_command_decides() {
        let write = ["write", "fast", "idgen"];
        assert!(rules("+@write").allow("idget", &write));
        assert!(!rules("+@write -idget").allow("idget", &write));
        assert!(rules("+@write -idget +@fast").allow("idget", &write));
        assert!(!rules("+@all -@write").allow("idget", &write));
        assert!(!rules("+@all nocommands").allow("idget", &write));
        assert!(rules("allcommands").allow("idget", &write));
        assert!(!rules("").allow("idget", &write));
    }

    #[test]
    fn a_container_stands_for_its_subcommands() {
        assert!(rules("+config").allow("config|get", &["admin"]));
        assert!(rules("+config|get").allow("config|get", &["admin"]));
        assert!(!rules("+config|get").allow("config|set", &["admin"]));
        assert!(!rules("+config -config|set").allow("config|set", &["admin"]));
    }

    #[test]
    fn what_clients_send_while_connecting_is_only_taken_away_by_name() {
        for command in HANDSHAKE {
            assert!(rules("-@all +idget").allow(command, &["connection"]), "{command}");
        }
        assert!(!rules("-info").allow("info", &["slow"]));
        assert!(!rules("-info -@all").allow("info", &["slow"]));
        assert!(!rules("-client").allow("client|setname", &["slow"]));
        assert!(!rules("-@all").allow("client|kill", &["admin"]));
        assert!(rules("-@all").allow("cluster|info", &["slow"]));
    }

    #[test]
    fn tags_need_a_pattern() {
        assert!(!rules("+idget").allow_tag(b"order"));
        assert!(rules("~order.*").allow_tag(b"order.eu"));
        assert!(!rules("~order.*").allow_tag(b"bill"));
        assert!(rules("~order.* ~bill").allow_tag(b"bill"));
        assert!(rules("allkeys").allow_tag(b"bill"));
        assert!(!rules("allkeys resetkeys").allow_tag(b"bill"));
    }

    #[test]
    fn rules_that_mean_nothing_are_refused_with_what_to_write_instead() {
        for bad in [">secret", "#abc", "nopass", "%R~x", "(+get)", "+", "+@", "~", "get", "reset"] {
            let error = Rules::parse(bad).expect_err(bad);
            assert_eq!(error.rule, bad);
        }
        let error = Rules::parse(&format!("~{}", "x".repeat(129))).expect_err("too long");
        assert_eq!(error.problem, "a pattern of tags has 1 to 128 bytes");
    }

    #[test]
    fn rules_are_shown_as_redis_shows_them() {
        let shown = rules("on ~a* +idget -@admin");
        assert_eq!((shown.tags_text().as_str(), shown.commands_text().as_str()), ("~a*", "-@all +idget -@admin"));
        assert_eq!(Rules::everything().commands_text(), "+@all");
    }
}
