//! `tender completions`, `tender man`.

use std::path::PathBuf;

use clap::Command;
use clap_complete::Shell;

use crate::error::ClientError;

/// Prints the completion script of a shell.
#[derive(Debug, clap::Args)]
pub(super) struct Completions {
    /// Which.
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self, mut command: Command) -> String {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "tender", &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }
}

/// Prints the manual page.
#[derive(Debug, clap::Args)]
pub(super) struct Man {
    /// Write the pages of all commands into this folder instead: tender.1, tender-ping.1 and so on.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(&self, command: Command) -> Result<String, ClientError> {
        let failed = |source| ClientError::Start { what: "the manual page", source };
        if let Some(dir) = &self.dir {
            clap_mangen::generate_to(command, dir).map_err(failed)?;
            return Ok(String::new());
        }
        // The pages of the commands are files of their own, as a reader of manuals wants them.
        let command = command.after_help("`tender man --dir DIR` writes the pages of all commands.");
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).map_err(failed)?;
        Ok(String::from_utf8_lossy(&page).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_shell_gets_a_script_that_knows_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = Completions { shell }.run(Cli::command());
            assert!(script.contains("explain") && script.contains("doctor"), "{shell}");
        }
    }

    #[test]
    fn the_manual_names_every_command_that_is_shown() {
        let page = Man { dir: None }.run(Cli::command()).unwrap();
        assert!(page.contains("man \\-\\-dir DIR"), "it says where the others are: {page}");
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(page.contains(command.get_name()), "{}", command.get_name());
        }
    }

    #[test]
    fn each_command_can_have_a_page_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        Man { dir: Some(dir.path().to_owned()) }.run(Cli::command()).unwrap();
        assert!(dir.path().join("tender.1").is_file() && dir.path().join("tender-explain.1").is_file());
    }
}
