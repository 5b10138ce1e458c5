//! The real client on both transports, for random layouts: what one engine computed, another reads bit for bit.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_client::{Address, TransportChoice};
use tender_tests::conserve;
use tender_tests::daemon::{Daemon, Setup, client_config};
use tender_tests::model::{ModelEngine, Shape};
use tender_tests::raw::Target;

fn random_shape(rng: &mut StdRng) -> Shape {
    Shape {
        layers: rng.random_range(1..=5),
        heads: rng.random_range(1..=4),
        tokens_per_block: rng.random_range(1..=9),
        blocks_per_chunk: rng.random_range(1..=5),
        pool_blocks: 80,
        cell_bytes: rng.random_range(8..=100),
        padding_bytes: rng.random_range(0..=2) * 8,
        tokens_first: rng.random(),
        packed: rng.random(),
    }
}

async fn random_layouts(transport: TransportChoice, remote: bool) {
    let daemon = Daemon::start(Setup::default()).await;
    let config = if remote {
        let Target::Tcp(address) = daemon.tcp() else { panic!("no port") };
        client_config(format!("tcp://{address}").parse::<Address>().unwrap(), transport)
    } else {
        daemon.client_config(transport)
    };
    for seed in 0..12u64 {
        let config = config.clone();
        tokio::task::spawn_blocking(move || {
            let mut rng = StdRng::seed_from_u64(seed);
            let shape = random_shape(&mut rng);
            let model = format!("layout {seed}");
            let writer = ModelEngine::with_shape(config.clone(), &model, shape);
            // Another engine: the same layout by content, other addresses, another pool.
            let reader = ModelEngine::with_shape(config, &model, Shape { pool_blocks: 70, ..shape });
            assert_eq!(writer.descriptor().digest(), reader.descriptor().digest(), "seed {seed}");
            writer.wait_until_up();
            reader.wait_until_up();
            let limit = 30 * shape.tokens_per_block;
            let prompts: Vec<Vec<u32>> = (0..4)
                .map(|_| (0..rng.random_range(1..=limit)).map(|_| rng.random_range(0..3)).collect())
                .collect();
            for (n, prompt) in prompts.iter().enumerate() {
                writer.run(&format!("w{n}"), prompt);
            }
            writer.flush();
            for (n, prompt) in prompts.iter().enumerate() {
                // Attention checks every slot of what was loaded.
                let run = reader.run(&format!("r{n}"), prompt);
                let unit = shape.tokens_per_block as usize;
                let chunk = shape.tokens_per_chunk();
                let expected = (prompt.len() / chunk * chunk).min((prompt.len() - 1) / unit * unit);
                assert_eq!(run.failed_tokens, 0, "seed {seed}: {:?}", reader.counters());
                assert!(
                    run.loaded_tokens >= expected,
                    "seed {seed}: {run:?} of {expected}: {:?}",
                    reader.counters()
                );
            }
            assert!(reader.memory.padding_is_untouched(), "seed {seed}");
            let (_, counters) = reader.counters();
            let name = if transport == TransportChoice::Shm { "shm" } else { "grpc" };
            assert_eq!(counters.transport, name, "the transport is the one that was asked for");
        })
        .await
        .unwrap();
    }
    conserve::deserted(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_memory_is_bit_exact_for_random_layouts() {
    random_layouts(TransportChoice::Shm, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_network_is_bit_exact_for_random_layouts() {
    random_layouts(TransportChoice::Grpc, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn automatic_choice_takes_shared_memory_on_one_host_and_the_network_elsewhere() {
    let daemon = Daemon::start(Setup::default()).await;
    let Target::Tcp(address) = daemon.tcp() else { panic!("no port") };
    let near = daemon.client_config(TransportChoice::Auto);
    let far = client_config(format!("tcp://{address}").parse().unwrap(), TransportChoice::Auto);
    tokio::task::spawn_blocking(move || {
        let prompt: Vec<u32> = (0..40).collect();
        let near = Arc::new(ModelEngine::new(near, "auto"));
        let far = ModelEngine::new(far, "auto");
        near.wait_until_up();
        far.wait_until_up();
        near.run("near", &prompt);
        near.flush();
        assert!(far.run("far", &prompt).loaded_tokens > 0);
        assert_eq!(near.counters().1.transport, "shm");
        assert_eq!(far.counters().1.transport, "grpc");
    })
    .await
    .unwrap();
}
