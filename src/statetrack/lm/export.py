"""Write a language model in this package's format, or in another package's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import safetensors.torch

from statetrack.errors import UserError
from statetrack.files import check_new, whole_folder, write_atomic
from statetrack.lm.data.shards import TOKENIZER, TOKENIZER_SETTINGS
from statetrack.lm.data.tokenizer import settings_json
from statetrack.lm.hf_model import StateTrackForCausalLM
from statetrack.lm.load import load_language_model, model_folder, quiet
from statetrack.models.convert import read_checkpoint
from statetrack.models.convert.restore import restore

TOKENIZER_FILES = (TOKENIZER, TOKENIZER_SETTINGS, "special_tokens_map.json")


class Exported(NamedTuple):
    """The folder, type and size of an exported model."""

    folder: Path
    model_type: str
    title: str
    parameters: int


def export(
    checkpoint: Path, out: Path, *, like: Path | None = None, allow_neg_eigval: bool | None = None
) -> Exported:
    """Write a checkpoint, with its tokenizer, into a new folder.

    Args:
        checkpoint: see `load_language_model`; models of other packages are converted.
        out: the new folder.
        like: a checkpoint of transformers or flash-linear-attention, such as the one that the model
            was converted from; the result has its format, options and dtypes. None: this package's
            format, which `AutoModelForCausalLM` reads after `import statetrack.lm.hf_model`.
        allow_neg_eigval: the range of a converted model; None keeps that of the checkpoint.

    Returns:
        What was written.

    Raises:
        UserError: the model cannot be converted, or has other options than `like`.
    """
    check_new(out)
    loaded = load_language_model(checkpoint, convert=True, allow_neg_eigval=allow_neg_eigval)
    model, tokenizer = loaded.model, loaded.tokenizer
    if not isinstance(model, StateTrackForCausalLM):
        raise UserError(f"there is no converter for model_type {model.config.model_type}")
    if like is not None:
        config, tensors = restore(model.sequence_model, *read_checkpoint(model_folder(like)))
    source = model_folder(checkpoint)
    with whole_folder(out):
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, out / name)
        if tokenizer is not None and not (out / TOKENIZER_SETTINGS).exists():
            # without `plain`: the copy reads text as the checkpoint does
            settings = settings_json(tokenizer.eos_token, tokenizer.bos_token, plain=False)
            (out / TOKENIZER_SETTINGS).write_text(settings)
        if like is None:
            config = model.config.to_dict()
            with quiet():
                model.save_pretrained(out)
        else:
            write_atomic(out / "config.json", json.dumps(config, indent=2) + "\n")
            data = safetensors.torch.save(tensors, {"format": "pt"})
            write_atomic(out / "model.safetensors", data)
    made = model.sequence_model
    return Exported(out, config["model_type"], made.config.title, made.num_parameters())
