"""The command line, ``whyformer`` and ``python -m whyformer``: Ctrl-C is understood before anything is imported."""

import sys


def main() -> None:
    """Entry point: a Ctrl-C while libraries are loading ends it without a traceback, too."""
    try:
        from whyformer.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
