"""The page of the benchmark of language models."""

from __future__ import annotations

from benchmarks.language_models import markdown


def test_the_verdict_names_the_goals_that_are_missed() -> None:
    training = [
        ["DeltaNet, training", "ours", "7.2", "3,755", "74%", "", "at least 75% of sgemm", "no"],
        ["DeltaNet, training", "theirs", "7.3", "1,819", "36%", "2.06x", "at least 1.8x", "yes"],
    ]
    generation = [["generation, width 128", "1,642", "366", "4.49x", "at least 3x", "yes"]]
    positions = [["delta_net, positions", "0.953", "0.95 to 1.05", "yes"]]
    page = markdown(training, generation, positions, "python -m benchmarks language-models")
    missed = "DeltaNet, training (74%; goal: at least 75% of sgemm)"
    assert page.splitlines()[2] == f"3 of 4 goals are met; not met: {missed}."
    assert page.count("| goal | met |") == 3
