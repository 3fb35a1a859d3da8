//! Which rows of the table a user may use: worked out once a login, looked up once a request.

use super::spec::{NO_AUTH, find, rows};
use super::table::refusal;
use super::{Spec, introspect};
use crate::acl::{User, Users};

/// Words of 64 rows each; a test holds that the table fits.
const WORDS: usize = 4;

/// The rows a user may use, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rights {
    words: [u64; WORDS],
}

impl Rights {
    pub(super) fn of(user: &User) -> Self {
        let mut rights = Self::default();
        for row in rows() {
            // As in Redis, what is allowed before a login can't be forbidden after it.
            let categories: Vec<&str> = row.categories().collect();
            let allowed = row.has(NO_AUTH) || user.rules().allow(row.name, &categories);
            if let Some(word) = rights.words.get_mut(row.index() / 64).filter(|_| allowed) {
                *word |= 1 << (row.index() % 64);
            }
        }
        rights
    }

    pub(super) fn allow(&self, spec: &Spec) -> bool {
        self.words.get(spec.index() / 64).is_some_and(|word| word >> (spec.index() % 64) & 1 == 1)
    }
}

/// Checks that the rules of all users name commands and categories that exist: a rule with a typing error would silently
/// allow or forbid nothing.
///
/// # Errors
/// The first name that does not exist, with its user.
pub fn check_users(users: &Users) -> Result<(), String> {
    for user in users.iter() {
        for name in user.rules().names() {
            let exists = match name.strip_prefix('@') {
                Some(category) => introspect::categories().contains(&category),
                None => find(name.as_bytes()).is_some() || refusal(name.as_bytes()).is_some(),
            };
            if !exists {
                let problem = "is no command or category here: COMMAND LIST and ACL CAT list them";
                return Err(format!("auth.users '{}': acl: '{name}' {problem}", user.name()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{Config, UserConfig};

    fn users(acl: &str) -> Users {
        let digest = "0".repeat(64);
        let user =
            UserConfig { name: "bob".into(), token_sha256: vec![digest], acl: acl.into(), ..UserConfig::default() };
        Users::new(&Config { users: vec![user] }).expect("valid")
    }

    fn rights(acl: &str) -> Rights {
        Rights::of(users(acl).find(b"bob").expect("bob"))
    }

    fn row(name: &str) -> &'static Spec {
        find(name.as_bytes()).expect(name)
    }

    #[test]
    fn the_table_fits_into_the_bits() {
        assert!(rows().len() <= WORDS * 64, "{} rows", rows().len());
    }

    #[test]
    fn rights_are_those_of_the_rules() {
        let rights = rights("~orders.* +@read +idget");
        let may = ["idget", "get", "idinfo", "auth", "quit", "client|setinfo", "info", "command", "command|docs"];
        let may_not = ["idmget", "incr", "idtag|create", "client|kill", "config|get"];
        assert!(may.iter().all(|name| rights.allow(row(name))));
        assert!(!may_not.iter().any(|name| rights.allow(row(name))));
    }

    #[test]
    fn a_user_of_one_command_still_may_connect() {
        let rights = rights("-@all +idget -auth");
        assert!(["auth", "hello", "quit", "reset", "ping", "select"].iter().all(|name| rights.allow(row(name))));
    }

    #[test]
    fn rules_over_what_does_not_exist_are_found() {
        assert_eq!(check_users(&users("+idget -@dangerous +client|id -flushall")), Ok(()));
        for bad in ["+idgte", "-@wirte", "+client|nope"] {
            let error = check_users(&users(bad)).expect_err(bad);
            assert!(error.starts_with("auth.users 'bob': acl: '"), "{error}");
        }
    }
}
