"""The command line, one file per command. Knows arguments, terminals and exit codes; does no work itself."""
