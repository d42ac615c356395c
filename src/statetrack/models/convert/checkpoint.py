"""A checkpoint while it is read: every option and tensor must be used, or it is an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from statetrack.config import one_of
from statetrack.errors import UserError

MAX_NAMES = 6  # in a message
MAX_SIZE = 2**24  # the product of two sizes fits a 64-bit number

# Options of transformers that do not change the logits.
BOOKKEEPING = {
    "architectures", "auto_map", "bos_token_id", "chunk_size_feed_forward", "dtype",
    "eos_token_id", "id2label", "initializer_range", "is_encoder_decoder", "label2id",
    "max_position_embeddings", "model_type", "output_attentions", "output_hidden_states",
    "pad_token_id", "problem_type", "return_dict", "torch_dtype", "transformers_version",
    "use_cache",
}  # fmt: skip


class Options:
    """The configuration of a checkpoint, read option by option."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._unread = {name for name in config if name not in BOOKKEEPING and name[:1] != "_"}

    def get(self, name: str, default: Any) -> Any:
        """Read an option; `default` is its value where the configuration omits it."""
        self._unread.discard(name)
        return self._config.get(name, default)

    def size(self, name: str, default: float | None) -> Any:
        """Read a number above 0, a whole one if the default is; None is allowed as a default."""
        value = self.get(name, default)
        if value is None and default is None:
            return None
        whole = type(default) is int
        if type(value) not in (int, int if whole else float) or not 0 < value <= MAX_SIZE:
            right = f"a {'whole ' * whole}number above 0 and at most {MAX_SIZE:,}"
            raise UserError(f"the checkpoint's {name} must be {right}; got {value!r}")
        return value

    def expect(self, name: str, *allowed: Any, default: Any = ...) -> None:
        """Raise unless an option has one of these values; omitted, it has the first of them."""
        value = self.get(name, allowed[0] if default is ... else default)
        if value not in allowed:
            possible = " or ".join(map(repr, allowed))
            raise UserError(f"the checkpoint's {name} must be {possible}; got {value!r}")

    def layer_types(self, default: list[str]) -> list[str]:
        """Read which layers are linear attention and which full attention."""
        kinds = self.get("layer_types", None) or default
        if not isinstance(kinds, list):
            raise UserError(f"the checkpoint's layer_types must be a list; got {kinds!r}")
        for kind in kinds:
            one_of("the checkpoint's layer_types", kind, ("linear_attention", "full_attention"))
        if len(kinds) != len(default):
            raise UserError(
                f"the checkpoint's layer_types must name {len(default)} layers; got {len(kinds)}"
            )
        return kinds

    def ignore(self, *names: str) -> None:
        """Skip options that the logits do not depend on."""
        self._unread.difference_update(names)

    def finish(self) -> None:
        """Raise if an option was not read: it may change the computation."""
        if self._unread:
            names = _first_names(self._unread)
            raise UserError(f"the checkpoint has options without a meaning here: {names}")


class Tensors(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name, or those whose names begin with a prefix, without it."""

    def __init__(
        self, state: Mapping[str, Tensor], prefix: str = "", reads: Counter[str] | None = None
    ) -> None:
        self._state = state
        self._prefix = prefix
        self._reads: Counter[str] = Counter() if reads is None else reads

    def __getitem__(self, name: str) -> Tensor:
        name = self._prefix + name
        if name not in self._state:
            raise UserError(f"the checkpoint has no tensor {name}")
        self._reads[name] += 1
        if not self._state[name].dim():
            raise UserError(f"the checkpoint's tensor {name} is a single number")
        return self._state[name]

    def __iter__(self) -> Iterator[str]:
        start = len(self._prefix)
        return (name[start:] for name in self._state if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._prefix + name in self._state

    def under(self, prefix: str) -> Tensors:
        """The tensors whose names begin with a prefix; reading them counts here, too."""
        return Tensors(self._state, self._prefix + prefix, self._reads)

    def ignore(self) -> None:
        """Skip these tensors: the logits do not depend on them."""
        self._reads.update(self._prefix + name for name in self)

    def finish(self) -> None:
        """Raise if a tensor was not read."""
        if unread := [name for name in self._state if not self._reads[name]]:
            names = _first_names(unread)
            raise UserError(f"the checkpoint has tensors without a place here: {names}")
        twice = [name for name, times in self._reads.items() if times > 1]
        assert not twice, f"used more than once: {twice}"


def _first_names(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - MAX_NAMES} more" if len(found) > MAX_NAMES else ""
    return ", ".join(found[:MAX_NAMES]) + more
