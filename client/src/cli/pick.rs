//! Which namespace an operator means.

use tender_proto::{Reason, Refusal};

use super::Target;
use crate::admin::{self, NamespaceInfo};
use crate::error::ClientError;

/// All namespaces of the daemon.
pub(super) fn all(target: &Target) -> Result<Vec<NamespaceInfo>, ClientError> {
    admin::namespaces(&target.address, &target.credentials()?, target.timeout)
}

/// The one of this name: an operator's name for it, or the first digits of its digest.
pub(super) fn one<'a>(all: &'a [NamespaceInfo], name: &str) -> Result<&'a NamespaceInfo, Refusal> {
    if let Some(pinned) = all.iter().find(|ns| ns.pinned_name == name) {
        return Ok(pinned);
    }
    let digits = name.to_ascii_lowercase();
    let mut found = all.iter().filter(|ns| ns.digest.to_hex().starts_with(&digits));
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(unclear(name, "several begin so: give more digits")),
        (None, _) => Err(unclear(name, "there is none: `tender ls` shows those that are there")),
    }
}

/// The one of this name, or the only one there is.
pub(super) fn one_or_only<'a>(
    all: &'a [NamespaceInfo],
    name: Option<&str>,
) -> Result<&'a NamespaceInfo, Refusal> {
    match (name, all) {
        (Some(name), _) => one(all, name),
        (None, [only]) => Ok(only),
        (None, []) => Err(unclear("", "there is none: no engine has registered yet")),
        (None, _) => Err(unclear("", "there are several: name one of `tender ls` with --namespace")),
    }
}

fn unclear(name: &str, advice: &str) -> Refusal {
    let subject = if name.is_empty() {
        "a namespace without a name".to_owned()
    } else {
        format!("the namespace '{}'", name.escape_debug())
    };
    Refusal::new(Reason::UnknownNamespace, subject, advice)
}

/// For a person: its name if it has one, else the digits that tell it from others.
pub(super) fn label(ns: &NamespaceInfo) -> String {
    if ns.pinned_name.is_empty() { super::stat::short(&ns.digest.to_hex()) } else { ns.pinned_name.clone() }
}

#[cfg(test)]
pub(super) mod tests {
    use tender_proto::NamespaceDigest;

    use super::*;
    use crate::cli::differ::tests::descriptor;

    pub(in crate::cli) fn info(digest: &str, name: &str) -> NamespaceInfo {
        NamespaceInfo {
            digest: NamespaceDigest::parse_hex(&format!("{digest:0<64}")).unwrap(),
            pinned_name: name.into(),
            descriptor: descriptor(),
            ready_chunks: 3,
            ready_bytes: 3 << 20,
        }
    }

    #[test]
    fn a_namespace_is_meant_by_its_name_or_its_first_digits() {
        let all = [info("abc1", ""), info("abc2", "prod")];
        assert_eq!(one(&all, "ABC1").unwrap().digest, all[0].digest);
        assert_eq!(one(&all, "prod").unwrap().digest, all[1].digest);
        assert!(one(&all, "abc").unwrap_err().to_string().contains("more digits"));
        assert!(one(&all, "f").unwrap_err().to_string().contains("tender ls"));
    }

    #[test]
    fn the_only_one_needs_no_name() {
        let all = [info("abc1", ""), info("abc2", "prod")];
        assert_eq!(one_or_only(&all[..1], None).unwrap().digest, all[0].digest);
        assert!(one_or_only(&all, None).is_err() && one_or_only(&[], None).is_err());
        assert_eq!((label(&all[0]).as_str(), label(&all[1]).as_str()), ("abc100000000", "prod"));
    }
}
