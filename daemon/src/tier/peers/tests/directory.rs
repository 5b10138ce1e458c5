//! What stands in the store.

use super::*;
use crate::engine::tests::b;
use crate::tier::peers::entry::MAX_HOLDERS;
use crate::tier::peers::link::LinkError;

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_names_no_more_than_its_bound_and_the_first_stay() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let publish = [Change::Publish(listed(0, chunk(1)), honest_entry(chunk(1)))];
    let all: Vec<_> = (0..MAX_HOLDERS + 4).map(|_| directory_of(&setup)).collect();
    for directory in &all {
        directory.apply(&publish, soon()).await.unwrap();
    }
    let holders = directory_of(&setup).find(a(), 0, &[chunk(1)], soon()).await.unwrap().holders.remove(0);
    let mut named: Vec<_> = holders.iter().map(|holder| holder.daemon).collect();
    let mut first: Vec<_> = all[..MAX_HOLDERS].iter().map(Directory::me).collect();
    named.sort();
    first.sort();
    assert_eq!(named, first);
    // Saying it again takes nobody's place, and pushes nobody out.
    all[0].apply(&publish, soon()).await.unwrap();
    let holders = all[1].find(a(), 0, &[chunk(1)], soon()).await.unwrap().holders.remove(0);
    assert_eq!(holders.len(), MAX_HOLDERS - 1, "all but the one who asks");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_have_expired_make_room() {
    let redis = Redis::start();
    let short = Setup { ttl: Duration::from_secs(1), ..Setup::on(redis.uri()) };
    let long = Setup::on(redis.uri());
    let publish = [Change::Publish(listed(0, chunk(1)), honest_entry(chunk(1)))];
    for _ in 0..MAX_HOLDERS {
        directory_of(&short).apply(&publish, soon()).await.unwrap();
        // The key lives on with the longest of its words.
        redis.command(&["PERSIST", redis.command(&["KEYS", "test:c:*"]).as_str()]);
    }
    let late = directory_of(&long);
    let asking = directory_of(&long);
    eventually("there is room", async || {
        late.apply(&publish, soon()).await.unwrap();
        late.apply(&[Change::Withdraw(listed(0, chunk(2)))], soon()).await.unwrap();
        asking.find(a(), 0, &[chunk(1)], soon()).await.unwrap().holders[0]
            .iter()
            .any(|h| h.daemon == late.me())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_that_was_renewed_is_not_taken_out_for_the_old_one() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (holder, reader) = (directory_of(&setup), directory_of(&setup));
    let publish = |n| [Change::Publish(listed(0, chunk(1)), honest_entry(chunk(n)))];
    holder.apply(&publish(1), soon()).await.unwrap();
    let seen = reader.find(a(), 0, &[chunk(1)], soon()).await.unwrap().holders[0][0];
    holder.apply(&publish(2), soon()).await.unwrap();
    reader.apply(&[Change::Forget(listed(0, chunk(1)), seen)], soon()).await.unwrap();
    let renewed = reader.find(a(), 0, &[chunk(1)], soon()).await.unwrap().holders[0][0];
    assert_ne!(renewed, seen);
    reader.apply(&[Change::Forget(listed(0, chunk(1)), renewed)], soon()).await.unwrap();
    assert_eq!(reader.find(a(), 0, &[chunk(1)], soon()).await.unwrap().holders, [[]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_in_the_store_is_no_holder_and_no_fault() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (holder, reader) = (directory_of(&setup), directory_of(&setup));
    holder.apply(&[Change::Publish(listed(0, chunk(1)), honest_entry(chunk(1)))], soon()).await.unwrap();
    let key = reader.find(a(), 0, &[chunk(1)], soon()).await.unwrap();
    assert_eq!(key.holders[0].len(), 1);
    let script = "for _, k in ipairs(redis.call('KEYS', 'test:c:*')) do redis.call('HSET', k, 'x', 'y') end";
    redis.command(&["EVAL", script, "0"]);
    assert_eq!(reader.find(a(), 0, &[chunk(1)], soon()).await.unwrap().holders[0].len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_only_goes_up() {
    let redis = Redis::start();
    let directory = directory_of(&Setup::on(redis.uri()));
    assert_eq!(directory.generation(a(), soon()).await.unwrap(), 0);
    let time = 1_790_000_000_000;
    assert_eq!(directory.raise(a(), time, 1, soon()).await.unwrap(), time + 1);
    assert_eq!(directory.raise(a(), 5, 0, soon()).await.unwrap(), time + 1);
    assert_eq!(directory.raise(a(), 5, 1, soon()).await.unwrap(), time + 2);
    assert_eq!(directory.generation(a(), soon()).await.unwrap(), time + 2);
}

/// Learnt, it could never be overtaken: whoever reads one must not take it for a generation, and a reset mends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_generation_is_believed_by_nobody_and_mended_by_a_reset() {
    let redis = Redis::start();
    let directory = directory_of(&Setup::on(redis.uri()));
    let time = 1_790_000_000_000;
    assert_eq!(directory.raise(a(), time, 1, soon()).await.unwrap(), time + 1);
    let keys = redis.command(&["KEYS", "test:g:*"]);
    let key = keys.trim();
    for damage in ["281474976710656", "18446744073709551616", "-1", "1e300", "nonsense", "nan"] {
        redis.command(&["SET", key, damage]);
        let read = directory.generation(a(), soon()).await;
        assert!(matches!(read, Err(LinkError::Damaged)), "{damage}: {read:?}");
        // Others are told of all the same.
        let publish = |namespace| {
            let listed = Listed { namespace, generation: 0, chunk: chunk(1) };
            Change::Publish(listed, honest_entry(chunk(1)))
        };
        let told = directory.apply(&[publish(a()), publish(b())], soon()).await.unwrap();
        assert_eq!(told, [(b(), 0)], "{damage}");
        assert_eq!(directory.raise(a(), time, 1, soon()).await.unwrap(), time + 1, "{damage}");
        assert_eq!(directory.generation(a(), soon()).await.unwrap(), time + 1, "{damage}");
    }
}

/// docs/directory.md says how much memory an entry takes.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_is_as_small_as_the_page_says() {
    let redis = Redis::start();
    let directory = directory_of(&Setup::on(redis.uri()));
    let used = || -> u64 {
        let info = redis.command(&["INFO", "memory"]);
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.unwrap().trim().parse().unwrap()
    };
    let before = used();
    let count = 50_000;
    let changes: Vec<_> =
        (0..count).map(|n| Change::Publish(listed(0, chunk(n)), honest_entry(chunk(0)))).collect();
    for some in changes.chunks(1000) {
        directory.apply(some, soon()).await.unwrap();
    }
    let each = (used() - before) / u64::from(count);
    println!("{each} bytes for an entry of one holder");
    assert!((50..200).contains(&each), "{each} bytes");
}
