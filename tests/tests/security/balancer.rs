//! Two daemons behind a balancer that sends each connection to another one (field report 33): what an engine gets is
//! right or not there, never somebody else's bytes, whichever daemon its sessions land on.

use tender_client::{Address, TransportChoice};
use tender_tests::daemon::{Daemon, Setup, client_config};
use tender_tests::fixture::{self, PART};
use tender_tests::model::ModelEngine;
use tender_tests::proxy::Proxy;
use tender_tests::raw::{Ask, RawClient, reason};

use tender_proto::Reason;
use tender_proto::v1::ChunkState::{Miss, Ready};

/// Connections go to these of the two, again and again.
async fn two<const N: usize>(order: [usize; N]) -> (Daemon, Daemon, Proxy) {
    let (one, two) = (Daemon::start(Setup::default()).await, Daemon::start(Setup::default()).await);
    let balancer = Proxy::balance(order.map(|at| [&one, &two][at].tcp()).to_vec()).await.unwrap();
    (one, two, balancer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_means_nothing_to_the_other_daemon_and_says_so() {
    let (_one, _two, balancer) = two([0, 1]).await;
    let first = RawClient::connect(&balancer.target()).await.unwrap();
    let second = RawClient::connect(&balancer.target()).await.unwrap();
    let model = fixture::small("m", 4096);
    let a = first.open_registered(&model).await;
    let mut b = second.open_registered(&model).await;
    assert_ne!(a.opened.boot_id, b.opened.boot_id, "they are on two daemons");
    a.must_store(&model, fixture::chunk(1), PART, fixture::full(&model)).await;
    assert_eq!(a.states(model.digest(), &[fixture::chunk(1)]).await, [Ready]);
    assert_eq!(b.states(model.digest(), &[fixture::chunk(1)]).await, [Miss], "not there, and no guess");
    let lease = a.lookup(model.digest(), &[fixture::chunk(1)], Ask::LEASE).await.unwrap().lease.unwrap().id;
    // The session and the lease of the one are shown to the other.
    b.id = a.id.clone();
    let asked = b.lookup(model.digest(), &[fixture::chunk(1)], Ask::LOOK).await;
    assert_eq!(reason(asked), Reason::UnknownSession);
    assert_eq!(reason(b.release(&[lease]).await), Reason::UnknownSession);
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_behind_a_balancer_that_swaps_daemons_compute_what_they_do_not_get() {
    // A session has a connection of its own for bytes. The first round's connections are all to one daemon, so something
    // is stored; later ones part.
    let order: [usize; 24] = std::array::from_fn(|connection| connection / 12);
    let (one, two, balancer) = two(order).await;
    let address: Address = format!("tcp://127.0.0.1:{}", balancer.port()).parse().unwrap();
    let config = client_config(address, TransportChoice::Auto);
    let work = move || {
        let engines = [config.clone(), config].map(|config| {
            let engine = ModelEngine::new(config, "balanced");
            engine.wait_until_up();
            engine
        });
        for round in 0..6u32 {
            for engine in &engines {
                engine.wait_until_up();
            }
            for (at, engine) in engines.iter().enumerate() {
                // Some of it every engine has computed before, somewhere.
                let prompt: Vec<u32> = (0..200 + 50 * round).collect();
                // Attention checks every slot of what was loaded: a byte of another request ends the test. What the
                // daemon of the session has and that of the bytes does not know is a load that fails, and is computed.
                let run = engine.run(&format!("{at}-{round}"), &prompt);
                assert!(run.loaded_tokens + run.failed_tokens < prompt.len(), "{run:?}");
                engine.flush();
            }
            // Everybody connects anew, to whichever daemon comes next.
            balancer.cut();
        }
    };
    tokio::task::spawn_blocking(work).await.unwrap();
    let stored =
        |daemon: &Daemon| daemon.engine().stats().namespaces.iter().map(|n| n.stored_bytes).sum::<u64>();
    assert!(stored(&one) + stored(&two) > 0, "nothing came through at all");
    one.engine().audit().unwrap();
    two.engine().audit().unwrap();
}
