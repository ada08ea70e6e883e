"""Options and arguments of callers: fields that state an option once, and checks of single arguments."""
