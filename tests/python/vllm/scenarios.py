"""The workloads, each a function of a `Bench`. Both sides of a comparison run the very same one; what only makes sense
with Tender (killing its daemon, waiting for its loads) asks `bench.with_tender` first.

What a scenario cannot know, whether the answers are equal, is the harness's business; what it alone can see goes
into `bench.facts` and is asserted by its test.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from itertools import pairwise
from pathlib import Path

from daemon import Daemon
from engine import Answer, Ask, Engine, Pass
from harness import LOGPROB_TOLERANCE
from models import VOCAB_TOKENS
from slow_link import SlowLink
from spec import BLOCK_TOKENS, CHUNK_TOKENS, Spec

RECONNECT_TIMEOUT_S = 90
SERVED_IN_A_ROW = 8
FROZEN_S = 8.0
"""Longer than a session outlives a daemon that is silent."""
EDGE_TOKENS = 768
"""A multiple of every size of chunk that is used."""
# A prompt of 640 tokens is about 1 MB of KV: a load then takes hundreds of engine steps.
SLOW_BYTES_PER_S = 3_000_000


class Bench:
    """An engine, a seeded source of prompts, and the record of what happened."""

    def __init__(self, spec: Spec):
        self.spec = spec
        self.with_tender = spec.connector is not None
        self.random = random.Random(spec.seed)
        self.daemon: Daemon | None = None
        self.link: SlowLink | None = None
        if spec.daemon_folder and self.with_tender:
            spec.connector = {**spec.connector, "address": self._start_daemon()}
        self.engine = Engine(spec)
        self.passes: list[Pass] = []
        self.facts: dict = {}

    def _start_daemon(self) -> str:
        """Starts the scenario's own daemon and says where the engine reaches it."""
        rate = self.spec.link_bytes_per_s
        self.daemon = Daemon(Path(self.spec.daemon_folder), tcp=rate is not None).start()
        if rate is None:
            return self.daemon.address
        self.link = SlowLink(self.daemon.tcp_port, rate or None)
        return f"tcp://127.0.0.1:{self.link.start()}"

    def prompt(self, tokens: int) -> list[int]:
        return [self.random.randrange(3, VOCAB_TOKENS) for _ in range(tokens)]

    def run(self, name: str, asks: list[Ask], each_step=None) -> Pass:
        """A pass that counts: its answers are compared."""
        done = self.engine.run(name, asks, each_step)
        self.passes.append(done)
        return done

    def slow_down(self, bytes_per_s: int | None) -> None:
        """Loads take that long from now on."""
        if self.link is not None:
            self.link.bytes_per_s = bytes_per_s

    def close(self) -> None:
        self.engine.close()
        if self.daemon:
            self.daemon.stop()


def repeated_prompt(bench: Bench) -> None:
    """The same prompts twice; lengths around nothing in particular."""
    asks = [Ask(f"p{n}", bench.prompt(n)) for n in (97, 333, 640)]
    bench.run("first", asks)
    bench.engine.forget()
    bench.run("again", asks)


def demo(bench: Bench) -> None:
    """Long prompts, short answers: what an engine that serves agents or documents does all day."""
    asks = [Ask(f"p{index}", bench.prompt(1500 + 37 * index), 16) for index in range(4)]
    bench.facts["prompt_tokens"] = sum(len(ask.tokens) for ask in asks)
    bench.run("first", asks)
    bench.engine.forget()
    bench.run("again", asks)


TURN_ENDS = {
    "on-block": 5 * BLOCK_TOKENS,
    "on-chunk": 3 * CHUNK_TOKENS,
    "before-chunk": 3 * CHUNK_TOKENS - 1,
    "after-chunk": 3 * CHUNK_TOKENS + 1,
    "after-block": 5 * BLOCK_TOKENS + 1,
}
"""Tokens of a conversation's first turn, prompt and answer together."""

TURN_ANSWER_TOKENS = CHUNK_TOKENS + BLOCK_TOKENS


def multi_turn(bench: Bench) -> None:
    """Each next prompt is the previous one plus its whole answer, in half of the conversations with new words after it.
    Turns end just before, exactly on, and just after block and chunk boundaries; the last token of an answer has no
    KV yet."""
    talks = {}
    for name, end in TURN_ENDS.items():
        talks[name] = bench.prompt(end - TURN_ANSWER_TOKENS)
        talks[f"{name}+words"] = bench.prompt(end - TURN_ANSWER_TOKENS)
    for turn in range(3):
        if turn:
            bench.engine.forget()
        asks = [Ask(name, tokens, TURN_ANSWER_TOKENS) for name, tokens in talks.items()]
        done = bench.run(f"turn-{turn}", asks)
        for name in talks:
            words = bench.prompt(CHUNK_TOKENS) if name.endswith("+words") else []
            talks[name] = talks[name] + done.answers[name].tokens + words


def shared_prefixes(bench: Bench) -> None:
    """A tree of prompts that branch at random places, several at a time, in an order that changes per pass."""
    trunk = bench.prompt(9 * CHUNK_TOKENS)
    asks = []
    for index in range(12):
        cut = bench.random.randrange(1, len(trunk))
        tail = bench.prompt(bench.random.randrange(1, 3 * CHUNK_TOKENS))
        asks.append(Ask(f"b{index}", trunk[:cut] + tail, bench.random.randrange(2, 40)))
    for name in ("first", "again", "once-more"):
        bench.run(name, asks)
        bench.engine.forget()
        bench.random.shuffle(asks)


def chunked_prefill(bench: Bench) -> None:
    """Prompts that need many steps each: chunks become final piece by piece, between other requests' decodes."""
    asks = [Ask(f"p{n}", bench.prompt(n), 40) for n in (30, 411, 700, 64 * 7)]
    bench.run("first", asks)
    bench.engine.forget()
    bench.run("again", asks)


def every_kind_of_hit(bench: Bench) -> None:
    """For any model: whole prompts again, conversations that go on, and prompts that leave a stored one at places that
    are boundaries of nothing, several at a time. One conversation ends a chunk while it decodes, when all but the last
    tokens of a window are gone, and is asked for up to that end: the hit must end inside the chunk."""
    asks = [Ask(f"p{n}", bench.prompt(n), 40) for n in (97, 333, 640, 1001)]
    asks.append(Ask("edge", bench.prompt(EDGE_TOKENS - 60), 90))
    done = bench.run("first", asks)
    bench.engine.forget()
    bench.run("again", asks)
    bench.engine.forget()
    turns = [
        Ask(ask.name, ask.tokens + done.answers[ask.name].tokens + bench.prompt(5 + 40 * index))
        for index, ask in enumerate(asks[:-1])
    ]
    turns.append(Ask("edge", (asks[-1].tokens + done.answers["edge"].tokens)[:EDGE_TOKENS]))
    bench.run("turns", turns)
    bench.engine.forget()
    cuts = [bench.random.randrange(100, 1001) for _ in range(6)]
    branches = [Ask(f"cut{cut}", asks[-2].tokens[:cut] + bench.prompt(70)) for cut in cuts]
    bench.run("branches", branches)
    bench.engine.forget()
    bench.run("branches-again", branches)


def continued_decode(bench: Bench) -> None:
    """Conversations of which everything but the newest token comes back: what is said next must be what the engine said
    when it had computed all of it itself. For engines whose prefill and decode do not say the same."""
    bench.facts["worst"], bench.facts["cached"] = 0.0, {}
    for chunks in (1, 5):
        tokens = bench.prompt(chunks * CHUNK_TOKENS)
        whole = bench.run(f"whole-{chunks}", [Ask("p", tokens, 2 * CHUNK_TOKENS)]).answers["p"]
        for known in (1, CHUNK_TOKENS + 1):
            bench.engine.forget()
            again = bench.run(f"again-{chunks}-{known}", [Ask("p", tokens + whole.tokens[:known])]).answers["p"]
            expected = whole.logprobs[known : known + len(again.logprobs)]
            worst = max(abs(a - b) for a, b in zip(again.logprobs, expected, strict=True))
            bench.facts["worst"] = max(bench.facts["worst"], worst)
            bench.facts["cached"][f"{chunks}-{known}"] = again.cached
        bench.engine.forget()


def drafts(bench: Bench) -> None:
    """Prompts that say everything twice, so that drafts are found in them, most of which are wrong."""
    asks = [Ask(f"p{n}", bench.prompt(n) * 2, 90) for n in (61, 150, 333)]
    bench.run("first", asks)
    bench.engine.forget()
    bench.run("again", asks)
    bench.engine.forget()
    turns = [Ask(ask.name, ask.tokens + answer.tokens) for ask, answer in zip(asks, _answers(bench, asks), strict=True)]
    bench.run("turns", turns)


def _answers(bench: Bench, asks: list[Ask]) -> list[Answer]:
    """What the last pass answered."""
    return [bench.passes[-1].answers[ask.name] for ask in asks]


def every_kind_of_trouble(bench: Bench) -> None:
    """For any model, in one engine: loads that take many steps, are aborted, and fail; requests that are preempted."""
    asks = [Ask(f"p{index}", bench.prompt(520 + 37 * index), 16) for index in range(3)]
    others = [Ask(f"other{index}", bench.prompt(470 + 13 * index), 16) for index in range(2)]
    bench.run("first", asks)
    bench.engine.forget()
    bench.run("again", asks)
    bench.engine.forget()

    bench.slow_down(SLOW_BYTES_PER_S)
    aborted: list[str] = []

    def abort(_progress: dict[str, int]) -> None:
        for ask in asks:
            if ask.name not in aborted and (not bench.with_tender or bench.engine.waits_for_load(ask.name)):
                aborted.append(ask.name)
                bench.engine.abort(ask.name)

    bench.run("aborted", asks + others, abort)
    bench.facts["aborted_loading"] = aborted
    bench.slow_down(None)
    bench.run("beside", others)
    bench.engine.forget()
    bench.run("after-abort", asks)
    bench.engine.forget()

    crowd = [Ask(f"c{index}", bench.prompt(100 + 11 * index), 150) for index in range(12)]
    bench.run("crowd", crowd)
    bench.engine.forget()
    bench.run("crowd-again", crowd)
    bench.engine.forget()

    bench.slow_down(SLOW_BYTES_PER_S)

    def kill(_progress: dict[str, int]) -> None:
        if bench.daemon and "killed_pid" not in bench.facts and bench.engine.waits_for_load("p0"):
            bench.facts["killed_pid"] = bench.daemon.pid
            bench.daemon.kill()

    bench.run("killed", asks + others, kill)
    bench.engine.forget()
    bench.run("without", asks)


def preemption(bench: Bench) -> None:
    """More running tokens than the pool has slots: requests are thrown out and come back, some from Tender."""
    asks = [Ask(f"p{index}", bench.prompt(100 + 13 * index), 130) for index in range(5)]
    bench.run("first", asks)
    bench.engine.forget()
    bench.run("again", asks)


def aborted_decode(bench: Bench) -> None:
    """Half of the requests are aborted while they decode, at different depths; then all are asked again."""
    asks = [Ask(f"p{index}", bench.prompt(150 + 31 * index), 80) for index in range(4)]
    stop_at = {"p1": 7, "p3": 70}

    def abort(progress: dict[str, int]) -> None:
        for name in [name for name, depth in stop_at.items() if progress[name] >= depth]:
            del stop_at[name]
            bench.engine.abort(name)

    bench.run("aborted", asks, abort)
    bench.facts["not_aborted"] = sorted(stop_at)
    bench.engine.forget()
    bench.run("again", asks)


def aborted_load(bench: Bench) -> None:
    """Requests are aborted while their load is on its way; others at once get the memory the load was meant for."""
    asks = [Ask(f"p{index}", bench.prompt(10 * CHUNK_TOKENS + 5 * index)) for index in range(2)]
    others = [Ask(f"other{index}", bench.prompt(9 * CHUNK_TOKENS)) for index in range(2)]
    bench.run("first", asks)
    bench.engine.forget()
    aborted_loading: list[str] = []

    def abort(_progress: dict[str, int]) -> None:
        for ask in asks:
            if ask.name in aborted_loading:
                continue
            if not bench.with_tender or bench.engine.waits_for_load(ask.name):
                aborted_loading.append(ask.name)
                bench.engine.abort(ask.name)

    bench.run("aborted", asks + others, abort)
    bench.facts["aborted_loading"] = aborted_loading
    bench.run("beside", others)
    bench.engine.forget()
    bench.run("again", asks)


def salts(bench: Bench) -> None:
    """One prompt under two salts and none: each finds its own and nobody else's."""
    tokens = bench.prompt(6 * CHUNK_TOKENS)
    for name, salt in (("red", "red"), ("blue", "blue"), ("none", None), ("red-again", "red"), ("none-again", None)):
        bench.run(name, [Ask("p", tokens, salt=salt)])
        bench.engine.forget()


def adapters(bench: Bench) -> None:
    """One prompt under two LoRA adapters and none; the KV bytes differ, so sharing would be wrong, not only rude."""
    tokens = bench.prompt(6 * CHUNK_TOKENS)
    for name, adapter in (("a", 0), ("b", 1), ("none", None), ("b-again", 1), ("a-again", 0)):
        bench.run(name, [Ask("p", tokens, adapter=adapter)])
        bench.engine.forget()


def daemon_killed(bench: Bench) -> None:
    """The daemon dies while requests decode; the engine goes on without it, and with the next one."""
    asks = [Ask(f"p{index}", bench.prompt(300 + 17 * index), 40) for index in range(3)]
    bench.run("first", asks)
    bench.engine.forget()
    loaded = bench.run("again", asks)
    bench.engine.forget()

    def kill(progress: dict[str, int]) -> None:
        if bench.daemon and "killed_pid" not in bench.facts and min(progress.values()) >= 5:
            bench.facts["killed_pid"] = bench.daemon.pid
            bench.daemon.kill()

    fresh = [Ask(f"fresh{index}", bench.prompt(280 + 17 * index), 40) for index in range(3)]
    bench.run("killed", fresh + asks, kill)
    bench.engine.forget()
    bench.run("without", asks)
    bench.engine.forget()
    bench.facts["served_before"] = _served(loaded)
    if bench.daemon:
        bench.daemon.start()
        bench.facts["served_after"] = _served_after_restart(bench, asks)
    bench.run("restarted", asks)


def daemon_killed_loading(bench: Bench) -> None:
    """The daemon dies while loads are on their way: they fail, and exactly they are computed."""
    asks = [Ask(f"p{index}", bench.prompt(10 * CHUNK_TOKENS + 7 * index)) for index in range(3)]
    bench.run("first", asks)
    bench.engine.forget()
    bench.run("again", asks)
    bench.engine.forget()

    def kill(_progress: dict[str, int]) -> None:
        if bench.daemon and "killed_pid" not in bench.facts and bench.engine.waits_for_load("p0"):
            bench.facts["killed_pid"] = bench.daemon.pid
            bench.daemon.kill()

    bench.run("killed", asks, kill)


def daemon_upgraded(bench: Bench) -> None:
    """One request after another, all asked for before; under them the daemon is taken over from four times, and
    restarted once. The engine has no prefix cache of its own here, so whatever is cached came from Tender."""
    asks = [Ask(f"p{index}", bench.prompt(200 + 61 * index), 6) for index in range(5)]
    first = bench.run("first", asks)
    bench.engine.settle()
    if bench.daemon:
        changes = [("take-over", bench.daemon.take_over)] * 4 + [("restart", bench.daemon.restart)]
        bench.facts["changes"] = [_change_under_load(bench, asks, first, *change) for change in changes]
    bench.run("end", asks)


def _change_under_load(bench: Bench, asks: list[Ask], first: Pass, name: str, change) -> dict:
    """Makes the change while requests run, until many of them in a row were served again. All of their answers must be
    the first ones."""
    done, wrong, hits, misses = {}, [], [time.monotonic()], 0
    thread = threading.Thread(target=lambda: done.update(status=change(), seconds=time.monotonic() - hits[0]))
    thread.start()
    in_a_row, number = 0, 0
    deadline = time.monotonic() + RECONNECT_TIMEOUT_S
    while (thread.is_alive() or in_a_row < SERVED_IN_A_ROW) and time.monotonic() < deadline:
        ask = asks[number % len(asks)]
        number += 1
        answer = bench.engine.run("stream", [ask]).answers[ask.name]
        if not _is_same(answer, first.answers[ask.name]):
            wrong.append(ask.name)
        if answer.cached:
            hits.append(time.monotonic())
            in_a_row += 1
        else:
            misses += 1
            in_a_row = 0
    thread.join()
    return {
        "change": name,
        "status": done.get("status"),
        "seconds": done.get("seconds"),
        "requests": number,
        "misses": misses,
        "in_a_row": in_a_row,
        "wrong": wrong,
        "longest_without_hit_s": max(after - before for before, after in pairwise(hits)),
    }


def _is_same(answer: Answer, other: Answer) -> bool:
    near = all(abs(a - b) <= LOGPROB_TOLERANCE for a, b in zip(answer.logprobs, other.logprobs, strict=True))
    return answer.tokens == other.tokens and near


def daemon_frozen(bench: Bench) -> None:
    """The daemon is stopped for seconds while requests load and decode, and goes on: the engine never waits for it."""
    asks = [Ask(f"p{index}", bench.prompt(300 + 17 * index), 40) for index in range(3)]
    bench.run("first", asks)
    bench.engine.forget()
    loaded = bench.run("again", asks)
    bench.engine.forget()
    bench.facts["served_before"] = _served(loaded)
    frozen_at = 0.0

    def freeze(progress: dict[str, int]) -> None:
        nonlocal frozen_at
        # Others decode then, and some may load.
        if bench.daemon and not frozen_at and max(progress.values()) >= 2:
            frozen_at = time.monotonic()
            bench.daemon.freeze()

    fresh = [Ask(f"fresh{index}", bench.prompt(280 + 17 * index), 40) for index in range(3)]
    bench.run("frozen", fresh + asks, freeze)
    bench.engine.forget()
    # Everything that is looked up now is looked up in vain.
    bench.run("still-frozen", asks + fresh)
    bench.engine.forget()
    if bench.daemon:
        time.sleep(max(0.0, frozen_at + FROZEN_S - time.monotonic()))
        bench.facts["frozen_s"] = time.monotonic() - frozen_at
        bench.daemon.go_on()
        bench.facts["served_after"] = _served_after_restart(bench, asks)
    bench.run("went-on", asks)


def _served(done: Pass) -> int:
    return sum(answer.cached for answer in done.answers.values())


def _served_after_restart(bench: Bench, asks: list[Ask]) -> int:
    """Repeats the asks until the breaker has let the engine back to the daemon and it serves again."""
    deadline = time.monotonic() + RECONNECT_TIMEOUT_S
    while time.monotonic() < deadline:
        served = _served(bench.engine.run("retry", asks))
        bench.engine.forget()
        if served:
            return served
        time.sleep(0.5)
    return 0


NEIGHBOUR_SETS = ("calm", "slow", "silent", "healed", "lost", "found", "orphaned")
"""Sets of prompts; between two of them something may befall the network."""
SYSTEM_TOKENS = 6 * CHUNK_TOKENS


def neighbours(bench: Bench) -> None:
    """Each set of prompts begins with a system prompt of its own and is asked for once: an engine finds of it what
    another one has stored on its host, or nothing. Before a set comes what the spec says befalls the network."""
    for name in NEIGHBOUR_SETS:
        system = bench.prompt(SYSTEM_TOKENS)
        asks = [Ask(f"{name}{tokens}", system + bench.prompt(tokens)) for tokens in (40, 150)]
        for command in bench.spec.befalls.get(name, []):
            subprocess.run(command, check=True)
        # One after the other: the second one of a set may also hit what the first one has stored.
        for ask in asks:
            bench.run(ask.name, [ask])
        bench.engine.settle()


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        repeated_prompt,
        neighbours,
        demo,
        every_kind_of_hit,
        continued_decode,
        drafts,
        every_kind_of_trouble,
        multi_turn,
        shared_prefixes,
        chunked_prefill,
        preemption,
        aborted_decode,
        aborted_load,
        salts,
        adapters,
        daemon_killed,
        daemon_killed_loading,
        daemon_upgraded,
        daemon_frozen,
    )
}
