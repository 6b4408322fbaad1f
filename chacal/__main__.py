"""`python -m chacal`, for torchrun and for environments without the script."""

from chacal.commands.cli import main

if __name__ == "__main__":
    main()
