"""Entry of the component: calls the author's class in `plugin.py` and reports exceptions.

An exception that is not an error of the contract would trap, and the host would see only `unreachable`. Here it becomes
the error `internal` with the exception and the lines that led to it.

`clawhost plugin build` puts the directory of this module first on Python's path, then the plugin's directory.
"""

import plugin
from componentize_py_types import Err
from wit_world.imports import types

try:
    from wit_world.imports import log
except ImportError:  # the plugin's world does not import it
    log = None

# The functions that the component calls, by the class that the author writes.
_METHODS = {
    "Judge": ("score_turn",),
    "GroupJudge": ("score_group",),
    "HintExtractor": ("extract",),
    "Filter": ("decide",),
    "Loss": ("evaluate",),
    "PairLoss": ("evaluate",),
    "Advantage": ("compute",),
    "Gate": ("review",),
}
# Functions whose result cannot be an error.
_WITHOUT_ERROR = {"Loss": ("describe",)}

_ERRORS = (
    types.PluginError_Denied,
    types.PluginError_Internal,
    types.PluginError_InvalidInput,
    types.PluginError_Transient,
    types.PluginError_Unsupported,
)

# Maximum characters of a report, and of one exception's message in it. The host keeps 2 KiB.
_MAX_REPORT = 1500
_MAX_MESSAGE = 500
# Frames that a report has from the start of a traceback, and from its end.
_FIRST, _LAST = 3, 9
# Maximum length of a chain of causes.
_CHAIN = 3
# Frames of this directory are not the author's.
_DIRECTORY = __file__.rpartition("/")[0] + "/"


class _Entry:
    """The wrapped functions of one of the author's classes."""

    def __init__(self, owner, methods, logged_methods):
        for name in methods:
            setattr(self, name, wrap(getattr(owner, name)))
        for name in logged_methods:
            setattr(self, name, _wrap_logging(getattr(owner, name)))


def __getattr__(name):
    """The class that the component instantiates, such as `Judge`."""
    methods = _METHODS.get(name)
    if methods is None:
        raise AttributeError(f"clawhost_entry has no {name}")
    author_class = getattr(plugin, name)
    return lambda: _Entry(author_class(), methods, _WITHOUT_ERROR.get(name, ()))


def wrap(function):
    """Wraps a function so that its exceptions become errors of the contract."""

    def call(*arguments):
        try:
            return function(*arguments)
        except BaseException as error:
            if _is_contract_error(error):
                raise
            raise Err(types.PluginError_Internal(_report(error))) from None

    return call


def _wrap_logging(function):
    """Wraps a function so that its exceptions are logged before they trap."""

    def call(*arguments):
        try:
            return function(*arguments)
        except BaseException as error:
            if log is not None:
                log.write(log.Level.ERROR, _report(error), [])
            raise

    return call


def _is_contract_error(error):
    """Whether it is an error of the contract, and not an uncaught error of a host call."""
    return (
        type(error) is Err
        and isinstance(error.value, _ERRORS)
        and isinstance(error.value.value, str)
    )


def _report(error):
    """Describes the exception, its causes and where they were raised, in one line as the host reports it.

    The source text is not available: the running component has no files.
    """
    parts = []
    while error is not None and len(parts) < _CHAIN:
        parts.append(_describe(error))
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context
    return "; caused by ".join(parts)[:_MAX_REPORT]


def _describe(error):
    try:
        message = str(error)
    except Exception:
        message = ""
    name = type(error).__name__
    text = f"{name}: {message[:_MAX_MESSAGE]}" if message else name
    locations = _locations(error.__traceback__)
    if not locations:
        return text
    if len(locations) > _FIRST + _LAST:
        skipped = len(locations) - _FIRST - _LAST
        locations[_FIRST:-_LAST] = [f"({skipped} more)"]
    return f"{text} (most recent call last: {', '.join(locations)})"


def _locations(traceback):
    """File, line and function of each frame outside this directory."""
    locations = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(_DIRECTORY):
            locations.append(f"{_relative_path(code.co_filename)}:{traceback.tb_lineno} in {code.co_name}")
        traceback = traceback.tb_next
    return locations


def _relative_path(path):
    """The path within its directory: each directory of Python's path has a number as its name."""
    parts = path.split("/", 2)
    return parts[2] if len(parts) == 3 and parts[1].isdigit() else path
