"""The site: `make docs` builds it into docs/_build/html, with warnings as errors."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE), str(HERE.parent)]

import pbr_jax  # noqa: E402

project = "pbr_jax"
author = "The pbr_jax authors"
version = release = pbr_jax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "reference_pages",
    "tables",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
nitpicky = False  # types of other packages have no pages here

# Markdown. Notebooks are run by the tests, not by the build.
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "off"

# Docstrings: one backtick marks code, and what a package lists in __all__ is public.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

html_theme = "sphinx_book_theme"
html_title = "pbr_jax"
html_static_path = ["_static"]
html_css_files = ["pictures.css"]
html_js_files = ["names.js"]
html_theme_options = {"show_navbar_depth": 1, "show_toc_level": 2, "home_page_in_toc": True}
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"

# Links inside the site are checked by each build. Those to other sites are listed by `make docs-links`, and
# opened by `ONLINE=1 make docs-links`.
linkcheck_ignore = [] if os.environ.get("ONLINE") else [".*"]
linkcheck_anchors = False
