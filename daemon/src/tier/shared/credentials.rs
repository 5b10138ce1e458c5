//! Secrets of the store: from a file, or from where the store's own tools look. They are never shown.

use std::fmt;
use std::path::Path;

use serde::Deserialize;

use super::OpenError;

/// Where redis-cli takes its password from.
const REDIS_PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";

/// What was found; nothing, where the store's library looks for itself (`AWS_ACCESS_KEY_ID` and the like).
#[derive(Default)]
pub(super) struct Credentials {
    pub(super) access_key: Option<(String, String)>,
    pub(super) session_token: Option<String>,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    access_key_id: Option<String>,
    secret_access_key: Option<String>,
    session_token: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl Credentials {
    /// From the file, or else from the environment.
    pub(super) fn load(file: Option<&Path>) -> Result<Self, OpenError> {
        let Some(path) = file else {
            return Ok(Self { password: std::env::var(REDIS_PASSWORD_VARIABLE).ok(), ..Self::default() });
        };
        let refused = |why: String| OpenError::Credentials { path: path.to_owned(), why };
        let text =
            std::fs::read_to_string(path).map_err(|error| refused(format!("cannot be read: {error}")))?;
        Self::parse(&text).map_err(refused)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let written: Written = toml::from_str(text).map_err(|error| {
            // Its text repeats the line, secrets included.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            format!(
                "has something on line {line} that does not belong there: write access_key_id and secret_access_key \
                 (and session_token), or username and password, each as NAME = \"VALUE\""
            )
        })?;
        let access_key = match (written.access_key_id, written.secret_access_key) {
            (Some(id), Some(secret)) => Some((id, secret)),
            (None, None) => None,
            _ => return Err("has one of access_key_id and secret_access_key, but not both".into()),
        };
        Ok(Self {
            access_key,
            session_token: written.session_token,
            username: written.username,
            password: written.password,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_file_is_refused_with_its_line_and_without_its_secrets() {
        let cases = [
            ("access_key_id = \"a\"\nsecret_key = \"hunter2\"\n", "line 2"),
            ("password = hunter2\n", "line 1"),
            ("secret_access_key = \"hunter2\"\n", "not both"),
        ];
        for (text, part) in cases {
            let error = Credentials::parse(text).unwrap_err();
            assert!(error.contains(part) && !error.contains("hunter2"), "{error}");
        }
        let good = Credentials::parse("access_key_id = \"a\"\nsecret_access_key = \"hunter2\"\n").unwrap();
        assert!(good.access_key.is_some() && !format!("{good:?}").contains("hunter2"));
        let missing = Credentials::load(Some(Path::new("/nonexistent/secrets"))).unwrap_err().to_string();
        assert!(missing.contains("/nonexistent/secrets"), "{missing}");
    }
}
