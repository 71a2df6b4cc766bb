"""Run the command line as ``python -m growthring``."""

from growthring.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
