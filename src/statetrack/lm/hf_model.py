"""Models of this package as Hugging Face models: one class for every mixer and hybrid.

Importing this module registers the classes, so that `AutoModelForCausalLM.from_pretrained` reads
what `save_pretrained` wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from statetrack.errors import UserError, check_type
from statetrack.lm.hf_cache import StateTrackCache, decodable
from statetrack.lm.hf_config import StateTrackConfig
from statetrack.models import SequenceModel
from statetrack.ops import cross_entropy
from statetrack.ops.ragged import on_host

IGNORED = -100  # a label that is ignored


class _PreTrained(PreTrainedModel):
    config_class = StateTrackConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("Block",)
    _is_stateful = True  # generation cannot go back
    _can_compile_fullgraph = False

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: a SequenceModel initialises itself."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load what `save_pretrained` wrote, as any model of transformers.

        Raises:
            UserError: the checkpoint lacks a weight of the model, or has another one.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        for wrong, problem in (("missing_keys", "lacks"), ("unexpected_keys", "has an unknown")):
            for name in sorted(info[wrong]):
                raise UserError(f"the checkpoint {problem} tensor {name}")
        return (model, info) if wants_info else model


class StateTrackModel(_PreTrained):
    """The blocks of a `SequenceModel`: tokens in, normalised outputs of the last block out.

    The weights are those of the SequenceModel, its head included, under `sequence_model`.
    """

    _tied_weights_keys: ClassVar[dict[str, str]] = {
        "sequence_model.head.weight": "sequence_model.embedding.weight"
    }

    def __init__(self, config: StateTrackConfig) -> None:
        super().__init__(config)
        self.sequence_model = SequenceModel(config.model_config)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding.

        Raises:
            NotImplementedError: it is one-hot, without weights.
        """
        if self.config.model_config.embedding != "learned":
            # transformers catches this error of models that have no such weights
            raise NotImplementedError("a one-hot embedding has no weights")
        return self.sequence_model.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embedding."""
        self.sequence_model.embedding = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: StateTrackCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Any, ...] | BaseModelOutputWithPast:
        """Compute the outputs of the last block.

        Args:
            input_ids: [B, T] tokens.
            attention_mask: [B, T], or [B, past + T] after a cache: 0 for padding, on any side.
            past_key_values: the cache that an earlier call returned; it is updated.
            inputs_embeds: [B, T, hidden_size] in place of tokens.
            use_cache: whether to return a cache; by default the configuration's, in eval mode.
            cu_seqlens: [N + 1] boundaries of sequences packed into one row.
            output_hidden_states: whether to return the input of every block and the last output.
            return_dict: False returns a tuple.
            position_ids: ignored; positions follow from the mask and the cache.
        """
        x = inputs_embeds if input_ids is None else self.sequence_model.embed(input_ids)
        if x is None or not (input_ids is None or inputs_embeds is None):
            raise UserError("give either input_ids or inputs_embeds")
        if x.dim() != 3:
            raise UserError(f"input_ids must be [B, T]; got {list(x.shape[:-1])}")
        checkpointing = self.gradient_checkpointing and self.training
        cache = self._cache(past_key_values, use_cache, checkpointing)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        layout = {
            "mask": padding_mask(attention_mask, *x.shape[:2]),
            "cu_seqlens": on_host(cu_seqlens),
        }
        before = None if cache is None else cache.states
        inputs, states = [], []
        for layer, block in enumerate(self.sequence_model.stack()):
            if output_hidden_states:
                inputs.append(x)
            run, past = partial(block, **layout), before[layer] if before else None
            call = self._gradient_checkpointing_func if checkpointing else _call
            x, state = call(run, x, past)
            states.append(state)
        if cache is not None:
            cache.put(tuple(states), x.shape[1])
        x = self.sequence_model.norm(x)
        out = BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=cache,
            hidden_states=(*inputs, x) if output_hidden_states else None,
        )
        return out.to_tuple() if _as_tuple(self.config, return_dict) else out

    def _cache(
        self, given: StateTrackCache | None, wanted: bool | None, checkpointing: bool
    ) -> StateTrackCache | None:
        if given is not None:
            check_type("past_key_values", given, StateTrackCache, "a StateTrackCache")
            return given
        if wanted is None:
            wanted = self.config.use_cache and not self.training
        if checkpointing or not wanted:
            return None
        return StateTrackCache(self.config.num_hidden_layers)


class StateTrackForCausalLM(_PreTrained, GenerationMixin):
    """A `SequenceModel` as a causal language model of transformers.

    Args:
        config: its configuration, e.g. `StateTrackConfig(ModelConfig(vocab_size=256))`.
    """

    accepts_loss_kwargs = True  # tells the Trainer to pass num_items_in_batch

    def __init__(self, config: StateTrackConfig) -> None:
        super().__init__(config)
        self.model = StateTrackModel(config)
        self.post_init()

    @classmethod
    def from_sequence_model(
        cls, model: SequenceModel, *, training_length: int | None = None, **options: Any
    ) -> Self:
        """Make a Hugging Face model around a model of this package, without copying its weights.

        Args:
            model: the model, such as `Run.model()` or `load_pretrained` return it.
            training_length: the length of the sequences that it was trained on, if known.
            **options: more of `StateTrackConfig`, such as `eos_token_id`.

        Returns:
            The model; `sequence_model` is the one given.
        """
        check_type("model", model, SequenceModel, "a SequenceModel")
        config = StateTrackConfig(model.config, training_length, **options)
        with torch.device("meta"):
            causal = cls(config)
        causal.model.sequence_model = model
        config.dtype = causal.dtype
        return causal.train(model.training)

    @property
    def sequence_model(self) -> SequenceModel:
        """The model of this package."""
        return self.model.sequence_model

    def get_output_embeddings(self) -> nn.Module:
        """Return the head."""
        return self.sequence_model.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head."""
        self.sequence_model.head = new_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: StateTrackCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Any, ...] | CausalLMOutputWithPast:
        """Compute the logits, and the loss if there are labels.

        Args:
            input_ids: see `StateTrackModel.forward`, also for what is not listed here.
            attention_mask: see there.
            past_key_values: see there.
            inputs_embeds: see there.
            labels: [B, T]; logits at position t are compared with label t + 1; -100 is ignored.
            use_cache: see there.
            cu_seqlens: see there; labels at the starts of packed sequences should be -100.
            logits_to_keep: how many of the last positions get logits, or which; 0: all.
            num_items_in_batch: divide the summed loss by this instead of by the number of labels.
            output_hidden_states: see there.
            return_dict: see there.
            position_ids: ignored.
        """
        rest = (inputs_embeds, labels, cu_seqlens, output_hidden_states or None)
        if input_ids is not None and all(value is None for value in rest):
            logits = self._decode(input_ids, attention_mask, past_key_values)
            if logits is not None:
                return self._output(return_dict, logits=logits, past_key_values=past_key_values)
        out = self.model(
            input_ids, attention_mask, past_key_values, inputs_embeds, use_cache, cu_seqlens,
            output_hidden_states, return_dict=True,
        )  # fmt: skip
        x = out.last_hidden_state
        if isinstance(logits_to_keep, Tensor) or logits_to_keep:
            if labels is not None:
                raise UserError("labels need all logits: logits_to_keep must be 0")
            last = isinstance(logits_to_keep, int)
            x = x[:, -logits_to_keep:] if last else x[:, logits_to_keep]
        logits = self.sequence_model.head(x)
        loss = None if labels is None else causal_loss(logits, labels, num_items_in_batch)
        return self._output(
            return_dict,
            loss=loss,
            logits=logits,
            past_key_values=out.past_key_values,
            hidden_states=out.hidden_states,
        )

    def _decode(
        self, input_ids: Tensor, attention_mask: Tensor | None, cache: StateTrackCache | None
    ) -> Tensor | None:
        """Run a recorded step, which updates the cache; return logits [B, 1, V], None if it cannot.

        It cannot if the cache is empty, there is padding, or the inputs are not `decodable`.
        """
        model = self.sequence_model
        if not isinstance(cache, StateTrackCache) or not decodable(model, input_ids):
            return None
        states = cache.states
        if states is None or padding_mask(attention_mask, *input_ids.shape) is not None:
            return None
        decoder = cache.decoder(model, len(input_ids))
        logits, states = decoder.step(input_ids[:, 0], states)
        cache.put(states, 1)
        return logits[:, None]

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *_: Any, **__: Any
    ) -> None:
        """Give `generate` our cache in place of transformers' for attention."""
        if generation_config.cache_implementation is not None:
            got = generation_config.cache_implementation
            raise UserError(f"cache_implementation must be None: a state has one form; got {got!r}")
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = StateTrackCache(self.config.num_hidden_layers)

    def _output(self, return_dict: bool | None, **parts: Any) -> Any:
        out = CausalLMOutputWithPast(**parts)
        return out.to_tuple() if _as_tuple(self.config, return_dict) else out


def padding_mask(attention_mask: Tensor | None, batch: int, length: int) -> Tensor | None:
    """Return the mask [B, T] of the last `length` positions; None if all of them exist."""
    if attention_mask is None:
        return None
    if (
        attention_mask.dim() != 2
        or len(attention_mask) != batch
        or attention_mask.shape[1] < length
    ):
        wanted = f"[B, T or more] = [{batch}, {length}]"
        raise UserError(f"attention_mask must be {wanted}; got {list(attention_mask.shape)}")
    mask = attention_mask[:, -length:].bool()
    return None if mask.all() else mask


def causal_loss(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Compare the logits [B, T, V] of each position with the next label of [B, T].

    Args:
        logits: the logits.
        labels: tokens; -100 is ignored.
        num_items_in_batch: divide the sum by this; None: by the number of labels that are compared.

    Returns:
        The loss, one number.
    """
    if labels.shape != logits.shape[:2]:
        want, got = list(logits.shape[:2]), list(labels.shape)
        raise UserError(f"labels must be [B, T] = {want}; got {got}")
    targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED).flatten()
    counted = (targets != IGNORED).sum()
    if num_items_in_batch is not None and not counted:
        return logits.sum() * 0.0  # a micro batch without labels
    mean = cross_entropy(logits.flatten(0, 1), targets, ignore_index=IGNORED)
    return mean if num_items_in_batch is None else mean * counted / num_items_in_batch


def _call(run: Callable[..., Any], *inputs: Any) -> Any:
    return run(*inputs)


def _as_tuple(config: StateTrackConfig, return_dict: bool | None) -> bool:
    return not (config.return_dict if return_dict is None else return_dict)


AutoConfig.register("statetrack", StateTrackConfig)
AutoModel.register(StateTrackConfig, StateTrackModel)
AutoModelForCausalLM.register(StateTrackConfig, StateTrackForCausalLM)
