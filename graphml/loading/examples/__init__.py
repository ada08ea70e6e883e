"""Models that the package brings along; README.md says where they are from."""
