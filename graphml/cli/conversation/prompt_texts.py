"""What is before an input at a terminal, and before each further line of it."""

PROMPT, FURTHER = "> ", "  "
