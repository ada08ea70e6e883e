"""Running a program: worker threads, the tape that they walk, barriers, times of steps."""
