//! Settings as they are written in a TOML file.

use std::fs;
use std::path::Path;

use super::ConfigError;
use super::flags::Settings;

/// Reads a file. An unknown key or a value that cannot be read names the file, the line and the key.
pub(super) fn read(path: &Path) -> Result<Settings, ConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    parse(path, &text)
}

pub(super) fn parse(path: &Path, text: &str) -> Result<Settings, ConfigError> {
    toml::from_str(text)
        .map_err(|source| ConfigError::Malformed { path: path.to_owned(), source: Box::new(source) })
}
