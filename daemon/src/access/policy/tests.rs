//! What a policy may say, and that everything else names its line.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<PolicyFile, PolicyError> {
    PolicyFile::parse(Path::new("/etc/tender/policy.toml"), text)
}

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn a_policy_says_who_may_do_what_where_and_how_much() {
    let text = format!(
        "[[tenant]]\nname = \"search\"\nidentities = [\"uid:1000\", \"dns:Search.example\", \
         \"spiffe://prod/search\", \"token-blake3:{HEX}\"]\nallow = [\"read\"]\n\
         namespaces = [{{ model = \"llama-*\", allow = [\"write\"] }}]\n\
         quota = {{ bytes = \"1GiB\", chunks = 10, watchers = 2, store_bytes_per_second = \"5MiB\" }}\n\
         [[tenant]]\nname = \"ads\"\nshare = \"pool\"\nidentities = [\"uid:*\"]\nallow = [\"admin\", \"peer\"]\n"
    );
    let policy = parse(&text).unwrap();
    let [search, ads] = &policy.tenants[..] else { panic!("two tenants: {policy:?}") };
    assert_eq!((&*search.domain, &*ads.domain), ("search", "pool"));
    assert_eq!(search.identities[1], Identity::One(Caller::Dns("search.example".into())));
    assert_eq!(
        search.quota,
        DomainQuota { bytes: 1 << 30, chunks: 10, watchers: 2, ..DomainQuota::default() }
    );
    assert_eq!((search.store_rate_bytes, search.read_rate_bytes), (5 << 20, 0));
    assert_eq!(search.everywhere, Rights { read: true, ..Rights::NONE });
    let digest = NamespaceDigest::parse(&[0xab; 32]).unwrap();
    let on = |model| search.namespaces[0].rights_on(model, digest);
    assert!(on("llama-3").write && !on("llama-3").read && !on("mistral").write);
    assert_eq!(ads.everywhere, Rights { admin: true, peer: true, ..Rights::NONE });
    assert!(!search.shared_memory);
}

#[test]
fn whatever_is_wrong_is_told_with_its_line() {
    let cases = [
        ("[[tenant]]\nname = \"a\"\nidentities = [\"uid:x\"]\n", 3, "uid:NUMBER"),
        ("[[tenant]]\nname = \"a\"\n\nidentities = [\"spiffe:prod\"]\n", 4, "spiffe://"),
        ("[[tenant]]\nname = \"a\"\nidentities = [\"token-blake3:12\"]\n", 3, "token-blake3"),
        ("[[tenant]]\nname = \"a b\"\nidentities = [\"uid:1\"]\n", 2, "letters"),
        ("[[tenant]]\nname = \"a\"\nidentities = [\"uid:1\"]\nallow = [\"fly\"]\n", 4, "fly"),
        ("[[tenant]]\nname = \"a\"\nidentities = [\"uid:1\"]\nquota.bytes = \"lots\"\n", 4, "bytes"),
        ("[[tenant]]\nname = \"a\"\nidentities = [\"uid:1\"]\nquota.byte = \"1GiB\"\n", 4, "byte"),
        ("[[tenant]]\nname = \"a\"\nidentities = [\"uid:1\"]\nquota.chunks = 0\n", 4, "more than 0"),
        ("[[tenant]]\nname = \"a\"\nidentities = []\n", 2, "no identities"),
        (
            "[[tenant]]\nname = \"a\"\nidentities = [\"uid:1\"]\n[[tenant]]\nname = \"a\"\nidentities = [\"uid:2\"]\n",
            5,
            "two tenants",
        ),
        (
            "[[tenant]]\nname = \"a\"\nidentities = [\"uid:1\"]\n[[tenant]]\nname = \"b\"\nidentities = [\"uid:1\"]\n",
            6,
            "one tenant",
        ),
        (
            "[[tenant]]\nname = \"a\"\nshare = \"s\"\nidentities = [\"uid:1\"]\nquota.chunks = 1\n[[tenant]]\nname = \"b\"\nshare = \"s\"\nidentities = [\"uid:2\"]\n",
            7,
            "same numbers",
        ),
        (
            "[[tenant]]\nname = \"a\"\nshare = \"b\"\nidentities = [\"uid:1\"]\n[[tenant]]\nname = \"b\"\nidentities = [\"uid:2\"]\n",
            6,
            "others share",
        ),
        (
            "[[tenant]]\nname = \"a\"\nidentities = [\"uid:1\"]\nnamespaces = [{ digest = \"XY\", allow = [\"read\"] }]\n",
            4,
            "hexadecimal",
        ),
        (
            "[[tenant]]\nname = \"a\"\nidentities = [\"uid:1\"]\nnamespaces = [{ model = \"m\", allow = [\"admin\"] }]\n",
            4,
            "admin",
        ),
        ("[[tenants]]\n", 1, "tenants"),
        ("[[tenant\n", 1, "tenant"),
    ];
    for (text, line, words) in cases {
        let error = parse(text).unwrap_err().to_string();
        for part in ["/etc/tender/policy.toml", &format!("line {line}"), words] {
            assert!(error.contains(part), "'{part}' is not in: {error}");
        }
    }
    let missing = PolicyFile::read(Path::new("/nonexistent/policy.toml")).unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/policy.toml"), "{missing}");
}

#[test]
fn a_star_stands_for_any_characters() {
    let cases = [
        ("*", "", true),
        ("*", "any/thing", true),
        ("llama", "llama", true),
        ("llama", "llama-3", false),
        ("llama*", "llama-3", true),
        ("*-3", "llama-3", true),
        ("a*b*c", "a-b-c", true),
        ("a*b*c", "abc", true),
        ("a*b*c", "ac", false),
        ("ab*ba", "aba", false),
        ("a**b", "ab", true),
    ];
    for (pattern, text, matches) in cases {
        assert_eq!(Pattern(pattern.into()).matches(text), matches, "{pattern} on {text}");
    }
}

proptest! {
    #[test]
    fn a_pattern_matches_what_it_was_made_from(pieces in proptest::collection::vec("[a-c]{0,3}", 1..5), fill in "[a-d]{0,4}") {
        let (pattern, text) = (pieces.join("*"), pieces.join(&fill));
        prop_assert!(Pattern(pattern).matches(&text));
    }

    #[test]
    fn whatever_is_written_in_a_policy_never_panics(text in "[a-z_\\[\\]{}=\", 0-9\n.:*/-]{0,200}") {
        let _ = parse(&text);
    }
}

#[test]
fn the_example_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/policies/tenants.toml");
    let policy = PolicyFile::read(&path).unwrap_or_else(|error| panic!("{error}"));
    assert!(policy.tenants.len() > 2);
}
