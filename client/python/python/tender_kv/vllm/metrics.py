"""Tender's numbers on the engine's `/metrics`, by vLLM's own way for connectors.

Each side's native client counts from its start. A step carries what was added since the step before
(`TenderStats`), vLLM adds up the workers and the scheduler, and the process that answers `/metrics` adds that to its
counters (`TenderPromMetrics`). States, such as a breaker's, travel as they are, by client.

Nothing here raises into the engine: numbers that cannot be read are left out, and that is said once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.logger import init_logger

logger = init_logger("vllm.tender_kv.metrics")

_COUNTS, _REASONS, _STATES = "counts", "reasons", "states"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of `/metrics`, and where it comes from."""

    name: str
    help: str
    key: str
    """Of the native counters."""
    scale: float = 1.0
    """Units of the counter in one unit of the metric."""


_MICROSECONDS, _MILLISECONDS = 1e6, 1e3

COUNTERS = (
    Metric("vllm:tender_requests", "Requests seen.", "requests"),
    Metric(
        "vllm:tender_uncacheable_requests",
        "Requests with an input that has no content name: neither looked up nor stored.",
        "uncacheable_requests",
    ),
    Metric("vllm:tender_queries", "Requests admitted after a lookup, failed ones included.", "queries"),
    Metric("vllm:tender_query_tokens", "Their tokens that the engine did not already have.", "query_tokens"),
    Metric("vllm:tender_hit_tokens", "Tokens of them that Tender had and the engine took.", "hit_tokens"),
    Metric("vllm:tender_lookups_later", "Times the engine was told to ask again.", "lookups_later"),
    Metric(
        "vllm:tender_fetch_waits",
        "Requests that waited for chunks which the daemon was fetching.",
        "fetch_waits",
    ),
    Metric("vllm:tender_fetch_wait_seconds", "How long they waited.", "fetch_wait_ms", _MILLISECONDS),
    Metric("vllm:tender_loads", "Loads that came in whole.", "loads"),
    Metric("vllm:tender_loads_failed", "Loads of which at least one block failed.", "loads_failed"),
    Metric("vllm:tender_load_seconds", "Time that loads took, one after another.", "load_us", _MICROSECONDS),
    Metric("vllm:tender_loaded_parts", "Parts of chunks copied to the engine.", "loaded_parts"),
    Metric("vllm:tender_loaded_bytes", "Their bytes.", "loaded_bytes"),
    Metric("vllm:tender_failed_blocks", "Blocks that the engine was told to compute again.", "failed_blocks"),
    Metric("vllm:tender_store_seconds", "Time that stores took behind the engine.", "store_us", _MICROSECONDS),
    Metric("vllm:tender_stored_parts", "Parts of chunks that the daemon took.", "stored_parts"),
    Metric("vllm:tender_stored_bytes", "Their bytes.", "stored_bytes"),
    Metric("vllm:tender_stored_chunks", "Chunks that became ready with a part of this engine.", "stored_chunks"),
    Metric("vllm:tender_already_stored", "Parts that the daemon had already: not sent.", "already_stored"),
    Metric("vllm:tender_sessions_lost", "Sessions lost after they were up.", "sessions_lost"),
    Metric("vllm:tender_breaker_opened", "Times a breaker opened.", "breaker_opened"),
    Metric("vllm:tender_exported_spans", "Spans of traces that a collector has taken.", "exported_spans"),
    Metric("vllm:tender_lost_spans", "Spans that no collector took, or that were too many at once.", "lost_spans"),
    Metric("vllm:tender_slow_steps", "Steps that took Tender longer than its budget.", "slow_steps"),
    Metric("vllm:tender_bad_plans", "Plans of the scheduler that a worker could not read.", "bad_plans"),
    Metric("vllm:tender_panics", "Faults caught; the first switches a side off.", "panics"),
)

BY_REASON = (
    Metric("vllm:tender_missed_chunks", "Chunks asked for and not there.", "misses"),
    Metric("vllm:tender_lookup_failures", "Lookups that ended without an answer.", "lookup_failures"),
    Metric("vllm:tender_load_failures", "Chunks that should have been loaded and were not.", "load_failures"),
    Metric("vllm:tender_stores_skipped", "Parts that were due and not stored.", "stores_skipped"),
)

# For each, how many clients (the scheduler and each worker have one) are in which state.
STATES = (
    Metric("vllm:tender_breaker_clients", "Clients by state of their breaker.", "breaker"),
    Metric("vllm:tender_session_clients", "Clients by state of their session with the daemon.", "session"),
)

_COUNTED = frozenset(metric.key for metric in COUNTERS)


class TenderStats(KVConnectorStats):
    """What was added in a step or more, and the states at its end. Only plain dicts: it travels between processes."""

    def __init__(self, data: dict[str, Any] | None = None):
        super().__init__(data=data if data is not None else {})
        for part in (_COUNTS, _REASONS, _STATES):
            if not isinstance(self.data.get(part), dict):
                self.data[part] = {}

    def reset(self) -> None:
        self.data = {_COUNTS: {}, _REASONS: {}, _STATES: {}}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        if not isinstance(other, TenderStats):
            return self
        _add(self.data[_COUNTS], other.data[_COUNTS])
        for key, reasons in other.data[_REASONS].items():
            _add(self.data[_REASONS].setdefault(key, {}), reasons)
        self.data[_STATES].update(other.data[_STATES])
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log line: what is not 0."""
        counts = {metric.key: self.data[_COUNTS].get(metric.key, 0) for metric in COUNTERS}
        named = {f"tender_{key}": count for key, count in counts.items()}
        for metric in BY_REASON:
            named[f"tender_{metric.key}"] = sum(self.data[_REASONS].get(metric.key, {}).values())
        named["tender_breakers_open"] = sum(
            state.get("breaker") not in ("", "closed", None) for state in self.data[_STATES].values()
        )
        return {name: value for name, value in named.items() if value}

    def is_empty(self) -> bool:
        return not any(self.data.values())


class StatsSource:
    """One side's client, read once a step."""

    def __init__(self, client: str):
        self._client = client
        self._before: dict[str, Any] = {}
        self._told: dict[str, str] = {}

    def since_last(self, counters: Mapping[str, Any]) -> TenderStats | None:
        """What was added since the last call; None where nothing was and no state has changed."""
        stats = TenderStats()
        for key in _COUNTED:
            added = _added(counters.get(key), self._before.get(key))
            if added:
                stats.data[_COUNTS][key] = added
        for metric in BY_REASON:
            now, before = counters.get(metric.key) or {}, self._before.get(metric.key) or {}
            added = {reason: more for reason in now if (more := _added(now[reason], before.get(reason)))}
            if added:
                stats.data[_REASONS][metric.key] = added
        states = {metric.key: str(counters[metric.key]) for metric in STATES if counters.get(metric.key)}
        if states != self._told:
            stats.data[_STATES][self._client] = states
        self._before, self._told = dict(counters), states
        return None if stats.is_empty() else stats


class TenderPromMetrics(KVConnectorPromMetrics):
    """Adds steps up for Prometheus."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._warned = False
        self._states: dict[int, dict[str, dict[str, str]]] = {}
        self._shown: dict[int, set[tuple[str, str]]] = {}

        def made(cls: Any, metrics: Iterable[Metric], *labels: str) -> dict[str, Any]:
            return {
                metric.key: cls(name=metric.name, documentation=metric.help, labelnames=[*labelnames, *labels])
                for metric in metrics
            }

        self._counters = made(self._counter_cls, COUNTERS)
        self._by_reason = made(self._counter_cls, BY_REASON, "reason")
        self._gauges = made(self._gauge_cls, STATES, "state")
        # From the start on: the rate of a counter that appears with its first event misses that event.
        for values in per_engine_labelvalues.values():
            for counter in self._counters.values():
                counter.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        try:
            self._observe(TenderStats(dict(transfer_stats_data)), engine_idx)
        except Exception:
            if not self._warned:
                self._warned = True
                logger.exception("Tender's numbers of a step are not in /metrics")

    def _observe(self, stats: TenderStats, engine: int) -> None:
        values = list(self.per_engine_labelvalues[engine])
        for metric in COUNTERS:
            if added := stats.data[_COUNTS].get(metric.key):
                self._counters[metric.key].labels(*values).inc(added / metric.scale)
        for metric in BY_REASON:
            for reason, added in stats.data[_REASONS].get(metric.key, {}).items():
                self._by_reason[metric.key].labels(*values, reason).inc(added)
        if stats.data[_STATES]:
            self._show_states(engine, values, stats.data[_STATES])

    def _show_states(self, engine: int, values: list[Any], states: Mapping[str, dict[str, str]]) -> None:
        clients = self._states.setdefault(engine, {})
        clients.update(states)
        shown = self._shown.setdefault(engine, set())
        shown.update((key, state) for client in clients.values() for key, state in client.items())
        # A state that nobody is in any more says 0.
        for key, state in shown:
            if key in self._gauges:
                count = sum(client.get(key) == state for client in clients.values())
                self._gauges[key].labels(*values, state).set(count)


def _add(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        into[key] = into.get(key, 0) + value


def _added(now: Any, before: Any) -> int:
    """Counters only grow; one that has not is of a new client and counts from 0."""
    now, before = int(now or 0), int(before or 0)
    return now - before if now >= before else now


def metric_names() -> Iterator[str]:
    """All that can appear, as declared."""
    return (metric.name for metric in (*COUNTERS, *BY_REASON, *STATES))
