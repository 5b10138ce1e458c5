"""The demo: vLLM on the CPU computes some prompts, forgets them, and gets their KV cache back from tenderd.

Everything is real and local: the engine, the daemon, the connector; only the model is tiny and random. The same
prompts also run without Tender, and every token and log-probability is compared. Exit code 0 means: all equal, and
Tender served. Run it by `make demo`.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests" / "python" / "vllm"))

import models  # noqa: E402
from daemon import Daemon  # noqa: E402
from harness import LOGPROB_TOLERANCE, Side, run_side  # noqa: E402
from spec import Spec  # noqa: E402

FOLDER = REPO / "target" / "demo"


def main() -> int:
    print("\n=== Demo", flush=True)
    step("making a small random Llama")
    model = str(models.model_dir("llama-demo", FOLDER / "models"))
    step("starting tenderd")
    # A socket's path has to be short, so it does not go into the checkout.
    with tempfile.TemporaryDirectory(prefix="tender-demo-") as scratch, Daemon(Path(scratch)) as daemon:
        spec = Spec("demo", model, connector={"address": daemon.address})
        step("running vLLM with TenderConnector (its own log: target/demo/with.log)")
        tender = run_side(spec, FOLDER, "with")
        step("running vLLM without Tender (its own log: target/demo/without.log)")
        plain = run_side(replace(spec, connector=None), FOLDER, "without")
    print(table(plain, tender))
    verdict = problems(plain, tender)
    for problem in verdict:
        print(f"    NOT AS IT SHOULD BE: {problem}")
    if not verdict:
        print("    Every token and log-probability is what the engine computes by itself.\n")
    return 1 if verdict else 0


def step(text: str) -> None:
    print(f"    {text} ...", flush=True)


def rows(plain: Side, tender: Side) -> list[tuple[str, str, str]]:
    """(what, without Tender, with Tender) for the second pass, in which nothing is in the engine's own cache."""
    mine, theirs = (side.passes["again"] for side in (plain, tender))
    worker = tender.counters["worker"]
    return [
        ("prompt tokens", *(f"{prompt_tokens(side):,}" for side in (plain, tender))),
        ("served from Tender", "-", f"{sum(tender.cached('again').values()):,} tokens"),
        ("tokens equal", "-", yes(same_tokens(plain, tender))),
        ("log-probabilities equal", "-", yes(logprob_distance(plain, tender) <= LOGPROB_TOLERANCE)),
        ("stored in tenderd", "-", size(worker["stored_bytes"])),
        ("loaded from tenderd", "-", f"{size(worker['loaded_bytes'])} ({worker['transport']})"),
        ("time, first pass", *(f"{side.passes['first']['seconds']:.2f} s" for side in (plain, tender))),
        ("time, second pass", f"{mine['seconds']:.2f} s", f"{theirs['seconds']:.2f} s"),
    ]


def table(plain: Side, tender: Side) -> str:
    lines = [("the same prompts again, after the engine forgot them", "without Tender", "with Tender")]
    lines += rows(plain, tender)
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    drawn = [
        "    " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    rule = "    " + "  ".join("-" * width for width in widths)
    return "\n".join(["", drawn[0], rule, *drawn[1:], ""])


def problems(plain: Side, tender: Side) -> list[str]:
    """Why the demo did not show what it should; empty if it did."""
    found = []
    if not same_tokens(plain, tender):
        found.append("tokens differ")
    distance = logprob_distance(plain, tender)
    if distance > LOGPROB_TOLERANCE:
        found.append(f"log-probabilities differ by {distance:.1e}")
    if not sum(tender.cached("again").values()) or not tender.counters["worker"]["loaded_bytes"]:
        found.append("nothing was served from Tender")
    if sum(plain.cached("again").values()):
        found.append("the engine without Tender had not forgotten the prompts")
    return found


def same_tokens(plain: Side, tender: Side) -> bool:
    return all(answer["tokens"] == other["tokens"] for answer, other in answers(plain, tender))


def logprob_distance(plain: Side, tender: Side) -> float:
    pairs = (zip(answer["logprobs"], other["logprobs"], strict=True) for answer, other in answers(plain, tender))
    return max(abs(a - b) for pair in pairs for a, b in pair)


def answers(plain: Side, tender: Side):
    """Pairs of answers to the same request of the same pass."""
    for name, done in plain.passes.items():
        for request, answer in done["answers"].items():
            yield answer, tender.passes[name]["answers"][request]


def prompt_tokens(side: Side) -> int:
    return side.facts["prompt_tokens"]


def yes(truth: bool) -> str:
    return "yes" if truth else "NO"


def size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


if __name__ == "__main__":
    sys.exit(main())
