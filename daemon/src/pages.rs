//! Pages of docs/ that are made from the code. A test holds each to what the code says now.

use std::path::Path;

/// Set, pages are written instead of compared.
const WRITE: &str = "TENDER_WRITE_DOCS";

/// Compares a page of docs/ with what it should be, or writes it.
pub(crate) fn check(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    if std::env::var_os(WRITE).is_some() {
        return std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/{name} is not what the code says; run {WRITE}=1 cargo test -p tender-daemon --lib docs, and commit it"
    );
}
