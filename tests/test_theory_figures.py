"""The figures of docs/theory.md: what they show, and that one command draws them."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from docs.theory_figures import (
    EIGENVALUES,
    EVEN_AB,
    WORD,
    main,
    rule_names,
    settles,
    states_on_ones,
)
from statetrack.automata import from_regex
from statetrack.compiler import decompose
from tests.conftest import ROOT

NAMES = ["theory-cascade.png", "theory-states.png", "theory-swaps.png"]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Figure]]:
    """The folder, and the figures by the ends of their files' names."""
    folder, figures = tmp_path_factory.mktemp("figures"), []
    save = Figure.savefig

    def watched(self: Figure, *args: object, **options: object) -> None:
        figures.append(self)
        save(self, *args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", watched)
        main([str(folder)])
    return folder, dict(zip(("states", "swaps", "cascade"), figures, strict=True))


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_one_command_draws_all(drawn: tuple[Path, dict[str, Figure]]) -> None:
    folder, _ = drawn
    assert sorted(path.name for path in folder.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_files_are_small_and_as_wide_as_a_page(
    name: str, drawn: tuple[Path, dict[str, Figure]]
) -> None:
    for path in (drawn[0] / name, ROOT / "docs" / name):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < 150_000
        height, width, _ = imread(path).shape
        assert 1_000 <= width <= 1_400
        assert 300 <= height <= 800
    # those of the page are of this code, if not of this version of matplotlib
    assert imread(drawn[0] / name).shape == imread(ROOT / "docs" / name).shape


@pytest.mark.parametrize("a", EIGENVALUES)
def test_states_follow_the_recurrence(a: float) -> None:
    h = states_on_ones(a, 50).tolist()
    assert h[0] == 0
    for before, after in pairwise(h):
        assert math.isclose(after, a * before + (1 - a) / 2, abs_tol=1e-12)


def test_only_minus_one_never_settles() -> None:
    assert settles(-1.0) is None
    for a in (0.5, 0.9, -0.9):
        end = settles(a)
        assert end is not None
        rounded = states_on_ones(a, 2 * end).bfloat16()
        assert (rounded[end:] == rounded[end]).all()
        assert rounded[end - 1] != rounded[end]


def test_panels_tell_when_states_settle(drawn: tuple[Path, dict[str, Figure]]) -> None:
    labels = [axes.get_xlabel() for axes in drawn[1]["states"].axes]
    assert [label.split("\n")[1] for label in labels] == [
        *(f"constant in bf16 from t = {settles(a)}" for a in EIGENVALUES[:3]),
        "alternates for ever",
    ]


def test_matrices_multiply_to_the_first(drawn: tuple[Path, dict[str, Figure]]) -> None:
    images = [np.asarray(axes.images[0].get_array()) for axes in drawn[1]["swaps"].axes
              if axes.images]  # fmt: skip
    whole, *factors = [image for image in images if image.shape == (5, 5)]
    vectors = [image[0] for image in images if image.shape == (1, 5)]
    np.testing.assert_array_equal(np.linalg.multi_dot(factors), whole)
    for factor, v in zip(factors, vectors, strict=True):
        np.testing.assert_array_equal(factor, np.eye(5) - np.outer(v, v))


def test_objects_leave_each_swap_as_they_enter_the_next(
    drawn: tuple[Path, dict[str, Figure]],
) -> None:
    def ends(axes: Axes, x: int) -> dict[int, str]:
        return {
            int(text.get_position()[1]): text.get_text()
            for text in axes.texts
            if text.get_position()[0] == x
        }

    whole, *wires = drawn[1]["swaps"].axes[:4]
    for left, right in pairwise(wires):
        assert ends(left, 1) == ends(right, 0)
    assert ends(whole, 1) == ends(wires[-1], 1)
    assert ends(whole, 0) == ends(wires[0], 0)


def test_the_word_s_verdicts(drawn: tuple[Path, dict[str, Figure]]) -> None:
    (axes,) = drawn[1]["cascade"].axes
    verdicts = [text for text in texts(axes) if text in ("in", "not in")]
    prefixes = [WORD[:t] for t in range(len(WORD) + 1)]
    assert verdicts == ["not in" if p.count("ab") % 2 else "in" for p in prefixes]


def test_rules_are_named_by_symbol_and_old_states() -> None:
    cascade = decompose(from_regex(EVEN_AB).minimal())
    first, second = rule_names(cascade)
    assert first == ["a", "b"]
    assert [cascade.levels[0].action(c) for c in (0, 1)] == ["reset to 1", "reset to 0"]
    actions = {name: cascade.levels[1].action(c) for c, name in enumerate(second)}
    assert actions == {"a0, a1": "identity", "b0": "identity", "b1": "permute 1 0"}


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "none")])
    assert stop.value.code == 2
    assert "a file in a writable folder" in capsys.readouterr().err
