"""Where componentize-py looks for the resource that an environment exports: a module of this name.

The author writes `Session` in `plugin.py`, as every other kind of plugin is written there.
"""

from plugin import Session

__all__ = ["Session"]
