"""What one engine process is asked to do, as it travels to it in a JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

BLOCK_TOKENS = 32
"""The engine's block; the CPU attention takes multiples of 32."""
CHUNK_BLOCKS = 2
CHUNK_TOKENS = BLOCK_TOKENS * CHUNK_BLOCKS
"""Tender's chunk in this suite: small, so that short prompts cross many boundaries."""

SUITE_CONNECTOR = {
    "blocks_per_chunk": CHUNK_BLOCKS,
    "lookup_deadline": "10s",
    "load_deadline": "60s",
    "store_deadline": "60s",
}
"""Tender's settings in the suite: deadlines that a machine busy with other things does not miss, because a test that
expects a hit must not fail for being slow."""

_HERE = Path(__file__).resolve().parent


@dataclass
class Spec:
    """One run of one scenario on one side."""

    scenario: str
    model: str
    seed: int = 1
    engine: dict = field(default_factory=dict)
    """Arguments of vLLM's LLM that differ from the suite's."""
    connector: dict | None = None
    """`kv_connector_extra_config` of Tender, or None for a run without it."""
    core_process: bool = False
    """The engine core gets a process of its own, as in `vllm serve`."""
    hash_seed: str | None = None
    """PYTHONHASHSEED of the process; None leaves it unset."""
    adapters: list[str] = field(default_factory=list)
    daemon_folder: str | None = None
    """Set: the scenario has a daemon of its own there, which it may kill and restart; it knows the address."""
    link_bytes_per_s: int | None = None
    """Set: the scenario's own daemon is reached by TCP over a link that slow; 0 for one that is not slow at first."""
    on: list[str] = field(default_factory=list)
    """Put before the engine's command: it runs on another host."""
    befalls: dict[str, list[list[str]]] = field(default_factory=dict)
    """Commands that the scenario runs before a step of its own of that name."""
    expects_daemon: bool = True
    """The engine waits for its daemon before the first pass, so that what is served does not hang on who was faster."""

    @staticmethod
    def read(path: Path) -> Spec:
        return Spec(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    def environment(self) -> dict[str, str]:
        """Environment of the engine's process: offline, quiet, and without just-in-time compilation, which costs
        more time here than all the rest."""
        variables = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(self.core_process)),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_DO_NOT_TRACK": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "TORCHDYNAMO_DISABLE": "1",
            "PYTHONPATH": str(_HERE),
        }
        if self.hash_seed is not None:
            variables["PYTHONHASHSEED"] = self.hash_seed
        return variables

    def engine_arguments(self) -> dict:
        """Arguments of vLLM's LLM."""
        arguments = {
            "model": self.model,
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "dtype": "float32",
            "max_model_len": 2048,
            "block_size": BLOCK_TOKENS,
            "num_gpu_blocks_override": 256,
            "max_num_seqs": 8,
            "disable_log_stats": False,
            "worker_extension_cls": "worker_probe.WorkerProbe",
            "seed": 0,
            **self.engine,
        }
        if self.connector is not None:
            arguments["kv_transfer_config"] = {
                "kv_connector": "TenderConnector",
                "kv_connector_module_path": "tender_kv.vllm",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": self.connector,
            }
        return arguments
