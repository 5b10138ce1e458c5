"""The scheduler's half: reads vLLM's requests and steps, and hands what they say to the native scheduler."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from tender_kv import _native
from tender_kv.vllm.config import Settings
from tender_kv.vllm.embedded import NoDaemon
from tender_kv.vllm.events import KvEvents
from tender_kv.vllm.inputs import InputNames, Unnamed
from tender_kv.vllm.kinds import Group, load_fails_as_a_whole
from tender_kv.vllm.metadata import TenderHandshake, TenderMetadata

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.tender_kv.scheduler")

# Ends after which everything up to the last sampled token was computed. Every other end counts as an abort.
_RAN_TO_ITS_END = frozenset(
    (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_REPETITION)
)


@dataclass(slots=True)
class _Tracked:
    """A request that may be cached."""

    request: Request
    given: int = 0
    """Tokens that the native scheduler knows."""
    computed: int = 0
    """Tokens that the engine had when the last match was told: a load begins there."""
    waits: bool = False
    """Whether the last match said "ask again later"."""
    loaded_in: int | None = None
    """Preemptions of the request when it was given a load. It gets one load each time it is admitted: a load that
    fails as a whole brings it back here, and would again."""


class SchedulerSide:
    """One engine's scheduler."""

    def __init__(
        self,
        settings: Settings,
        find_daemon: Callable[[], str],
        name: str,
        groups: list[Group],
        events: Callable[[str], KvEvents] | None = None,
    ):
        """`events` makes the KV events of a daemon's address, where the engine wants any."""
        self._settings, self._find_daemon, self._name = settings, find_daemon, name
        # Made when the workers have something to cache: a private daemon is started then, and not before.
        self._native: _native.Scheduler | None = None
        self._names = InputNames()
        self._make_events = events
        self._events: KvEvents | None = None
        self._groups = groups
        self._group_of = {group.engine_id: index for index, group in enumerate(groups)}
        self._fails_as_a_whole = load_fails_as_a_whole(groups)
        self._tracked: dict[str, _Tracked] = {}
        self._loads: dict[str, list[int]] = {}
        self._logged_kinds: set[str] = set()

    def set_handshake(self, metadata: dict[Any, TenderHandshake]) -> None:
        """What all workers found. Different findings would mix different bytes under one key."""
        refusals = sorted({told.refusal for told in metadata.values() if told.refusal})
        if refusals:
            # The worker has logged its sentence; another process's log may be elsewhere.
            logger.info("Tender is off: %s", "; ".join(refusals))
            return
        descriptors = {told.descriptor for told in metadata.values()}
        if len(descriptors) != 1:
            logger.warning("Tender is off: the workers describe their KV caches in %d ways", len(descriptors))
            return
        try:
            address = self._find_daemon()
            native = _native.Scheduler(self._settings.client_json(address, self._name), self._settings.plan_json())
            native.set_descriptor(descriptors.pop())
        except (NoDaemon, OSError, _native.TenderError) as no:
            logger.warning("Tender is off: %s", no)
            return
        self._native = native
        if self._make_events is not None:
            try:
                self._events = self._make_events(address)
                native.watch()
            except Exception:
                self._events = None
                logger.exception("Tender tells no KV events")

    def new_request(self, request: Request) -> None:
        if self._native is None:
            return
        try:
            inputs = self._names.of(request)
        except Unnamed as unnamed:
            if unnamed.kind not in self._logged_kinds:
                self._logged_kinds.add(unnamed.kind)
                logger.warning("Requests are not cached if they have such an input: %s", unnamed)
            self._tracked.pop(request.request_id, None)
            self._native.new_uncacheable_request(request.request_id, request.num_prompt_tokens, str(unnamed))
            return
        self._native.new_request(request.request_id, request.num_prompt_tokens, inputs.named, inputs.media)
        # Of the engine's own trace, which it has where it traces (--otlp-traces-endpoint) or its caller does.
        if request.trace_headers and (traceparent := request.trace_headers.get("traceparent")):
            self._native.trace_request(request.request_id, traceparent)
        self._tracked[request.request_id] = _Tracked(request)

    def match(self, request: Request, computed: int) -> int | None:
        """Tokens beyond `computed` that can be loaded; None: ask again later."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or request.skip_reading_prefix_cache or tracked.loaded_in == request.num_preemptions:
            return 0
        # A long prompt is not copied again in every step until the answer comes.
        if tracked.waits and tracked.computed == computed and self._native.still_waits(request.request_id):
            return None
        tokens = request.all_token_ids[:]
        tracked.given, tracked.computed = len(tokens), computed
        found = self._native.match_prefix(request.request_id, tokens, computed)
        tracked.waits = found is None
        if not tracked.waits:
            self._describe(request.request_id, request)
        return found

    def allocated(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        request_id = request.request_id
        tracked = self._tracked.get(request_id)
        if tracked is None:
            return
        if external_tokens:
            # First of all: from here on the engine waits for this load, whatever happens below.
            self._loads[request_id] = []
            tracked.loaded_in = request.num_preemptions
        tables = blocks.get_block_ids()
        if external_tokens and not self._fails_as_a_whole:
            tokens_per_block = self._groups[0].tokens_per_block
            first = tracked.computed // tokens_per_block
            self._loads[request_id] = tables[0][first : (tracked.computed + external_tokens) // tokens_per_block]
        self._native.allocated(request_id, self._tables(tables), external_tokens)

    def step(self, output: SchedulerOutput) -> TenderMetadata:
        """One native call for all of a step."""
        if self._native is None:
            return TenderMetadata()
        scheduled, states = output.num_scheduled_tokens, self._states(output)
        rows = []

        def add(request_id: str, computed: int, blocks: Any, replace: bool) -> None:
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                tables = self._tables(blocks) if blocks else ()
                rows.append(
                    (
                        request_id,
                        computed,
                        scheduled.get(request_id, 0),
                        _new_tokens(tracked),
                        tables,
                        replace,
                        states.get(request_id, ()),
                    )
                )

        for new in output.scheduled_new_reqs:
            add(new.req_id, new.num_computed_tokens, new.block_ids, True)
        cached = output.scheduled_cached_reqs
        for request_id, computed, blocks in zip(
            cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        ):
            add(request_id, computed, blocks, request_id in cached.resumed_req_ids)
        plan = self._native.step(rows, list(output.preempted_req_ids or ()))
        return self.take_step(plan)

    def _tables(self, blocks: Sequence[list[int]]) -> list[list[int]]:
        """Block tables of the groups that are cached, in their order."""
        return [blocks[group.engine_id] for group in self._groups]

    def _states(self, output: SchedulerOutput) -> dict[str, list[tuple[int, int, int]]]:
        """Recurrent states by request: group, block, tokens seen. Each is good until the end of this step's pass."""
        told = output.kv_connector_block_state
        if told is None:
            return {}
        return {
            request_id: [
                (self._group_of[group], block, boundary)
                for group, block, boundary in handoffs
                if group in self._group_of
            ]
            for request_id, handoffs in told.boundary_state_offloads.items()
        }

    def take_step(self, plan: bytes = b"") -> TenderMetadata:
        """A step's metadata. Without a plan, the workers report the loads of the step as failed."""
        loads, self._loads = self._loads, {}
        return TenderMetadata(plan, loads)

    def loads_over(self, output: KVConnectorOutput) -> None:
        if self._native is not None and output.finished_recving:
            self._native.loads_finished(list(output.finished_recving))

    def finished(self, request: Request, blocks: tuple[list[int], ...]) -> None:
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return
        # A chunk that only the last step has filled is described by the next request that has it.
        self._describe(request.request_id, request)
        self._native.finished(
            request.request_id,
            num_tokens=request.num_tokens,
            prompt_tokens=request.num_prompt_tokens,
            # Steps that still run are counted as computed by the engine already.
            computed_tokens=max(0, request.num_computed_tokens - request.num_in_flight_tokens),
            aborted=request.status not in _RAN_TO_ITS_END,
            blocks=self._tables(blocks),
            tail_tokens=request.all_token_ids[tracked.given :],
        )

    def _describe(self, request_id: str, request: Request) -> None:
        if self._events is not None:
            self._events.describe(request, self._native.known_keys(request_id))

    def take_events(self) -> list[KVCacheEvent]:
        if self._events is None:
            return []
        return self._events.take(*self._native.take_changes())

    def withdraw_events(self) -> list[KVCacheEvent]:
        return [] if self._events is None else self._events.withdraw()

    def reset(self) -> bool:
        return self._native is None or self._native.reset()

    def counters(self) -> dict[str, Any]:
        return {} if self._native is None else json.loads(self._native.counters_json())

    def shutdown(self) -> None:
        if self._native is not None:
            self._native.shutdown()


def _new_tokens(tracked: _Tracked) -> list[int]:
    """Tokens that were sampled and not given yet, and only those: drafts and the placeholders of asynchronous
    scheduling are kept elsewhere by the engine."""
    known = tracked.request.num_tokens
    tokens = tracked.request.all_token_ids[tracked.given : known] if known > tracked.given else []
    tracked.given = known
    return tokens
