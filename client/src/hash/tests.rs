use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn salt(text: &str) -> NamedInput {
    NamedInput::Salt(text.into())
}

fn adapter(seed: u8) -> NamedInput {
    NamedInput::Adapter { content: [seed; 32] }
}

fn span(start_token: u64, tokens: u64, digest: [u8; 32]) -> MediaSpan {
    MediaSpan { start_token, tokens, digest: digest.to_vec() }
}

fn keys(tokens: &[u32], per_chunk: u64, named: Vec<NamedInput>, media: Vec<MediaSpan>) -> Vec<ChainHash> {
    let mut chain = KeyChain::new(per_chunk, 0, &RequestInputs::new(named, media).unwrap());
    chain.extend(tokens);
    chain.hashes().to_vec()
}

/// All keys of all lists are different, and each list has `chunks` of them.
fn assert_nothing_shared(lists: &[Vec<ChainHash>], chunks: usize) {
    assert!(lists.iter().all(|list| list.len() == chunks));
    let all: HashSet<_> = lists.iter().flatten().collect();
    assert_eq!(all.len(), lists.len() * chunks);
}

#[test]
fn field_01_adapter_and_tenant_are_part_of_every_key() {
    let tokens: Vec<u32> = (0..64).collect();
    let of = |named: Vec<NamedInput>| keys(&tokens, 16, named, vec![]);
    let other = |kind: &str, content: &str| NamedInput::Other { kind: kind.into(), content: content.into() };
    assert_nothing_shared(
        &[
            of(vec![]),
            of(vec![adapter(1)]),
            of(vec![adapter(2)]),
            of(vec![salt("t1")]),
            of(vec![salt("t2")]),
            of(vec![adapter(1), salt("t1")]),
            // Framing: where one field ends is not for its text to say.
            of(vec![other("adapter", "a"), salt("b|c")]),
            of(vec![other("adapter", "a|b"), salt("c")]),
            // Types: the same text in another field is another input.
            of(vec![other("adapter", "A")]),
            of(vec![salt("A")]),
            of(vec![other("salt", "A")]),
            // Empty is not absent.
            of(vec![salt("")]),
            of(vec![other("adapter", "")]),
        ],
        4,
    );
    // No kind is an input of no meaning, and an order that the engine happened to use has none either.
    assert_eq!(RequestInputs::new(vec![other("", "x")], vec![]), Err(Uncacheable::NamelessKind));
    assert_eq!(of(vec![adapter(1), salt("t1")]), of(vec![salt("t1"), adapter(1)]));
}

#[test]
fn field_03_two_images_have_two_keys() {
    let mut tokens: Vec<u32> = (0..80).collect();
    tokens[24..56].fill(32_000);
    let h1 = [0x11; 32];
    let same_end = |bytes: usize| {
        let mut digest = [0x22; 32];
        digest[32 - bytes..].copy_from_slice(&h1[32 - bytes..]);
        digest
    };
    let of = |media: Vec<MediaSpan>| keys(&tokens, 16, vec![], media);
    let base = of(vec![span(24, 32, h1)]);
    let shifted = of(vec![span(25, 32, h1)]);
    let variants =
        [of(vec![span(24, 32, same_end(2))]), of(vec![span(24, 32, same_end(8))]), shifted, of(vec![])];
    for variant in &variants {
        // Before the image nothing differs; after it everything does, by the chain.
        assert_eq!(variant[0], base[0]);
        assert_nothing_shared(&[base[1..].to_vec(), variant[1..].to_vec()], 4);
    }
    // Two images in swapped order, and one image cut by the chunk edge at another place.
    let two = |a, b| of(vec![span(24, 16, a), span(40, 16, b)]);
    assert_nothing_shared(&[two(h1, [0x33; 32])[1..].to_vec(), two([0x33; 32], h1)[1..].to_vec()], 4);
    assert_ne!(of(vec![span(24, 31, h1)])[1], base[1]);
    // Without a digest, or with one cut short, the request has no keys at all.
    for bytes in [0, 2, 15] {
        let media = vec![MediaSpan { start_token: 24, tokens: 32, digest: vec![9; bytes] }];
        let refused = RequestInputs::new(vec![], media).unwrap_err();
        assert_eq!(refused, Uncacheable::ShortMediaDigest { start_token: 24, digest_bytes: bytes });
    }
}

#[test]
fn field_38_golden_keys() {
    // These hold the encoding still. A change makes every stored chunk unreachable: it needs a new
    // KEY_CHAIN_VERSION and new context strings.
    let low: Vec<u32> = (0..64).collect();
    let high: Vec<u32> = (0..64).map(|i| u32::MAX - i).collect();
    let image = || vec![span(24, 16, [0xab; 32])];
    let embeds = NamedInput::PromptEmbeds { content: [7; 32] };
    let other = NamedInput::Other { kind: "rope".into(), content: vec![1, 2, 3] };
    let golden: [(&str, Vec<ChainHash>, &str); 7] = [
        (
            "tokens 0..63",
            keys(&low, 16, vec![], vec![]),
            "d41ff71e4f32253fcdafe65dbf0a52572d6733e904ff001e208f511de76ea013",
        ),
        (
            "ids above 2^31",
            keys(&high, 16, vec![], vec![]),
            "a0b8646c68a3b35eac881b81eff1bdbc8546182b16bf7be9e8cccec8ff9331cb",
        ),
        (
            "empty salt",
            keys(&low, 16, vec![salt("")], vec![]),
            "169d06f3624078a93f183f4f51e3ba3ac7c815398dafde0f4fd62f4122216909",
        ),
        (
            "salt",
            keys(&low, 16, vec![salt("tenant-1")], vec![]),
            "55141369b9cd0bb3e7a2429b3a89e2fc6f5f92c0a64e4eccbf388db194681b6d",
        ),
        (
            "media",
            keys(&low, 16, vec![], image()),
            "762499811df2d135bc7846149bea58e9592a6d1668422e35412bee9c34b3bfb0",
        ),
        (
            "everything",
            keys(&low, 16, vec![adapter(3), salt("s"), embeds, other], image()),
            "57a8f82ea4a9126b56a3c0150a792267dc8ba6462b275e71513b716483d0dbfd",
        ),
        (
            "another chunk length",
            keys(&low, 32, vec![], vec![]),
            "63f2443731ec13e65414ffc0b11dd77f1f68baab501336f00538e71d0d2b42c1",
        ),
    ];
    let made: Vec<_> = golden.iter().map(|(name, keys, _)| (*name, keys[keys.len() - 1].to_hex())).collect();
    let meant: Vec<_> = golden.iter().map(|(name, _, hex)| (*name, (*hex).to_owned())).collect();
    assert_eq!(made, meant);
    // Draft layers, which see one token ahead: three chunks, since the fourth would need token 64.
    let mut ahead = KeyChain::new(16, 1, &RequestInputs::default());
    ahead.extend(&low);
    let made: Vec<_> = ahead.hashes().iter().map(ChainHash::to_hex).collect();
    assert_eq!(made.len(), 3);
    assert_eq!(made[2], "a0b86359be7aefc04d56e5e1a480c92b4a94c36c5c07ba24e690b9e9db20ba30");
}

#[test]
fn an_open_chunk_has_no_key() {
    let mut chain = KeyChain::new(16, 0, &RequestInputs::default());
    chain.extend(&[1; 15]);
    assert_eq!((chain.hashes().len(), chain.tokens()), (0, 15));
    chain.extend(&[1; 18]);
    assert_eq!((chain.hashes().len(), chain.tokens()), (2, 33));
}

#[test]
fn a_media_span_that_no_request_can_hold_is_refused() {
    for (start_token, tokens) in [(5, 0), (u64::MAX, 1), (1, u64::MAX)] {
        let refused = RequestInputs::new(vec![], vec![span(start_token, tokens, [1; 32])]);
        assert_eq!(refused, Err(Uncacheable::BadMediaSpan { start_token, tokens }));
    }
}

proptest! {
    #[test]
    fn keys_do_not_depend_on_how_tokens_arrive(
        tokens in proptest::collection::vec(any::<u32>(), 0..200),
        cuts in proptest::collection::vec(0usize..200, 0..8),
        per_chunk in 1u64..40,
    ) {
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(tokens.len())).collect();
        cuts.sort_unstable();
        let mut chain = KeyChain::new(per_chunk, 0, &RequestInputs::default());
        let mut from = 0;
        for cut in cuts.into_iter().chain([tokens.len()]) {
            chain.extend(&tokens[from..cut]);
            from = cut;
        }
        prop_assert_eq!(chain.hashes(), keys(&tokens, per_chunk, vec![], vec![]));
        prop_assert_eq!(chain.tokens(), tokens.len() as u64);
    }

    #[test]
    fn one_other_token_changes_its_key_and_all_after_it(
        mut tokens in proptest::collection::vec(any::<u32>(), 64..=64), at in 0usize..64, flip in 1u32..,
    ) {
        let before = keys(&tokens, 16, vec![], vec![]);
        tokens[at] ^= flip;
        let after = keys(&tokens, 16, vec![], vec![]);
        for chunk in 0..4 {
            prop_assert_eq!(before[chunk] == after[chunk], chunk < at / 16);
        }
    }
}
