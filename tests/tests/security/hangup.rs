//! `tenderd` as a process of its own: certificates and policy are swapped, and SIGHUP makes it read them.

use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tender_proto::Reason;
use tender_tests::daemon::{ChildDaemon, Setup, http_get};
use tender_tests::fixture::{self, PART};
use tender_tests::raw::{RawClient, Target};

use crate::certs::Authority;
use crate::{NAME, connect, eventually, reason, write};

/// Ended with the test.
struct Running(Child);

impl Running {
    fn hang_up(&self) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).unwrap()), Signal::SIGHUP).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn policy(name: &str) -> String {
    format!("[[tenant]]\nname = \"t\"\nidentities = [\"dns:{name}\"]\nallow = [\"read\", \"write\"]\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_swaps_certificates_and_policy_under_connections_that_live_on() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = |name: &str| dir.path().join(name);
    let (clients, before, after) = (Authority::new(), Authority::new(), Authority::new());
    let shown = |by: &Authority| {
        let issued = by.issue(&[NAME]);
        write(&path("cert.pem"), &issued.cert);
        write(&path("key.pem"), &issued.key);
    };
    shown(&before);
    write(&path("ca.pem"), &clients.pem());
    write(&path("policy.toml"), &policy("a.test"));
    let (port, admin) = (free_port(), free_port());
    let place = format!("127.0.0.1:{port}");
    let mut command = ChildDaemon::with_setup(&Setup::default(), dir.path());
    command.arg("--listen").arg(format!("tls://{place}")).arg("--admin").arg(format!("127.0.0.1:{admin}"));
    command.arg("--tls-cert").arg(path("cert.pem")).arg("--tls-key").arg(path("key.pem"));
    command.arg("--tls-client-ca").arg(path("ca.pem")).arg("--policy").arg(path("policy.toml"));
    let daemon = Running(command.args(["--log-level", "warn"]).stderr(Stdio::inherit()).spawn().unwrap());
    eventually("a daemon that is ready", async || {
        match RawClient::connect(&Target::Unix(path("tenderd.sock"))).await {
            Ok(client) => client.ping().await.is_ok_and(|answer| answer.ready),
            Err(_) => false,
        }
    })
    .await;

    let admin = format!("127.0.0.1:{admin}").parse().unwrap();
    let reloads = async |what: &str| {
        let line = format!("tender_reloads_total{{what=\"{what}\",outcome=\"used\"}} ");
        let (_, text) = http_get(&admin, "/metrics").await.unwrap();
        text.lines().find_map(|found| found.strip_prefix(&line)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let (a, b) = (clients.issue(&["a.test"]), clients.issue(&["b.test"]));
    let model = fixture::small("m", 4096);
    let old = connect(&place, &before.pem(), NAME, Some(&a)).await.unwrap();
    let session = old.open_registered(&model).await;
    session.must_store(&model, fixture::chunk(1), PART, fixture::full(&model)).await;

    // Nothing has changed: only the signal can be why they are read again.
    assert_eq!((reloads("certificate").await, reloads("policy").await), (0, 0));
    daemon.hang_up();
    eventually("both are read", async || reloads("certificate").await == 1 && reloads("policy").await == 1)
        .await;

    shown(&after);
    daemon.hang_up();
    eventually("the new certificate", async || match connect(&place, &after.pem(), NAME, Some(&a)).await {
        Ok(client) => client.ping().await.is_ok(),
        Err(_) => false,
    })
    .await;
    connect(&place, &before.pem(), NAME, Some(&a)).await.expect_err("the old one is not shown any more");
    assert!(session.read(model.digest(), fixture::chunk(1), PART).await.is_some(), "the connection lives on");

    let other = connect(&place, &after.pem(), NAME, Some(&b)).await.unwrap();
    assert_eq!(reason(other.open("b").await), Reason::NotAllowed);
    write(&path("policy.toml"), &policy("b.test"));
    daemon.hang_up();
    eventually("the new policy", async || other.open("b").await.is_ok()).await;
    assert_eq!(
        reason(session.register(&model).await),
        Reason::NotAllowed,
        "also on a connection that stands"
    );
    old.ping().await.expect("which is not cut");
}
