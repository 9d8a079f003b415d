"""The documentation site: ``make docs``.

Pages are run by ``tests/test_docs.py`` and notebooks by ``tests/test_notebooks.py``; nothing is run here.
"""

import inspect
import shutil
from importlib import resources
from pathlib import Path

# SciPy asks for the class of torch's tensors, which a mock does not have: it is loaded before torch is mocked.
import scipy.stats  # noqa: F401

import pmm_mcmc
from pmm_mcmc.steps.pymc_step import LangevinStep

# Sphinx sees only what lies below this folder.
HERE = Path(__file__).parent
shutil.rmtree(HERE / "notebooks", ignore_errors=True)
# Names that moved would be warned of.
shutil.rmtree(HERE / "generated", ignore_errors=True)
(HERE / "notebooks").mkdir()
for notebook in (HERE.parent / "examples").glob("*.ipynb"):
    shutil.copy(notebook, HERE / "notebooks")

project = "pmm_mcmc"
author = copyright = "The pmm_mcmc developers"
release = version = pmm_mcmc.__version__
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "numpydoc",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_merge_streams = True

# A name in one pair of backticks is a link, and one that leads nowhere is a warning, which fails the build.
nitpicky = True
default_role = "py:obj"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
# The scheduler for diffusers is documented where neither is installed.
autodoc_mock_imports = ["torch", "diffusers"]
numpydoc_show_class_members = False

toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = f"pmm_mcmc {version}"
# MathJax is part of the site, so that formulas need no network. It draws them as SVG: one file, and no fonts.
# The package is django-static-mathjax, which needs no Django.
mathjax_path = "tex-svg.js"
html_static_path = ["_static", str(resources.files("mathjax") / "static" / "mathjax" / "es5" / mathjax_path)]
html_extra_path = ["_root"]  # llms.txt
html_css_files = ["site.css"]
html_show_sourcelink = False
# All pages are in the bar on top: without a second list beside it lines of code are shown whole at 1280 pixels.
html_sidebars = {"**": []}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navbar_persistent": [],
    "navbar_end": ["search-button", "theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def point_to_copies(app, name, source):
    """Let links between pages and notebooks lead to and from the copies."""
    source[0] = source[0].replace("](../examples/", "](notebooks/").replace("](../docs/", "](../")


def own_signature(app, kind, name, thing, options, signature, returns):
    """Give step methods the signature of their own that PyMC's ``__new__`` hides."""
    if kind != "class" or not issubclass(thing, LangevinStep):
        return signature, returns
    bare = [p.replace(annotation=p.empty) for p in inspect.signature(thing).parameters.values()]
    return str(inspect.Signature(bare)), returns


def skip_plain_fields(app, kind, name, thing, skip, options):
    """Leave out fields of named tuples, of which Python says nothing but their number."""
    return True if (inspect.getdoc(thing) or "").startswith("Alias for field number") else None


def setup(app):
    """Register the hooks."""
    app.connect("source-read", point_to_copies)
    app.connect("autodoc-process-signature", own_signature)
    app.connect("autodoc-skip-member", skip_plain_fields)
