//! The status page: one document with its style and script in it, which asks for `/status.json` and for nothing else.

use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Response, StatusCode};

use super::reply;

const PAGE: &str = include_str!("page.html");
/// Stands in the page where the nonce belongs.
const NONCE: &str = "{{nonce}}";

/// The page. Nothing in it runs or is loaded but what it came with: a name that somebody made up as a script stays a name.
pub(super) fn page() -> Response<Full<Bytes>> {
    let nonce = format!("{:032x}", rand::random::<u128>());
    let mut response = reply(StatusCode::OK, "text/html; charset=utf-8", PAGE.replace(NONCE, &nonce));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_nobody_but_its_daemon() {
        // The name space of SVG is a name, not an address.
        let page = PAGE.replace("http://www.w3.org/2000/svg", "");
        for elsewhere in
            ["http:", "https:", "//cdn", "@import", "innerHTML", "insertAdjacentHTML", "document.write"]
        {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
        assert_eq!(page.matches(NONCE).count(), 2, "one style and one script");
        assert_eq!(page.matches("<script").count() + page.matches("<style").count(), 2);
    }

    #[test]
    fn each_answer_has_a_nonce_of_its_own_and_a_policy_that_names_it() {
        let (one, two) = (page(), page());
        let policy = |response: &Response<Full<Bytes>>| {
            response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned()
        };
        assert_ne!(policy(&one), policy(&two));
        assert!(policy(&one).starts_with("default-src 'none'; script-src 'nonce-"), "{}", policy(&one));
    }
}
