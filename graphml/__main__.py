"""`python -m graphml` is the same as the command `graphml`."""

from graphml.cli.main import main

if __name__ == "__main__":
    main()
