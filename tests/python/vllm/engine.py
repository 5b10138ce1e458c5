"""A real vLLM engine in this process, driven request by request, with or without Tender.

Both sides of every comparison run through this class, so they differ in the connector and in nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spec import Spec

STORES_TIMEOUT_S = 60
CONNECT_TIMEOUT_S = 30
# Enough for any workload here at one step per load poll; a request that waits longer than this is stuck.
RUN_TIMEOUT_S = 180

_METRICS = (
    "external_prefix_cache_hits",
    "prefix_cache_hits",
    "num_preemptions",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
)


@dataclass
class Ask:
    """One request of a pass."""

    name: str
    tokens: list[int]
    answer_tokens: int = 24
    salt: str | None = None
    adapter: int | None = None
    """Index into the adapters of the spec."""


@dataclass
class Answer:
    """What came back: equal in both runs, except for `cached`."""

    tokens: list[int]
    logprobs: list[float]
    cached: int
    """Prompt tokens that were not computed. After `Engine.forget` they can only have come from Tender."""


@dataclass
class Pass:
    """One batch of requests and its answers; aborted requests have none."""

    name: str
    answers: dict[str, Answer] = field(default_factory=dict)
    seconds: float = 0.0


class Engine:
    """vLLM behind five verbs: run, forget, settle, abort, counters."""

    def __init__(self, spec: Spec):
        os.environ.update(spec.environment())
        from vllm import LLM

        self.spec = spec
        self._llm = LLM(**spec.engine_arguments())
        self._engine = self._llm.llm_engine
        self._fills = 0
        self._runs = 0
        self._fill()
        if spec.connector is not None and spec.expects_daemon:
            self._wait_for_sessions()

    def run(self, name: str, asks: list[Ask], each_step: Callable[[dict[str, int]], None] | None = None) -> Pass:
        """Runs all asks at once. `each_step` sees, after every engine step, the answer tokens per request so far."""
        self._runs += 1
        prefix = f"{self._runs}-"
        for ask in asks:
            self._engine.add_request(
                prefix + ask.name, self._prompt(ask), self._sampling(ask), lora_request=self._lora(ask)
            )
        done = Pass(name)
        progress: dict[str, int] = {ask.name: 0 for ask in asks}
        begun = time.monotonic()
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                ask_name = output.request_id.removeprefix(prefix)
                progress[ask_name] = len(output.outputs[0].token_ids)
                if output.finished and output.outputs[0].finish_reason != "abort":
                    done.answers[ask_name] = _answer(output)
            if each_step:
                each_step(progress)
            if time.monotonic() - begun > RUN_TIMEOUT_S:
                raise TimeoutError(f"pass {name} is stuck, answer tokens so far: {progress}")
        done.seconds = time.monotonic() - begun
        return done

    def abort(self, name: str) -> None:
        """Aborts a request of the pass that is running now."""
        self._engine.abort_request([f"{self._runs}-{name}"])

    def forget(self) -> None:
        """Empties the engine's own prefix cache and overwrites its KV memory, after all stores are done."""
        self.settle()
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("the engine could not reset its prefix cache")
        self._fill()

    def settle(self) -> None:
        """Waits until the connector has handed everything to the daemon.

        What became final with the end of a request is gathered before the next forward pass, so one is made first: a
        prompt far shorter than a block, which itself leaves nothing to store.
        """
        self.run("settle", [Ask("settle", [3, 4, 5], answer_tokens=1)])
        if self.spec.connector is not None:
            flushed = self._llm.collective_rpc("tender_flush", args=(STORES_TIMEOUT_S,))
            if not all(flushed):
                raise TimeoutError(f"stores were not done after {STORES_TIMEOUT_S} s")
            self._free_aborted_loads()

    def counters(self) -> dict:
        """The connector's counters by side. The scheduler's are only in reach if the engine core is in this process."""
        if self.spec.connector is None:
            return {}
        found = {"worker": self._llm.collective_rpc("tender_counters")[0]}
        scheduler = self.scheduler()
        if scheduler is not None:
            found["scheduler"] = dict(scheduler.connector.counters())
        return found

    def metrics(self) -> dict[str, float]:
        """The engine's own counters that the tests look at."""
        return {
            name: metric.value
            for metric in self._llm.get_metrics()
            if (name := metric.name.removeprefix("vllm:")) in _METRICS
        }

    def scheduler(self):
        """vLLM's scheduler, or None if it runs in another process."""
        core = getattr(self._engine.engine_core, "engine_core", None)
        return getattr(core, "scheduler", None)

    def waits_for_load(self, name: str) -> bool:
        """True while the request of the running pass waits for KV from outside."""
        wanted = f"{self._runs}-{name}"
        return any(
            request.status.name == "WAITING_FOR_REMOTE_KVS" and request_id.startswith(wanted)
            for request_id, request in self.scheduler().requests.items()
        )

    def close(self) -> None:
        """Ends the engine, the connector and what they started."""
        self._engine.engine_core.shutdown()

    def _free_aborted_loads(self) -> None:
        """An aborted request keeps its blocks until a step reports its load, and nobody makes steps between passes
        where the engine core is in this process."""
        deadline = time.monotonic() + STORES_TIMEOUT_S
        while self.scheduler() is not None and self.scheduler().has_finished_requests():
            self._engine.step()
            if time.monotonic() > deadline:
                raise TimeoutError("the load of an aborted request was never reported")

    def _wait_for_sessions(self) -> None:
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while any(side["session"] != "up" for side in self.counters().values()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no session after {CONNECT_TIMEOUT_S} s: {self.counters()}")
            time.sleep(0.05)

    def _fill(self) -> None:
        self._fills += 1
        self._llm.collective_rpc("fill_kv_with_noise", args=(self.spec.seed * 1000 + self._fills,))

    def _prompt(self, ask: Ask):
        from vllm.inputs import TokensPrompt

        prompt = TokensPrompt(prompt_token_ids=ask.tokens)
        if ask.salt is not None:
            prompt["cache_salt"] = ask.salt
        return prompt

    def _sampling(self, ask: Ask):
        from vllm import SamplingParams

        return SamplingParams(
            temperature=0.0, max_tokens=ask.answer_tokens, logprobs=1, detokenize=False, ignore_eos=True
        )

    def _lora(self, ask: Ask):
        if ask.adapter is None:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(f"adapter-{ask.adapter}", ask.adapter + 1, self.spec.adapters[ask.adapter])


def _answer(output) -> Answer:
    completion = output.outputs[0]
    tokens = list(completion.token_ids)
    logprobs = [step[token].logprob for token, step in zip(tokens, completion.logprobs, strict=True)]
    return Answer(tokens, logprobs, output.num_cached_tokens or 0)
