"""Other packages' weights as ours: functions from state dict to state dict."""
