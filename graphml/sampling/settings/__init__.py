"""Settings of samplers: one value with all of them, and the checks and texts of its fields."""
