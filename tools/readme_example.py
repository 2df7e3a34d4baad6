"""Print the first Python block of README.md, to run it outside the checkout."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")

found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
assert found, "README.md has no Python block"
print(found[1])
