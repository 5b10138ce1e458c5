"""What the tests do inside the engine's worker, added to vLLM's own worker class by `worker_extension_cls`.

Methods are called by name through `collective_rpc`, so they work whether the worker lives in this process or not.
"""

from __future__ import annotations


class WorkerProbe:
    """Mixed into vLLM's worker; `self` is the worker."""

    def fill_kv_with_noise(self, seed: int) -> int:
        """Overwrites the whole KV memory with finite random numbers and says how many bytes that were.

        A block that is read without having been loaded or computed then shows in the answer; without this, stale
        blocks often still hold the right bytes.
        """
        import torch

        generator = torch.Generator().manual_seed(seed)
        filled = {}
        for layer in self.model_runner.kv_caches:
            storage = layer.untyped_storage()
            if storage.data_ptr() in filled:
                continue
            flat = torch.empty(0, dtype=torch.float32).set_(storage, 0, (storage.nbytes() // 4,), (1,))
            flat.normal_(0.0, 2.0, generator=generator)
            filled[storage.data_ptr()] = storage.nbytes()
        return sum(filled.values())

    def tender_flush(self, timeout_s: float) -> bool:
        """Waits until every gathered part was stored or given up; False if that takes longer than `timeout_s`."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().flush(timeout_s)

    def tender_counters(self) -> dict | None:
        """Counters of the worker side of the connector, or None where the engine runs without one."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        return dict(get_kv_transfer_group().counters()) if has_kv_transfer_group() else None
