"""Run many training jobs side by side and show their progress."""
