//! Numbers that both sides of the contract rely on. A daemon's configuration may be tighter and says so in
//! `SessionOpened`; it is never looser.

/// Version of the `tender.v1` messages. Client and daemon must have the same one.
pub const PROTOCOL_VERSION: u32 = 1;

/// Version of the chunk hash chain (`tender_client::hash`). Part of every namespace, so that two versions
/// never share a key.
pub const KEY_CHAIN_VERSION: u32 = 1;

/// Blocks of one chunk: coverage is one 64-bit word.
pub const MAX_BLOCKS_PER_CHUNK: u32 = 64;

/// Payload of one frame. 1 MiB frames moved most bytes per second over loopback; 4 MiB were 10-25 % slower.
pub const FRAME_PAYLOAD_BYTES: usize = 256 << 10;

/// HTTP/2 frame size, set by the receiver. The default of 16 KiB costs a third to a half of the throughput.
pub const HTTP2_FRAME_BYTES: u32 = 1 << 20;
/// HTTP/2 flow-control window of one stream.
pub const HTTP2_STREAM_WINDOW_BYTES: u32 = 16 << 20;
/// HTTP/2 flow-control window of one connection.
pub const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 32 << 20;

/// Room in a gRPC message for everything that is not payload.
pub const MESSAGE_OVERHEAD_BYTES: usize = 64 << 10;

/// Largest gRPC message of any call: a Lookup answer of [`MAX_BATCH_CHUNKS`] located chunks, or one frame.
pub const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// Chunks in one Lookup, Reserve or Commit.
pub const MAX_BATCH_CHUNKS: usize = 131_072;

/// Groups of one namespace.
pub const MAX_GROUPS: usize = 256;

/// Tokens beyond a slot that a draft layer may see: the draft modules an engine chains.
pub const MAX_LOOKAHEAD_TOKENS: u32 = 64;

/// Parts of one chunk (ranks that hold different bytes of it).
pub const MAX_PARTS: usize = 1024;

/// Bytes of one part of one chunk.
pub const MAX_PART_BYTES: u64 = 4 << 30;

/// What a daemon needs beside its arena and the staging regions: index, connections, what is on its way. Memory limits
/// count it; docs/sizing.md has the whole sum.
pub const DAEMON_OVERHEAD_BYTES: u64 = 512 << 20;

/// Longest string of a descriptor, in bytes.
pub const MAX_NAME_BYTES: usize = 4096;
