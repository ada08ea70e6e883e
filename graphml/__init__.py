"""graphml: language models as static op graphs that one can see, diff, time and run fast."""

__version__ = "0.1.0"
