"""`TenderConnector`: what vLLM calls. Every hook is fenced and handed to the side that this process is.

The engine's configuration is read when the connector is made; a value of the user's that cannot be used raises there
and only there. Whatever else keeps Tender from working is one warning, and the engine runs without.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.logger import init_logger

from tender_kv._native import ConfigError
from tender_kv.vllm import embedded
from tender_kv.vllm.config import Settings
from tender_kv.vllm.events import KvEvents
from tender_kv.vllm.events import wanted as kv_events_wanted
from tender_kv.vllm.groups import cached_groups
from tender_kv.vllm.guard import hook, nothing
from tender_kv.vllm.kinds import Group, Unsupported
from tender_kv.vllm.metadata import TenderHandshake, TenderMetadata
from tender_kv.vllm.metrics import StatsSource, TenderPromMetrics, TenderStats
from tender_kv.vllm.scheduler import SchedulerSide
from tender_kv.vllm.worker import WorkerSide

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.tender_kv")

_ROLE = "kv_both"
_POLICY = "recompute"


class TenderConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM's KV cache on Tender."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig):
        super().__init__(vllm_config, role, kv_cache_config)
        self.broken: str | None = None
        self._refusal = "the worker's side could not be started"
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._engine_id: str | None = None
        self._daemon: embedded.PrivateDaemon | None = None
        self._summed_up = False
        self._stats = StatsSource(_client_name(vllm_config, role))
        self._stats_failed = False
        transfer = vllm_config.kv_transfer_config
        settings = Settings.parse(transfer.kv_connector_extra_config or {})
        if transfer.kv_role != _ROLE:
            raise ConfigError(f"kv_role: Tender stores and loads; set it to '{_ROLE}', not '{transfer.kv_role}'")
        if role is KVConnectorRole.SCHEDULER and transfer.kv_load_failure_policy != _POLICY:
            logger.warning(
                'A request fails if Tender loses chunks while they load. Set "kv_load_failure_policy": "%s" in '
                "--kv-transfer-config, and vLLM computes them instead.",
                _POLICY,
            )
        try:
            groups = cached_groups(vllm_config, kv_cache_config)
        except Unsupported as no:
            self._refusal = str(no)
            # The workers find the same, and one warning is enough.
            log = logger.warning if role is KVConnectorRole.WORKER else logger.info
            log("Tender is off: %s", no)
            return
        chunk_blocks = settings.chunk_blocks((group.kind, group.tokens_per_block) for group in groups)
        self._start(settings, role, groups, chunk_blocks)

    def _start(self, settings: Settings, role: KVConnectorRole, groups: list[Group], chunk_blocks: list[int]) -> None:
        engine_id = self._kv_transfer_config.engine_id or str(os.getpid())
        name = f"vllm {role.name.lower()} {engine_id}"

        def find_daemon() -> str:
            if settings.address is not None:
                return settings.address
            if self._engine_id is None:
                self._daemon = embedded.acquire(engine_id, settings.arena_bytes)
                self._engine_id = engine_id
            return self._daemon.address

        if role is KVConnectorRole.SCHEDULER:

            def events(address: str) -> KvEvents:
                local = address.startswith("unix:")
                return KvEvents(groups, chunk_blocks, self._kv_cache_config, local)

            wanted = events if kv_events_wanted(self._vllm_config) else None
            self._scheduler = SchedulerSide(settings, find_daemon, name, groups, wanted)
        else:
            self._worker = WorkerSide(self._vllm_config, self._kv_cache_config, settings, find_daemon, name)

    def on_fault(self, hook: str) -> None:
        """See `guard`."""
        logger.exception("Tender switches itself off after a fault in %s; the engine runs on without it", hook)
        if self._worker is not None:
            self._worker.give_up()

    @property
    def requires_kv_delivery(self) -> bool:
        """Stores are copies, and a lost one is a miss."""
        return False

    # What the worker calls.

    @hook(nothing)
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self._worker is not None:
            self._worker.register(kv_caches)

    @hook(lambda self: TenderHandshake(refusal=f"a fault in {self.broken}"))
    def get_handshake_metadata(self) -> TenderHandshake:
        if self._worker is None:
            return TenderHandshake(refusal=self._refusal)
        return self._worker.handshake()

    # The engine calls `handle_preemptions` first of all that a step does; one that does not binds the metadata first.
    @hook(nothing)
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        if self._worker is not None:
            self._worker.begin(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self.handle_preemptions(connector_metadata)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Loads began with the step; vLLM calls this after the forward pass if it waits for none of them."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """No pass reads what is being loaded: loads are asynchronous."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        """Whole blocks of all layers are gathered at once, after the pass."""

    @hook(nothing)
    def wait_for_save(self) -> None:
        if self._worker is not None and self.has_connector_metadata():
            self._worker.end(self._get_connector_metadata())

    @hook(lambda self, _ids: self._loads_given_up())
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        return self._loads_over()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """For engines that do not ask for `get_transfer_results`."""
        return None, self.get_transfer_results(finished_req_ids).finished_recving or None

    def _loads_over(self) -> KVConnectorTransferResults:
        if self._worker is None:
            return KVConnectorTransferResults()
        over, failed = self._worker.poll()
        return KVConnectorTransferResults(finished_recving=over, failed_recving=failed)

    def _loads_given_up(self) -> KVConnectorTransferResults:
        """After a fault: what the engine still waits for, steps planned before it heard of the fault included."""
        if self._worker is not None:
            if self.has_connector_metadata():
                self._worker.adopt(self._get_connector_metadata())
            self._worker.give_up()
        return self._loads_over()

    @hook(lambda self: self._worker.take_failed_blocks() if self._worker is not None else set())
    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_failed_blocks() if self._worker is not None else set()

    # What the scheduler calls.

    @hook(nothing)
    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        if self._scheduler is not None:
            self._scheduler.set_handshake(metadata)

    @hook(nothing)
    def on_new_request(self, request: Request) -> None:
        if self._scheduler is not None:
            self._scheduler.new_request(request)

    @hook(lambda self, *_: (0, False))
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._scheduler is None:
            return 0, False
        tokens = self._scheduler.match(request, num_computed_tokens)
        return tokens, bool(tokens)

    @hook(nothing)
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks, num_external_tokens)

    @hook(lambda self, _output: self._scheduler.take_step() if self._scheduler is not None else TenderMetadata())
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return self._scheduler.step(scheduler_output) if self._scheduler is not None else TenderMetadata()

    @hook(nothing)
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        if self._scheduler is not None:
            self._scheduler.loads_over(connector_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    @hook(lambda self, *_: (False, None))
    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The blocks are free at once: what became final is gathered before the next pass can overwrite them."""
        if self._scheduler is not None:
            self._scheduler.finished(request, block_ids)
        return False, None

    @hook(lambda self: self._scheduler.withdraw_events() if self._scheduler is not None else [])
    def take_events(self) -> Iterable[KVCacheEvent]:
        """What Tender has stored and lost of this engine's prompts since the last call; nothing unless vLLM's own KV
        events are on."""
        return self._scheduler.take_events() if self._scheduler is not None else []

    @hook(lambda self: False)
    def reset_cache(self) -> bool | None:
        """Forgets the namespace at the daemon too, for all engines that use it. False: what is there may still be
        served."""
        return self._scheduler.reset() if self._scheduler is not None else True

    # Both.

    def get_kv_connector_stats(self) -> TenderStats | None:
        """What this side has done since the last call. A fault costs the numbers, and switches nothing off."""
        if self._stats_failed:
            return None
        try:
            return self._stats.since_last(self.tender_counters())
        except Exception:
            self._stats_failed = True
            logger.exception("Tender's numbers are no longer told to the engine")
            return None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TenderStats | None:
        return TenderStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> TenderPromMetrics | None:
        try:
            return TenderPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        except Exception:
            logger.exception("Tender's numbers are not in /metrics")
            return None

    def tender_counters(self) -> dict[str, Any]:
        """This side's numbers; empty where Tender is off."""
        side = self._scheduler or self._worker
        return side.counters() if side is not None else {}

    counters = tender_counters

    @hook(lambda self, _limit: True)
    def flush(self, limit_s: float) -> bool:
        """Waits until what was gathered is stored and what is being loaded is loaded; for tests and demos."""
        return self._worker.flush(limit_s) if self._worker is not None else True

    def shutdown(self) -> None:
        """Ends this side; nothing of Tender touches the engine's memory afterwards. May be repeated."""
        side = self._scheduler or self._worker
        try:
            if self._worker is not None:
                self._worker.finish_stores()
            if side is not None and not self._summed_up:
                self._summed_up = True
                logger.info("Tender, %s: %s", self.role.name.lower(), _summary(side.counters()))
                side.shutdown()
        except Exception:
            logger.exception("Tender could not be ended cleanly")
        finally:
            engine_id, self._engine_id = self._engine_id, None
            if engine_id is not None:
                try:
                    embedded.release(engine_id)
                except Exception:
                    logger.exception("the private tenderd could not be ended")


def _client_name(config: VllmConfig, role: KVConnectorRole) -> str:
    """Tells an engine's clients apart, of which each rank has one."""
    if role is KVConnectorRole.SCHEDULER:
        return "scheduler"
    rank = getattr(config.parallel_config, "rank", None)
    return f"worker {os.getpid() if rank is None else rank}"


def _summary(counters: dict[str, Any]) -> str:
    """One line: what happened at all."""
    parts = []
    for key, value in counters.items():
        if isinstance(value, dict):
            value = " ".join(f"{reason}={count}" for reason, count in value.items())
        if value:
            parts.append(f"{key}={value}")
    return ", ".join(parts) or "nothing to tell"
