//! What is drawn. Sessions, leases and reservations are named by their number in the order they were given out, modulo
//! those there are.

use arbitrary::Arbitrary;

#[derive(Arbitrary, Debug)]
pub(super) struct Script {
    pub(super) limits: Limits,
    pub(super) steps: Vec<Step>,
}

/// Tight ones are reached in few steps.
#[derive(Arbitrary, Debug)]
pub(super) struct Limits {
    pub(super) sessions: u8,
    pub(super) leases: u8,
    pub(super) batch: u8,
    pub(super) namespaces: u8,
    pub(super) inflight_parts: u8,
    pub(super) frame: u8,
}

#[derive(Arbitrary, Debug)]
pub(super) struct Step {
    pub(super) call: Call,
    pub(super) damage: Option<Damage>,
}

/// What happens to a request's bytes on the way.
#[derive(Arbitrary, Debug)]
pub(super) struct Damage {
    pub(super) flips: Vec<(u16, u8)>,
    pub(super) cut: Option<u16>,
    /// Put in at a place.
    pub(super) more: Option<(u16, Vec<u8>)>,
}

#[derive(Arbitrary, Debug)]
pub(super) enum Call {
    Open {
        version: u8,
        pid: u32,
    },
    Close(u8),
    Register {
        session: u8,
        model: u8,
        claim: u8,
        pin: u8,
    },
    Lookup {
        session: u8,
        model: u8,
        chunks: Vec<Chunk>,
        lease: bool,
        locate: bool,
        lease_ms: u16,
    },
    Release {
        session: u8,
        leases: Vec<u8>,
    },
    Reserve {
        session: u8,
        model: u8,
        items: Vec<Item>,
        epoch: u8,
    },
    Commit {
        session: u8,
        items: Vec<Committed>,
    },
    Abort {
        session: u8,
        reservations: Vec<u8>,
    },
    Put {
        session: u8,
        parts: Vec<Sent>,
    },
    Get {
        session: u8,
        lease: u8,
        items: Vec<(u8, u8)>,
    },
    Reset {
        model: u8,
        all: u8,
    },
    Ask(bool),
    /// Reserves whole chunks and puts them, as a good client does.
    Store {
        session: u8,
        model: u8,
        chunks: Vec<Chunk>,
        coverage: u8,
    },
    /// A packet to the descriptor socket.
    Attach {
        session: u8,
        bytes: u32,
        change: Option<(u8, u8)>,
    },
    Pass {
        ms: u16,
    },
    Scrub {
        bytes: u16,
    },
    Raw {
        method: u8,
        body: Vec<u8>,
    },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) group: u8,
    pub(super) n: u8,
}

#[derive(Arbitrary, Debug)]
pub(super) struct Item {
    pub(super) chunk: Chunk,
    pub(super) part: u8,
    pub(super) coverage: u8,
    /// Added to the right size, mostly nothing.
    pub(super) more_bytes: i8,
}

#[derive(Arbitrary, Debug)]
pub(super) struct Committed {
    pub(super) reservation: u8,
    pub(super) offset: u16,
    pub(super) wrong: u8,
}

/// One part of a put: mostly whole, in frames of this size.
#[derive(Arbitrary, Debug)]
pub(super) struct Sent {
    pub(super) reservation: u8,
    pub(super) frame: u16,
    pub(super) wrong: u8,
}
