"""Entities moved between boxes: the box of an entity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from statetrack.config import option
from statetrack.tasks.base import IGNORE, MAX_KIND, Ints, Task, register
from statetrack.tasks.statements import fill, fillable

BOX_SYMBOLS = ("PAD", ".", "?", "swap")
PAD, DOT, ASK, SWAP = range(4)
ENTITY, BOX, OTHER_BOX = -1, -2, -3  # slots that the sampler fills


@register
@dataclass(frozen=True)
class Boxes(Task):
    """Statements and questions about entities that all start in box0.

    `entity1 box2` puts an entity into a box; `swap box0 box2` exchanges the contents of two boxes;
    `? entity1` asks for an entity's box, with the target on the entity. Without `swaps` the answer
    is the entity's last put; with swaps it depends on all statements since.

    Length counts tokens. The last two are a question; before it, each statement is uniform among
    the puts, questions and swaps that leave a rest which can be filled. If statements cannot fill
    the length (3, or any odd length without swaps), a dot without effect precedes the last
    question. Puts are uniform over boxes, and so are answers in the long run; early ones are often
    box0.
    """

    family = "boxes"
    examples = ("boxes",)
    about = "the box of an entity after puts and swaps of boxes"
    metric = "token"
    min_length = 2

    entities: int = option(4, "entities in the boxes", low=1, high=MAX_KIND)
    boxes: int = option(3, "boxes", low=2, high=MAX_KIND)
    swaps: bool = option(True, "whether the contents of two boxes may trade places")

    @cached_property
    def vocab(self) -> tuple[str, ...]:
        entities = (f"entity{i}" for i in range(self.entities))
        return (*BOX_SYMBOLS, *entities, *(f"box{i}" for i in range(self.boxes)))

    @property
    def pad(self) -> int:
        return PAD

    @property
    def chance(self) -> float:
        return 1 / self.boxes

    @property
    def _first_entity(self) -> int:
        return len(BOX_SYMBOLS)

    @property
    def _first_box(self) -> int:
        return len(BOX_SYMBOLS) + self.entities

    def sample_tokens(self, rng: np.random.Generator, lengths: Ints, size: int) -> Ints:
        forms = [(ENTITY, BOX), (ASK, ENTITY), (SWAP, BOX, OTHER_BOX)][: 3 if self.swaps else 2]
        totals = lengths - 2
        totals = totals - ~fillable([len(form) for form in forms], int(totals.max()))[totals]
        tokens = np.full((len(lengths), size), DOT)
        statements = fill(rng, forms, totals)
        width = statements.shape[1]
        tokens[:, :width] = np.where(np.arange(width) < totals[:, None], statements, DOT)
        question = lengths[:, None] + (-2, -1)
        np.put_along_axis(tokens, question, np.array([[ASK, ENTITY]]), axis=1)

        entity = rng.integers(self._first_entity, self._first_box, tokens.shape)
        box = rng.integers(0, self.boxes, tokens.shape)
        i, t = np.nonzero(tokens == OTHER_BOX)
        tokens[i, t] = BOX
        box[i, t] = (box[i, t - 1] + rng.integers(1, self.boxes, len(i))) % self.boxes
        tokens = np.where(tokens == ENTITY, entity, tokens)
        return np.where(tokens == BOX, self._first_box + box, tokens)

    def targets(self, tokens: Ints) -> Ints:
        """Follow labels: contents are labelled by the box in which they began, a swap moves labels.

        The state is two flat tables with a cell per token of the vocabulary, so that an id plus
        the row's offset is an address; cell 0 takes the writes of rows where nothing happens.
        """
        cells = len(self.vocab)
        row = cells * np.arange(len(tokens))
        label = np.arange(cells * len(tokens))  # of each box's contents and of each entity
        label.reshape(-1, cells)[:, self._first_entity : self._first_box] = (
            row[:, None] + self._first_box
        )
        place = label.copy()  # the box that holds the contents with a label
        columns = np.ascontiguousarray(tokens.T)  # [T, B]: contiguous reads
        targets = np.empty_like(columns)
        before = earlier = np.zeros_like(row)
        for t, word in enumerate(columns):
            is_box = word >= self._first_box
            put = is_box & (before >= self._first_entity) & (before < self._first_box)
            label[row + before * put] = label.take(row + word * put)
            swap = is_box & (earlier == SWAP)
            a, b = row + before * swap, row + word * swap
            in_a, in_b = label.take(a), label.take(b)
            label[a], label[b] = in_b, in_a
            place[in_a], place[in_b] = b, a
            asked = (before == ASK) & (word >= self._first_entity) & ~is_box
            answer = place.take(label.take(row + word * asked)) - row
            targets[t] = np.where(asked, answer, IGNORE)
            before, earlier = word, before
        return np.ascontiguousarray(targets.T)
