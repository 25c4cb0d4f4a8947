"""`python -m pbr_jax` is `pbr-jax`, also from a checkout that is not installed."""

import sys

from pbr_jax.cli import main

if __name__ == "__main__":
    sys.exit(main())
