//! Which store, in one line: `fs:///mnt/kv`, `s3://bucket/prefix?region=...`, `redis://host:6379/0`.
//!
//! A URI is shown in logs and errors as it was written, so it may hold no secret: one that does is refused.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use url::Url;

/// How long Redis keeps a chunk if the URI does not say: objects of an ended generation go this way.
const REDIS_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// Folder of everything in a Redis that others use too.
const REDIS_PREFIX: &str = "tender";

/// A store that can be opened, and how it was written.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(try_from = "String")]
pub struct SharedUri {
    text: String,
    pub(super) place: Place,
}

/// Where the objects are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// A folder of a filesystem that several hosts mount.
    Files(PathBuf),
    /// A bucket of an S3 API.
    Bucket {
        bucket: String,
        prefix: String,
        endpoint: Option<String>,
        region: Option<String>,
        virtual_host: bool,
    },
    /// A Redis or Valkey.
    Redis { endpoint: String, username: Option<String>, db: i64, prefix: String, ttl: Duration },
    /// This process.
    Memory,
}

/// What is wrong with a URI, and what would work.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadUri(pub String);

const FORMS: &str =
    "write fs:///FOLDER, s3://BUCKET/PREFIX?endpoint=URL&region=NAME, or redis://HOST:PORT/DB?prefix=NAME";

fn bad<T>(why: impl Into<String>) -> Result<T, BadUri> {
    Err(BadUri(why.into()))
}

impl FromStr for SharedUri {
    type Err = BadUri;

    fn from_str(text: &str) -> Result<Self, BadUri> {
        // The text is not repeated: it may be a secret in the wrong place.
        let plain = text.to_ascii_lowercase().replace("%2e", ".");
        if plain.split(['/', '?']).any(|step| step == ".." || step == ".") {
            return bad("its path has steps like '..'; write it out");
        }
        let Ok(url) = Url::parse(text) else { return bad(format!("it is no URI; {FORMS}")) };
        if url.password().is_some() {
            return bad(
                "a password does not belong into the URI; put it into the file of --shared-credentials",
            );
        }
        if url.fragment().is_some() {
            return bad(format!("it has a part after '#'; {FORMS}"));
        }
        let place = match url.scheme() {
            "fs" => files(&url)?,
            "s3" => bucket(&url)?,
            "redis" | "rediss" => redis(&url)?,
            "memory" => {
                Query::of(&url, &[])?;
                Place::Memory
            }
            other => return bad(format!("nothing is known about '{}:'; {FORMS}", other.escape_debug())),
        };
        Ok(Self { text: text.to_owned(), place })
    }
}

impl TryFrom<String> for SharedUri {
    type Error = BadUri;
    fn try_from(text: String) -> Result<Self, BadUri> {
        text.parse()
    }
}

impl fmt::Display for SharedUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl SharedUri {
    /// The folder, where the store is one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match &self.place {
            Place::Files(folder) => Some(folder),
            Place::Bucket { .. } | Place::Redis { .. } | Place::Memory => None,
        }
    }
}

fn files(url: &Url) -> Result<Place, BadUri> {
    Query::of(url, &[])?;
    if url.host_str().is_some_and(|host| !host.is_empty()) {
        return bad("a folder has no host; write fs:///FOLDER with three slashes");
    }
    match decoded(url.path())? {
        path if path.len() > 1 && path.starts_with('/') => Ok(Place::Files(path.into())),
        _ => bad("it names no folder; write fs:///FOLDER with three slashes"),
    }
}

fn bucket(url: &Url) -> Result<Place, BadUri> {
    let mut query = Query::of(url, &["endpoint", "region", "style"])?;
    let Some(bucket) = url.host_str().filter(|host| !host.is_empty()) else {
        return bad("it names no bucket; write s3://BUCKET/PREFIX");
    };
    if !url.username().is_empty() || url.port().is_some() {
        return bad("a bucket has no user and no port; name the server as ?endpoint=https://HOST:PORT");
    }
    let endpoint = query.take("endpoint");
    if let Some(endpoint) = &endpoint {
        let fits = Url::parse(endpoint).is_ok_and(|url| {
            ["http", "https"].contains(&url.scheme()) && url.password().is_none() && url.username().is_empty()
        });
        if !fits {
            return bad("the endpoint is no address; write endpoint=https://HOST:PORT");
        }
    }
    let virtual_host = match query.take("style").as_deref() {
        None | Some("path") => false,
        Some("virtual") => true,
        Some(_) => return bad("write style=path or style=virtual"),
    };
    Ok(Place::Bucket {
        bucket: bucket.to_owned(),
        prefix: decoded(url.path())?,
        endpoint,
        region: query.take("region"),
        virtual_host,
    })
}

fn redis(url: &Url) -> Result<Place, BadUri> {
    let mut query = Query::of(url, &["prefix", "ttl"])?;
    let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
        return bad("it names no host; write redis://HOST:PORT/DB");
    };
    let db = match url.path().trim_start_matches('/') {
        "" => Ok(0),
        db => db.parse::<u32>().map(i64::from),
    };
    let Ok(db) = db else { return bad("the database is a number; write redis://HOST:PORT/0") };
    let ttl = query.take("ttl").map(|text| humantime::parse_duration(&text));
    let ttl = match ttl {
        None => REDIS_TTL,
        Some(Ok(ttl)) if ttl >= Duration::from_secs(1) => ttl,
        Some(_) => return bad("write ttl as a time of at least a second, for example ttl=7d"),
    };
    let username = decoded(url.username())?;
    Ok(Place::Redis {
        endpoint: format!("{}://{host}:{}", url.scheme(), url.port().unwrap_or(6379)),
        username: (!username.is_empty()).then_some(username),
        db,
        prefix: query.take("prefix").unwrap_or_else(|| REDIS_PREFIX.into()),
        ttl,
    })
}

/// The path without `%20`.
fn decoded(path: &str) -> Result<String, BadUri> {
    let bytes = percent_encoding::percent_decode_str(path);
    let Ok(text) = bytes.decode_utf8() else { return bad("its path is not UTF-8") };
    if text.contains('\0') {
        return bad("its path has a byte 0");
    }
    Ok(text.into_owned())
}

/// What stands after the question mark, each name once and none that is not known.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(url: &Url, known: &[&str]) -> Result<Self, BadUri> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for (name, value) in url.query_pairs() {
            // The value is not repeated: people put keys here.
            if !known.contains(&name.as_ref()) {
                let known = if known.is_empty() { "nothing".into() } else { known.join(", ") };
                let hint = "credentials belong into the environment or the file of --shared-credentials";
                return bad(format!("'{}' is not known here, {known} is; {hint}", name.escape_debug()));
            }
            if value.is_empty() || pairs.iter().any(|(other, _)| *other == name) {
                return bad(format!("'{name}' is empty or named twice"));
            }
            pairs.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(pairs))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        text.parse::<SharedUri>().unwrap().place
    }

    #[test]
    fn each_kind_of_store_is_read_with_its_options() {
        assert_eq!(place("fs:///mnt/kv%20cache"), Place::Files("/mnt/kv cache".into()));
        let Place::Bucket { bucket, prefix, endpoint, region, virtual_host } =
            place("s3://kv/a/b?endpoint=http%3A%2F%2F127.0.0.1%3A9000&region=eu-1&style=virtual")
        else {
            panic!("no bucket")
        };
        assert_eq!((bucket.as_str(), prefix.as_str(), virtual_host), ("kv", "/a/b", true));
        assert_eq!((endpoint.as_deref(), region.as_deref()), (Some("http://127.0.0.1:9000"), Some("eu-1")));
        let Place::Redis { endpoint, username, db, prefix, ttl } =
            place("rediss://reader@cache.local/3?prefix=kv&ttl=1h")
        else {
            panic!("no Redis")
        };
        assert_eq!((endpoint.as_str(), db, prefix.as_str()), ("rediss://cache.local:6379", 3, "kv"));
        assert_eq!((username.as_deref(), ttl), (Some("reader"), Duration::from_secs(3600)));
    }

    #[test]
    fn a_uri_that_cannot_be_used_is_refused_without_repeating_what_may_be_secret() {
        let refused = [
            "",
            "kv",
            "fs:",
            "fs:///",
            "fs://host/path",
            "fs:///a/%2e%2e/b",
            "fs:///kv?mode=1",
            "s3:///prefix",
            "s3://user@bucket/a",
            "s3://bucket?endpoint=nowhere",
            "s3://bucket?style=odd",
            "s3://b?region=",
            "redis:///0",
            "redis://h/zero",
            "redis://h/0?ttl=soon",
            "redis://h/0?ttl=1ms",
            "gs://bucket",
            "redis://user:hunter2@h/0",
            "s3://b?secret_access_key=hunter2",
            "s3://b?endpoint=http://a:hunter2@h",
            "s3://b#hunter2",
            "hunter2",
        ];
        for text in refused {
            let error = text.parse::<SharedUri>().unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
            assert!(error.len() > 10, "{text}: {error}");
        }
    }
}
