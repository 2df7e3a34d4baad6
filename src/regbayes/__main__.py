"""``python -m regbayes`` is the ``regbayes`` command."""

from __future__ import annotations

from regbayes.cli import main

if __name__ == "__main__":
    main()
