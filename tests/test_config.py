"""Configurations: the round trip through JSON, and errors that name the place."""

from __future__ import annotations

import json
import math
import re
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statetrack.config import (
    MAX_WHOLE,
    Named,
    at_least,
    changed,
    from_dict,
    hints,
    one_of,
    option,
    to_dict,
    unknown,
    within,
)
from statetrack.errors import UserError
from statetrack.layers import MixerConfig
from statetrack.tasks import Task


@dataclass(frozen=True)
class Shape(Named):
    kind: ClassVar[str] = "shape"
    name: ClassVar[str]

    @classmethod
    def class_for(cls, name: str) -> type[Shape]:
        if name not in SHAPES:
            raise unknown("shape", name, SHAPES)
        return SHAPES[name]


@dataclass(frozen=True)
class Circle(Shape):
    name: ClassVar[str] = "circle"
    radius: float = option(1.0, "how far from the centre")


@dataclass(frozen=True)
class Polygon(Shape):
    name: ClassVar[str] = "polygon"
    corners: int = option(3, "how many corners")
    closed: bool = option(True, "whether the last side is there")


SHAPES: dict[str, type[Shape]] = {"circle": Circle, "polygon": Polygon}


@dataclass(frozen=True)
class Paper:
    width: int  # required
    title: str = option("", "on top")
    ratio: float = option(1.0, "height by width")
    dpi: int | None = option(None, "dots per inch; none for vectors")
    unit: Literal["mm", "inch"] = option("mm", "of the width")


@dataclass(frozen=True)
class Drawing:
    paper: Paper
    shape: Shape = option(Circle(), "what is drawn")  # noqa: RUF009
    pattern: Shape | tuple[Shape, ...] = option(Circle(), "one shape or several")  # noqa: RUF009
    sizes: tuple[int, ...] = option((), "any number of sizes")
    centre: tuple[float, float] = option((0.0, 0.0), "two numbers")


whole = st.integers(-MAX_WHOLE, MAX_WHOLE)
finite = st.floats(allow_nan=False, allow_infinity=False)
papers = st.builds(
    Paper,
    width=whole,
    title=st.text(),
    ratio=finite,
    dpi=st.none() | whole,
    unit=st.sampled_from(["mm", "inch"]),
)
shapes = st.builds(Circle, radius=finite) | st.builds(Polygon, corners=whole, closed=st.booleans())
drawings = st.builds(
    Drawing,
    paper=papers,
    shape=shapes,
    pattern=shapes | st.lists(shapes, max_size=3).map(tuple),
    sizes=st.lists(whole, max_size=4).map(tuple),
    centre=st.tuples(finite, finite),
)


@given(drawings)
def test_round_trip(drawing: Drawing) -> None:
    data = to_dict(drawing)
    assert from_dict(Drawing, data, "drawing") == drawing
    assert from_dict(Drawing, json.loads(json.dumps(data)), "drawing") == drawing


def test_to_dict() -> None:
    drawing = Drawing(Paper(210), Polygon(5), (Circle(), Polygon()), (1, 2))
    assert to_dict(drawing) == {
        "paper": {"width": 210, "title": "", "ratio": 1.0, "dpi": None, "unit": "mm"},
        "shape": {"name": "polygon", "corners": 5, "closed": True},
        "pattern": [
            {"name": "circle", "radius": 1.0},
            {"name": "polygon", "corners": 3, "closed": True},
        ],
        "sizes": [1, 2],
        "centre": [0.0, 0.0],
    }
    assert next(iter(to_dict(drawing)["shape"])) == "name"


def test_what_is_left_out_has_its_default() -> None:
    assert from_dict(Drawing, {"paper": {"width": 3}}, "drawing") == Drawing(Paper(3))


def test_from_dict_leaves_its_input_alone() -> None:
    data = {"name": "circle", "radius": 2.0}
    from_dict(Shape, data, "shape")
    assert data == {"name": "circle", "radius": 2.0}


def test_a_whole_number_will_do_for_a_number() -> None:
    ratio = from_dict(Paper, {"width": 3, "ratio": 2}, "paper").ratio
    assert (ratio, type(ratio)) == (2.0, float)
    centre = from_dict(Drawing, {"paper": {"width": 3}, "centre": [1, 2]}, "drawing").centre
    assert list(map(type, centre)) == [float, float]


BASE: dict[str, Any] = {"paper": {"width": 3}}
WRONG: dict[str, tuple[Any, str]] = {
    "not an object": ([], "drawing must be an object with keys; got []"),
    "nothing": (None, "drawing must be an object with keys; got None"),
    "unknown key": (
        {**BASE, "colour": 1},
        "unknown key 'colour' in drawing; known: paper, shape, pattern, sizes, centre",
    ),
    "unknown key inside": (
        {"paper": {"width": 3, "depth": 1}},
        "unknown key 'depth' in drawing.paper; known: width, title, ratio, dpi, unit",
    ),
    "missing key": ({}, "drawing lacks the key 'paper'"),
    "missing key inside": ({"paper": {}}, "drawing.paper lacks the key 'width'"),
    "text for an object": ({"paper": "A4"}, "drawing.paper must be an object with keys; got 'A4'"),
    "bool for int": (
        {"paper": {"width": True}},
        "drawing.paper.width must be a whole number; got True",
    ),
    "float for int": (
        {"paper": {"width": 3.0}},
        "drawing.paper.width must be a whole number; got 3.0",
    ),
    "none for int": (
        {"paper": {"width": None}},
        "drawing.paper.width must be a whole number; got None",
    ),
    "text for float": (
        {"paper": {"width": 3, "ratio": "2"}},
        "drawing.paper.ratio must be a number; got '2'",
    ),
    "bool for float": (
        {"paper": {"width": 3, "ratio": False}},
        "drawing.paper.ratio must be a number; got False",
    ),
    "int for text": (
        {"paper": {"width": 3, "title": 3}},
        "drawing.paper.title must be a text; got 3",
    ),
    "text for int or none": (
        {"paper": {"width": 3, "dpi": "none"}},
        "drawing.paper.dpi must be a whole number; got 'none'",
    ),
    "not in the list": (
        {"paper": {"width": 3, "unit": "mile"}},
        "drawing.paper.unit must be one of mm, inch; got 'mile'",
    ),
    "list for one of a list": (
        {"paper": {"width": 3, "unit": ["mm"]}},
        "drawing.paper.unit must be one of mm, inch; got ['mm']",
    ),
    "no name": (
        {**BASE, "shape": {"radius": 2.0}},
        "drawing.shape needs a 'name' that says which shape it is",
    ),
    "unknown name": (
        {**BASE, "shape": {"name": "blob"}},
        "unknown shape 'blob'; known: circle, polygon",
    ),
    "another shape's key": (
        {**BASE, "shape": {"name": "circle", "corners": 3}},
        "unknown key 'corners' in drawing.shape; known: radius",
    ),
    "int for bool": (
        {**BASE, "shape": {"name": "polygon", "closed": 1}},
        "drawing.shape.closed must be true or false; got 1",
    ),
    "inside a list": (
        {**BASE, "pattern": [{"name": "circle"}, {"name": "polygon", "corners": "3"}]},
        "drawing.pattern[1].corners must be a whole number; got '3'",
    ),
    "number for shapes": (
        {**BASE, "pattern": 3},
        "drawing.pattern must be an object with keys; got 3",
    ),
    "none for shapes": (
        {**BASE, "pattern": None},
        "drawing.pattern must be an object with keys; got None",
    ),
    "number for a list": ({**BASE, "sizes": 3}, "drawing.sizes must be a list; got 3"),
    "text for a list": ({**BASE, "sizes": "12"}, "drawing.sizes must be a list; got '12'"),
    "wrong item": ({**BASE, "sizes": [1, 2.5]}, "drawing.sizes[1] must be a whole number; got 2.5"),
    "list too short": ({**BASE, "centre": [1.0]}, "drawing.centre must be a list of 2 values"),
    "list too long": ({**BASE, "centre": [1, 2, 3]}, "drawing.centre must be a list of 2 values"),
    "wrong item of a pair": ({**BASE, "centre": [1, "2"]}, "drawing.centre must be a number"),
}


@pytest.mark.parametrize(("data", "message"), WRONG.values(), ids=WRONG)
def test_errors_name_the_place(data: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        from_dict(Drawing, data, "drawing")


@pytest.mark.parametrize("name", [5, None, True, ["parity"], {}], ids=str)
@pytest.mark.parametrize("base", [Task, MixerConfig], ids=["task", "mixer"])
def test_a_name_that_is_no_text(base: type[Named], name: object) -> None:
    with pytest.raises(UserError, match=re.escape(repr(name))):
        from_dict(base, {"name": name}, "config")


def test_a_whole_number_too_large_for_a_float() -> None:
    with pytest.raises(UserError, match=r"^paper\.ratio "):
        from_dict(Paper, {"width": 3, "ratio": 10**400}, "paper")


def test_hints_are_the_options_in_order() -> None:
    assert list(hints(Paper)) == ["width", "title", "ratio", "dpi", "unit"]
    assert hints(Circle) == {"radius": float}


def test_option_carries_its_help() -> None:
    assert [f.metadata["help"] for f in fields(Circle)] == ["how far from the centre"]
    assert Circle().radius == 1.0
    with pytest.raises(FrozenInstanceError):
        Circle().radius = 2.0  # type: ignore[misc]


@dataclass(frozen=True)
class Print:
    copies: int = option(1, "how many")
    printer: str = option("any", "which one", identity=False)


def test_options_that_are_no_part_of_what_is_described() -> None:
    plain, elsewhere = Print(2), Print(2, "upstairs")
    assert plain == elsewhere
    assert hash(plain) == hash(elsewhere)
    assert changed(elsewhere) == changed(plain) == {"copies": 2}
    assert to_dict(plain) == {"copies": 2}
    assert to_dict(elsewhere) == {"copies": 2, "printer": "upstairs"}
    assert from_dict(Print, to_dict(elsewhere), "print").printer == "upstairs"


@pytest.mark.parametrize("value", [1, 1.5, 10**6])
def test_at_least(value: float) -> None:
    at_least("width", value, 1)


@pytest.mark.parametrize("value", [0, -1, 0.999, math.nan, math.inf, -math.inf])
def test_not_at_least(value: float) -> None:
    with pytest.raises(UserError, match=f"^width must be .*at least 1; got {value!r}"):
        at_least("width", value, 1)


@pytest.mark.parametrize("value", [2, 7.5, 10_000])
def test_within(value: float) -> None:
    within("width", value, 2, 10_000)


@pytest.mark.parametrize("value", [1, 10_001, math.nan, math.inf, -math.inf])
def test_not_within(value: float) -> None:
    with pytest.raises(UserError, match=rf"^width must lie in 2\.\.10,000; got {value!r}"):
        within("width", value, 2, 10_000)


def test_one_of() -> None:
    one_of("unit", "mm", iter(["mm", "inch"]))
    with pytest.raises(UserError, match=r"^unit must be one of mm, inch; got 'mile'"):
        one_of("unit", "mile", iter(["mm", "inch"]))
