"""Load a language model from a local folder of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from statetrack.errors import UserError
from statetrack.files import read_json
from statetrack.lm.hf_model import StateTrackForCausalLM
from statetrack.training import Run


class LanguageModel(NamedTuple):
    """A model, ready to evaluate, with what belongs to it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    training_length: int | None


def load_language_model(path: str | Path) -> LanguageModel:
    """Load a causal language model; nothing is fetched from the network.

    Args:
        path: a folder of `save_pretrained`, of any causal model of transformers; of `statetrack lm
            train`; or of `statetrack train`. Weights must be safetensors; `tokenizer.json` in the
            same folder is the tokenizer.

    Returns:
        The model in evaluation mode, its tokenizer or None, the folder's name and the length of the
        sequences that it was trained on or None.

    Raises:
        UserError: the folder holds no such model, or it cannot be read.
    """
    path = Path(path)
    folder = path / "model" if (path / "model" / "config.json").is_file() else path
    if not (folder / "config.json").is_file():
        raise UserError(f"{path} holds no language model: it has no config.json")
    config = read_json(folder / "config.json")
    if isinstance(config, dict) and "schema" in config:
        run = Run.open(folder)
        trained_on = run.config.training.max_length
        made = StateTrackForCausalLM.from_sequence_model(run.model(), training_length=trained_on)
        return LanguageModel(made, None, _name(path), trained_on)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"cannot load a causal language model from {folder}: {reason}") from None
    given = getattr(model.config, "training_length", None)
    length = given or getattr(model.config, "max_position_embeddings", None)
    return LanguageModel(model.eval(), load_tokenizer(folder, model), _name(path), length)


def load_tokenizer(folder: Path, model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """Load tokenizer.json, if there is one, with the model's end of text where it names none."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizers raises no other type
        raise UserError(f"cannot read {file}: {error}") from None
    end = model.config.eos_token_id
    if tokenizer.eos_token is None and isinstance(end, int):
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _name(path: Path) -> str:
    path = path.resolve()
    return path.parent.name if path.name == "model" else path.name
