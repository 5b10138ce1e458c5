"""One engine process: reads a Spec, runs its scenario, writes what happened. `child.py SPEC RESULT`"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from spec import Spec


def main(spec_path: str, result_path: str) -> None:
    from scenarios import SCENARIOS, Bench

    spec = Spec.read(Path(spec_path))
    bench = Bench(spec)
    try:
        SCENARIOS[spec.scenario](bench)
        result = {
            "passes": [asdict(done) for done in bench.passes],
            "facts": bench.facts,
            "counters": bench.engine.counters(),
            "metrics": bench.engine.metrics(),
        }
    finally:
        bench.close()
    Path(result_path).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    # Guarded: an engine core in its own process starts by importing this file again.
    main(*sys.argv[1:])
