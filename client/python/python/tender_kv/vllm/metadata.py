"""What the scheduler's and the workers' connectors say to each other; vLLM carries it, pickled, between processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorMetadata


@dataclass
class TenderMetadata(KVConnectorMetadata):
    """One step, from the scheduler to every worker."""

    plan: bytes = b""
    """A step plan of the native client; empty when there is nothing to move."""
    loads: dict[str, list[int]] = field(default_factory=dict)
    """Requests that wait for a load which begins in this step, and the blocks that they wait for; none where loads fail
    as a whole. Each is reported once, whatever becomes of it: the engine would wait for ever."""


@dataclass
class TenderHandshake(KVConnectorHandshakeMetadata):
    """What a worker found when it registered its tensors, once, from each worker to the scheduler."""

    descriptor: bytes = b""
    """The namespace descriptor as a message."""
    refusal: str = ""
    """Why there is none: a sentence for the log."""
