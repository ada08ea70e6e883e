"""Options that several commands share, and what they open or check."""
