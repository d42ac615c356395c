"""Text as tokens: sources, tokenizers, data folders and batches for pretraining."""

from statetrack.lm.data.packing import PackedBatch, PackedBatches
from statetrack.lm.data.shards import DataDescription, TokenData
from statetrack.lm.data.writer import write_tokens

__all__ = ["DataDescription", "PackedBatch", "PackedBatches", "TokenData", "write_tokens"]
