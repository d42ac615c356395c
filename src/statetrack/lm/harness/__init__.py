"""lm-evaluation-harness: a pack of state-tracking tasks, the paper's sets, and their table."""
