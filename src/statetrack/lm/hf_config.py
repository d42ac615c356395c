"""The configuration of a model of this package as a Hugging Face model."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PreTrainedConfig

from statetrack.config import at_least, from_dict, to_dict, unknown
from statetrack.errors import check_type
from statetrack.models import ModelConfig

# what transformers itself may store in a config.json or pass to the class
HF_KEYS = set(PreTrainedConfig().to_dict()) | {
    "attn_implementation", "auto_map", "bos_token_id", "eos_token_id", "experts_implementation",
    "id2label", "label2id", "model_type", "name_or_path", "num_labels", "output_attentions",
    "pad_token_id", "torch_dtype", "use_cache",
}  # fmt: skip


class StateTrackConfig(PreTrainedConfig):
    """A `ModelConfig` as transformers keeps it, in a config.json of `model_type` "statetrack".

    Args:
        model: the ModelConfig, or its JSON.
        training_length: the length of the sequences that the model was trained on, if known.
        **kwargs: options that every configuration of transformers has, such as `eos_token_id`.

    Raises:
        UserError: a key is unknown, or a value is not allowed.
    """

    model_type = "statetrack"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(
        self,
        model: ModelConfig | dict[str, Any] | None = None,
        training_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        for key in kwargs:
            if key not in HF_KEYS and not key.startswith("_"):  # transformers' own names
                raise unknown("key of a StateTrackConfig", key, {"model", "training_length"})
        if training_length is not None:
            check_type("training_length", training_length, int, "a whole number")
            at_least("training_length", training_length, 1)
        if model is None:  # transformers makes default configurations to compare with
            model = ModelConfig()
        if not isinstance(model, ModelConfig):
            model = from_dict(ModelConfig, model, "model")
        self.model = to_dict(model)
        self.training_length = training_length
        self.use_cache = kwargs.pop("use_cache", True)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(self, name, kwargs.pop(name, None))
        super().__init__(**kwargs)

    @property
    def model_config(self) -> ModelConfig:
        """The configuration of the `SequenceModel`."""
        return from_dict(ModelConfig, self.model, "model")

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return int(self.model["vocab_size"])

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        """Change the number of tokens, as `resize_token_embeddings` does."""
        self.model["vocab_size"] = value

    @property
    def hidden_size(self) -> int:
        """The width of the residual stream."""
        return int(self.model["hidden_size"])

    @property
    def num_hidden_layers(self) -> int:
        """The number of blocks."""
        return int(self.model["num_layers"])

    @property
    def tie_word_embeddings(self) -> bool:
        """Whether the head is the embedding transposed."""
        return bool(self.model["tie_embeddings"])
