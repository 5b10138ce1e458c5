//! The status page in a real browser: it loads, shows what the daemon says elsewhere, and says so when nobody answers.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::io::{Read, Write};
use std::net::TcpListener;

use tender_client::{Address, Credentials, admin};
use tender_tests::daemon::{Daemon, SLOT_BLOCK_BYTES, Setup, http_get};
use tender_tests::raw::Ask;
use tender_tests::{chromium, fixture};

/// A name that a browser would take for a program if it were put in as markup.
const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\"><script>alert(1)</script>";

async fn in_browser(url: String) -> chromium::Loaded {
    tokio::task::spawn_blocking(move || chromium::load(&url)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_what_stat_says_and_takes_no_name_for_markup() {
    let daemon = Daemon::start(Setup::slots(8)).await;
    let descriptor = fixture::small(HOSTILE, SLOT_BLOCK_BYTES);
    let full = fixture::full(&descriptor);
    let client = daemon.client().await;
    let session = client.open_registered(&descriptor).await;
    for n in 0..12 {
        session.must_store(&descriptor, fixture::chunk(n), fixture::PART, full).await;
    }
    let all: Vec<_> = (0..16).map(fixture::chunk).collect();
    let leased = session.lookup(descriptor.digest(), &all, Ask::LEASE).await.unwrap();
    assert!(leased.lease.is_some());
    let loaded = in_browser(format!("http://{}/", daemon.admin())).await;
    assert_eq!(loaded.console, Vec::<String>::new());
    assert!(loaded.dom.contains("data-loaded=\"true\""), "{}", loaded.dom);
    let stats = {
        let address = Address::Unix(daemon.socket().to_owned());
        let ask = move || admin::stats(&address, &Credentials::default(), std::time::Duration::from_secs(20));
        tokio::task::spawn_blocking(ask).await.unwrap().unwrap()
    };
    let namespace = &stats.namespaces[0];
    for (id, value) in [
        ("arena-used", stats.arena_used_bytes),
        ("sessions", stats.sessions),
        ("ready", namespace.ready_chunks),
        ("hits", namespace.hits),
        ("quarantined", 0),
        ("received", namespace.stored_bytes),
    ] {
        assert_eq!(loaded.value(id), Some(value), "{id}\n{}", loaded.dom);
    }
    assert!(namespace.hits > 0 && namespace.evicted_chunks > 0, "{namespace:?}");
    // Shown as a name: its brackets are text.
    assert!(loaded.dom.contains("&lt;img src=x onerror="), "{}", loaded.dom);
    assert!(!loaded.dom.contains("<img"), "{}", loaded.dom);
    assert!(loaded.dom.contains("<title>tenderd</title>"), "{}", loaded.dom);
    assert_eq!(loaded.dom.matches("<svg").count(), 3, "three plots");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_whose_daemon_does_not_answer_says_so() {
    let daemon = Daemon::start(Setup::slots(8)).await;
    let (_, page) = http_get(daemon.admin(), "/").await.unwrap();
    daemon.stop().await;
    // What is left of the daemon: its page, and no answer to what the page asks.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 2048];
            let read = stream.read(&mut head).unwrap_or(0);
            if head[..read].starts_with(b"GET / ") {
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n",
                    page.len()
                );
                drop(stream.write_all(head.as_bytes()));
                drop(stream.write_all(page.as_bytes()));
            }
        }
    });
    let loaded = in_browser(url).await;
    assert!(loaded.dom.contains("data-loaded=\"lost\""), "{}", loaded.dom);
    assert!(loaded.dom.contains("Daemon not reachable"), "{}", loaded.dom);
}
