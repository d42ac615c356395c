"""Other packages' models as ours: their configuration and their weights, by plain renaming."""
