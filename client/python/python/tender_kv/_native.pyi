"""The native extension. Nothing here is called by users; `tender_kv.vllm` is the example of how an engine does."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

__version__: str

class TenderError(Exception):
    """Something of Tender could not be started or asked."""

class ConfigError(TenderError):
    """A value of the configuration cannot be used."""

class LayoutError(TenderError):
    """A KV cache layout was not proved to be safe to copy."""

class RefusedError(TenderError):
    """The daemon, or a check on this side, said no."""

    reason: str
    subject: str
    advice: str

class ScaleFields(Protocol):
    """Where an engine looks for the scales of a layer, see ScaleDesc of the Rust client."""

    address: int
    block_stride_bytes: int
    axes: list[tuple[str, int, int]]
    bytes: int

class LayerFields(Protocol):
    """One layer's pages, see LayerDesc of the Rust client."""

    name: str
    group: int
    address: int
    buffer_address: int
    buffer_bytes: int
    blocks: int
    block_stride_bytes: int
    axes: list[tuple[str, int, int]]
    cell_bytes: int
    page_bytes: int
    padding_bytes: int
    scales: ScaleFields | None

class ShardFields(Protocol):
    """Which parts of a group's chunks a rank holds, see GroupShard and Writer of the Rust client."""

    parts: int
    first: int
    count: int
    replica: int
    replicas: int

class GroupFields(Protocol):
    """One layer group of a namespace. A window or a lookahead that there is not is 0."""

    kind: str
    tokens_per_block: int
    blocks_per_chunk: int
    window_tokens: int
    lookahead_tokens: int
    part_block_bytes: list[int]

class IdentityFields(Protocol):
    """What a namespace is made from."""

    model: str
    weights: str
    kv_dtype: str
    quantisation: str
    page_format: str
    layout_fingerprint: bytes
    tensor_parallel: int
    groups: list[GroupFields]

class Fingerprint:
    """A BLAKE3 digest over tagged fields."""

    def __init__(self, purpose: str) -> None: ...
    def field(self, tag: str, value: bytes) -> None: ...
    def file(self, tag: str, path: object) -> None: ...
    def weights_file(self, tag: str, path: object) -> None: ...
    def digest(self) -> bytes: ...

class Layout:
    """Layers that passed the layout gate; keeps `owner`, whose memory they name."""

    def __init__(
        self, layers: Sequence[LayerFields], pool_blocks: int, shards: Sequence[ShardFields], owner: Any
    ) -> None: ...
    def part_block_bytes(self, group: int) -> list[int]: ...
    @property
    def page_format(self) -> str: ...
    @property
    def fingerprint(self) -> bytes: ...

class Scheduler:
    """The scheduler process's half of a client. No call raises once it is made."""

    def __init__(self, client_config: str, plan_config: str) -> None: ...
    def set_descriptor(self, bytes: bytes) -> None: ...
    def new_request(
        self,
        id: str,
        prompt_tokens: int,
        named: Sequence[tuple[str, bytes]],
        media: Sequence[tuple[bytes, int, int]],
    ) -> None: ...
    def new_uncacheable_request(self, id: str, prompt_tokens: int, why: str) -> None: ...
    def trace_request(self, id: str, traceparent: str) -> None: ...
    def match_prefix(self, id: str, tokens: list[int], computed: int) -> int | None: ...
    def still_waits(self, id: str) -> bool: ...
    def allocated(self, id: str, blocks: Sequence[Sequence[int]], external_tokens: int) -> None: ...
    def step(
        self,
        requests: Iterable[
            tuple[str, int, int, list[int], Sequence[Sequence[int]], bool, Sequence[tuple[int, int, int]]]
        ],
        preempted: list[str],
    ) -> bytes: ...
    def finished(
        self,
        id: str,
        *,
        num_tokens: int,
        prompt_tokens: int,
        computed_tokens: int,
        aborted: bool,
        blocks: Sequence[Sequence[int]],
        tail_tokens: list[int],
    ) -> None: ...
    def loads_finished(self, ids: list[str]) -> None: ...
    def watch(self) -> None: ...
    def take_changes(self) -> tuple[bool, list[tuple[int, bytes, int | None]]]: ...
    def known_keys(self, id: str) -> list[list[bytes]]: ...
    def reset(self) -> bool: ...
    def counters_json(self) -> str: ...
    def shutdown(self) -> None: ...

class Worker:
    """One rank's half of a client."""

    def __init__(
        self, client_config: str, descriptor: bytes, layout: Layout, cuda_index: int | None = None
    ) -> None: ...
    def begin_step(self, plan: bytes, stream: int = 0) -> None: ...
    def end_step(self, plan: bytes, stream: int = 0) -> None: ...
    def poll(self) -> list[tuple[str, list[int], bool]]: ...
    def flush(self, limit_seconds: float) -> bool: ...
    def counters_json(self) -> str: ...
    def shutdown(self) -> None: ...

def describe(identity: IdentityFields) -> tuple[bytes, str]:
    """(descriptor as a message, namespace digest in hexadecimal)."""

def chunk_blocks(
    groups: Sequence[tuple[str, int]], *, tokens: int | None = None, blocks: int | None = None
) -> list[int]:
    """Blocks of a chunk for each group, given as (kind, tokens of a block)."""

def plan_requests(plan: bytes) -> list[str]:
    """The requests that a plan loads for."""

def default_client_config() -> str: ...
def default_plan_config() -> str: ...
def check_config(client_config: str, plan_config: str) -> None: ...
def run_tool(arguments: list[str]) -> int: ...
def run_daemon(arguments: list[str]) -> int: ...
