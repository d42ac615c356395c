"""Our recurrences against those of other packages: `statetrack bench ops`."""
