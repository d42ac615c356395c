"""The page of `statetrack lm audit`: tables, heat maps by layer and head, histograms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from statetrack.diagnosis.spectrum import PRECISIONS, Floats
from statetrack.lm.audit import BINS, Audit, LayerAudit
from statetrack.lm.transition_kinds import KEEPS, KINDS, REFLECTS, ROTATES
from statetrack.report.document import Cell, Document, Figure, HeatMap, Series, Table
from statetrack.sweep.environment import environment

LISTED_TOKENS = 15
LISTED_HEADS = 64  # rows of the table by head; more are in document.json only
HEAT_COLUMNS = 64
LINES = 6  # layers with a line of their own in the histogram
COARSE = 10  # bins of the counts in one bin of the figure

DEFINITIONS = (
    f"Reflect: a real eigenvalue below {REFLECTS}. Rotate: an eigenvalue with an imaginary part "
    f"above {ROTATES}, and no reflection. Keep: neither, and every modulus above {KEEPS}. Forget: "
    "the rest; some direction of the state decays. Shares are over tokens and over the components "
    "of the state: the entries of a diagonal state, or the whole state of a head."
)
MODULI = "Moduli are those of the eigenvalue farthest from 1, by which a token changes the state."
SURVIVAL = (
    "A sign survives while the product of the later transitions, applied to the vector that a "
    "token wrote, has a norm of at least half a unit in the last place of 1: "
    + ", ".join(f"2^{np.log2(resolution):.0f} in {name}" for name, resolution in PRECISIONS.items())
    + "; the median over tokens."
)


def audit_document(audits: Sequence[Audit], command: str, device: str = "cpu") -> Document:
    """Make the document of the audits of one model.

    Args:
        audits: of the model, one for each data set.
        command: the command that made them.
        device: where the model computed.
    """
    first = audits[0]
    tables: list[Table] = []
    figures: list[Figure] = []
    for found in audits:
        tables += [_by_layer(found), *_by_head(found), *_by_token(found)]
        figures += [_heat_maps(found), _histogram(found)]
    return Document(
        "audit",
        f"Transitions of {first.checkpoint}",
        [_summary(found) for found in audits],
        tables,
        figures,
        facts={
            "command": command,
            "tokens": sum(found.tokens for found in audits),
            "made with": environment(device),
        },
    )


def _summary(found: Audit) -> str:
    total = found.total()
    parts = [f"{100 * total[kind]:.1f} % {kind}" for kind in KINDS]
    shares = np.array([layer.shares()[0].max() for layer in found.layers])
    most = int(shares.argmax())
    layer = found.layers[most]
    head = int(layer.shares()[0].argmax())
    where = f" Most reflect in layer {layer.number}, head {head}: {100 * shares[most]:.1f} %."
    text = f"On {found.tokens:,} tokens of {found.data}: of the transitions {', '.join(parts)}."
    return text + (where if shares[most] > 0 else " None reflects.")


def _lengths(found: Audit, layer: LayerAudit, head: int | None = None) -> list[str]:
    """Format the number of tokens for which a sign survives, for each number type."""
    lengths = [layer.survives(name, head) for name in PRECISIONS]
    return [f"{found.length // 2:,} or more" if n is None else f"{n:,}" for n in lengths]


SURVIVES = [f"sign survives in {name}" for name in PRECISIONS]


def _by_layer(found: Audit) -> Table:
    rows: list[list[Cell]] = []
    for layer in found.layers:
        shares = layer.total()
        moduli = [layer.modulus(q) for q in (0.1, 0.5, 0.9)]
        cells: list[Cell] = [*(shares[kind] for kind in KINDS), *moduli, *_lengths(found, layer)]
        rows.append([layer.number, layer.title, layer.heads, *cells])
    columns = [
        "layer", "kind", "heads", *KINDS, "modulus, 10 %", "median", "90 %", *SURVIVES,
    ]  # fmt: skip
    note = f"{DEFINITIONS} {MODULI} {SURVIVAL}"
    return Table(f"By layer on {found.data}", columns, rows, note, name=f"layers-{found.data}")


def _by_head(found: Audit) -> list[Table]:
    rows: list[list[Cell]] = [
        [layer.number, head, *layer.shares()[:, head].tolist(), *_lengths(found, layer, head)]
        for layer in found.layers
        for head in range(layer.heads if layer.heads <= LISTED_HEADS else 0)
    ]
    if not 0 < len(rows) <= LISTED_HEADS:
        return []
    columns = ["layer", "head", *KINDS, *SURVIVES]
    return [Table(f"By head on {found.data}", columns, rows, name=f"heads-{found.data}")]


def _by_token(found: Audit) -> list[Table]:
    rows: list[list[Cell]] = [
        [repr(token.text), token.occurrences, token.share]
        for token in found.reflecting[:LISTED_TOKENS]
    ]
    if not rows:
        return []
    note = "The share of components, over all layers and heads, that reflect at the token."
    title = f"Tokens that reflect most on {found.data}"
    columns = ["token", "occurrences", "reflect"]
    return [Table(title, columns, rows, note, name=f"tokens-{found.data}")]


def _heat_maps(found: Audit) -> Figure:
    widest = max(layer.heads for layer in found.layers)
    grouped = widest > HEAT_COLUMNS
    columns = HEAT_COLUMNS if grouped else widest
    rows = [str(layer.number) for layer in found.layers]
    panels = []
    for i, kind in enumerate(KINDS):
        shares = [layer.shares()[i] for layer in found.layers]
        if not any(share.any() for share in shares):
            continue
        values = [_sorted_groups(s, columns) if grouped else _padded(s, columns) for s in shares]
        names = [str(c) for c in range(columns)]
        heat = HeatMap(rows, names, values, "share of transitions")
        panels.append(Figure(kind, "group of heads" if grouped else "head", "layer", (), heat=heat))
    note = DEFINITIONS
    if grouped:
        note += (
            f" The heads of a layer are sorted by their share, in {columns} groups of equal size."
        )
    title = f"What transitions do on {found.data}, by layer and head"
    return Figure(title, "head", "layer", (), note=note, name=f"kinds-{found.data}", panels=panels)


def _padded(shares: Floats, columns: int) -> list[float | None]:
    return [*shares.tolist(), *[None] * (columns - len(shares))]


def _sorted_groups(shares: Floats, columns: int) -> list[float | None]:
    """Return the means of groups of the sorted shares; with fewer heads than groups, the shares."""
    ordered = np.sort(shares)[::-1]
    if len(ordered) < columns:
        return _padded(ordered, columns)
    return [float(group.mean()) for group in np.array_split(ordered, columns)]


def _histogram(found: Audit) -> Figure:
    """Draw the share of components by signed modulus, a line for each layer."""
    edges = np.linspace(-1, 1, BINS // COARSE + 1)
    x = ((edges[1:] + edges[:-1]) / 2).tolist()
    counts = np.stack([layer.moduli.reshape(-1, COARSE).sum(1) for layer in found.layers])
    shares = counts / counts.sum(1, keepdims=True)
    few = len(found.layers) <= LINES
    series = [
        Series(
            f"layer {layer.number}",
            x,
            share.tolist(),
            group="" if few else "layer",
            faint=not few,
        )
        for layer, share in zip(found.layers, shares, strict=True)
    ]
    if len(series) > 1:
        series.append(Series("all layers", x, shares.mean(0).tolist(), dashed=True))
    note = f"{MODULI} The sign is that of its real part; bins of {2 / len(x):.2f}."
    title = f"Eigenvalues farthest from 1 on {found.data}"
    return Figure(
        title, "modulus with sign", "share", series, note=note, name=f"moduli-{found.data}"
    )
