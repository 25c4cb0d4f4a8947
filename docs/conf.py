"""The site: `make docs` builds it into docs/_build/html, with warnings as errors."""

import json
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE), str(HERE.parent)]

import pbr_jax  # noqa: E402

shutil.rmtree(HERE / "notebooks", ignore_errors=True)
shutil.copytree(HERE.parent / "notebooks", HERE / "notebooks", ignore=shutil.ignore_patterns(".ipynb_*"))
if os.environ.get("NOTEBOOKS", "off") == "off":
    NOTE = ":::{note}\nThis build shows code alone. `make notebooks` builds the site with outputs.\n:::"
    for path in (HERE / "notebooks").glob("*.ipynb"):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        notebook["cells"].insert(1, {"cell_type": "markdown", "id": "note", "metadata": {}, "source": NOTE})
        path.write_text(json.dumps(notebook), encoding="utf-8")

project = "pbr_jax"
author = "The pbr_jax authors"
version = release = pbr_jax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "formulas",
    "reference_pages",
    "llms",
    "tables",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
nitpicky = False  # types of other packages have no pages here
smartquotes_action = "qe"  # no dashes: outputs of notebooks name options such as --minutes

# Notebooks: `make docs` shows their code alone, `make notebooks` their outputs too.
nb_execution_mode = os.environ.get("NOTEBOOKS", "off")
nb_execution_timeout = 1800
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True
nb_render_markdown_format = "gfm"  # tables of outputs too
nb_output_stderr = "remove"  # the stages of each run, in the place of a progress bar

myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 4

# Docstrings: one backtick marks code, and what a package lists in __all__ is public.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_default_options = {"no-value": True}  # constants such as tables of names
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 72  # a longer signature has a line for each parameter

html_theme = "sphinx_book_theme"
html_title = "pbr_jax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["names.js"]
html_search_scorer = str(HERE / "_ext" / "scorer.js")
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the sidebar has the field for searches
}
if repository := os.environ.get(
    "GITHUB_REPOSITORY"
):  # each notebook then has a button that opens it in Colab
    html_theme_options |= {
        "repository_url": f"https://github.com/{repository}",
        "repository_branch": "main",
        "launch_buttons": {"colab_url": "https://colab.research.google.com"},
        "use_source_button": False,
    }
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"

# Links inside the site are checked by each build. Those to other sites are listed by `make docs-links`, and
# opened by `ONLINE=1 make docs-links`.
linkcheck_ignore = [] if os.environ.get("ONLINE") else [".*"]
linkcheck_anchors = False
