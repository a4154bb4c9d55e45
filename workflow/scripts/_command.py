"""What every command shares: the library on the path, and one clear line for a user's mistake."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from resnet_mechanisms.errors import UserError  # noqa: E402


def run(main):
    """Call `main()`; a UserError ends the command with `error: ...` and exit status 1, without a
    traceback."""
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
