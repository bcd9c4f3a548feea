"""`python -m spaceform` and the command `spaceform`. If an extra is missing, they name it."""

import sys

from spaceform.cli.interrupts import one_sentence


def main() -> None:
    """Run the command line."""
    with one_sentence():
        try:
            from spaceform.cli.app import main as run
        except ModuleNotFoundError as error:
            from spaceform.foundation.messages import exit_code, sentence

            print(f"error: {sentence(error)}", file=sys.stderr)
            sys.exit(exit_code(error))
        run()


if __name__ == "__main__":
    main()
