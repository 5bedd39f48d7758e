"""Log lines into the host's log, where they carry the plugin's name and the call.

The host bounds their number and length.
"""

from wit_world.imports import log


def debug(message: str, **fields: object) -> None:
    """Writes a line at level `debug`, with named values."""
    _write(log.Level.DEBUG, message, fields)


def info(message: str, **fields: object) -> None:
    """Writes a line at level `info`, with named values."""
    _write(log.Level.INFO, message, fields)


def warn(message: str, **fields: object) -> None:
    """Writes a line at level `warn`, with named values."""
    _write(log.Level.WARN, message, fields)


def error(message: str, **fields: object) -> None:
    """Writes a line at level `error`, with named values."""
    _write(log.Level.ERROR, message, fields)


def _write(level: log.Level, message: str, fields: dict[str, object]) -> None:
    log.write(level, message, [(name, str(value)) for name, value in fields.items()])
