"""What commands print, on a terminal and to a pipe."""
