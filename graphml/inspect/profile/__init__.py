"""Where the time of a run goes: measurements of steps, tables of them, traces and pictures."""
