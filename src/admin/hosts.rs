//! Which names a request may use for this server.
//!
//! A browser that is led here by a DNS name of a stranger (DNS rebinding) sends that name as `Host`. So a name is taken
//! only where no stranger can own it: an address, this machine's name, a name without a dot, or one under a domain that
//! is never delegated. The names inside a cluster or a private network are such, so that nothing needs to be configured.

use std::net::IpAddr;

/// Domains under which nobody can register a name: by RFC 6761, 6762 and 8375, ICANN's `.internal`, and Kubernetes'.
const PRIVATE: [&str; 8] =
    [".localhost", ".local", ".internal", ".home.arpa", ".test", ".svc", ".cluster.local", ".lan"];

/// The names of this machine that are taken beside those that are always safe.
#[derive(Debug)]
pub struct Allowed(Vec<String>);

impl Allowed {
    /// Takes `names` as this machine's own.
    pub fn new<const N: usize>(names: [&str; N]) -> Self {
        Self(names.iter().filter(|name| !name.is_empty()).map(|name| name.to_lowercase()).collect())
    }

    /// Whether a request may carry the header `Host: host`.
    pub fn allows(&self, host: &str) -> bool {
        let Some(name) = name(host) else { return false };
        let name = name.trim_end_matches('.').to_lowercase();
        !name.is_empty()
            && (name.parse::<IpAddr>().is_ok()
                || !name.contains('.')
                || self.0.contains(&name)
                || PRIVATE.iter().any(|domain| name.ends_with(domain)))
    }
}

/// The name in `name`, `name:port`, `[address]` or `[address]:port`; `None` for anything else.
fn name(host: &str) -> Option<&str> {
    if let Some(rest) = host.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        return (port.is_empty() || is_port(port.strip_prefix(':')?)).then_some(address);
    }
    match host.split_once(':') {
        Some((name, port)) => is_port(port).then_some(name),
        None => Some(host),
    }
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.len() <= 5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_stranger_can_own_are_refused() {
        let allowed = Allowed::new(["127.0.0.1", "node1.example.com"]);
        for good in [
            "localhost:9390",
            "127.0.0.1",
            "10.1.2.3:9390",
            "[::1]:9390",
            "[fe80::1]",
            "idgen",
            "idgen-0.idgen.prod.svc.cluster.local:9390",
            "NODE1.example.com.:9390",
        ] {
            assert!(allowed.allows(good), "{good}");
        }
        for bad in
            ["evil.example", "node1.example.com.evil.example", "127.0.0.1.evil.example", "", ":9390", "a:b", "[::1"]
        {
            assert!(!allowed.allows(bad), "{bad}");
        }
    }
}
