"""`python -m warmlog`: the command line, if its script is not on the path."""

from warmlog.cli import main

if __name__ == "__main__":
    main()
