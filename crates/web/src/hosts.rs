//! The names under which this program may be asked.

/// Names and addresses, without a port.
#[derive(Clone, Debug)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// `more` are those that the user has named.
    pub fn new(more: impl IntoIterator<Item = String>) -> Hosts {
        let own = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        Hosts(own.into_iter().chain(more).map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Returns whether a Host header names one of them, with any port: a tunnel may begin at another.
    pub fn accepts(&self, host: &str) -> bool {
        let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let name = match host.rsplit_once(':') {
            Some((name, port)) if is_port(port) && (!name.contains(':') || name.ends_with(']')) => name,
            _ => host,
        };
        self.0.iter().any(|own| name.eq_ignore_ascii_case(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_names_are_accepted() {
        let hosts = Hosts::new(["NAS.home".to_owned()]);
        for host in
            ["localhost", "LOCALHOST:80", "127.0.0.1:7373", "[::1]:7373", "[::1]", "nas.home", "nas.home:443"]
        {
            assert!(hosts.accepts(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1:",
            "127.0.0.2",
            "localhost:x",
            "::1",
            "x@localhost",
        ] {
            assert!(!hosts.accepts(host), "{host}");
        }
    }
}
