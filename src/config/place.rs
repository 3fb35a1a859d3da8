//! Where the program finds itself: its host, its pod, its environment variables.
//!
//! The environment is read here, once; everything else gets what was read. A name or an ordinal is a label and a hint,
//! never an identity.

use std::collections::BTreeMap;

/// The environment variables of the process, as read at the start. Values that are no UTF-8 read as if damaged.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place where the environment is read")]
    pub fn of_process() -> Self {
        let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
        Self(std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect())
    }

    /// The value of `name`; `None` also when it is empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// All variables.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(variables: [(&str, &str); N]) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}

/// The host the program runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The pod's name in Kubernetes, else the host name; empty when the system doesn't say.
    pub name: String,
    /// The number at the end of the pod's name (`idgen-3`), in Kubernetes only.
    pub ordinal: Option<u32>,
}

impl Host {
    /// What `environment` and the system's `hostname` say.
    #[must_use]
    pub fn of(environment: &Environment, hostname: &str) -> Self {
        if environment.get("KUBERNETES_SERVICE_HOST").is_none() {
            return Self { name: hostname.to_owned(), ordinal: None };
        }
        let name = environment.get("POD_NAME").unwrap_or(hostname);
        let ordinal = name.rsplit_once('-').filter(|(set, _)| !set.is_empty());
        Self { name: name.to_owned(), ordinal: ordinal.and_then(|(_, number)| number.parse().ok()) }
    }
}

/// The departure from the right behaviour that a test of the program asks for, which it must then catch
/// (`IDGEN_TEST_BUG`). Builds without debug assertions never ask.
#[must_use]
pub fn seeded_bug() -> Option<String> {
    Environment::of_process().get("IDGEN_TEST_BUG").map(str::to_owned)
}

/// The system's host name; empty when there is none.
#[must_use]
pub fn hostname() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinal_is_known_in_kubernetes_only() {
        let pod = Environment::from([("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("POD_NAME", "idgen-3")]);
        assert_eq!(Host::of(&pod, "other"), Host { name: "idgen-3".into(), ordinal: Some(3) });
        let unnamed = Environment::from([("KUBERNETES_SERVICE_HOST", "10.0.0.1")]);
        assert_eq!(Host::of(&unnamed, "idgen-7f9c-x2b").ordinal, None);
        assert_eq!(Host::of(&unnamed, "idgen-12").ordinal, Some(12));
        assert_eq!(Host::of(&Environment::default(), "web-3"), Host { name: "web-3".into(), ordinal: None });
    }

    #[test]
    fn the_environment_of_the_process_is_read() {
        assert!(Environment::of_process().get("PATH").is_some());
        assert_eq!(Environment::from([("A", "")]).get("A"), None);
    }
}
