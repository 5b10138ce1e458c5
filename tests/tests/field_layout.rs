//! Field reports on what a layer consists of: 14, and what 5 says about layouts. All tensors of a layer travel, or the
//! layer is refused by name before anything moves.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::sync::Arc;

use tender_client::layout::{Axis, LayerDesc, LayoutFault, ScaleDesc, prove, prove_either};
use tender_client::{ClientError, TransportChoice, WorkerSide};
use tender_proto::{Descriptor, GroupKind, PartIndex, Reason, v1};
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::mixed::{Mixed, group, tokens};
use tender_tests::oracle::groups::TensorShape;
use tender_tests::oracle::memory::Memory;
use tender_tests::oracle::place::Arrangement;
use tender_tests::oracle::truth::Truth;
use tender_tests::{conserve, fixture};

fn prompt() -> Truth {
    Truth::new(1, &(0..80).map(|n| n * 3 + 8).collect::<Vec<_>>(), &[])
}

/// Case 14's layers: a latent of 576 bytes a token in four layers, an indexer's key with its scale of 132 in three.
fn latents_and_index_keys() -> Vec<TensorShape> {
    let shape = |name: String, cell_bytes| TensorShape { name, heads: None, slots: Some(16), cell_bytes };
    let latents = (0..4).map(|layer| shape(format!("layer.{layer}"), 576));
    let keys = (0..3).map(|layer| shape(format!("layer.{layer}.indexer"), 132));
    latents.chain(keys).collect()
}

async fn side_tensors(transport: TransportChoice) {
    let daemon = Daemon::start(Setup::default()).await;
    let config = daemon.client_config(transport);
    tokio::task::spawn_blocking(move || {
        let groups = [group(GroupKind::MlaLatent, 16, 2)];
        let engine = Mixed::with_tensors(&config, "field 14", &groups, vec![latents_and_index_keys()], 1);
        let block = engine.descriptor().groups[0].block_bytes(PartIndex(0));
        assert_eq!(block, Some(16 * (4 * 576 + 3 * 132)), "a block is the sum of all its tensors");
        engine.store("stored", &mut prompt(), 66, &vec![(21..=25).collect()], &[]);
        engine.poison_all();
        engine.arrive("again", 66);
        let fresh = vec![vec![1, 2, 3, 4]];
        assert_eq!(engine.load("again", &tokens(&mut prompt(), 66), 0, &fresh), 64);
        assert_eq!(engine.wrong(&mut prompt(), 0, &fresh[0], 0..64), None, "every byte of every tensor");
        assert!(engine.untouched(0, &[0, 5, 6]), "and nothing beside them");
        engine.finish("again", 66, 64, &Vec::new(), true);
        let counters = engine.ranks[0].worker.counters();
        assert_eq!(counters.loaded_bytes, 4 * block.unwrap(), "{counters:?}");
    })
    .await
    .unwrap();
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_14_every_tensor_of_a_layer_returns_over_shm() {
    side_tensors(TransportChoice::Shm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_14_every_tensor_of_a_layer_returns_over_grpc() {
    side_tensors(TransportChoice::Grpc).await;
}

/// A worker whose layout has one tensor fewer than the namespace was told does not start.
#[tokio::test(flavor = "multi_thread")]
async fn field_14_a_worker_that_forgets_a_tensor_does_not_start() {
    let daemon = Daemon::start(Setup::default()).await;
    let config = daemon.client_config(TransportChoice::Auto);
    let refused = tokio::task::spawn_blocking(move || {
        let all = latents_and_index_keys();
        let spec = group(GroupKind::MlaLatent, 16, 2);
        let whole: u64 = all.iter().map(TensorShape::content_bytes).sum();
        let descriptor = fixture::descriptor("field 14 forgets", vec![spec.describe(vec![whole])]);
        let memory = memory_of(&[all[..4].to_vec()]);
        let latents_only = prove(memory.describe(), BLOCKS).unwrap();
        WorkerSide::new(config, Arc::new(descriptor), Arc::new(latents_only)).unwrap_err()
    })
    .await
    .unwrap();
    let ClientError::Refused(refusal) = &refused else { panic!("{refused:?}") };
    assert_eq!(refusal.reason, Reason::WrongSize);
    assert!(refused.to_string().contains("43200") && refused.to_string().contains("36864"), "{refused}");
}

/// What nobody can name is not cached: a group of a kind that this version does not know.
#[tokio::test(flavor = "multi_thread")]
async fn field_14_a_kind_that_nobody_knows_is_refused_by_the_daemon() {
    let daemon = Daemon::start(Setup::default()).await;
    let session = daemon.client().await.open("unknown kind").await.unwrap();
    let descriptor = fixture::small("field 14 unknown", 1000);
    for kind in [v1::GroupKind::Unspecified.into(), 6, 99, -1] {
        let mut message = descriptor.to_message();
        message.groups[0].kind = kind;
        assert!(Descriptor::parse(&message).is_err(), "nor is it here");
        let digest = tender_tests::raw::raw_digest(descriptor.digest());
        let refused = session.register_raw(Some(message), digest, "").await.unwrap_err();
        let refusal = tender_tests::raw::refusal(&refused);
        assert_eq!(refusal.reason, Reason::Malformed);
        assert!(refusal.to_string().contains(&format!("group kind {kind}")), "{refusal}");
    }
    assert_eq!(daemon.engine().stats().namespaces.len(), 0);
}

const BLOCKS: u32 = 8;

fn memory_of(shapes: &[Vec<TensorShape>]) -> Memory {
    let apart = Arrangement::Apart { orders: vec![0; shapes.len()], padding: 0, scales: false };
    Memory::new(shapes, vec![0; shapes.len()], &apart, BLOCKS)
}

/// A layer of cells of 132 bytes, of which the last four are the scale, as an engine's kernels see it.
fn quantised() -> (Memory, LayerDesc) {
    let memory = memory_of(&[vec![latents_and_index_keys().remove(4)]]);
    let mut layer = memory.describe().remove(0);
    layer.scales = Some(ScaleDesc {
        address: layer.address + 128,
        block_stride_bytes: layer.block_stride_bytes,
        axes: layer.axes.clone(),
        bytes: 4,
    });
    (memory, layer)
}

/// Scales in the tail of each cell, which the description passes off as padding: data alone would travel.
#[test]
fn field_14_scales_in_what_is_called_padding_are_refused() {
    let (_memory, good) = quantised();
    assert!(prove(vec![good.clone()], BLOCKS).is_ok());
    let tail = LayerDesc { cell_bytes: 128, padding_bytes: good.padding_bytes + 16 * 4, ..good };
    let refused = prove(vec![tail], BLOCKS).unwrap_err();
    assert!(matches!(refused.fault, LayoutFault::ScaleAstray { .. }), "{refused}");
    assert!(refused.to_string().contains("'layer.0.indexer'"), "{refused}");
}

/// Case 5 for layouts, and the founding report on inline scales: layers interleaved in one buffer, scales read with the
/// stride of a layer by itself. The interleaved description is refused with both ranges, and the layers by themselves
/// are used instead.
#[test]
fn field_05_a_scale_stride_of_the_wrong_layout_is_refused_and_layers_go_by_themselves() {
    let shape = |layer| TensorShape {
        name: format!("layer.{layer}"),
        heads: Some(2),
        slots: Some(4),
        cell_bytes: 36,
    };
    let shapes = [vec![shape(0), shape(1), shape(2)]];
    // Blocks outside layers: one buffer for all of them.
    let crossed = Arrangement::Apart { orders: vec![3], padding: 0, scales: true };
    let memory = Memory::new(&shapes, vec![0], &crossed, BLOCKS);
    assert!(prove(memory.describe(), BLOCKS).is_ok(), "the right strides are proved");
    let mut layers = memory.describe();
    let page: u64 = layers[0].page_bytes;
    for layer in &mut layers {
        let scales = layer.scales.as_mut().unwrap();
        assert_eq!(scales.block_stride_bytes, 3 * page);
        scales.block_stride_bytes = page;
    }
    let refused = prove(layers.clone(), BLOCKS).unwrap_err();
    let LayoutFault::ScaleCollision { axis, step, scale, other, cell } = &refused.fault else {
        panic!("{refused}")
    };
    assert_eq!(
        (*axis, *step, other.as_str()),
        ('B', 1, "layer.1"),
        "block 1's scale lies in block 0 of the next layer"
    );
    assert!(cell.start <= scale.start && scale.end <= cell.end);
    let text = refused.to_string();
    assert!(text.contains("'layer.0'") && text.matches("0x").count() == 4, "both ranges: {text}");

    let apart = Arrangement::Apart { orders: vec![0], padding: 0, scales: true };
    let by_themselves = Memory::new(&shapes, vec![0], &apart, BLOCKS);
    let proved = prove_either(layers, by_themselves.describe(), BLOCKS).unwrap();
    let tender_client::layout::Proved::Fallback { why, .. } = proved else { panic!("not the refused one") };
    assert_eq!(why, refused);
}

/// Case 5: the bytes of one part have one order, wherever its layers lie; another order is another name.
#[test]
fn field_05_a_layout_is_named_by_its_pages_and_not_by_where_they_lie() {
    let fingerprint = |order: usize, swap: bool| {
        let shape = TensorShape { name: "layer.0".into(), heads: Some(2), slots: Some(4), cell_bytes: 36 };
        let arrangement = Arrangement::Apart { orders: vec![order], padding: 0, scales: false };
        let memory = Memory::new(&[vec![shape]], vec![0], &arrangement, BLOCKS);
        let mut layers = memory.describe();
        if swap {
            // Keys and values apart instead of heads: the same sizes, another meaning.
            layers[0].axes[0] = Axis { name: 'K', ..layers[0].axes[0] };
        }
        prove(layers, BLOCKS).unwrap().fingerprint()
    };
    let heads_first = fingerprint(0, false);
    assert_eq!(heads_first, fingerprint(3, false), "blocks or layers outermost: the same pages");
    assert_ne!(heads_first, fingerprint(1, false), "heads or tokens outermost: other pages");
    assert_ne!(heads_first, fingerprint(0, true));
}
