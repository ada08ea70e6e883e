"""Who may ask, how much, and how large: checked before a handler sees a request."""
