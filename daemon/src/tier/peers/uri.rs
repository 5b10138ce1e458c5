//! Where the directory is, as it is written in a setting.

use std::fmt;
use std::str::FromStr;

use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

/// A store of the Redis protocol. Its password is never shown.
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct DirectoryUri {
    pub(crate) kind: DirectoryKind,
    pub(crate) tls: bool,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// Servers; for a cluster or sentinels those to begin with.
    pub(crate) hosts: Vec<(String, u16)>,
    /// Number of the database.
    pub(crate) database: i64,
}

/// How its servers hang together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DirectoryKind {
    Single,
    /// The sentinels' name for the primary.
    Sentinel(String),
    Cluster,
}

/// Why a URI cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadUri(&'static str);

const FORMS: &str = "write redis://HOST:PORT, rediss://HOST:PORT (TLS), redis+sentinel://HOST:PORT,HOST:PORT/SERVICE \
                     or redis+cluster://HOST:PORT,HOST:PORT; [USER:PASSWORD@] may stand in front of the hosts";

impl TryFrom<String> for DirectoryUri {
    type Error = BadUri;

    fn try_from(text: String) -> Result<Self, BadUri> {
        text.parse()
    }
}

impl FromStr for DirectoryUri {
    type Err = BadUri;

    fn from_str(text: &str) -> Result<Self, BadUri> {
        let (scheme, rest) = text.split_once("://").ok_or(BadUri(FORMS))?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        if query.is_some() || rest.contains('#') {
            return Err(BadUri("nothing may stand behind the path"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').map_or((None, authority), |(l, h)| (Some(l), h));
        let hosts = hosts.split(',').map(host).collect::<Option<Vec<_>>>().ok_or(BadUri(FORMS))?;
        let (kind, tls, database) = match scheme {
            "redis" | "valkey" => (DirectoryKind::Single, false, path),
            "rediss" | "valkeys" => (DirectoryKind::Single, true, path),
            "redis+cluster" | "rediss+cluster" => {
                (DirectoryKind::Cluster, scheme.starts_with("rediss"), path)
            }
            "redis+sentinel" | "rediss+sentinel" => {
                let (service, database) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(BadUri("name the service that the sentinels watch: .../SERVICE"));
                }
                (DirectoryKind::Sentinel(service.to_owned()), scheme.starts_with("rediss"), database)
            }
            _ => return Err(BadUri(FORMS)),
        };
        if kind == DirectoryKind::Single && hosts.len() != 1 {
            return Err(BadUri("name one host, or say redis+sentinel:// or redis+cluster://"));
        }
        if kind == DirectoryKind::Cluster && !database.is_empty() {
            return Err(BadUri("a cluster has no numbered databases"));
        }
        let database = match database {
            "" => 0,
            number => number.parse().ok().filter(|n| *n >= 0).ok_or(BadUri("a database is a number"))?,
        };
        let (username, password) = match login {
            None => (None, None),
            Some(login) => {
                let (user, password) =
                    login.split_once(':').ok_or(BadUri("write USER:PASSWORD@ or :PASSWORD@"))?;
                (Some(unescape(user)?).filter(|user| !user.is_empty()), Some(unescape(password)?))
            }
        };
        Ok(Self { kind, tls, username, password, hosts, database })
    }
}

impl DirectoryUri {
    /// How to begin a conversation with a server of it.
    pub(crate) fn login(&self) -> RedisConnectionInfo {
        let mut info = RedisConnectionInfo::default().set_db(self.database);
        if let Some(username) = &self.username {
            info = info.set_username(username);
        }
        if let Some(password) = &self.password {
            info = info.set_password(password);
        }
        info
    }
    /// The servers' addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = ConnectionAddr> {
        self.hosts.iter().map(|(host, port)| match self.tls {
            true => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
            false => ConnectionAddr::Tcp(host.clone(), *port),
        })
    }
    /// The same with what is said first. Sentinels have no databases.
    pub(crate) fn servers(&self) -> redis::RedisResult<Vec<redis::ConnectionInfo>> {
        self.addresses()
            .map(|address| Ok(address.into_connection_info()?.set_redis_settings(self.login().set_db(0))))
            .collect()
    }
}

/// Default port 6379.
fn host(text: &str) -> Option<(String, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        // The last colon of an IPv6 address without brackets begins no port.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port.parse().ok()?),
        _ => (text, 6379),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!bare.is_empty() && !bare.contains([' ', '/', '[', ']'])).then(|| (bare.to_owned(), port))
}

/// %40 for @ and the like.
fn unescape(text: &str) -> Result<String, BadUri> {
    let bad = BadUri("a % must be followed by two hexadecimal digits");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = tail;
            continue;
        }
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()).ok_or(bad.clone())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad.clone())?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| bad)
}

impl fmt::Display for DirectoryUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secure = if self.tls { "s" } else { "" };
        let kind = match self.kind {
            DirectoryKind::Single => "",
            DirectoryKind::Sentinel(_) => "+sentinel",
            DirectoryKind::Cluster => "+cluster",
        };
        write!(f, "redis{secure}{kind}://")?;
        if self.password.is_some() {
            write!(f, "{}:***@", self.username.as_deref().unwrap_or_default())?;
        }
        for (i, (host, port)) in self.hosts.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match host.contains(':') {
                true => write!(f, "{comma}[{host}]:{port}")?,
                false => write!(f, "{comma}{host}:{port}")?,
            }
        }
        if let DirectoryKind::Sentinel(service) = &self.kind {
            write!(f, "/{service}")?;
        }
        if self.database != 0 { write!(f, "/{}", self.database) } else { Ok(()) }
    }
}

impl fmt::Debug for DirectoryUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectoryUri({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_shown_without_its_password() {
        for (text, shown) in [
            ("redis://localhost", "redis://localhost:6379"),
            ("redis://10.0.0.1:7000/3", "redis://10.0.0.1:7000/3"),
            ("rediss://u:s%40crt@cache.example:6380", "rediss://u:***@cache.example:6380"),
            ("redis://:only@[::1]:7", "redis://:***@[::1]:7"),
            ("redis+sentinel://a:1,b:2/mymaster", "redis+sentinel://a:1,b:2/mymaster"),
            ("rediss+sentinel://u:p@a:1/mymaster/2", "rediss+sentinel://u:***@a:1/mymaster/2"),
            ("redis+cluster://a:1,b,c:3", "redis+cluster://a:1,b:6379,c:3"),
        ] {
            let uri: DirectoryUri = text.parse().unwrap();
            assert_eq!(uri.to_string(), shown);
            assert!(!format!("{uri:?}").contains("crt"));
        }
        let uri: DirectoryUri = "rediss://u:s%40crt@cache.example".parse().unwrap();
        assert_eq!((uri.username.as_deref(), uri.password.as_deref()), (Some("u"), Some("s@crt")));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in [
            "",
            "localhost:6379",
            "http://a",
            "redis://",
            "redis://a,b",
            "redis://a:99999",
            "redis://a/x",
            "redis://a/-1",
            "redis://user@a",
            "redis://u:%4@a",
            "redis+sentinel://a:1",
            "redis+cluster://a/1",
            "redis://a?db=1",
        ] {
            assert!(text.parse::<DirectoryUri>().is_err(), "{text}");
        }
    }
}
