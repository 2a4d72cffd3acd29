"""``python -m whyformer`` is the command line."""

from whyformer.cli.main import main

if __name__ == "__main__":
    main()
