"""What to train: presets of single runs, the demo, the paper's language models."""
