//! Which identity a connection and a token make, and what it may do.

use std::path::Path;

use super::peer::Certificate;
use super::*;

fn access(text: &str) -> Access {
    let policy = Policy::of(PolicyFile::parse(Path::new("policy.toml"), text).unwrap(), None);
    Access { path: None, policy: ArcSwap::from_pointee(policy), audit: Audit::default() }
}

fn tls(uris: &[&str], dns: &[&str]) -> Peer {
    let certificate = Certificate {
        uris: uris.iter().map(|&uri| uri.into()).collect(),
        dns: dns.iter().map(|&name| name.into()).collect(),
        digest: blake3::hash(b"certificate"),
    };
    Peer::Tls { address: None, certificate: Some(certificate), unasked: false }
}

fn two_tenants() -> Access {
    let digest = blake3::hash(b"secret").to_hex();
    access(&format!(
        "[[tenant]]\nname = \"a\"\nidentities = [\"spiffe://x/a\", \"token-blake3:{digest}\"]\nallow = [\"read\"]\n\
         [[tenant]]\nname = \"b\"\nidentities = [\"dns:b.example\"]\nnamespaces = [{{ allow = [\"write\"] }}]\n"
    ))
}

fn tenant_of(access: &Access, peer: &Peer, token: Option<&str>) -> Result<String, Reason> {
    let found = access.identify("lookup", Some(peer), token);
    found.map(|identity| identity.tenant.spec.name.to_string()).map_err(|no| no.reason)
}

#[test]
fn a_certificate_belongs_to_the_tenant_that_has_one_of_its_names() {
    let access = two_tenants();
    assert_eq!(tenant_of(&access, &tls(&["spiffe://x/a"], &["other.example"]), None).unwrap(), "a");
    assert_eq!(tenant_of(&access, &tls(&["spiffe://x/zzz"], &["b.example"]), None).unwrap(), "b");
    for strangers in [tls(&["spiffe://x/ab"], &[]), tls(&[], &["a.b.example"]), tls(&[], &[])] {
        assert_eq!(tenant_of(&access, &strangers, None).unwrap_err(), Reason::NotAllowed);
    }
    let both = tls(&["spiffe://x/a"], &["b.example"]);
    assert_eq!(tenant_of(&access, &both, None).unwrap_err(), Reason::NotAllowed, "names of two tenants");
}

#[test]
fn a_token_decides_where_there_is_one_and_never_in_the_clear() {
    let access = two_tenants();
    let local = Peer::Local(None);
    assert_eq!(tenant_of(&access, &local, Some("secret")).unwrap(), "a");
    assert_eq!(tenant_of(&access, &tls(&[], &["b.example"]), Some("secret")).unwrap(), "a");
    assert_eq!(tenant_of(&access, &tls(&[], &["b.example"]), Some("guess")).unwrap_err(), Reason::NotAllowed);
    assert_eq!(tenant_of(&access, &Peer::Plain(None), Some("secret")).unwrap_err(), Reason::NotAllowed);
    assert_eq!(tenant_of(&access, &Peer::Plain(None), None).unwrap_err(), Reason::NotAllowed);
}

#[test]
fn every_refusal_has_the_same_words_and_is_counted() {
    let access = two_tenants();
    let stranger = access.identify("lookup", Some(&tls(&["spiffe://x/c"], &[])), None).unwrap_err();
    let guess = access.identify("lookup", Some(&Peer::Local(None)), Some("guess")).unwrap_err();
    let known = access.identify("lookup", Some(&tls(&["spiffe://x/a"], &[])), None).unwrap();
    let denied = access.deny("reserve", &known, "it may not write there");
    assert!(stranger == guess && guess == denied, "{stranger:?} {guess:?} {denied:?}");
    let counts = access.refusals();
    assert_eq!(counts, [("-".into(), Reason::NotAllowed, 2), ("a".into(), Reason::NotAllowed, 1)]);
}

#[test]
fn rights_on_all_and_on_some_namespaces_add_up() {
    let access = two_tenants();
    let digest = NamespaceDigest::parse(&[1; 32]).unwrap();
    let a = access.identify("lookup", Some(&tls(&["spiffe://x/a"], &[])), None).unwrap();
    let b = access.identify("lookup", Some(&tls(&[], &["b.example"])), None).unwrap();
    assert_eq!(a.rights_on("m", digest), Rights { read: true, ..Rights::NONE });
    assert_eq!(b.rights_on("m", digest), Rights { write: true, ..Rights::NONE });
    assert!(a.is_uniform() && !b.is_uniform() && b.may_anywhere());
    assert_ne!(a.owner(), b.owner());
}

#[test]
fn without_a_policy_admin_calls_are_the_unix_sockets_alone() {
    let access = Access::load(None).unwrap();
    let general =
        |peer: Option<&Peer>| access.identify("stats", peer, None).map(|identity| identity.general());
    assert_eq!(general(None).unwrap(), Rights::ALL);
    assert_eq!(general(Some(&Peer::Local(None))).unwrap(), Rights::ALL);
    assert_eq!(general(Some(&Peer::Plain(None))).unwrap(), Rights::DATA);
    assert_eq!(general(Some(&tls(&[], &["any.example"]))).unwrap(), Rights::DATA);
    let nameless = |unasked| Peer::Tls { address: None, certificate: None, unasked };
    assert_eq!(general(Some(&nameless(true))).unwrap(), Rights::DATA);
    assert_eq!(general(Some(&nameless(false))).unwrap_err().reason, Reason::NotAllowed);
}

#[test]
fn a_reload_keeps_what_was_used_and_a_bad_file_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.toml");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    let one = "[[tenant]]\nname = \"a\"\nidentities = [\"dns:a\"]\nallow = [\"read\"]\n";
    write(one);
    let access = Access::load(Some(path.clone())).unwrap();
    let peer = tls(&[], &["a"]);
    let before = access.identify("lookup", Some(&peer), None).unwrap();
    write("[[tenant]]\nname = \"a\"\nidentities = [\"dns:a\"]\nallow = [\"fly\"]\n");
    assert!(access.reload().unwrap_err().to_string().contains("line 4"));
    assert_eq!(access.identify("lookup", Some(&peer), None).unwrap().general(), before.general());
    write(&one.replace("read", "write"));
    access.reload().unwrap();
    let after = access.identify("lookup", Some(&peer), None).unwrap();
    assert_eq!(after.general(), Rights { write: true, ..Rights::NONE });
    assert!(Arc::ptr_eq(&before.tenant.usage, &after.tenant.usage));
}
