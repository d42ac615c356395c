"""Other packages' weights under our names."""
