"""`statetrack bench layers`: whole layers, in training and one token at a time, beside others."""
