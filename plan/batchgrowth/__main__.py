"""The command `batchgrowth`. Its imports take a second or more, so Ctrl-C is taken care of before them."""

from batchgrowth.terminal import open_what_is_closed, stop_at_once_on_interrupt


def main() -> None:
    """Run the command line and exit."""
    open_what_is_closed()
    stop_at_once_on_interrupt()
    from batchgrowth.cli import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
