"""`anyscore` on the command line: the laboratory, or how to install it."""

import sys


def main() -> None:
    """Run the command line; exit with the missing package if the laboratory is not installed."""
    try:
        from anyscore.lab.cli import app
        from anyscore.lab.own_process import keep_current_folder_out

        keep_current_folder_out()
        app()
    except KeyboardInterrupt:  # during the imports; the commands have their own answer
        sys.exit(130)
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("anyscore"):
            raise
        if sys.argv[1:2] == ["info"]:
            from anyscore.lab.installed import show

            return show(sys.argv[2:])
        sys.exit(
            f"anyscore: the command line needs the package {missing.name!r}, which is not "
            "installed. Install the laboratory with:  pip install 'anyscore[lab]'"
        )


if __name__ == "__main__":
    main()
