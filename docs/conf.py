"""Sphinx configuration. `make docs` builds offline; every warning is an error."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import regbayes

project = "regbayes"
author = copyright = "the regbayes developers"
version = release = regbayes.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}  # stubs get the first
templates_path = ["_templates"]
exclude_patterns = ["_build", "**/sg_execution_times.rst", "sg_execution_times.rst"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

html_theme = "pydata_sphinx_theme"
# MathJax with its glyphs is one file of a package: pages load nothing from the network.
mathjax_folder = Path(next(iter(find_spec("sphinx-mathjax-offline").submodule_search_locations)))
html_static_path = [str(mathjax_folder / "static" / "mathjax" / "tex-svg.js")]
mathjax_path = "tex-svg.js"
html_title = f"regbayes {release}"
html_theme_options = {
    "show_toc_level": 2,
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "check_switcher": False,
}
html_sidebars = {"index": []}
html_show_sourcelink = False

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False

# Scripts named plot_* run when the site is built. The others need a cluster, a GPU or minutes, and have no output.
SECTIONS = ["constraints", "models", "fields", "scaling", "extending"]
sphinx_gallery_conf = {
    "subsection_order": [f"../examples/{section}" for section in SECTIONS],
    "nested_sections": False,
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    "backreferences_dir": "reference/generated/backreferences",
    "doc_module": ("regbayes",),
    "download_all_examples": False,
    "abort_on_example_error": True,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def skip_foreign_members(app, what, name, obj, skip, options):
    """Leave methods that classes inherit from other packages to the documentation of these."""
    function = obj.fget if isinstance(obj, property) else obj
    module = getattr(function, "__module__", "") or "builtins"  # methods of built-in types name no module
    is_foreign = hasattr(function, "__module__") and not module.startswith("regbayes")
    return is_foreign or hasattr(function, "__objclass__") or skip


def setup(app):
    """Register the handler above."""
    app.connect("autodoc-skip-member", skip_foreign_members)
