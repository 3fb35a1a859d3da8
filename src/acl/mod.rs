//! Who may do what: users, their tokens and their rules. Pure: bytes in, yes or no out.
//!
//! Tokens are long random strings, kept as SHA-256 digests. A login compares the digest of what was sent with every digest
//! of every user, in constant time and also when the user does not exist, so that time tells nothing. Without configured
//! users there is one user `default`, without a token and with all rights; whether a listener may be opened then is for
//! the configuration to decide.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::clock::Boot;
use crate::limit::{self, Limit, Rate};

mod rules;

pub use rules::{HANDSHAKE, RuleError, Rules};

/// The name of the user that a login with a token alone means.
pub const DEFAULT_USER: &str = "default";

/// The longest name of a user, in bytes.
pub const MAX_NAME_LEN: usize = 64;

/// Section `auth` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Who may log in. Empty (the default): everybody is the user `default` and may do everything.
    pub users: Vec<UserConfig>,
}

/// One user of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserConfig {
    /// The name, 1 to 64 bytes of printable ASCII without blanks. `default` is who a login with a token alone means.
    pub name: String,
    /// The SHA-256 digests of the user's tokens, 64 hexadecimal digits each (`printf %s TOKEN | sha256sum`). Tokens are
    /// random and have at least 128 bits: a digest of a guessable password can be turned back. No default.
    pub token_sha256: Vec<String>,
    /// What the user may do, in Redis' rule language, such as `~orders.* +@read +idget`. Default: nothing but connecting.
    pub acl: String,
    /// How many ids per second the user may draw on this node, over all tags and connections. Default 0: no limit.
    pub qps: u64,
    /// How many ids at once after a pause. Default 0: as many as one second's.
    pub burst: u64,
    /// Whether the user may log in. Default: true.
    pub enabled: bool,
}

impl Default for UserConfig {
    fn default() -> Self {
        Self { name: String::new(), token_sha256: Vec::new(), acl: String::new(), qps: 0, burst: 0, enabled: true }
    }
}

/// Why users of the configuration can't be used. The text names the user and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The name breaks its rule.
    #[error("auth.users: the name '{0}' is not 1 to {MAX_NAME_LEN} bytes of printable ASCII without blanks")]
    Name(String),
    /// Two users have one name.
    #[error("auth.users: '{0}' stands there twice: give each user once, with all its digests in token_sha256")]
    Twice(String),
    /// There is no digest.
    #[error("auth.users '{0}': token_sha256 is empty: add the output of `printf %s TOKEN | sha256sum`")]
    NoToken(String),
    /// A digest is none.
    #[error("auth.users '{0}': token_sha256 holds something that is not 64 hexadecimal digits")]
    Token(String),
    /// The rules can't be used.
    #[error("auth.users '{0}': acl: {1}")]
    Rule(String, RuleError),
    /// The rate can't be used.
    #[error("auth.users '{0}': {1}")]
    Rate(String, String),
}

/// Somebody who may log in.
#[derive(Debug)]
pub struct User {
    name: String,
    digests: Vec<[u8; 32]>,
    rules: Rules,
    limit: Limit,
    enabled: bool,
}

impl User {
    fn new(config: &UserConfig) -> Result<Self, Error> {
        let name = config.name.clone();
        if name.is_empty() || name.len() > MAX_NAME_LEN || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::Name(name.escape_default().take(2 * MAX_NAME_LEN).collect()));
        }
        if config.token_sha256.is_empty() {
            return Err(Error::NoToken(name));
        }
        let digests: Option<Vec<_>> = config.token_sha256.iter().map(|text| digest(text)).collect();
        let digests = digests.ok_or_else(|| Error::Token(name.clone()))?;
        let rules = Rules::parse(&config.acl).map_err(|error| Error::Rule(name.clone(), error))?;
        limit::check(config.qps, config.burst, ["qps", "burst"]).map_err(|text| Error::Rate(name.clone(), text))?;
        let limit = Limit::new(Rate::new(config.qps, config.burst), Boot::default());
        let enabled = config.enabled && !rules.off();
        Ok(Self { name, digests, rules, limit, enabled })
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the user may do.
    #[must_use]
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// How many ids the user may draw on this node.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether the user may log in.
    #[must_use]
    pub const fn enabled(&self) -> bool {
        self.enabled
    }

    /// The digests of the user's tokens, as hexadecimal text. Empty for the user that needs no token.
    pub fn digests(&self) -> impl Iterator<Item = String> {
        self.digests.iter().map(|digest| hex(digest))
    }
}

/// Everybody who may log in.
#[derive(Debug)]
pub struct Users {
    users: Vec<Arc<User>>,
    open: bool,
}

impl Users {
    /// The users of the configuration.
    ///
    /// # Errors
    /// The first thing in it that can't be used.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let mut users: Vec<Arc<User>> = Vec::with_capacity(config.users.len());
        for one in &config.users {
            let user = User::new(one)?;
            if users.iter().any(|other| other.name == user.name) {
                return Err(Error::Twice(user.name));
            }
            users.push(Arc::new(user));
        }
        let open = users.is_empty();
        if open {
            users.push(Arc::new(User {
                name: DEFAULT_USER.into(),
                digests: Vec::new(),
                rules: Rules::everything(),
                limit: Limit::new(Rate::default(), Boot::default()),
                enabled: true,
            }));
        }
        Ok(Self { users, open })
    }

    /// Who a new connection is before any login; `None` when it has to log in.
    #[must_use]
    pub fn initial(&self) -> Option<Arc<User>> {
        self.users.first().filter(|_| self.open).map(Arc::clone)
    }

    /// The enabled user `name` whose token is `token`. Where no users are configured, `default` with any token.
    #[must_use]
    pub fn log_in(&self, name: &[u8], token: &[u8]) -> Option<Arc<User>> {
        let sent: [u8; 32] = Sha256::digest(token).into();
        let mut found = None;
        for user in &self.users {
            let mut matches = Choice::from(u8::from(self.open));
            for digest in &user.digests {
                matches |= digest.ct_eq(&sent);
            }
            if bool::from(matches) & user.enabled & (user.name.as_bytes() == name) {
                found = Some(Arc::clone(user));
            }
        }
        found
    }

    /// The user `name`.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.users.iter().find(|user| user.name.as_bytes() == name)
    }

    /// All users, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<User>> {
        self.users.iter()
    }
}

/// Bytes as hexadecimal text in lower case.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn digest(text: &str) -> Option<[u8; 32]> {
    let text = text.trim();
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    // `from_str_radix` takes a sign.
    text.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    // sha256 of "secret"
    const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    fn user(name: &str, acl: &str) -> UserConfig {
        UserConfig { name: name.into(), token_sha256: vec![SECRET.into()], acl: acl.into(), ..UserConfig::default() }
    }

    fn users(users: Vec<UserConfig>) -> Result<Users, Error> {
        Users::new(&Config { users })
    }

    #[test]
    fn without_users_everybody_is_default_and_may_do_everything() {
        let users = users(Vec::new()).expect("no users");
        let initial = users.initial().expect("nobody has to log in");
        assert_eq!(initial.name(), "default");
        assert!(initial.rules().allow("config|get", &["admin"]) && initial.rules().allow_tag(b"order"));
        assert!(users.log_in(b"default", b"anything").is_some());
        assert!(users.log_in(b"bob", b"anything").is_none());
    }

    #[test]
    fn only_the_right_token_of_an_enabled_user_logs_in() {
        let mut off = user("off", "+@all");
        off.enabled = false;
        let users = users(vec![user("bob", "+@all"), off, user("ruled-out", "off +@all")]).expect("valid");
        assert!(users.initial().is_none());
        assert_eq!(users.log_in(b"bob", b"secret").expect("right").name(), "bob");
        for (name, token) in
            [("bob", "wrong"), ("bob", ""), ("off", "secret"), ("ruled-out", "secret"), ("eve", "secret")]
        {
            assert!(users.log_in(name.as_bytes(), token.as_bytes()).is_none(), "{name} {token}");
        }
    }

    #[test]
    fn a_user_may_have_several_tokens() {
        let mut bob = user("bob", "");
        bob.token_sha256.push(format!("{:064x}", 7));
        let users = users(vec![bob]).expect("valid");
        assert!(users.log_in(b"bob", b"secret").is_some());
        assert_eq!(
            users.find(b"bob").expect("bob").digests().collect::<Vec<_>>(),
            [SECRET.to_string(), format!("{:064x}", 7)]
        );
    }

    #[test]
    fn users_that_cannot_be_used_are_named() {
        let mut none = user("bob", "");
        none.token_sha256.clear();
        assert_eq!(users(vec![none]).expect_err("no digest"), Error::NoToken("bob".into()));
        for bad in ["abc", &"g".repeat(64), &format!("+{}", "1".repeat(63))] {
            let mut bob = user("bob", "");
            bob.token_sha256 = vec![bad.into()];
            assert_eq!(users(vec![bob]).expect_err(bad), Error::Token("bob".into()));
        }
        for bad in ["", "a b", "é", &"x".repeat(65)] {
            assert!(matches!(users(vec![user(bad, "")]), Err(Error::Name(_))), "{bad}");
        }
        assert_eq!(users(vec![user("a", ""), user("a", "")]).expect_err("twice"), Error::Twice("a".into()));
        let limited = UserConfig { burst: 5, ..user("a", "") };
        let error = users(vec![limited]).expect_err("no rate").to_string();
        assert_eq!(error, "auth.users 'a': burst is 5 without qps, so it limits nothing: set both or none");
        let error = users(vec![user("a", "get")]).expect_err("no rule").to_string();
        assert!(error.starts_with("auth.users 'a': acl: rule 'get': not a rule"), "{error}");
    }
}
