"""Models that draft for another one from its hidden rows; one module each, `Config` and `ahead`."""
