"""`statetrack models`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from statetrack.config import to_dict, unknown
from statetrack.terminal import make_console, print_table, write_result


def models(name: str | None = None, *, json: str | None = None) -> None:
    """List the architectures, or the options of one of them.

    Args:
        name: an architecture, or a language model, to show in full.
    """
    from statetrack.layers import MIXERS
    from statetrack.models import count_parameters
    from statetrack.models.language_models import LANGUAGE_MODELS

    console = make_console(json)
    more: dict[str, Any] = {}
    if name is None:
        columns = ["mixer", "name", "switch", "transition"]
        body = [[c.name, c.label, "no" if c.no_switch else "yes", c.about] for c in MIXERS.values()]
        heading = "Mixers; where there is the switch, --allow-neg-eigval extends [0,1] to [-1,1]"
        print_table(console, heading, columns, body)
        console.print("A hybrid is a pattern of them: --mixer delta_net,delta_net,attention\n")
        sizes = ["language model", "layers", "width", "parameters"]
        large = [
            [model_name, str(m.num_layers), str(m.hidden_size), f"{count_parameters(m):,}"]
            for model_name, m in LANGUAGE_MODELS.items()
        ]
        print_table(console, "The paper's language models (docs/presets.md)", sizes, large)
        more = {"language models": [dict(zip(sizes, row, strict=True)) for row in large]}
    elif name in LANGUAGE_MODELS:
        model = LANGUAGE_MODELS[name]
        columns = ["option", "value", "what it is"]
        texts = {f.name: f.metadata["help"] for f in fields(model)}
        values = {**to_dict(model), "mixer": ", ".join(m.label for m in model.pattern)}
        body = [[key, str(value), texts[key]] for key, value in values.items()]
        for mixer in model.pattern:
            known = {f.name: f.metadata["help"] for f in fields(mixer)}
            body += [[f"mixer.{k}", str(getattr(mixer, k)), text] for k, text in known.items()]
        heading = f"{name}: {count_parameters(model):,} parameters (docs/presets.md)"
        print_table(console, heading, columns, body)
    elif name in MIXERS:
        chosen = MIXERS[name]
        columns = ["option", "default", "what it is"]
        body = [
            [f.name, str(f.default), f.metadata["help"]]
            for f in fields(chosen)
            if not (chosen.no_switch and f.name == "allow_neg_eigval")
        ]
        print_table(console, f"{chosen.label}: {chosen.about}", columns, body)
    else:
        raise unknown("model", name, [*MIXERS, *LANGUAGE_MODELS])
    write_result(json, {"models": [dict(zip(columns, row, strict=True)) for row in body], **more})
