"""Other people's models on our kernels; nothing here is a dependency."""
