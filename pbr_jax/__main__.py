"""`pbr-jax`, and `python -m pbr_jax` from a checkout that is not installed."""

import sys

from pbr_jax.base import interrupts


def main() -> int:
    """Runs one command; returns its exit code. Ctrl-C ends in one line also while modules are imported."""
    with interrupts.acknowledged():
        try:
            with interrupts.deferred():
                from pbr_jax.cli import main as cli
        except KeyboardInterrupt:
            return interrupts.told()
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
