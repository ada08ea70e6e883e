"""The first value of a run that is wrong by itself: judged, found by halves, looked into, reproduced."""
