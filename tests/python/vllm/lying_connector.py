"""A connector that claims hits and loads nothing: what the suite must be able to notice."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

from spec import CHUNK_TOKENS


class LyingConnector(KVConnectorBase_V1, SupportsHMA):
    """Says that the first chunk of every long enough prompt is outside, and leaves its blocks as they are."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        lies = num_computed_tokens == 0 and request.num_tokens > CHUNK_TOKENS
        return (CHUNK_TOKENS if lies else 0), False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        pass

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def start_load_kv(self, forward_context, **kwargs):
        pass

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass

    def request_finished_all_groups(self, request, block_ids):
        return False, None
