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
        narrowest: dict[int, int] = {}
        storages = {}
        for layer in self.model_runner.kv_caches:
            # A recurrent state's tensors lie in pages of bytes; the types of its parts are those of the model.
            width = layer.element_size() if layer.dtype != torch.int8 else self.model_config.dtype.itemsize
            storage = layer.untyped_storage()
            storages[storage.data_ptr()] = storage
            narrowest[storage.data_ptr()] = min(width, narrowest.get(storage.data_ptr(), width))
        for address, storage in storages.items():
            _fill(storage, narrowest[address], generator)
        return sum(storage.nbytes() for storage in storages.values())

    def tender_flush(self, timeout_s: float) -> bool:
        """Waits until every gathered part was stored or given up; False if that takes longer than `timeout_s`."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().flush(timeout_s)

    def tender_counters(self) -> dict | None:
        """Counters of the worker side of the connector, or None where the engine runs without one."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        return dict(get_kv_transfer_group().counters()) if has_kv_transfer_group() else None


def _fill(storage, width: int, generator) -> None:
    """Random numbers of `width` bytes, which are finite for whoever takes them for wider ones."""
    import torch

    dtype = {1: torch.uint8, 2: torch.bfloat16}.get(width, torch.float32)
    flat = torch.empty(0, dtype=dtype).set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))
    if width > 1:
        flat.normal_(0.0, 2.0, generator=generator)
    else:
        # As 8-bit floats 0.5 to 1.9, with any sign.
        flat.random_(0x30, 0x40, generator=generator)
        flat.bitwise_or_(torch.randint(0, 2, flat.shape, generator=generator, dtype=torch.uint8) << 7)
