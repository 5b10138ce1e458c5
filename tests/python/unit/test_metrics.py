"""What Tender tells vLLM's /metrics, through vLLM's own classes, against a count of its own."""

from __future__ import annotations

import copy
import json
import random
import re
from collections import Counter as Tally
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging

from tender_kv import _native
from tender_kv.vllm.connector import TenderConnector
from tender_kv.vllm.metrics import (
    BY_REASON,
    COUNTERS,
    STATES,
    StatsSource,
    TenderPromMetrics,
    TenderStats,
    metric_names,
)

_TYPES = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
_LABELS = ["model_name", "engine"]


@pytest.fixture
def prom():
    config = SimpleNamespace(kv_transfer_config=None)
    engines = {0: ["m", "0"], 1: ["m", "1"]}
    made = TenderConnector.build_prom_metrics(config, _TYPES, list(_LABELS), engines)
    assert isinstance(made, TenderPromMetrics)
    yield made
    for metric in (*made._counters.values(), *made._by_reason.values(), *made._gauges.values()):
        REGISTRY.unregister(metric)


def _value(name: str, engine: str = "0", **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"model_name": "m", "engine": engine, **labels})


def _random_step(rng: random.Random, counters: dict) -> None:
    """As a native client counts: numbers grow, reasons come up."""
    for metric in rng.sample(COUNTERS, 6):
        counters[metric.key] = counters.get(metric.key, 0) + rng.randrange(1000)
    for metric in BY_REASON:
        reason = rng.choice(["no_space", "evicted", "staging_full"])
        of = counters.setdefault(metric.key, {})
        of[reason] = of.get(reason, 0) + rng.randrange(3)
    counters["breaker"] = rng.choice(["closed", "open", "half_open"])
    counters["session"] = rng.choice(["up", "down"])


def test_metrics_equal_the_counters_of_all_clients_after_any_steps(prom):
    rng = random.Random(5)
    names = ["scheduler", "worker 0", "worker 1"]
    clients = {name: (StatsSource(name), {}) for name in names}
    for _ in range(60):
        for name in rng.sample(names, rng.randrange(4)):
            _random_step(rng, clients[name][1])
        # As vLLM does it: the workers' are added up by the first of them, then the scheduler's, then on the wire.
        step = None
        for name in ("worker 0", "worker 1", "scheduler"):
            source, counters = clients[name]
            # Read anew each time, as from the native client.
            stats = source.since_last(copy.deepcopy(counters))
            if stats is not None and not stats.is_empty():
                step = stats if step is None else step.aggregate(stats)
        if step is not None:
            prom.observe(msgspec.msgpack.decode(msgspec.msgpack.encode(step.to_dict())), 0)
    for metric in COUNTERS:
        total = sum(counters.get(metric.key, 0) for _, counters in clients.values())
        assert _value(f"{metric.name}_total") == pytest.approx(total / metric.scale), metric.name
    for metric in BY_REASON:
        total = Tally()
        for _, counters in clients.values():
            total.update(counters.get(metric.key, {}))
        for reason, count in total.items():
            assert (_value(f"{metric.name}_total", reason=reason) or 0) == count, (metric.name, reason)
    for metric in STATES:
        for state in ("closed", "open", "half_open") if metric.key == "breaker" else ("up", "down"):
            count = sum(counters.get(metric.key) == state for _, counters in clients.values())
            assert (_value(metric.name, state=state) or 0) == count
    assert _value("vllm:tender_loads_total", engine="1") == 0, "another engine's numbers are its own"


def test_a_step_in_which_nothing_happened_tells_nothing():
    source = StatsSource("worker 0")
    assert source.since_last({}) is None
    counters = {"loads": 2, "breaker": "closed", "longest_step_us": 7}
    assert source.since_last(counters).data["counts"] == {"loads": 2}
    assert source.since_last(dict(counters, longest_step_us=9)) is None
    # A client that was made anew counts from 0.
    assert source.since_last({"loads": 1, "breaker": "closed"}).data["counts"] == {"loads": 1}


def test_every_metric_is_one_of_the_native_clients_numbers():
    native = _native.Scheduler(_native.default_client_config(), _native.default_plan_config())
    try:
        known = json.loads(native.counters_json()).keys()
    finally:
        native.shutdown()
    missing = {metric.key for metric in (*COUNTERS, *BY_REASON, *STATES)} - known
    # An extension that was built before these were added has none of them.
    assert missing <= {"load_us", "store_us", "misses"}
    assert len(set(metric_names())) == len(list(metric_names()))


def test_numbers_that_cannot_be_read_raise_nothing(prom):
    for bad in (
        {"counts": {"loads": "many"}},
        {"counts": None, "states": {"x": 7}},
        {"reasons": {"misses": 3}},
        {"new": 1},
    ):
        prom.observe(bad, 0)
    prom.observe({"counts": {"loads": 1}}, 99)
    prom.observe({"counts": {"loads": 1}, "reasons": {}, "states": {}}, 0)
    assert _value("vllm:tender_loads_total") == 1, "and those after them are counted"
    assert TenderConnector.build_prom_metrics(None, {}, [], {}) is None


def test_a_fault_while_reading_costs_the_numbers_and_nothing_else():
    connector = TenderConnector.__new__(TenderConnector)
    connector.broken, connector._stats_failed = None, False
    connector._scheduler = SimpleNamespace(counters=lambda: {"loads": object()})
    connector._worker, connector._stats = None, StatsSource("scheduler")
    assert connector.get_kv_connector_stats() is None
    assert connector.get_kv_connector_stats() is None
    assert connector.broken is None


def test_vllms_log_line_has_what_is_not_zero():
    stats = TenderConnector.build_kv_connector_stats({"counts": {"loads": 2}, "states": {"w": {"breaker": "open"}}})
    assert isinstance(stats, TenderStats)
    logging = KVConnectorLogging(None)
    logging.connector_cls = TenderConnector
    logging.observe(stats.to_dict())
    logging.observe({"counts": {"loads": 1}, "reasons": {"misses": {"evicted": 4}}})
    lines = []
    logging.log(lambda form, text: lines.append(form % text))
    assert lines == ["KV Transfer metrics: tender_loads=3, tender_misses=4, tender_breakers_open=1"]


def test_the_page_of_the_docs_has_these_metrics_and_no_others():
    page = (Path(__file__).parents[3] / "docs/metrics-engine.md").read_text()
    # The example, as the exposition has it.
    labels = {f"{metric.name}_total": () for metric in COUNTERS}
    labels |= {f"{metric.name}_total": ("reason",) for metric in BY_REASON}
    labels |= {metric.name: ("state",) for metric in STATES}
    shown = re.findall(r"^(vllm:tender_\w+){(.*)} \S+$", page, re.M)
    assert shown
    for name, inside in shown:
        assert sorted(re.findall(r"(\w+)=", inside)) == sorted((*_LABELS, *labels[name]))
    # The table: names without what all of them begin with, some with a label.
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`(\w+)(?:{\w+})?`", cell)}
    assert named == {metric.name.removeprefix("vllm:tender_") for metric in (*COUNTERS, *BY_REASON, *STATES)}
