//! Nothing lost, nothing leaked (rule 11): what must be true of a daemon that nobody uses at the moment, and
//! what must be true always.

use std::time::{Duration, Instant};

use tender_daemon::engine::{Audit, Engine, Stats};

/// Freeing follows the end of a stream or a session at once; this only bounds a slow machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Recounts and compares with the engine's own numbers. Holds whenever no call is under way.
pub fn audit(engine: &Engine) -> Audit {
    match counted(engine) {
        Ok(audit) => audit,
        Err(error) => panic!("{error}"),
    }
}

/// Waits until nothing is held for anybody: no lease, pin, reservation, writer, reader or unfinished chunk.
/// Sessions may stay open. Panics with what is still held after ten seconds.
pub async fn quiet(engine: &Engine) -> Audit {
    until(engine, "nothing is held", |a| {
        [a.leases, a.pins, a.readers, a.reservations, a.writers, a.pending_chunks, a.inflight_bytes] == [0; 7]
    })
    .await
}

/// Waits until nothing is held and nobody is connected.
pub async fn deserted(engine: &Engine) -> Audit {
    let audit = until(engine, "all sessions are gone", |a| a.sessions == 0).await;
    assert_eq!(audit.leases + audit.reservations + audit.readers, 0, "left behind: {audit:?}");
    let audit = quiet(engine).await;
    assert_eq!(engine.stats().staging_bytes, 0, "staging outlived its session");
    audit
}

/// Waits until a recount satisfies `holds`.
pub async fn until(engine: &Engine, what: &str, holds: impl Fn(&Audit) -> bool) -> Audit {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let counted = counted(engine);
        match &counted {
            Ok(audit) if holds(audit) => return *audit,
            _ if Instant::now() > give_up => panic!("waited for: {what}; found {counted:?}"),
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

fn counted(engine: &Engine) -> Result<Audit, String> {
    let audit = engine.audit()?;
    let stats = engine.stats();
    let sum =
        |of: fn(&tender_daemon::engine::NamespaceStats) -> u64| stats.namespaces.iter().map(of).sum::<u64>();
    let pairs = [
        ("capacity", audit.capacity_bytes, audit.used_bytes + audit.free_bytes),
        ("arena bytes", audit.capacity_bytes, stats.arena_bytes),
        ("used bytes", audit.used_bytes, stats.arena_used_bytes),
        ("sessions", audit.sessions, stats.sessions),
        ("leases", audit.leases, stats.leases),
        ("pins", audit.pins, stats.pins),
        ("inflight bytes", audit.inflight_bytes, stats.inflight_bytes),
        ("ready chunks", audit.ready_chunks, sum(|n| n.ready_chunks)),
        ("pending chunks", audit.pending_chunks, sum(|n| n.pending_chunks)),
    ];
    for (name, recount, kept) in pairs {
        if recount != kept {
            return Err(format!("{name}: recount {recount}, kept {kept}; {audit:?}; {stats:?}"));
        }
    }
    check_hits(&stats)?;
    Ok(audit)
}

fn check_hits(stats: &Stats) -> Result<(), String> {
    for n in &stats.namespaces {
        let misses: u64 = n.misses.iter().map(|(_, count)| count).sum();
        if n.hits + n.pendings + misses != n.lookups {
            return Err(format!("hits, pendings and misses are not the lookups of {n:?}"));
        }
    }
    Ok(())
}
