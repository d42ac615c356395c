"""A checkpoint that is being read: what is asked for is remembered, and nothing is left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from statetrack.errors import UserError

SHOWN = 6  # names in a message
LARGEST = 2**24  # of a size: two of them multiplied are still a 64-bit number

# What configurations of transformers say of everything but the computation of logits.
BOOKKEEPING = {
    "architectures", "auto_map", "bos_token_id", "chunk_size_feed_forward", "dtype",
    "eos_token_id", "id2label", "initializer_range", "is_encoder_decoder", "label2id",
    "max_position_embeddings", "model_type", "output_attentions", "output_hidden_states",
    "pad_token_id", "problem_type", "return_dict", "torch_dtype", "transformers_version",
    "use_cache",
}  # fmt: skip


class Options:
    """The configuration of a checkpoint, asked for option by option."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._left = {name for name in config if name not in BOOKKEEPING and name[:1] != "_"}

    def get(self, name: str, default: Any) -> Any:
        """The value of an option, or what it is where a configuration does not mention it."""
        self._left.discard(name)
        return self._config.get(name, default)

    def size(self, name: str, default: float | None) -> Any:
        """An option that says how large something is, or None where that is the default."""
        value = self.get(name, default)
        if value is None and default is None:
            return None
        whole = type(default) is int
        if type(value) not in (int, int if whole else float) or not 0 < value <= LARGEST:
            right = f"a {'whole ' * whole}number above 0 and at most {LARGEST:,}"
            raise UserError(f"the checkpoint's {name} must be {right}; got {value!r}")
        return value

    def expect(self, name: str, *allowed: Any, default: Any = ...) -> None:
        """An option that we have these values of only; not mentioned, it is the first of them."""
        value = self.get(name, allowed[0] if default is ... else default)
        if value not in allowed:
            possible = " or ".join(map(repr, allowed))
            raise UserError(f"the checkpoint's {name} must be {possible}; got {value!r}")

    def ignore(self, *names: str) -> None:
        """Options that logits do not depend on."""
        self._left.difference_update(names)

    def finish(self) -> None:
        """Refuse what nobody asked for: it may change the computation."""
        if self._left:
            raise UserError(
                f"the checkpoint has options without a meaning here: {_names(self._left)}"
            )


class Tensors(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name, or those whose names begin with a prefix, without it."""

    def __init__(
        self, state: Mapping[str, Tensor], prefix: str = "", taken: Counter[str] | None = None
    ) -> None:
        self._state = state
        self._prefix = prefix
        self._taken: Counter[str] = Counter() if taken is None else taken

    def __getitem__(self, name: str) -> Tensor:
        name = self._prefix + name
        if name not in self._state:
            raise UserError(f"the checkpoint has no tensor {name}")
        self._taken[name] += 1
        if not self._state[name].dim():
            raise UserError(
                f"the checkpoint's tensor {name} is a single number, not a list of them"
            )
        return self._state[name]

    def __iter__(self) -> Iterator[str]:
        start = len(self._prefix)
        return (name[start:] for name in self._state if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._prefix + name in self._state

    def under(self, prefix: str) -> Tensors:
        """The tensors of a part, whose use counts here too."""
        return Tensors(self._state, self._prefix + prefix, self._taken)

    def finish(self) -> None:
        """Refuse tensors that nobody asked for."""
        if left := [name for name in self._state if not self._taken[name]]:
            raise UserError(f"the checkpoint has tensors without a place here: {_names(left)}")
        twice = [name for name, times in self._taken.items() if times > 1]
        assert not twice, f"used more than once: {twice}"


def _names(names: Any) -> str:
    found = sorted(names)
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
