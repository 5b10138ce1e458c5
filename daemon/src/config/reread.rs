//! A file that changed while the daemon runs.

use std::path::{Path, PathBuf};

use super::flags::Settings;
use super::flags::shown::Change;
use super::{Config, ConfigError, Flags, file, keys};

/// Where a configuration was read: flags and variables, which stay, and the file.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Source {
    file: Option<PathBuf>,
    /// Flags over variables.
    typed: Settings,
    /// Those over the file, as they are in force.
    settings: Settings,
}

// A file's numbers are whole, so equality is one.
impl Eq for Source {}

/// What a changed file means.
#[derive(Debug)]
pub(crate) struct Reread {
    /// The old configuration with what can be used now.
    pub(crate) config: Config,
    /// All that differs, whether it is used or not.
    pub(crate) changes: Vec<Change>,
}

impl Source {
    /// Reads the file that the flags name, if they do.
    pub(super) fn load(flags: Flags) -> Result<Config, ConfigError> {
        let file = flags.config.as_deref().map(file::read).transpose()?.unwrap_or_default();
        let (typed, settings) = (flags.settings.clone(), flags.settings.over(file));
        let config = Config::check(settings.clone())?;
        // Without a file there is nothing to read again.
        let source = match flags.config {
            Some(path) => Self { file: Some(path), typed, settings },
            None => Self::default(),
        };
        Ok(Config { source, ..config })
    }

    /// The file, if there is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the file again. It must be right as a whole, as at a start: else nothing of it is used.
    pub(crate) fn reread(&self) -> Result<Option<Reread>, ConfigError> {
        let Some(path) = &self.file else { return Ok(None) };
        let newer = self.typed.clone().over(file::read(path)?);
        Config::check(newer.clone())?;
        let (mut settings, mut changes) = (self.settings.clone(), Vec::new());
        settings.adopt(&newer, "", &keys::is_reloadable, &mut changes);
        // What is used must fit what is not, too.
        let config = Config::check(settings.clone())?;
        let source = Self { settings, ..self.clone() };
        Ok(Some(Reread { config: Config { source, ..config }, changes }))
    }
}
