"""Load a language model from a local folder of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from statetrack.devices import use_device
from statetrack.errors import UserError
from statetrack.files import read_json
from statetrack.lm.hf_model import StateTrackForCausalLM
from statetrack.models.convert import CONVERTERS, load_pretrained
from statetrack.training import Run

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


class LanguageModel(NamedTuple):
    """A model in evaluation mode, with its tokenizer, name and training length if known."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    training_length: int | None


def load_language_model(
    path: str | Path,
    *,
    convert: bool = False,
    allow_neg_eigval: bool | None = None,
    device: str = "cpu",
) -> LanguageModel:
    """Load a causal language model; nothing is fetched from the network.

    Args:
        path: a folder of `save_pretrained`, of any causal model of transformers; of
            flash-linear-attention, if there is a converter; of `statetrack lm train`; or of
            `statetrack train`. Weights must be safetensors; `tokenizer.json` in the same folder is
            the tokenizer.
        convert: convert a model of transformers to this package; those of flash-linear-attention
            are always converted.
        allow_neg_eigval: the range of a converted model; None keeps that of the checkpoint.
        device: the name of the device, as `TrainingConfig.device`.

    Returns:
        The model in evaluation mode, its tokenizer or None, the folder's name and the length of the
        sequences that it was trained on, which other packages' folders do not tell, or None.

    Raises:
        UserError: the folder holds no such model, it cannot be read, or its tensors are not those
            of the model.
    """
    path = Path(path)
    target = use_device(device)
    folder = model_folder(path)
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} must hold an object with keys")
    kind = config.get("model_type")
    converted = kind in CONVERTERS and (convert or kind not in CONFIG_MAPPING)
    if allow_neg_eigval is not None and not converted:
        raise UserError(
            f"allow_neg_eigval changes the range of converted models; {path} is not one"
        )
    length = config.get("training_length")
    if "data_fingerprint" in config:
        raise UserError(f"{path} has no model yet: `lm train` writes it with its first checkpoint")
    if "schema" in config:
        run = Run.open(folder)
        length = run.config.training.max_length
        model = StateTrackForCausalLM.from_sequence_model(run.model(), training_length=length)
    elif converted:
        made = load_pretrained(folder, allow_neg_eigval=allow_neg_eigval)
        text = config.get("text_config", config)  # of a model that also reads images
        tokens = {name: text.get(name) for name in TOKENS}
        model = StateTrackForCausalLM.from_sequence_model(made, **tokens)
    else:
        model = _load_hf(folder)
    model = model.to(target).eval()
    return LanguageModel(model, pretrained_tokenizer(folder, model), _name(path), length)


def model_folder(path: Path) -> Path:
    """Return the folder of a checkpoint's config.json: its own, or `model` in a run's folder."""
    inner = path / "model"
    folder = inner if (inner / "config.json").is_file() else path
    if (path / "narrow" / "config.json").is_file():
        raise UserError(f"{path} holds two runs: give {path / 'narrow'} or {path / 'wide'}")
    if not (folder / "config.json").is_file():
        raise UserError(f"{path} holds no language model: it has no config.json")
    return folder


def _load_hf(folder: Path) -> PreTrainedModel:
    """Load a folder of `save_pretrained` whose tensors are exactly those of the model."""
    try:
        with quiet():
            model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # they are in `info`
                output_loading_info=True,
            )
            causal = _is_causal(model)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    except Exception as error:  # a wrong config.json ends in errors of any type
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"cannot load a causal language model from {folder}: {reason}") from None
    for name in sorted(info["missing_keys"]):
        raise UserError(f"{folder} lacks tensor {name}")
    for name, found, wanted in sorted(info["mismatched_keys"]):
        sizes = f"{list(found)}; its config.json asks for {list(wanted)}"
        raise UserError(f"tensor {name} of {folder} is {sizes}")
    for name in sorted(info["unexpected_keys"]):
        raise UserError(f"{folder} has tensor {name}, which {type(model).__name__} does not use")
    if not causal:
        raise UserError(
            f"{folder} holds no causal language model: its predictions depend on later tokens"
        )
    return model


@torch.no_grad()
def _is_causal(model: PreTrainedModel) -> bool:
    """Whether the first prediction does not depend on the second token.

    Only models are tried that transformers also has as encoders, such as BERT.
    """
    if getattr(model.config, "is_decoder", True):
        return True
    model.eval()
    first, other = (model(torch.tensor([[0, token]])).logits[0, 0] for token in (0, 1))
    return torch.equal(first, other)


def pretrained_tokenizer(folder: Path, model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """Load tokenizer.json, if there is one; BOS and EOS are the model's if it names none."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizers raises no other type
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{file} is not a tokenizer: {reason}") from None
    for name in ("bos_token", "eos_token"):
        token = getattr(model.config, f"{name}_id")
        if getattr(tokenizer, name) is None and isinstance(token, int):
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(token))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Turn off the progress bars and warnings of transformers: commands have their own."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _name(path: Path) -> str:
    path = path.resolve()
    return path.parent.name if path.name == "model" else path.name
