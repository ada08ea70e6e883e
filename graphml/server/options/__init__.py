"""How a server runs: its options, their flags, the keys and the templates that they name."""
